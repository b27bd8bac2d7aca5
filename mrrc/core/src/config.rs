//! The settings of a cache before its first request, and the errors of wrong ones.

use crate::cost::Linear;
use crate::policy::{Granule, Keeps, Matching, Overlap, Policy, PolicyKind, PolicyParams, Scheme};

/// Sizes and choices of one cache. Everything but the capacity has a default.
///
/// Fields may be added: name those that matter, and take the rest from [`Config::new`].
///
/// ```
/// use mrrc_core::{Config, Core, policy::PolicyKind};
/// let core = Core::new(&Config { policy: PolicyKind::Fmrd, evict: 0.2, ..Config::new(8192) })?;
/// # Ok::<(), mrrc_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `C`: the most pages that may be registered at once.
    pub capacity: u64,
    /// The eviction policy: `probation`, the [default](PolicyKind::default).
    pub policy: PolicyKind,
    /// The share of the capacity that the resorting section is filled up to: 0.5.
    pub resort: f64,
    /// The share of the capacity that a batch of victims holds at least: 0.1. Where only regions are missing, it is a share
    /// of `max_regions`.
    pub evict: f64,
    /// The most regions that may be registered at once, where the registrar has such a limit: none.
    pub max_regions: Option<u64>,
    /// The most pages in one region; longer gaps are cut: no limit.
    pub max_region_pages: Option<u64>,
    /// Pages of a slice, at most `max_region_pages`: no region crosses a multiple of so many pages, and none is larger. Where each
    /// request is answered by [one region](crate::Core::use_one_key), that may cross one. Regions have to split at overlaps and match by containment. No slices.
    pub slice_pages: Option<u64>,
    /// The treatment of regions that a request overlaps: the scheme's of the policy by default.
    pub overlap: Option<Overlap>,
    /// When a cached region serves a request: what the policy's scheme says.
    pub matching: Option<Matching>,
    /// The costs that cost-aware policies weigh: the paper's.
    pub cost: Linear,
    /// Pages in a bucket of `firehose`, at most `max_region_pages`: 16 (64 KiB).
    pub bucket_pages: u64,
    /// Entries in the table of `lazy`: 4,096.
    pub table_entries: u64,
    /// Entries that `libfabric` caches at most: 1,024.
    pub cache_entries: u64,
    /// The largest share of a group's pages without a request, where ranges are grouped (`ogr`): 0.25.
    pub group_extra: f64,
    /// References back that `lru-k` looks: 2.
    pub lru_k: u32,
    /// Whether a miss may register more than was requested, within [`Request::mapping`](crate::core::Request::mapping), where that
    /// was seen to pay: what the policy's scheme says, by default no. Regions have to split at overlaps and match by containment.
    pub widen: Option<bool>,
    /// Whether requests that give rights to peers are widened as well, where others are: peers can reach the neighbours then. No.
    pub widen_for_peers: bool,
}

impl Config {
    /// Returns a cache of `capacity` pages with the defaults.
    pub fn new(capacity: u64) -> Self {
        let PolicyParams { resort, evict, cost, bucket_pages, table_entries, cache_entries, lru_k, .. } =
            PolicyParams::new(capacity);
        Self {
            capacity,
            policy: PolicyKind::default(),
            resort,
            evict,
            max_regions: None,
            max_region_pages: None,
            slice_pages: None,
            overlap: None,
            matching: None,
            cost,
            bucket_pages,
            table_entries,
            cache_entries,
            group_extra: 0.25,
            lru_k,
            widen: None,
            widen_for_peers: false,
        }
    }

    /// Returns what a policy is built with.
    pub fn params(&self) -> PolicyParams {
        PolicyParams {
            capacity: self.capacity,
            resort: self.resort,
            evict: self.evict,
            cost: self.cost,
            bucket_pages: self.bucket_pages,
            table_entries: self.table_entries,
            cache_entries: self.cache_entries,
            lru_k: self.lru_k,
        }
    }

    /// Finds the first thing that is wrong.
    ///
    /// # Errors
    /// [`ConfigError`], one variant for each kind of mistake.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.capacity == 0 {
            return Err(ConfigError::ZeroCapacity);
        }
        for (name, value) in [("resort", self.resort), ("evict", self.evict), ("group_extra", self.group_extra)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ConfigError::Fraction { name, value });
            }
        }
        let limits = [
            ("max_regions", self.max_regions),
            ("max_region_pages", self.max_region_pages),
            ("slice_pages", self.slice_pages),
            ("bucket_pages", Some(self.bucket_pages)),
            ("table_entries", Some(self.table_entries)),
            ("cache_entries", Some(self.cache_entries)),
            ("lru_k", Some(self.lru_k.into())),
        ];
        if let Some((name, _)) = limits.iter().find(|(_, limit)| *limit == Some(0)) {
            return Err(ConfigError::ZeroLimit { name });
        }
        if !self.cost.is_valid() {
            return Err(ConfigError::Cost { cost: self.cost });
        }
        Ok(())
    }

    /// Returns the scheme of a policy with what this configuration sets of it.
    pub(crate) fn scheme_of(&self, policy: &(impl Policy + ?Sized)) -> Scheme {
        let scheme = policy.scheme();
        let overlap = self.overlap.unwrap_or(scheme.overlap);
        Scheme { overlap, matching: self.matching.unwrap_or(scheme.matching), ..scheme }
    }

    /// Returns whether ranges can be cut into [slices](Config::slice_pages) under this policy: otherwise it is an error to ask for them.
    pub fn can_slice(&self, policy: &(impl Policy + ?Sized)) -> bool {
        can_slice(&self.scheme_of(policy))
    }

    /// Returns whether misses can be [widened](Config::widen) under this policy: otherwise it is an error to ask for it.
    pub fn can_widen(&self, policy: &(impl Policy + ?Sized)) -> bool {
        can_widen(&self.scheme_of(policy))
    }
}

