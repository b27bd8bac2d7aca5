//! How a range finds its region.

use crate::access::Access;
use crate::index::{Index, IndexReader, Layers};
use crate::policy::Matching;
use crate::range::PageRange;
use crate::regions::{RegionId, RegionState, Regions};
use rustc_hash::FxHashMap;

/// The regions that look-ups find, by class of rights: those for local use, and those that peers have rights to. Owns the
/// indices; which regions are in them is for the [`Core`](super::Core) to say.
pub(super) struct Lookup {
    published: [Places; 2],
    /// Regions that are being registered where a published one is in the way; `publish.rs` has the rules.
    replacing: [Places; 2],
    /// How many those are.
    replacements: usize,
}

/// The regions of one class.
enum Places {
    Contain(Index),
    /// Regions that may overlap: see `one_key.rs`.
    Layers(Box<Layers>),
    Exact(FxHashMap<PageRange, RegionId>),
}

impl Lookup {
    pub(super) fn new(matching: Matching) -> Self {
        let places = || match matching {
            Matching::Contain => Places::Contain(Index::new()),
            Matching::Exact => Places::Exact(FxHashMap::default()),
        };
        Self { published: [places(), places()], replacing: [places(), places()], replacements: 0 }
    }

    /// Look-ups where published regions may overlap.
    pub(super) fn in_layers() -> Self {
        Self {
            published: [(); 2].map(|()| Places::Layers(Box::new(Layers::new()))),
            replacing: [(); 2].map(|()| Places::Contain(Index::new())),
            replacements: 0,
        }
    }

    /// Returns the layers of a class, where published regions may overlap.
    #[inline]
    pub(super) fn layers(&self, class: usize) -> Option<&Layers> {
        if let Places::Layers(layers) = &self.published[class] { Some(layers) } else { None }
    }

    /// Returns a published region that contains the range.
    #[inline(always)]
    pub(super) fn find(&self, class: usize, range: PageRange, regions: &Regions) -> Option<RegionId> {
        match &self.published[class] {
            Places::Contain(index) => index.find(range, regions),
            Places::Layers(layers) => layers.find(range, regions, |_| true),
            Places::Exact(exact) => exact.get(&range).copied(),
        }
    }

    /// As [`Lookup::find`], by a region that grants the rights.
    #[inline(always)]
    pub(super) fn find_granting(
        &self,
        class: usize,
        range: PageRange,
        access: Access,
        regions: &Regions,
    ) -> Option<RegionId> {
        let grants = |&id: &RegionId| regions.get(id).access().contains(access);
        match &self.published[class] {
            Places::Layers(layers) => layers.find(range, regions, |id| grants(&id)),
            _ => self.find(class, range, regions).filter(grants),
        }
    }

    /// Returns whether a class is known to have no published region.
    #[inline]
    pub(super) fn is_empty(&self, class: usize) -> bool {
        matches!(&self.published[class], Places::Contain(index) if index.is_empty())
    }

    /// Returns whether a region shares a page with the range. Where matching is exact, any might.
    #[inline]
    pub(super) fn has_overlap(&self, class: usize, range: PageRange, regions: &Regions) -> bool {
        if self.replacements > 0 && self.replacement_near(class, range, regions).is_some() {
            return true;
        }
        match &self.published[class] {
            Places::Contain(index) => index.has_overlap(range, regions),
            Places::Layers(layers) => layers.has_overlap(range, regions),
            Places::Exact(_) => true,
        }
    }

    /// Appends the published regions that overlap the range, in address order. Where matching is exact, those that are pieces
    /// of it: it was cut to regions of at most so many pages when it was registered.
    pub(super) fn overlaps(
        &self,
        class: usize,
        range: PageRange,
        longest: u64,
        regions: &Regions,
        found: &mut Vec<RegionId>,
    ) {
        match &self.published[class] {
            Places::Contain(index) => index.overlaps(range, regions, found),
            Places::Layers(layers) => layers.overlaps(range, regions, found),
            Places::Exact(exact) => {
                if range.pages() / longest <= exact.len() as u64 {
                    found.extend(range.pieces(longest).filter_map(|part| exact.get(&part)));
                } else {
                    let is_part = |part: &PageRange| range.is_piece(*part, longest);
                    found.extend(exact.iter().filter(|(range, _)| is_part(range)).map(|(_, &id)| id));
                    found.sort_unstable_by_key(|&id| regions.get(id).range());
                }
            }
        }
    }

    /// Shows every region that shares a page with the range, of any class, published or not, some of them more than once.
    /// Allocates and frees nothing.
    pub(super) fn for_each_overlap(&self, range: PageRange, regions: &Regions, mut found: impl FnMut(RegionId)) {
        let replacing = if self.has_replacements() { &self.replacing[..] } else { &[] };
        for places in self.published.iter().chain(replacing) {
            places.for_each_overlap(range, regions, &mut found);
        }
    }

    /// As [`Lookup::for_each_overlap`], of one class.
    pub(super) fn for_each_overlap_in(
        &self,
        class: usize,
        range: PageRange,
        regions: &Regions,
        mut found: impl FnMut(RegionId),
    ) {
        self.published[class].for_each_overlap(range, regions, &mut found);
        if self.has_replacements() {
            self.replacing[class].for_each_overlap(range, regions, &mut found);
        }
    }

    /// Adds a region to the published ones.
    #[inline]
    pub(super) fn insert(&mut self, id: RegionId, regions: &Regions) {
        let region = regions.get(id);
        self.published[region.access().class()].insert(id, regions);
    }

