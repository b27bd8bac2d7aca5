use super::shortage::RETRY;
use super::*;
use proptest::prelude::*;
use std::time::Duration;

fn at(second: u64) -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_secs(second)
}

fn full(limits: Limits, source: u32, count: usize) -> HalfOpen<u32, (u32, usize)> {
    let mut half_open = HalfOpen::new(limits);
    (0..count).for_each(|number| _ = half_open.admit(source, at(5), (source, number)));
    half_open
}

#[test]
fn a_source_evicts_its_own_oldest() {
    let mut half_open = full(Limits { total: 8, by_source: 3 }, 1, 3);
    assert_eq!(half_open.admit(2, at(5), (2, 0)), None);
    assert_eq!(half_open.admit(1, at(5), (1, 3)), Some((1, 0)));
    assert_eq!(half_open.iter().copied().collect::<Vec<_>>(), [(1, 1), (1, 2), (2, 0), (1, 3)]);
}

#[test]
fn the_heaviest_source_loses_at_the_total_bound() {
    let mut half_open = full(Limits { total: 4, by_source: 3 }, 1, 2);
    half_open.admit(2, at(5), (2, 0));
    half_open.admit(3, at(5), (3, 0));
    assert_eq!(half_open.admit(4, at(5), (4, 0)), Some((1, 0)));
    // All have one: the oldest of all.
    assert_eq!(half_open.admit(5, at(5), (5, 0)), Some((1, 1)));
}

#[test]
fn expiry_is_by_time_and_removal_by_number() {
    let mut half_open = HalfOpen::new(Limits::MOST);
    for (until, item) in [(7, 'a'), (5, 'b'), (6, 'c')] {
        half_open.admit(0, at(until), item);
    }
    assert_eq!(half_open.next_expiry(), Some(at(5)));
    assert_eq!(
        (half_open.expire(at(4)), half_open.expire(at(6)), half_open.expire(at(6))),
        (None, Some('b'), Some('c'))
    );
    let number = half_open.numbers()[0];
    assert_eq!(half_open.get_mut(number).copied(), Some('a'));
    assert_eq!((half_open.remove(number), half_open.remove(number)), (Some('a'), None));
    assert!(half_open.len() == 0 && half_open.next_expiry().is_none() && half_open.evict(None).is_none());
}

#[test]
fn sources_are_v4_addresses_and_v6_halves() {
    let of = |text: &str| Source::of(text.parse().expect("an address"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff:ffff:ffff:ffff"));
    assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
}

#[test]
fn a_shortage_is_reported_once() {
    let mut shortage = Shortage::default();
    assert!(!shortage.report());
    let mut reports = 0;
    // Missing twenty times a second for a minute, then not for eleven, then again.
    for tick in 0..1_200 {
        shortage.note(at(0) + Duration::from_millis(50 * tick));
        reports += u32::from(shortage.report());
    }
    assert_eq!((reports, shortage.episodes()), (1, 1));
    shortage.note(at(71));
    assert!(shortage.report() && !shortage.report());
    assert_eq!(shortage.episodes(), 2);
    shortage.pause(at(71));
    assert_eq!(shortage.paused_until(at(71)), Some(at(71) + RETRY));
    assert_eq!(shortage.paused_until(at(72)), None);
}

#[test]
fn bounds_leave_descriptors_for_others() {
    for files in [0, 48, 64, 256, 1024, 2048, 1 << 20, usize::MAX] {
        let Limits { total, by_source } = Limits::of_descriptors(files);
        assert!(total <= (files / 8).max(8) && (4..=total / 2).contains(&by_source), "{files}: {total}, {by_source}");
        let half_open = HalfOpen::<u32, ()>::new(Limits { total, by_source });
        assert!(half_open.batch() < by_source, "one that has spoken is looked at before it is evicted");
    }
    assert_eq!(Limits::of_descriptors(2048), Limits::MOST);
    assert_eq!(Limits::of_descriptors(usize::MAX), Limits::MOST);
}

proptest! {
    /// Whatever comes: the bounds hold, a newcomer is admitted, and a source within its share loses nothing to others.
    #[test]
    fn bounds_hold_and_shares_are_safe(
        arrivals in prop::collection::vec((0_u32..6, 0_u8..10), 1..300),
        total in 1_usize..20,
        by_source in 1_usize..10,
    ) {
        let limits = Limits { total, by_source: by_source.min(total) };
        let mut half_open = HalfOpen::new(limits);
        for (number, (source, what)) in arrivals.into_iter().enumerate() {
            let before: Vec<(u32, usize)> = half_open.iter().copied().collect();
            let held = |of: u32| before.iter().filter(|(source, _)| *source == of).count();
            if what == 0 {
                let keep = half_open.numbers().first().copied();
                let oldest = half_open.iter().next().copied();
                let evicted = half_open.evict(keep);
                prop_assert!(evicted.is_none() || evicted != oldest);
                prop_assert_eq!(evicted.is_some(), before.len() > 1);
                continue;
            }
            let evicted = half_open.admit(source, at(5), (source, number));
            prop_assert!(half_open.len() <= total);
            prop_assert_eq!(half_open.iter().last(), Some(&(source, number)));
            let Some((loser, lost)) = evicted else { continue };
            // The oldest of its source.
            prop_assert_eq!(before.iter().find(|(of, _)| *of == loser), Some(&(loser, lost)));
            if loser != source {
                let most = (0..6).map(held).max().unwrap_or(0);
                prop_assert_eq!(held(loser), most);
                prop_assert!(held(source) <= held(loser));
            }
        }
        for source in 0..6 {
            prop_assert!(half_open.iter().filter(|(of, _)| *of == source).count() <= limits.by_source);
        }
        prop_assert_eq!(half_open.numbers().len(), half_open.len());
    }
}
