//! The binary protocol: a header of 24 bytes, extras, key, value.

/// Bytes of a header.
pub const HEADER: usize = 24;
/// The first byte of a request.
pub const REQUEST: u8 = 0x80;
/// The first byte of an answer.
pub const RESPONSE: u8 = 0x81;

/// Answers' status codes.
#[expect(missing_docs, reason = "the names are the protocol's")]
pub mod status {
    pub const OK: u16 = 0;
    pub const KEY_NOT_FOUND: u16 = 1;
    pub const KEY_EXISTS: u16 = 2;
    pub const TOO_LARGE: u16 = 3;
    pub const INVALID: u16 = 4;
    pub const NOT_STORED: u16 = 5;
    pub const NON_NUMERIC: u16 = 6;
    pub const AUTH_ERROR: u16 = 0x20;
    pub const AUTH_CONTINUE: u16 = 0x21;
    pub const UNKNOWN_COMMAND: u16 = 0x81;
    pub const OUT_OF_MEMORY: u16 = 0x82;
    pub const NOT_SUPPORTED: u16 = 0x83;
}

/// Returns the text that goes with a status.
pub fn text(code: u16) -> &'static str {
    match code {
        status::KEY_NOT_FOUND => "Not found",
        status::KEY_EXISTS => "Data exists for key.",
        status::TOO_LARGE => "Too large.",
        status::INVALID => "Invalid arguments",
        status::NOT_STORED => "Not stored.",
        status::NON_NUMERIC => "Non-numeric server-side value for incr or decr",
        status::AUTH_ERROR => "Auth failure.",
        status::UNKNOWN_COMMAND => "Unknown command",
        status::OUT_OF_MEMORY => "Out of memory",
        status::NOT_SUPPORTED => "Not supported.",
        _ => "",
    }
}

/// The operation; `quiet` tells, for those that have a quiet form, whether this is it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the protocol's")]
pub enum Op {
    Get { with_key: bool },
    Set,
    Add,
    Replace,
    Delete,
    Increment,
    Decrement,
    Quit,
    Flush,
    Noop,
    Version,
    Append,
    Prepend,
    Stat,
    Verbosity,
    Touch,
    GetTouch { with_key: bool },
    SaslMechanisms,
    SaslAuth,
    SaslStep,
    Unknown,
}

/// A header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The code as sent; answers carry it.
    pub code: u8,
    /// The operation.
    pub op: Op,
    /// Whether it is a quiet one.
    pub quiet: bool,
    /// Bytes of the key.
    pub key: usize,
    /// Bytes of the extras.
    pub extras: usize,
    /// Bytes of the value.
    pub value: usize,
    /// Goes back with the answer.
    pub opaque: u32,
    /// A version to compare with, or 0.
    pub cas: u64,
}

fn op(code: u8) -> (Op, bool) {
    match code {
        0x00 => (Op::Get { with_key: false }, false),
        0x09 => (Op::Get { with_key: false }, true),
        0x0c => (Op::Get { with_key: true }, false),
        0x0d => (Op::Get { with_key: true }, true),
        0x01 => (Op::Set, false),
        0x11 => (Op::Set, true),
        0x02 => (Op::Add, false),
        0x12 => (Op::Add, true),
        0x03 => (Op::Replace, false),
        0x13 => (Op::Replace, true),
        0x04 => (Op::Delete, false),
        0x14 => (Op::Delete, true),
        0x05 => (Op::Increment, false),
        0x15 => (Op::Increment, true),
        0x06 => (Op::Decrement, false),
        0x16 => (Op::Decrement, true),
        0x07 => (Op::Quit, false),
        0x17 => (Op::Quit, true),
        0x08 => (Op::Flush, false),
        0x18 => (Op::Flush, true),
        0x0a => (Op::Noop, false),
        0x0b => (Op::Version, false),
        0x0e => (Op::Append, false),
        0x19 => (Op::Append, true),
        0x0f => (Op::Prepend, false),
        0x1a => (Op::Prepend, true),
        0x10 => (Op::Stat, false),
        0x1b => (Op::Verbosity, false),
        0x1c => (Op::Touch, false),
        0x1d => (Op::GetTouch { with_key: false }, false),
        0x1e => (Op::GetTouch { with_key: false }, true),
        0x23 => (Op::GetTouch { with_key: true }, false),
        0x24 => (Op::GetTouch { with_key: true }, true),
        0x20 => (Op::SaslMechanisms, false),
        0x21 => (Op::SaslAuth, false),
        0x22 => (Op::SaslStep, false),
        _ => (Op::Unknown, false),
    }
}

/// The fault of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not start as a request does, or its lengths cannot be: nothing after it can be understood.
    Noise,
}

/// Reads a header.
///
/// # Errors
///
/// Nothing after it can be understood.
pub fn parse(bytes: &[u8; HEADER]) -> Result<Header, Fault> {
    let key = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    let extras = usize::from(bytes[4]);
    let body = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
    if bytes[0] != REQUEST || key + extras > body {
        return Err(Fault::Noise);
    }
    let (op, quiet) = op(bytes[1]);
    let mut cas = [0; 8];
    cas.copy_from_slice(&bytes[16..]);
    Ok(Header {
        code: bytes[1],
        op,
        quiet,
        key,
        extras,
        value: body - key - extras,
        opaque: u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]),
        cas: u64::from_be_bytes(cas),
    })
}

impl Header {
    /// Returns whether the lengths are those of this command.
    pub fn is_well_formed(&self) -> bool {
        let bare = self.extras == 0 && self.key == 0 && self.value == 0;
        match self.op {
            Op::Get { .. } | Op::Delete => self.extras == 0 && self.key > 0 && self.value == 0,
            Op::Set | Op::Add | Op::Replace => self.extras == 8 && self.key > 0,
            Op::Append | Op::Prepend => self.extras == 0 && self.key > 0,
            Op::Increment | Op::Decrement => self.extras == 20 && self.key > 0 && self.value == 0,
            Op::Touch | Op::GetTouch { .. } => self.extras == 4 && self.key > 0 && self.value == 0,
            Op::Flush => (self.extras == 0 || self.extras == 4) && self.key == 0 && self.value == 0,
            Op::Quit | Op::Noop | Op::Version | Op::SaslMechanisms => bare,
            Op::SaslAuth | Op::SaslStep => self.extras == 0 && self.key > 0,
            Op::Stat => self.extras == 0 && self.value == 0,
            Op::Verbosity => self.extras == 4 && self.key == 0 && self.value == 0,
            Op::Unknown => true,
        }
    }

    /// An answer's header, appended.
    pub fn answer(&self, out: &mut Vec<u8>, status: u16, (extras, key, value): (usize, usize, usize), cas: u64) {
        out.extend_from_slice(&[RESPONSE, self.code]);
        out.extend_from_slice(&(key as u16).to_be_bytes());
        out.extend_from_slice(&[extras as u8, 0]);
        out.extend_from_slice(&status.to_be_bytes());
        out.extend_from_slice(&((extras + key + value) as u32).to_be_bytes());
        out.extend_from_slice(&self.opaque.to_be_bytes());
        out.extend_from_slice(&cas.to_be_bytes());
    }
}
