//! Modules: procedures that clients write, as WebAssembly.
//!
//! A login stores a module at each server under a name, by messages CODE. A procedure [`module`](super::procedures::Module) runs it by
//! that name.

use crate::messages::{Fields, Malformed};

/// Bytes of a module at most.
pub const MODULE_MAX: usize = 256 << 10;
/// Modules of a login at most.
pub const MODULES_MAX: usize = 16;
/// Bytes of a module's name at most.
pub const NAME_MAX: usize = 64;
/// Bytes of a module's state at most.
pub const STATE_MAX: usize = 128;

/// Returns whether a module may have this name.
pub fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
}

/// A module that a server has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stored<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its bytes.
    pub length: u32,
}

/// Modules of a list, as they lie in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Modules<'a>(&'a [u8]);

impl<'a> Modules<'a> {
    /// Writes these one after the other. There are at most [`MODULES_MAX`], whose names are within their bounds.
    pub fn write<'s>(modules: impl IntoIterator<Item = Stored<'s>>, into: &'a mut Vec<u8>) -> Self {
        for Stored { name, length } in modules {
            into.extend_from_slice(&length.to_le_bytes());
            into.push(name.len() as u8);
            into.extend_from_slice(name);
        }
        Self(into)
    }

    /// Returns them in order.
    pub fn iter(self) -> impl Iterator<Item = Stored<'a>> {
        let mut fields = Fields(self.0);
        std::iter::from_fn(move || one(&mut fields).ok())
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }

    pub(super) fn take(fields: &mut Fields<'a>, count: usize) -> Result<Self, Malformed> {
        if count > MODULES_MAX {
            return Err(Malformed("too many modules"));
        }
        let all = fields.0;
        (0..count).try_for_each(|_| one(fields).map(drop))?;
        Ok(Self(&all[..all.len() - fields.0.len()]))
    }
}

/// Reads the name of a module.
pub(super) fn name<'a>(fields: &mut Fields<'a>) -> Result<&'a [u8], Malformed> {
    let length = usize::from(fields.u8()?);
    let name = fields.take(length)?;
    if is_name(name) { Ok(name) } else { Err(Malformed("a module's name of no bytes, or of too many")) }
}

fn one<'a>(fields: &mut Fields<'a>) -> Result<Stored<'a>, Malformed> {
    let length = fields.u32()?;
    Ok(Stored { length, name: name(fields)? })
}
