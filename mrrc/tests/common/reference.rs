//! A bare core that hears of hits as that of a cache of threads does: by marks, before it chooses victims.

use mrrc::core::{Core, Holders, Request};
use mrrc::policy::{Matching, Policy};
use mrrc::{Access, Config, Counters, PageRange, Part, RegionId, RegionState};
use std::collections::BTreeMap;
use tracesim_policies::AnyPolicy;

/// Knows no holders; hands over marks.
struct Marks {
    of: BTreeMap<RegionId, u32>,
    /// The number of policies to tell apart.
    most: u32,
}

impl Holders for Marks {
    fn unpublish(&mut self, _: &[RegionId], _: &mut Vec<RegionId>) {}

    fn republish(&mut self, _: &[RegionId]) {}

    fn touched(&mut self, _: usize, touched: &mut Vec<RegionId>) {
        for (id, uses) in std::mem::take(&mut self.of) {
            touched.extend((0..uses).map(|_| id));
        }
    }
}

/// The parts of a request.
#[derive(Debug)]
#[allow(dead_code, reason = "each test looks at a part of it")]
pub(crate) struct Answer {
    pub(crate) parts: Vec<PageRange>,
    /// How many of them are registered for it.
    pub(crate) gaps: u64,
}

pub(crate) struct Reference {
    pub(crate) core: Core,
    marks: Marks,
    hits: Counters,
    /// Whether hits reach the core at once.
    pub(crate) exact: bool,
}

impl Reference {
    /// `exact`: every hit reaches the core at once, as in a simulation.
    pub(crate) fn new(policy: AnyPolicy, config: &Config, exact: bool) -> Self {
        let mut core = policy.core(config).unwrap();
        core.limit_hard();
        let exact = exact || core.scheme().matching == Matching::Exact;
        let marks = Marks { of: BTreeMap::new(), most: policy.build(&config.params()).max_touches() };
        Self { core, marks, hits: Counters::default(), exact }
    }

    /// Asks for a range whose lease ends before the next request.
    pub(crate) fn ask(&mut self, range: PageRange, access: Access) -> Answer {
        let found = (!self.exact).then(|| self.core.find_with(range, access)).flatten();
        if let Some(id) = found {
            let whole = self.core.range_of(id) == Some(range);
            self.hits.requests += 1;
            self.hits.exact += u64::from(whole);
            self.hits.subset += u64::from(!whole);
            self.hits.pages += range.pages();
            self.hits.hit_pages += range.pages();
            let uses = self.marks.of.entry(id).or_default();
            *uses = (*uses + 1).min(self.marks.most);
            return Answer { parts: vec![range], gaps: 0 };
        }
        let outcome = self.core.request_with(&Request { access, ..Request::new(range) }, &mut self.marks).unwrap();
        let parts: Vec<_> = outcome.parts().iter().map(Part::range).collect();
        let gaps: Vec<_> = outcome.parts().iter().copied().filter(|part| matches!(part, Part::Gap { .. })).collect();
        let ids: Vec<_> = gaps.iter().filter_map(Part::region).collect();
        // A new region has no mark.
        ids.iter().for_each(|id| _ = self.marks.of.remove(id));
        let (cached, apart): (Vec<_>, Vec<_>) =
            ids.into_iter().partition(|&id| self.core.state_of(id) == RegionState::Registering);
        _ = self.core.publish(&cached, &mut self.marks);
        apart.into_iter().for_each(|id| _ = self.core.release(id));
        Answer { parts, gaps: gaps.len() as u64 }
    }

    pub(crate) fn counters(&self) -> Counters {
        let (mut counters, hits) = (self.core.counters(), self.hits);
        counters.requests += hits.requests;
        counters.exact += hits.exact;
        counters.subset += hits.subset;
        counters.pages += hits.pages;
        counters.hit_pages += hits.hit_pages;
        counters
    }
}
