//! Both processes of the handshake under the paper's costs take the times that follow from those.

use tracesim::reproduce::handshake::{APPLICATION, PAGES, Warmth, claimed_share, study};

#[test]
fn latencies_match_the_paper() {
    for read in [false, true] {
        for row in study(read, &PAGES, &[0]).unwrap() {
            let registration = 770 * row.pages as u64 + 7_420;
            let cold = [Warmth::Cold, Warmth::TargetWarm, Warmth::WriterWarm].into_iter();
            let cold = cold.zip([2, 1, 1]).find(|&(warmth, _)| warmth == row.warmth).map_or(0, |(_, cold)| cold);
            assert_eq!(row.traditional, cold * registration + APPLICATION, "{row:?}");
            assert_eq!(row.frrwp, cold.min(1) * registration, "{row:?}");
            if row.warmth == Warmth::Cold {
                assert!((row.share() - claimed_share(row.pages)).abs() < 1e-9);
            }
        }
    }
    let claims = PAGES.map(|pages| format!("{:.1}", 100.0 * claimed_share(pages)));
    assert_eq!(claims, ["66.4", "63.8", "58.4", "53.3", "51.0"]);
}

#[test]
fn network_latency_shrinks_the_overlap_share() {
    for row in study(false, &[16], &[1_000, 5_000, 50_000]).unwrap() {
        let registration = 770 * 16 + 7_420;
        // SYNC and keys go one way each, then the bytes.
        let trips = 3 * row.latency;
        let (traditional, frrwp) = match row.warmth {
            Warmth::Cold => (2 * registration, registration + trips),
            Warmth::TargetWarm => (registration, registration.max(2 * row.latency) + row.latency),
            Warmth::WriterWarm => (registration, registration + trips),
            Warmth::Warm => (0, trips),
        };
        assert_eq!(row.traditional, traditional + trips + APPLICATION, "{row:?}");
        assert_eq!(row.frrwp, frrwp, "{row:?}");
    }
}
