//! One file for each format: what a line or a record of it says.

pub(crate) mod address;
pub(crate) mod arc;
pub(crate) mod blkparse;
pub(crate) mod csv;
pub(crate) mod httpd;
pub(crate) mod keys;
pub(crate) mod lirs;
pub(crate) mod mambo;
pub(crate) mod mooncake;
pub(crate) mod mpi;
pub(crate) mod msr;
pub(crate) mod objects;
pub(crate) mod oraclegeneral;
pub(crate) mod pages;
pub(crate) mod spc;
pub(crate) mod srt;

use crate::parser::Parser;
use crate::{Format, ReadOptions};

/// Returns the parser of a format. `name` is the file's, for what only it tells.
pub(crate) fn of(format: Format, options: &ReadOptions, name: &str) -> Option<Box<dyn Parser>> {
    Some(match format {
        Format::Pages => Box::new(pages::Pages::default()),
        Format::Csv => Box::new(csv::Csv::new(options)),
        Format::Registrations => return None,
        Format::Mpi => Box::new(mpi::Mpi),
        Format::Arc => Box::new(arc::Arc::new(options, name)),
        Format::Lirs => Box::new(lirs::Lirs::new(options)),
        Format::Spc => Box::new(spc::Spc::default()),
        Format::Msr => Box::new(msr::Msr::default()),
        Format::Blkparse => Box::new(blkparse::Blkparse::default()),
        Format::Srt => Box::new(srt::Srt::new(options)),
        Format::Httpd => Box::new(httpd::Httpd::new(options)),
        Format::Mambo => Box::new(mambo::Mambo::default()),
        Format::OracleGeneral => Box::new(oraclegeneral::OracleGeneral::default()),
        Format::Objects => Box::new(objects::Objects::new(options)),
        Format::U32 => Box::new(keys::Keys::new(4, options)),
        Format::U64 => Box::new(keys::Keys::new(8, options)),
        Format::Address => Box::new(address::Address::new(options)),
        Format::Mooncake => Box::new(mooncake::Mooncake::new(options)),
    })
}
