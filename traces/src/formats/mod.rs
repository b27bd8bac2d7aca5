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
