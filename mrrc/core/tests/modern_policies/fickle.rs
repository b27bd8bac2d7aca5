//! A victim that is put back leaves no trace: no ghost, no lost count, and it is the next victim.

use crate::random::Random;
use mrrc_core::policy::{Matching, Need, Policy, Scheme};
use mrrc_core::{Config, Core, PageRange, RegionId, Regions};
use tracesim_policies::AnyPolicy;

/// Puts every victim back once before it gives it away.
struct Fickle(Box<dyn Policy + Send>);

impl Policy for Fickle {
    fn scheme(&self) -> Scheme {
        self.0.scheme()
    }

    fn missed(&mut self, ranges: &mut dyn Iterator<Item = PageRange>) {
        self.0.missed(ranges);
    }

    fn insert(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.insert(regions, id);
    }

    fn touch(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.touch(regions, id);
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.remove(regions, id);
    }

    fn prepare(&mut self, regions: &mut Regions) {
        self.0.prepare(regions);
    }

    fn batch_size(&self, need: Need) -> Need {
        self.0.batch_size(need)
    }

    fn victim(&mut self, regions: &mut Regions) -> Option<RegionId> {
        let first = self.0.victim(regions)?;
        self.0.put_back(regions, first);
        self.0.victim(regions)
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.0.put_back(regions, id);
    }
}

/// Returns the hits of a random trace.
fn hits(mut core: Core<impl Policy>) -> Vec<bool> {
    let mut random = Random::new(5);
    let request = |_| {
        let object = random.below(80) * random.below(80) / 40;
        let asked = PageRange::new(16 * object, 1 + object % 5).unwrap();
        let hit = core.request(asked).unwrap().found().is_hit();
        assert!(core.used_pages() <= core.capacity());
        hit
    };
    (0..5_000).map(request).collect()
}

#[test]
fn a_victim_that_is_put_back_changes_nothing() {
    for policy in crate::stress::GENERAL {
        let config = Config { matching: Some(Matching::Exact), ..Config::new(120) };
        let fickle = hits(Core::with_policy(&config, Fickle(policy.build(&config.params()))).unwrap());
        // The hand of sieve has passed, and the window of w-tinylfu has competed: those are not undone.
        if !matches!(policy, AnyPolicy::Sieve | AnyPolicy::WTinyLfu) {
            assert_eq!(fickle, hits(policy.core(&config).unwrap()), "{policy}");
        }
    }
}
