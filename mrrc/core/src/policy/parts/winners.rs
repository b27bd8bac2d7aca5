//! Regions by a value that only rises, smallest first, in two forms. A [heap](super::Ordered) is fast where every hit comes here. A
//! [tournament](Winners) takes a byte for a region, and no list.

use super::Ordered;
use crate::regions::{RegionId, Regions};

/// Regions by (value, last reference). Uses [`Region::weight`](crate::Region::weight) for the value, which is never negative, and
/// [`Region::order`](crate::Region::order) for the number of the reference. The sign of the weight of a region that is not ordered here
/// means nothing.
pub trait Ranking: Default {
    /// Takes in a region that is not ordered here.
    fn insert(&mut self, regions: &mut Regions, id: RegionId, value: f64);

    /// Gives a region that is ordered here a value that is no smaller than its last.
    fn raise(&mut self, regions: &mut Regions, id: RegionId, value: f64);

    /// Takes in a region again with the value and the reference that it had.
    fn put_back(&mut self, regions: &mut Regions, id: RegionId);

    /// Takes out a region that is ordered here.
    fn remove(&mut self, regions: &mut Regions, id: RegionId);

    /// Takes out the smallest region that is not in use; sets aside the smaller ones, which are.
    fn take_idle(&mut self, regions: &mut Regions) -> Option<RegionId>;

    /// Returns the bytes allocated.
    fn memory(&self) -> usize;
}

impl Ranking for Ordered {
    #[inline]
    fn insert(&mut self, regions: &mut Regions, id: RegionId, value: f64) {
        self.insert(regions, id, value);
    }

    #[inline]
    fn raise(&mut self, regions: &mut Regions, id: RegionId, value: f64) {
        self.raise(regions, id, value);
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        self.put_back(regions, id);
    }

    #[inline]
    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        self.remove(regions, id);
    }

    #[inline]
    fn take_idle(&mut self, regions: &mut Regions) -> Option<RegionId> {
        self.take_idle(regions)
    }

    fn memory(&self) -> usize {
        self.memory()
    }
}

/// Regions by value as a tournament: names in groups of eight, of which the smallest region meets that of the next group, and so on.
/// A region that rises and has won nothing changes nothing. The weight of a region that is not in it has a minus sign, as that of a new
/// region has. So it loses to every member, and a group is played without a look at anything else.
#[derive(Debug, Default)]
pub struct Winners {
    references: u64,
    /// The winner of nodes `2n` and `2n + 1` in node `n`, from 1; the winners of the groups in the second half.
    nodes: Vec<Option<RegionId>>,
}

/// Regions of a group: their notes lie side by side.
const GROUP: usize = 8;

/// The keys of members are smaller than this.
const NO_MEMBER: u128 = 1 << 127;

/// A region that plays: sorted by value, then by reference, of which no two regions have the same.
#[derive(Clone, Copy)]
struct Player {
    key: u128,
    /// The raw name, or 0.
    name: u32,
}

impl Player {
    /// Loses to every member.
    const NONE: Self = Self { key: NO_MEMBER, name: 0 };

    /// Positive floats sort as their bits do, and those with a minus sign come after them.
    #[inline(always)]
    fn new((weight, reference): (f64, u64), name: u32) -> Self {
        Self { key: u128::from(weight.to_bits()) << 64 | u128::from(reference), name }
    }

    #[inline(always)]
    fn of(regions: &Regions, id: RegionId) -> Self {
        Self::new(regions.rank(id), id.raw())
    }

    /// Returns the region of a node.
    #[inline(always)]
    fn at(regions: &Regions, node: Option<RegionId>) -> Self {
        node.map_or(Self::NONE, |id| Self::of(regions, id))
    }

    /// Returns the winner of the two. By masks: nothing tells a processor beforehand which it is.
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        let mask = u128::from(other.key < self.key).wrapping_neg();
        let name = self.name ^ (self.name ^ other.name) & mask as u32;
        Self { key: self.key ^ (self.key ^ other.key) & mask, name }
    }

    /// Returns itself if it is a member.
    #[inline(always)]
    fn member(self) -> Self {
        if self.key < NO_MEMBER { self } else { Self::NONE }
    }

    #[inline(always)]
    fn id(self) -> Option<RegionId> {
        RegionId::from_raw(self.name)
    }
}

/// Returns the smallest member of a group.
#[inline]
fn winner_of(regions: &Regions, group: usize) -> Player {
    let first = GROUP * group;
    let name = |nth: usize| (first + nth) as u32 + 1;
    let Some(ranks) = regions.ranks::<GROUP>(first) else {
        let names = (first..regions.places()).map(RegionId::of_index);
        return names.map(|id| Player::of(regions, id)).fold(Player::NONE, Player::or).member();
    };
    let [a, b, c, d, e, f, g, h] = std::array::from_fn(|nth| Player::new(ranks[nth], name(nth)));
    (a.or(b).or(c.or(d))).or(e.or(f).or(g.or(h))).member()
}

impl Winners {
    /// Returns the number of groups.
    fn groups(&self) -> usize {
        self.nodes.len() / 2
    }

    fn node_of(&self, id: RegionId) -> usize {
        self.groups() + id.index() / GROUP
    }

    #[inline]
    fn set(&mut self, regions: &Regions, id: RegionId, value: f64) {
        self.references += 1;
        let region = regions.get(id);
        region.weight.set(value);
        region.order.set(self.references);
    }

