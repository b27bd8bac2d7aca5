//! The names under which policies are chosen.

use super::{Policy, PolicyParams};
use std::fmt;
use std::str::FromStr;

/// Declares the kinds once: variant, name, one line, constructor.
macro_rules! kinds {
    ($($variant:ident, $name:literal, $about:literal, |$params:ident| $new:expr;)*) => {
        /// A policy of the cache by name. Those for research are in the crate `tracesim-policies`.
        ///
        /// ```
        /// use mrrc_core::policy::PolicyKind;
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

            /// Returns the name that [`FromStr`] reads.
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

            /// Returns a new policy of this kind, for a cache that reports touches in batches. It decides as that of
            /// [`PolicyKind::build`] does. It may keep less for each region, and take longer for a touch.
            pub fn build_lean(self, params: &PolicyParams) -> Box<dyn Policy + Send> {
                match self {
                    Self::Mrrc => Box::new(super::mrrc::Mrrc::lean(params)),
                    Self::Probation => Box::new(super::probation::Probation::lean(params)),
                    _ => self.build(params),
                }
            }

            /// Returns a new policy of this kind.
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

kinds! {
    Mrrc, "mrrc", "The paper's three-section stack: recency above, size and recency below, batched.", |params| super::mrrc::Mrrc::new(params);
    None, "none", "No cache: registers and deregisters at each request.", |params| super::none::NoCache;
    PinDown, "pindown", "Region LRU, deregistered one at a time (Tezuka et al. 1998).", |params| super::pindown::policy();
    Fmrd, "fmrd", "Region LRU, deregistered in batches (Wu et al. 2003a).", |params| super::fmrd::policy(params);
    Sieve, "sieve", "One FIFO queue and a hand that spares what was asked for (Zhang et al. 2024).", |params| super::sieve::Sieve::new();
    S3Fifo, "s3fifo", "A small and a main FIFO queue, and ghosts (Yang et al. 2023).", |params| super::s3fifo::S3Fifo::new(params);
    Gdsf, "gdsf", "GreedyDual-Size-Frequency: the least frequency times cost per page (Cherkasova 1998).", |params| super::gdsf::Gdsf::new(params);
    Probation, "probation", "Ours: frequency and costs, newcomers on probation, trust in them learned; batched.", |params| super::probation::Probation::new(params);
}

/// The default of caches and tools: `docs/default-policy.md` has the rule by which it is chosen.
impl Default for PolicyKind {
    fn default() -> Self {
        Self::Probation
    }
}

/// No policy has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{name}`: choose from {}", names())]
pub struct UnknownPolicy {
    /// The name that was given.
    pub name: String,
}

fn names() -> String {
    PolicyKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownPolicy { name: name.to_owned() })
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
            assert!(matches!(&error, UnknownPolicy { name } if name == bad));
            assert!(error.to_string().contains("mrrc, none, pindown"), "{error}");
        }
    }
}