/// Finds parts of a scheme that do not go together.
pub(crate) fn check_scheme(scheme: &Scheme) -> Result<(), ConfigError> {
    if scheme.granule == Granule::Bucket(0) {
        return Err(ConfigError::ZeroLimit { name: "bucket_pages" });
    }
    if scheme.max_regions == Some(0) {
        return Err(ConfigError::ZeroLimit { name: "max_regions" });
    }
    if scheme.widens && !can_widen(scheme) {
        return Err(ConfigError::Widen);
    }
    let splits = scheme.overlap == Overlap::Split && scheme.matching == Matching::Contain;
    if scheme.granule == Granule::Region || splits { Ok(()) } else { Err(ConfigError::Granule) }
}

/// Returns whether regions split at overlaps, match by containment, and stay until they are evicted.
pub(crate) fn can_widen(scheme: &Scheme) -> bool {
    can_slice(scheme) && !scheme.groups && scheme.keeps == Keeps::UntilEvicted
}

/// Returns whether regions split at overlaps and match by containment.
pub(crate) fn can_slice(scheme: &Scheme) -> bool {
    scheme.granule == Granule::Region && scheme.overlap == Overlap::Split && scheme.matching == Matching::Contain
}

/// Why a cache cannot be configured so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No page may be registered.
    #[error(
        "capacity is 0 pages (of 4096 bytes; fewer bytes are rounded down to none): a cache needs room for one page at least (policy `none` caches nothing)"
    )]
    ZeroCapacity,
    /// A fraction outside 0 to 1.
    #[error("{name} is {value}: a fraction lies between 0 and 1")]
    Fraction {
        /// Which one.
        name: &'static str,
        /// The given value.
        value: f64,
    },
    /// A limit of nothing.
    #[error("{name} is 0: a limit of nothing; set 1 or more, or leave it as it is by default")]
    ZeroLimit {
        /// Which one.
        name: &'static str,
    },
    /// A cost that is negative or not a number.
    #[error("cost model ({cost}): every constant is a finite number of microseconds, 0 or more")]
    Cost {
        /// The given cost model.
        cost: Linear,
    },
    /// Pages and buckets are neither merged nor matched exactly.
    #[error("the policy caches pages or buckets, which only split at overlaps and match by containment")]
    Granule,
    /// Only plain regions are cut into slices.
    #[error(
        "slices need a policy that caches regions, splits them at overlaps and matches by containment: leave slice_pages (slice_bytes, MRRC_SLICE) \
         out, or choose such a policy"
    )]
    Slices,
    /// Only plain regions are widened.
    #[error(
        "widening needs a policy that caches regions until they are evicted, splits them at overlaps and matches by containment: leave it off"
    )]
    Widen,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_has_its_own_error() {
        let base = Config::new(100);
        let refused = |config: Config| crate::Core::new(&config).expect_err("refused");
        assert_eq!(refused(Config::new(0)), ConfigError::ZeroCapacity);
        for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                refused(Config { resort: value, ..base.clone() }),
                ConfigError::Fraction { name: "resort", .. }
            ));
            assert!(matches!(
                refused(Config { evict: value, ..base.clone() }),
                ConfigError::Fraction { name: "evict", .. }
            ));
        }
        assert_eq!(
            refused(Config { max_regions: Some(0), ..base.clone() }),
            ConfigError::ZeroLimit { name: "max_regions" }
        );
        for (name, config) in [
            ("max_region_pages", Config { max_region_pages: Some(0), ..base.clone() }),
            ("slice_pages", Config { slice_pages: Some(0), ..base.clone() }),
            ("bucket_pages", Config { bucket_pages: 0, ..base.clone() }),
            ("table_entries", Config { table_entries: 0, ..base.clone() }),
            ("cache_entries", Config { cache_entries: 0, ..base.clone() }),
            ("lru_k", Config { lru_k: 0, ..base.clone() }),
        ] {
            assert_eq!(refused(config), ConfigError::ZeroLimit { name });
        }
        let extra = Config { group_extra: 2.0, ..base.clone() };
        assert_eq!(refused(extra), ConfigError::Fraction { name: "group_extra", value: 2.0 });
        let cost = Linear { reg_page: -1.0, ..Linear::PAPER };
        assert_eq!(refused(Config { cost, ..base.clone() }), ConfigError::Cost { cost });
        assert_eq!(base.check(), Ok(()));
    }
}
