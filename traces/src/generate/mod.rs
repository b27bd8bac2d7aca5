//! Workloads made from published figures, for want of the traces themselves.
//!
//! * [`httpd`] and [`cello`]: the two workloads of the paper's study.
//! * [`zipf`]: objects of Zipf popularity, for speed and for experiments.
//! * [`buffers`]: buffers of programs in six patterns, to evaluate policies on what they were not tuned on.
//!
//! Each is a [`Reader`] that makes its events on demand: the same options give the same events on every machine with a
//! mathematical library that rounds alike. Each is calibrated to figures of the *workload* only, never to what a cache
//! makes of it, and its [`Generator::checks`] measures on the events that it gave out whether it has them.

pub mod buffers;
pub mod cello;
mod check;
mod first_level;
pub mod httpd;
mod options;
pub mod zipf;

pub use check::{Check, Checks, Unit};

use crate::{Reader, TraceError};
use std::fmt;
use std::str::FromStr;

/// A reader of events that are made to figures.
pub trait Generator: Reader {
    /// Returns the requested figures beside those of the events so far: to be believed once the stream has ended.
    fn checks(&self) -> Checks;
}

impl<G: Generator + ?Sized> Generator for Box<G> {
    fn checks(&self) -> Checks {
        (**self).checks()
    }
}

/// One of the generators with its options, as a command line spells it: `zipf:objects=1000,exponent=0.9`.
///
/// # Examples
/// ```
/// use traces::generate::{Generator, Workload};
///
/// let workload: Workload = "zipf:objects=1000,requests=5000".parse()?;
/// let mut events = workload.generate()?;
/// assert_eq!(events.by_ref().count(), 5000);
/// assert!(events.checks().hold(), "{}", events.checks());
/// # Ok::<(), traces::TraceError>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Workload {
    /// A web server.
    Httpd(httpd::Options),
    /// A timesharing system's disks.
    Cello92(cello::Options),
    /// Zipf.
    Zipf(zipf::Options),
    /// Buffers of programs.
    Buffers(buffers::Options),
}

impl Workload {
    /// Returns the generators with the paper's options.
    pub fn all() -> [Self; 4] {
        [
            Self::Httpd(Default::default()),
            Self::Cello92(Default::default()),
            Self::Zipf(Default::default()),
            Self::Buffers(Default::default()),
        ]
    }

    /// Without the options.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Httpd(_) => "httpd",
            Self::Cello92(_) => "cello92",
            Self::Zipf(_) => "zipf",
            Self::Buffers(_) => "buffers",
        }
    }

    /// Requests that it makes: how far it is can be told by them.
    pub const fn requests(&self) -> u64 {
        match self {
            Self::Httpd(options) => options.requests,
            Self::Cello92(options) => options.requests,
            Self::Zipf(options) => options.requests,
            Self::Buffers(options) => options.requests,
        }
    }

    /// Sets it going.
    ///
    /// # Errors
    /// [`TraceError::Option`] if the options contradict each other.
    pub fn generate(&self) -> Result<Box<dyn Generator + Send>, TraceError> {
        Ok(match self {
            Self::Httpd(options) => Box::new(httpd::Httpd::new(options.clone())?),
            Self::Cello92(options) => Box::new(cello::Cello::new(options.clone())?),
            Self::Zipf(options) => Box::new(zipf::Zipf::new(options.clone())?),
            Self::Buffers(options) => Box::new(buffers::Buffers::new(options.clone())?),
        })
    }
}

impl FromStr for Workload {
    type Err = TraceError;

    fn from_str(text: &str) -> Result<Self, TraceError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        Ok(match name {
            "httpd" => Self::Httpd(rest.parse()?),
            "cello92" => Self::Cello92(rest.parse()?),
            "zipf" => Self::Zipf(rest.parse()?),
            "buffers" => Self::Buffers(rest.parse()?),
            _ => {
                return Err(options::wrong(
                    format!("`{name}` is no workload"),
                    "give one of httpd, cello92, zipf, buffers",
                ));
            }
        })
    }
}

/// With all options, as it is read.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Httpd(options) => write!(f, "httpd:{options}"),
            Self::Cello92(options) => write!(f, "cello92:{options}"),
            Self::Zipf(options) => write!(f, "zipf:{options}"),
            Self::Buffers(options) => write!(f, "buffers:{options}"),
        }
    }
}
