//! Eviction policies for research, behind the trait of [`mrrc_core`]: the paper's peers, the general ones and today's registration
//! caches.
//!
//! `tracesim` replays traces through all of them. A cache takes one by `mrrc::Builder::policy_from`.
//!
//! | name | victims |
//! | --- | --- |
//! | [`pindown-page`](pindown_page), [`lazy`], [`firehose`], [`ogr`] | the paper's peers |
//! | [`fifo`], [`lru-k`](lru_k), [`2q`](two_q), [`arc`], [`lirs`], [`w-tinylfu`](w_tinylfu) | general ones |
//! | [`ucx`], [`libfabric`], [`nccl`] | today's registration caches |
//! | [`widening`] | those of `probation`; misses may register their neighbours |
//!
//! Those that are least-recently-used underneath define only their scheme and leave the order to [`Lru`](mrrc_core::policy::parts::Lru).
//! [`AnyPolicy`] names them all, and those of the cache.
//!
//! # Beside this crate
//!
//! [`tracesim`] compares policies. Its example `own-policy` is a policy in a crate of its own.
//!
//! [`tracesim`]: ../tracesim/index.html

pub mod arc;
pub mod fifo;
pub mod firehose;
pub mod lazy;
pub mod libfabric;
pub mod lirs;
pub mod lru_k;
pub mod nccl;
pub mod ogr;
pub mod pindown_page;
mod references;
pub mod two_q;
pub mod ucx;
pub mod w_tinylfu;
pub mod widening;

use mrrc_core::policy::{Policy, PolicyKind, PolicyParams};
use mrrc_core::{Config, ConfigError, Core};
use std::fmt;

/// Declares the policies once: variant, name, one line, constructor.
macro_rules! policies {
    ($($variant:ident, $name:expr, $about:expr, |$params:ident| $new:expr;)*) => {
        /// A policy by name: one of the cache, or one of this crate.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "`about` has a line for each")]
        pub enum AnyPolicy {
            $($variant,)*
        }

        impl AnyPolicy {
            /// Every policy, with its relatives.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name under which it is chosen.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns one line on what it does.
            pub fn about(self) -> &'static str {
                match self {
                    $(Self::$variant => $about,)*
                }
            }

            /// Returns a new policy.
            pub fn build(self, params: &PolicyParams) -> Box<dyn Policy + Send> {
                match self {
                    $(Self::$variant => {
                        let $params = params;
                        let _ = $params;
                        Box::new($new)
                    })*
                }
            }
        }
    };
}

policies! {
    Mrrc, PolicyKind::Mrrc.name(), PolicyKind::Mrrc.about(), |params| PolicyKind::Mrrc.build(params);
    None, PolicyKind::None.name(), PolicyKind::None.about(), |params| PolicyKind::None.build(params);
    PinDown, PolicyKind::PinDown.name(), PolicyKind::PinDown.about(), |params| PolicyKind::PinDown.build(params);
    PinDownPage, "pindown-page", "Page LRU: a run of missing pages is one registration, each page leaves alone.", |params| pindown_page::policy();
    Fmrd, PolicyKind::Fmrd.name(), PolicyKind::Fmrd.about(), |params| PolicyKind::Fmrd.build(params);
    Lazy, "lazy", "LRU by exact range with a bounded table (Rangarajan and Iftode 2004).", |params| lazy::policy(params);
    Firehose, "firehose", "Buckets of fixed size, first in first out among the unused (Bell and Bonachea 2003).", |params| firehose::policy(params);
    Ogr, "ogr", "Region LRU that registers the ranges of one request as a group (Wu et al. 2003b).", |params| ogr::policy();
    Fifo, "fifo", "First in, first out.", |params| fifo::Fifo::new();
    Sieve, PolicyKind::Sieve.name(), PolicyKind::Sieve.about(), |params| PolicyKind::Sieve.build(params);
    S3Fifo, PolicyKind::S3Fifo.name(), PolicyKind::S3Fifo.about(), |params| PolicyKind::S3Fifo.build(params);
    Gdsf, PolicyKind::Gdsf.name(), PolicyKind::Gdsf.about(), |params| PolicyKind::Gdsf.build(params);
    LruK, "lru-k", "The longest time since the K-th last reference (O'Neil et al. 1993).", |params| lru_k::LruK::new(params);
    TwoQ, "2q", "A FIFO queue before an LRU list, and ghosts (Johnson and Shasha 1994).", |params| two_q::TwoQ::new(params);
    Arc, "arc", "Two LRU lists with ghosts that balance them (Megiddo and Modha 2003).", |params| arc::Arc::new(params);
    Lirs, "lirs", "The longest time between the last two references (Jiang and Zhang 2002).", |params| lirs::Lirs::new(params);
    WTinyLfu, "w-tinylfu", "An LRU window before a segmented LRU that admits by frequency (Einziger et al. 2017).", |params| w_tinylfu::WTinyLfu::new(params);
    Ucx, "ucx", "UCX's cache: region LRU that merges overlapping regions into their union.", |params| ucx::policy();
    Libfabric, "libfabric", "libfabric's cache: as UCX's, with a bounded number of entries.", |params| libfabric::policy(params);
    Nccl, "nccl", "NCCL's cache: whole pages, nothing is ever evicted.", |params| nccl::policy();
    Probation, PolicyKind::Probation.name(), PolicyKind::Probation.about(), |params| PolicyKind::Probation.build(params);
    Widening, "widening", "Ours: as probation, and misses register their neighbours where that was seen to pay.", |params| widening::Widening::new(params);
}

impl AnyPolicy {
    /// Returns a core with a new policy.
    ///
    /// # Errors
    /// [`ConfigError`] if the policy cannot be configured so.
    pub fn core(self, config: &Config) -> Result<Core<Box<dyn Policy + Send>>, ConfigError> {
        Core::with_policy(config, self.build(&config.params()))
    }

    /// Returns the policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name)
    }

    /// Returns the policy of the cache that has this name, if there is one.
    pub fn of_the_cache(self) -> Option<PolicyKind> {
        self.name().parse().ok()
    }
}

impl fmt::Display for AnyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_the_cache_are_named_alike() {
        let of_the_cache: Vec<PolicyKind> = AnyPolicy::ALL.iter().filter_map(|policy| policy.of_the_cache()).collect();
        assert_eq!(of_the_cache, PolicyKind::ALL);
    }
}
