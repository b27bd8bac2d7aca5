//! The fractional knapsack, for every capacity at once and in memory that does not grow with the number of items.
//!
//! Items are summed in classes of nearly equal density (value over volume): 4,096 to each doubling. Filling a knapsack
//! takes whole classes from the densest down, which is exact, and of the one that does not fit whole as much as its
//! densest item would give, which is too much by less than one part in 4,096 of that class. So the result never falls
//! short of the true maximum.

/// Bits of the mantissa that tell classes apart.
const CLASS_BITS: u32 = 12;

/// Classes of one doubling.
const CLASSES: usize = 1 << CLASS_BITS;

/// The doublings of positive floats.
const DOUBLINGS: usize = 1 << 11;

/// Items, summed by density.
pub(super) struct Items {
    /// By the exponent of a density, and then by the first bits of its mantissa. None where there are no items.
    doublings: Vec<Option<Box<[Class]>>>,
}

impl Default for Items {
    fn default() -> Self {
        Self { doublings: vec![None; DOUBLINGS] }
    }
}

#[derive(Clone, Copy, Default)]
struct Class {
    value: f64,
    volume: f64,
    densest: f64,
}

impl Items {
    /// Takes in items of this value and volume together.
    #[inline]
    pub(super) fn add(&mut self, value: f64, volume: f64) {
        if value <= 0.0 || volume <= 0.0 {
            return;
        }
        let density = value / volume;
        // Positive floats sort as their bits do.
        let class = (density.to_bits() >> (f64::MANTISSA_DIGITS - 1 - CLASS_BITS)) as usize;
        let doubling = &mut self.doublings[class / CLASSES % DOUBLINGS];
        let class = &mut doubling.get_or_insert_with(no_classes)[class % CLASSES];
        class.value += value;
        class.volume += volume;
        class.densest = class.densest.max(density);
    }

    /// Ready to be asked.
    pub(super) fn sorted(self) -> Knapsack {
        let mut filled = Vec::new();
        let (mut value, mut volume) = (0.0, 0.0);
        let densest_first = self.doublings.iter().rev().flatten().flat_map(|classes| classes.iter().rev());
        for &class in densest_first.filter(|class| class.volume > 0.0) {
            filled.push(Filled { value, volume, next: class });
            value += class.value;
            volume += class.volume;
        }
        Knapsack { filled, value }
    }
}

#[cold]
fn no_classes() -> Box<[Class]> {
    vec![Class::default(); CLASSES].into()
}

/// The items that fit.
pub(super) struct Knapsack {
    filled: Vec<Filled>,
    /// Of everything.
    value: f64,
}

/// A knapsack that holds all that is denser than the next class.
struct Filled {
    value: f64,
    volume: f64,
    next: Class,
}

impl Knapsack {
    /// Returns the worth of a little more volume, for each unit of it.
    pub(super) fn price_at(&self, volume: f64) -> f64 {
        let full = self.filled.partition_point(|filled| filled.volume <= volume);
        let Some(last) = full.checked_sub(1).map(|at| &self.filled[at]) else { return 0.0 };
        if volume < last.volume + last.next.volume { last.next.densest } else { 0.0 }
    }

    /// Returns the most value that a volume can hold, or a trifle more.
    pub(super) fn value_in(&self, volume: f64) -> f64 {
        let full = self.filled.partition_point(|filled| filled.volume <= volume);
        let Some(last) = full.checked_sub(1).map(|at| &self.filled[at]) else { return 0.0 };
        let part = ((volume - last.volume) * last.next.densest).min(last.next.value);
        (last.value + part).min(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buckets_approximate_sorted_items(
            items in prop::collection::vec((0.0f64..10.0, 1u32..1000), 0..40),
            room in 0u32..20_000,
        ) {
            let mut sums = Items::default();
            let mut sorted = items.clone();
            for (value, volume) in items {
                sums.add(value, f64::from(volume));
            }
            sorted.sort_by(|a, b| (b.0 / f64::from(b.1)).total_cmp(&(a.0 / f64::from(a.1))));
            let mut left = f64::from(room);
            let mut most = 0.0;
            for (value, volume) in sorted {
                let part = (left / f64::from(volume)).min(1.0);
                most += value * part;
                left -= f64::from(volume) * part;
            }
            let got = sums.sorted().value_in(f64::from(room));
            prop_assert!(got >= most * (1.0 - 1e-12) && got <= most * (1.0 + 1.0 / 4096.0) + 1e-9, "{got} against {most}");
        }
    }
}
