//! The names under which policies are chosen.

use super::Policy;
use crate::config::{Config, ConfigError};
use std::fmt;
use std::str::FromStr;

/// Declares the kinds once: variant, name, one line, constructor.
macro_rules! kinds {
    ($($variant:ident, $name:literal, $about:literal, |$config:ident| $new:expr;)*) => {
        /// A policy by name.
        ///
        /// ```
        /// use mrrc::policy::PolicyKind;
        /// assert_eq!("pindown".parse(), Ok(PolicyKind::PinDown));
        /// assert_eq!(PolicyKind::PinDown.to_string(), "pindown");
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum PolicyKind {
            $(#[doc = $about] $variant,)*
        }

        impl PolicyKind {
            /// Every kind, in the order of the table in [`policy`](crate::policy).
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name that [`FromStr`] reads.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// One line on what it does.
            pub fn about(self) -> &'static str {
                match self {
                    $(Self::$variant => $about,)*
                }
            }

            /// A new policy of this kind.
            pub fn build(self, config: &Config) -> Box<dyn Policy + Send> {
                match self {
                    $(Self::$variant => {
                        let $config = config;
                        let _ = $config;
                        Box::new($new)
                    })*
                }
            }
        }
    };
}

kinds! {
    Mrrc, "mrrc", "The paper's three-section stack: recency above, size and recency below, batched.", |config| super::mrrc::Mrrc::new(config);
    None, "none", "No cache: registers and deregisters at each request.", |config| super::none::NoCache;
    PinDown, "pindown", "Region LRU, deregistered one at a time (Tezuka et al. 1998).", |config| super::pindown::policy();
    PinDownPage, "pindown-page", "Page LRU: a run of missing pages is one registration, each page leaves alone.", |config| super::pindown_page::policy();
    Fmrd, "fmrd", "Region LRU, deregistered in batches (Wu et al. 2003a).", |config| super::fmrd::policy(config);
    Lazy, "lazy", "LRU by exact range with a bounded table (Rangarajan and Iftode 2004).", |config| super::lazy::policy(config);
    Firehose, "firehose", "Buckets of fixed size, first in first out among the unused (Bell and Bonachea 2003).", |config| super::firehose::policy(config);
    Ogr, "ogr", "Region LRU that registers the ranges of one request as a group (Wu et al. 2003b).", |config| super::ogr::policy();
    Fifo, "fifo", "First in, first out.", |config| super::fifo::Fifo::new();
    Sieve, "sieve", "One FIFO queue and a hand that spares what was asked for (Zhang et al. 2024).", |config| super::sieve::Sieve::new();
    S3Fifo, "s3fifo", "A small and a main FIFO queue, and ghosts (Yang et al. 2023).", |config| super::s3fifo::S3Fifo::new(config);
    Gdsf, "gdsf", "GreedyDual-Size-Frequency: the least frequency times cost per page (Cherkasova 1998).", |config| super::gdsf::Gdsf::new(config);
    LruK, "lru-k", "The longest time since the K-th last reference (O'Neil et al. 1993).", |config| super::lru_k::LruK::new(config);
    TwoQ, "2q", "A FIFO queue before an LRU list, and ghosts (Johnson and Shasha 1994).", |config| super::two_q::TwoQ::new(config);
    Arc, "arc", "Two LRU lists with ghosts that balance them (Megiddo and Modha 2003).", |config| super::arc::Arc::new(config);
    Lirs, "lirs", "The longest time between the last two references (Jiang and Zhang 2002).", |config| super::lirs::Lirs::new(config);
    WTinyLfu, "w-tinylfu", "An LRU window before a segmented LRU that admits by frequency (Einziger et al. 2017).", |config| super::w_tinylfu::WTinyLfu::new(config);
    Ucx, "ucx", "UCX's cache: region LRU that merges overlapping regions into their union.", |config| super::ucx::policy();
    Libfabric, "libfabric", "libfabric's cache: as UCX's, with a bounded number of entries.", |config| super::libfabric::policy(config);
    Nccl, "nccl", "NCCL's cache: whole pages, nothing is ever evicted.", |config| super::nccl::policy();
    Probation, "probation", "Ours: frequency and costs, newcomers on probation, trust in them learned; batched.", |config| super::probation::Probation::new(config);
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| ConfigError::UnknownPolicy { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_no_other_does() {
        for &kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        for bad in ["", "MRRC", "lru", "mrrc "] {
            let error = bad.parse::<PolicyKind>().unwrap_err();
            assert!(matches!(&error, ConfigError::UnknownPolicy { name } if name == bad));
            assert!(error.to_string().contains("mrrc, none, pindown"), "{error}");
        }
    }
}
