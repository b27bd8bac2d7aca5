//! A policy's parameters: the benefit of newcomers and of uses, in numbers.
//!
//! Each choice suits workloads that the others do not, and none was fitted to a single one. Over the traces that this
//! was tried on, the geometric mean of total costs changes by about half a percent when a number here is changed by
//! half of itself, because the cache chooses among them anyway.

/// Uses beyond these count no more.
pub(super) const MAX_TOUCHES: u32 = 16;

/// The benefit of a newcomer on probation, where a trusted one has 1.
const PROBATION: f64 = 0.05;

/// The choices that are simulated: share of newcomers trusted, uses that count, and the power of their number that
/// counts. The first is taken until others have proved cheaper.
pub(super) const CHOICES: [(f64, u32, f64); 3] = [(0.1, 16, 1.0), (0.3, 16, 1.0), (1.0, 8, 0.7)];

/// The benefit of newcomers and of uses.
#[derive(Debug, Clone)]
pub(super) struct Parameters {
    /// The share of newcomers that are trusted at once, in 2^32 parts.
    trusted: u64,
    /// The benefit of a number of uses.
    uses: [f64; MAX_TOUCHES as usize + 1],
}

impl Parameters {
    fn new(trusted: f64, max_touches: u32, power: f64) -> Self {
        let uses = std::array::from_fn(|uses| f64::from((uses as u32).min(max_touches)).powf(power));
        Self { trusted: (trusted * (1_u64 << 32) as f64) as u64, uses }
    }

    /// Those that are simulated.
    pub(super) fn all() -> [Self; CHOICES.len()] {
        CHOICES.map(|(trusted, max_touches, power)| Self::new(trusted, max_touches, power))
    }

    /// Returns the benefit above the clock. `chance` decides on trust in a newcomer.
    #[inline]
    pub(super) fn benefit(&self, uses: u32, density: f64, chance: u64) -> f64 {
        if uses > 1 {
            return density * self.uses[uses.min(MAX_TOUCHES) as usize];
        }
        let trusted = chance.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 < self.trusted;
        density * if trusted { 1.0 } else { PROBATION }
    }

    /// As [`Parameters::benefit`], where no region has to go for it.
    pub(super) fn benefit_while_room(&self, uses: u32, density: f64) -> f64 {
        density * self.uses[uses.min(MAX_TOUCHES) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newcomers_are_trusted_by_share_or_while_room() {
        for (choice, (share, ..)) in Parameters::all().iter().zip(CHOICES) {
            let trusted = (0..100_000_u64).filter(|&chance| choice.benefit(1, 2.0, chance) == 2.0).count();
            assert!((trusted as f64 / 1e5 - share).abs() < 0.01, "{trusted} for {share}");
            assert_eq!(choice.benefit_while_room(1, 2.0), 2.0);
        }
    }

    #[test]
    fn uses_count_up_to_a_bound() {
        let [wary, _, trusting] = Parameters::all();
        assert_eq!([2, 16, 17, u32::MAX].map(|uses| wary.benefit(uses, 1.0, 0)), [2.0, 16.0, 16.0, 16.0]);
        assert_eq!(trusting.benefit(8, 1.0, 0), trusting.benefit(100, 1.0, 0));
        assert!(trusting.benefit(8, 1.0, 0) < wary.benefit(8, 1.0, 0));
    }
}