    /// Makes room for a group, by playing all of it once more.
    #[cold]
    fn grow(&mut self, regions: &Regions, group: usize) {
        let groups = group + group / 4 + 8;
        self.nodes = vec![None; 2 * groups];
        for group in 0..groups {
            self.nodes[groups + group] = winner_of(regions, group).id();
        }
        for node in (1..groups).rev() {
            let [a, b] = [2 * node, 2 * node + 1].map(|node| Player::at(regions, self.nodes[node]));
            self.nodes[node] = a.or(b).id();
        }
    }

    /// A region has left, or is larger than before: what it won is played again.
    #[inline]
    fn replay(&mut self, regions: &Regions, id: RegionId) {
        let mut node = self.node_of(id);
        if self.nodes[node] != Some(id) {
            return;
        }
        let mut winner = winner_of(regions, id.index() / GROUP);
        loop {
            self.nodes[node] = winner.id();
            if node <= 1 || self.nodes[node / 2] != Some(id) {
                return;
            }
            winner = winner.or(Player::at(regions, self.nodes[node ^ 1]));
            node /= 2;
        }
    }
}

impl Ranking for Winners {
    fn insert(&mut self, regions: &mut Regions, id: RegionId, value: f64) {
        self.set(regions, id, value);
        self.put_back(regions, id);
    }

    #[inline]
    fn raise(&mut self, regions: &mut Regions, id: RegionId, value: f64) {
        debug_assert!(value >= regions.get(id).weight.get(), "values only rise");
        self.set(regions, id, value);
        self.replay(regions, id);
    }

    fn put_back(&mut self, regions: &mut Regions, id: RegionId) {
        let region = regions.get(id);
        region.weight.set(region.weight.get().abs());
        let group = id.index() / GROUP;
        if group >= self.groups() {
            return self.grow(regions, group);
        }
        let (mut node, key) = (self.node_of(id), Player::of(regions, id).key);
        while node > 0 && key < Player::at(regions, self.nodes[node]).key {
            self.nodes[node] = Some(id);
            node /= 2;
        }
    }

    fn remove(&mut self, regions: &mut Regions, id: RegionId) {
        let region = regions.get(id);
        region.weight.set(-region.weight.get().abs());
        self.replay(regions, id);
    }

    fn take_idle(&mut self, regions: &mut Regions) -> Option<RegionId> {
        loop {
            let id = (*self.nodes.get(1)?)?;
            self.remove(regions, id);
            if !regions.get(id).in_use() {
                return Some(id);
            }
            regions.get(id).set_aside(true);
        }
    }

    fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<Option<RegionId>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::PageRange;
    use proptest::prelude::*;

    /// Plays a sequence of calls, and returns what left in which order, and what was set aside.
    fn play<R: Ranking>(steps: &[(u8, usize, u8)]) -> Vec<(Option<RegionId>, Vec<RegionId>)> {
        let mut regions = Regions::new();
        let mut ranking = R::default();
        // Names that no region has any more are used again.
        let (mut inside, mut outside, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        for (&(step, nth, value), page) in steps.iter().zip(0..) {
            let value = f64::from(value);
            match step {
                0..=3 => {
                    let id = regions.insert(PageRange::new(page, 1).unwrap());
                    ranking.insert(&mut regions, id, value);
                    inside.push(id);
                }
                4 | 5 if !inside.is_empty() => {
                    let id = inside[nth % inside.len()];
                    let value = value.max(regions.get(id).weight.get());
                    ranking.raise(&mut regions, id, value);
                }
                6 if !inside.is_empty() => {
                    let id = inside.swap_remove(nth % inside.len());
                    ranking.remove(&mut regions, id);
                    regions.remove(id);
                }
                7 if !inside.is_empty() => {
                    let region = regions.get(inside[nth % inside.len()]);
                    region.set_holds(1 - region.holds());
                }
                8 if !outside.is_empty() => {
                    let id = outside.swap_remove(nth % outside.len());
                    regions.get(id).set_aside(false);
                    ranking.put_back(&mut regions, id);
                    inside.push(id);
                }
                _ => {
                    let taken = ranking.take_idle(&mut regions);
                    let has_left = |&id: &RegionId| Some(id) == taken || regions.get(id).aside();
                    let left: Vec<_> = inside.extract_if(.., |id| has_left(id)).collect();
                    outside.extend(&left);
                    seen.push((taken, left));
                }
            }
        }
        while let Some(id) = ranking.take_idle(&mut regions) {
            seen.push((Some(id), Vec::new()));
        }
        seen
    }

    proptest! {
        #[test]
        fn both_forms_rank_alike(steps in prop::collection::vec((0_u8..10, 0_usize..200, 0_u8..20), 1..400)) {
            prop_assert_eq!(play::<Ordered>(&steps), play::<Winners>(&steps));
        }
    }

    #[test]
    fn a_region_takes_little() {
        let mut regions = Regions::new();
        let mut winners = Winners::default();
        let lists = regions.memory();
        for page in 0..10_000 {
            let id = regions.insert(PageRange::new(page, 1).unwrap());
            winners.insert(&mut regions, id, (page * 7919 % 1000) as f64);
        }
        assert!(winners.memory() <= 10_000 * 13 / 10, "{}", winners.memory());
        // No list is made, and no region has a row for one.
        assert!(regions.memory() - lists <= 40 * 10_000 * 9 / 8 + 8192, "{}", regions.memory());
        let mut last = 0.0;
        while let Some(id) = winners.take_idle(&mut regions) {
            let value = regions.get(id).weight.get().abs();
            assert!(value >= last);
            last = value;
        }
    }
}
