//! Compressed bytes, known by their first bytes and not by a name.

use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::Stream;
use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};

/// Memory that an `.xz` may ask for: the largest of xz's own presets needs 65 MiB.
const XZ_MEMORY: u64 = 256 << 20;

const BUFFER: usize = 128 << 10;

/// Plain bytes.
pub(crate) enum Plain {
    /// As they are.
    Stored(Box<dyn Read + Send>),
    /// Decompressed as they are read.
    Decompressed(Box<dyn Read + Send>),
}

/// Returns the plain bytes: decompressed where they begin like something compressed, else as they are.
///
/// A second layer is not taken off. Memory is bounded by the decoders: 128 MiB for zstd, 256 MiB for xz.
pub(crate) fn plain(mut inner: Box<dyn Read + Send>) -> io::Result<Plain> {
    let mut head = Vec::with_capacity(6);
    inner.by_ref().take(6).read_to_end(&mut head)?;
    let kind = Kind::of(&head);
    let whole: Whole = BufReader::with_capacity(BUFFER, Box::new(Cursor::new(head).chain(inner)));
    Ok(match kind {
        None => Plain::Stored(Box::new(whole)),
        Some(kind) => {
            let decoder = Some(kind.decoder(whole)?);
            Plain::Decompressed(Box::new(Streams { kind, decoder, streams: 0, has_read: false }))
        }
    })
}

/// The bytes as stored.
type Whole = BufReader<Box<dyn Read + Send>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Gzip,
    Zstd,
    Xz,
}

impl Kind {
    /// `None` for plain bytes.
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            // A frame to be skipped, which tools put first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        }
    }

    /// Returns whether a stream may begin with this byte.
    fn may_begin_with(self, byte: u8) -> bool {
        match self {
            Self::Gzip => byte == 0x1f,
            Self::Zstd => matches!(byte, 0x28 | 0x50..=0x5f),
            Self::Xz => byte == 0xfd,
        }
    }

    /// Returns a decoder of one stream.
    fn decoder(self, whole: Whole) -> io::Result<Decoder> {
        Ok(match self {
            Self::Gzip => Decoder::Gzip(Box::new(GzDecoder::new(whole))),
            Self::Zstd => Decoder::Zstd(zstd::Decoder::with_buffer(whole)?.single_frame()),
            Self::Xz => Decoder::Xz(XzDecoder::new_stream(whole, Stream::new_stream_decoder(XZ_MEMORY, 0)?)),
        })
    }
}

/// Decodes one stream and reads no byte after it.
enum Decoder {
    Gzip(Box<GzDecoder<Whole>>),
    Zstd(zstd::Decoder<'static, Whole>),
    Xz(XzDecoder<Whole>),
}

impl Decoder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
            Self::Xz(decoder) => decoder.read(buffer),
        }
    }

    fn into_inner(self) -> Whole {
        match self {
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.finish(),
            Self::Xz(decoder) => decoder.into_inner(),
        }
    }
}

/// Streams of one kind, one after the other, as if they were one. Zeros after the last are padding.
struct Streams {
    kind: Kind,
    /// `None` at the end.
    decoder: Option<Decoder>,
    /// Streams that have ended.
    streams: u64,
    /// Whether this stream has yielded bytes.
    has_read: bool,
}

/// Says that something follows the last compressed stream.
#[derive(Debug)]
pub(crate) struct TrailingGarbage(Kind);

impl fmt::Display for TrailingGarbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trailing garbage: what follows the end of the {0} stream is no {0}", self.0.name())
    }
}

impl std::error::Error for TrailingGarbage {}

impl Streams {
    /// Begins with the next stream, unless there is none.
    fn go_on(&mut self, mut whole: Whole) -> io::Result<()> {
        self.streams += 1;
        self.has_read = false;
        loop {
            let (zeros, next) = {
                let seen = whole.fill_buf()?;
                let zeros = seen.iter().take_while(|&&byte| byte == 0).count();
                (zeros, seen.get(zeros).copied())
            };
            match next {
                Some(byte) if self.kind.may_begin_with(byte) => {
                    whole.consume(zeros);
                    self.decoder = Some(self.kind.decoder(whole)?);
                    return Ok(());
                }
                Some(_) => return Err(self.garbage()),
                None if zeros == 0 => return Ok(()),
                None => whole.consume(zeros),
            }
        }
    }

    fn garbage(&self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, TrailingGarbage(self.kind))
    }
}

impl Read for Streams {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(decoder) = &mut self.decoder else { return Ok(0) };
            match decoder.read(buffer) {
                Ok(0) => {}
                Ok(read) => {
                    self.has_read = true;
                    return Ok(read);
                }
                // The head of a later stream is wrong: it is none. One that is cut short is one.
                Err(error)
                    if self.streams > 0
                        && !self.has_read
                        && !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::Interrupted) =>
                {
                    return Err(self.garbage());
                }
                Err(error) => return Err(error),
            }
            if let Some(decoder) = self.decoder.take() {
                self.go_on(decoder.into_inner())?;
            }
        }
    }
}
