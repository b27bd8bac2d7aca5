//! The formats by name.

use crate::TraceError;
use std::fmt;
use std::str::FromStr;

/// A layout of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Format {
    /// `start_page,pages`.
    Pages,
    /// Any CSV.
    Csv,
    /// This project's own recording.
    Registrations,
    /// Buffers of an MPI run.
    Mpi,
    /// `start count ignored seq`, of the authors of ARC.
    Arc,
    /// A block number a line, of the authors of LIRS.
    Lirs,
    /// `ASU,LBA,size,opcode,time`.
    Spc,
    /// Microsoft Research Cambridge.
    Msr,
    /// The output of `blkparse`.
    Blkparse,
    /// HP's binary disk traces.
    Srt,
    /// Logs of web servers.
    Httpd,
    /// University of Maryland's application traces.
    Mambo,
    /// libCacheSim's binary records.
    OracleGeneral,
    /// `time id bytes`.
    Objects,
    /// Key-value cache blocks of language models.
    Mooncake,
    /// Raw keys of 4 bytes.
    U32,
    /// Raw keys of 8 bytes.
    U64,
    /// Memory accesses of a program, as Caffeine's simulator reads them.
    Address,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Pages,
        Self::Csv,
        Self::Registrations,
        Self::Mpi,
        Self::Arc,
        Self::Lirs,
        Self::Spc,
        Self::Msr,
        Self::Blkparse,
        Self::Srt,
        Self::Httpd,
        Self::Mambo,
        Self::OracleGeneral,
        Self::Objects,
        Self::Mooncake,
        Self::U32,
        Self::U64,
        Self::Address,
    ];

    /// Returns whether its objects have no addresses, or are numbered in the order of their first request.
    pub const fn is_laid_out(self) -> bool {
        matches!(self, Self::Httpd | Self::Mambo | Self::OracleGeneral | Self::Objects | Self::Mooncake)
    }

    /// Returns the name, as `--format` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pages => "pages",
            Self::Csv => "csv",
            Self::Registrations => "registrations",
            Self::Mpi => "mpi",
            Self::Arc => "arc",
            Self::Lirs => "lirs",
            Self::Spc => "spc",
            Self::Msr => "msr",
            Self::Blkparse => "blkparse",
            Self::Srt => "srt",
            Self::Httpd => "httpd",
            Self::Mambo => "mambo",
            Self::OracleGeneral => "oraclegeneral",
            Self::Objects => "objects",
            Self::Mooncake => "mooncake",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::Address => "address",
        }
    }

    /// One line on what it looks like.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Pages => "CSV with the header `start_page,pages`",
            Self::Csv => {
                "any CSV: columns by header, or by --columns time=1,addr=2,len=3,op=4; the unit of times by the column's \
                 name (time_us), by --time-unit, or by the magnitude of the first one"
            }
            Self::Registrations => "acquires, releases and invalidations, as recorded by mrrc",
            Self::Mpi => "t_us,op,peer,addr_hex,bytes without a header: buffers of an MPI rank",
            Self::Arc => "`start count ignored seq`, blocks of --block bytes",
            Self::Lirs => "one block number a line, `*` marks a phase, blocks of --block bytes",
            Self::Spc => "ASU,LBA,size,opcode,time: LBA in 512-byte units, size in bytes",
            Self::Msr => "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime",
            Self::Blkparse => "default output of blkparse; what is queued (action Q) is read",
            Self::Srt => "HP's binary disk traces (Cello), blocks of --block bytes",
            Self::Httpd => "web server log, NCSA common, combined, or tab-separated: a request is the whole file",
            Self::Mambo => "UMD application I/O traces: header, files, records; reads are kept",
            Self::OracleGeneral => "24-byte records u32 time, u64 id, u32 size, i64 next access, little endian",
            Self::Objects => "`time id bytes`, the unit of times as in csv",
            Self::Mooncake => "JSON lines with `hash_ids`, a block of --block bytes each",
            Self::U32 => "raw keys of 4 bytes in any byte order, an object of --block bytes each; only by --format",
            Self::U64 => "raw keys of 8 bytes in any byte order, an object of --block bytes each; only by --format",
            Self::Address => "`s 0x1fffff50 1`: store or load, address, instructions (Caffeine's address traces)",
        }
    }

    /// Returns whether the unit of its times may be given.
    pub(crate) const fn has_free_times(self) -> bool {
        matches!(self, Self::Csv | Self::Objects)
    }

    /// Returns whether objects are laid out by their largest size, for which the source is read twice.
    pub(crate) const fn is_read_twice(self) -> bool {
        matches!(self, Self::Httpd | Self::Mambo | Self::OracleGeneral | Self::Objects)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        Self::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.into_iter().map(Self::name).collect();
            let remedy = format!("give one of {}", names.join(", "));
            TraceError::Option { option: "--format", what: format!("`{name}` is no format"), remedy }
        })
    }
}
