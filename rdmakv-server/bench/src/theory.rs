//! Whether counts are what a law makes of chance: Pearson's chi-square, for tests.

/// Panics unless `seen` is what draws by these probabilities give, but for once in a million draws of all of it.
pub(crate) fn fits(seen: &[u64], theory: &[f64]) {
    assert_eq!(seen.len(), theory.len());
    let draws: u64 = seen.iter().sum();
    let (mut square, mut bins) = (0.0, 0);
    // Rare ones together: the law of chi-square needs some of each.
    let (mut rare_seen, mut rare_expected) = (0.0, 0.0);
    for (&seen, probability) in seen.iter().zip(theory) {
        let expected = probability * draws as f64;
        if expected < 10.0 {
            rare_seen += seen as f64;
            rare_expected += expected;
            continue;
        }
        square += (seen as f64 - expected).powi(2) / expected;
        bins += 1;
    }
    if rare_expected >= 10.0 {
        square += (rare_seen - rare_expected).powi(2) / rare_expected;
        bins += 1;
    }
    // Wilson and Hilferty: the cube root of chi-square over its freedom is nearly normal; 4.75 is one in a million.
    let freedom = f64::from(bins - 1);
    let part = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - part + 4.75 * part.sqrt()).powi(3);
    assert!(square <= limit, "chi-square {square:.1}, with {freedom} degrees of freedom at most {limit:.1}");
}