    /// Adds a region that was removed a moment ago, where it was.
    pub(super) fn insert_again(&mut self, id: RegionId, regions: &Regions) {
        match &mut self.published[regions.get(id).access().class()] {
            Places::Layers(layers) => layers.insert_again(id, regions),
            places => places.insert(id, regions),
        }
    }

    /// Adds a region that is being registered: to the published ones, unless one of them is in its way.
    pub(super) fn insert_registering(&mut self, id: RegionId, regions: &Regions) {
        let region = regions.get(id);
        let (range, class) = (region.range(), region.access().class());
        let has_place = match &self.published[class] {
            Places::Contain(index) => !index.has_overlap(range, regions),
            Places::Layers(layers) => layers.has_room(range, regions),
            Places::Exact(exact) => !exact.contains_key(&range),
        };
        if has_place {
            self.published[class].insert(id, regions);
        } else {
            self.replacements += 1;
            self.replacing[class].insert(id, regions);
        }
    }

    /// Removes a region.
    #[inline]
    pub(super) fn remove(&mut self, id: RegionId, regions: &Regions) {
        let class = regions.get(id).access().class();
        if self.is_replacement(id, regions) {
            self.replacements -= 1;
            self.replacing[class].remove(id, regions);
        } else {
            self.published[class].remove(id, regions);
        }
    }

    #[inline]
    pub(super) fn has_replacements(&self) -> bool {
        self.replacements > 0
    }

    /// Returns whether the region is being registered where a published one is in its way.
    #[inline]
    pub(super) fn is_replacement(&self, id: RegionId, regions: &Regions) -> bool {
        self.replacements > 0 && regions.get(id).state() == RegionState::Registering && self.is_replacing(id, regions)
    }

    fn is_replacing(&self, id: RegionId, regions: &Regions) -> bool {
        let region = regions.get(id);
        self.replacing[region.access().class()].find(region.range(), regions) == Some(id)
    }

    /// Appends the published regions in the place of a replacement, which is removed. Not where they may overlap.
    pub(super) fn displaced(&self, id: RegionId, regions: &Regions, found: &mut Vec<RegionId>) {
        let region = regions.get(id);
        match &self.published[region.access().class()] {
            Places::Contain(index) => index.overlaps(region.range(), regions, found),
            Places::Exact(exact) => found.extend(exact.get(&region.range())),
            Places::Layers(_) => {}
        }
    }

    /// Returns a replacement that is to contain the range with the rights.
    #[cold]
    pub(super) fn find_replacement(
        &self,
        class: usize,
        range: PageRange,
        access: Access,
        regions: &Regions,
    ) -> Option<RegionId> {
        self.replacing[class].find(range, regions).filter(|&id| regions.get(id).access().contains(access))
    }

    /// Returns a replacement that shares a page with the range.
    #[cold]
    pub(super) fn replacement_near(&self, class: usize, range: PageRange, regions: &Regions) -> Option<RegionId> {
        let mut near = None;
        match &self.replacing[class] {
            Places::Exact(exact) => near = exact.get(&range).copied(),
            Places::Contain(index) => index.for_each_overlap(range, regions, |id| near = Some(id)),
            Places::Layers(_) => {}
        }
        near
    }

    /// Returns readers that find candidates on other threads, by class. Where matching is exact they find nothing.
    pub(super) fn share_index(&mut self) -> [IndexReader; 2] {
        self.published.each_mut().map(|places| match places {
            Places::Contain(index) => index.share(),
            Places::Layers(layers) => layers.share().into_iter().next().unwrap_or_else(|| Index::new().share()),
            Places::Exact(_) => Index::new().share(),
        })
    }

    /// Returns the same for the layers above the first, where regions may overlap; none where they may not.
    pub(super) fn share_layers(&mut self) -> [Box<[IndexReader]>; 2] {
        self.published.each_mut().map(|places| match places {
            Places::Layers(layers) => layers.share().into_iter().skip(1).collect(),
            Places::Contain(_) | Places::Exact(_) => Box::default(),
        })
    }

    /// Returns the bytes allocated.
    pub(super) fn memory(&self) -> usize {
        let places = self.published.iter().chain(&self.replacing).map(|places| match places {
            Places::Contain(index) => index.memory(),
            Places::Layers(layers) => layers.memory(),
            Places::Exact(exact) => exact.capacity() * (size_of::<(PageRange, RegionId)>() + 1),
        });
        places.sum()
    }
}

impl Places {
    fn find(&self, range: PageRange, regions: &Regions) -> Option<RegionId> {
        match self {
            Self::Contain(index) => index.find(range, regions),
            Self::Layers(layers) => layers.find(range, regions, |_| true),
            Self::Exact(exact) => exact.get(&range).copied(),
        }
    }

    #[inline]
    fn for_each_overlap(&self, range: PageRange, regions: &Regions, found: &mut impl FnMut(RegionId)) {
        match self {
            Self::Contain(index) => index.for_each_overlap(range, regions, found),
            Self::Layers(layers) => layers.for_each_overlap(range, regions, found),
            Self::Exact(exact) => {
                exact.iter().filter(|(cached, _)| cached.overlaps(range)).for_each(|(_, &id)| found(id));
            }
        }
    }

    #[inline]
    fn insert(&mut self, id: RegionId, regions: &Regions) {
        match self {
            Self::Contain(index) => index.insert(id, regions),
            Self::Layers(layers) => layers.insert(id, regions),
            Self::Exact(exact) => _ = exact.insert(regions.get(id).range(), id),
        }
    }

    #[inline]
    fn remove(&mut self, id: RegionId, regions: &Regions) {
        match self {
            Self::Contain(index) => index.remove(id, regions),
            Self::Layers(layers) => layers.remove(id, regions),
            Self::Exact(exact) => _ = exact.remove(&regions.get(id).range()),
        }
    }
}
