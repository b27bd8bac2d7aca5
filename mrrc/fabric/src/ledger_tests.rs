//! Sequences of registrations, changes and notifications, over a naive cache of libfabric's.

use super::*;
use proptest::prelude::*;

const PAGES: u64 = 32;

/// An entry of libfabric's cache: a range, and what each of its pages was when it was registered.
#[derive(Clone, Debug)]
struct Entry {
    range: PageRange,
    pages: Vec<u64>,
}

/// libfabric's caches, and the memory. A number a page says what it is.
struct World {
    ledger: Ledger,
    memory: Vec<u64>,
    changes: u64,
    caches: [Vec<Entry>; 2],
    now: u64,
    told: Option<PageRange>,
}

#[derive(Clone, Debug)]
enum Step {
    /// A transfer of a range by a cache. The flags: whether the monitor watches, and a change while it is asked.
    Transfer {
        cache: usize,
        range: PageRange,
        is_watched: bool,
        change: Option<PageRange>,
    },
    Change(PageRange),
    /// A discard, whose pages go at once, and again after so many milliseconds.
    Discard(PageRange, u64),
    BeginNotification,
    EndNotification,
    Pass(u64),
}

fn range() -> impl Strategy<Value = PageRange> {
    (0..PAGES - 8, 1..=8_u64).prop_map(|(start, pages)| PageRange::between(start, start + pages))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize, range(), prop::bool::weighted(0.9), prop::option::weighted(0.2, range()))
            .prop_map(|(cache, range, is_watched, change)| Step::Transfer { cache, range, is_watched, change }),
        3 => range().prop_map(Step::Change),
        1 => (range(), 0..5_u64).prop_map(|(range, later)| Step::Discard(range, later)),
        2 => Just(Step::BeginNotification),
        2 => Just(Step::EndNotification),
        1 => (1..20_u64).prop_map(Step::Pass),
    ]
}

impl World {
    fn new(max_pieces: usize) -> Self {
        let memory = (0..PAGES).collect();
        Self {
            ledger: Ledger::with_room(10, max_pieces),
            memory,
            changes: PAGES,
            caches: [Vec::new(), Vec::new()],
            now: 0,
            told: None,
        }
    }

    fn pages(&self, range: PageRange) -> Vec<u64> {
        self.memory[range.start() as usize..range.end() as usize].to_vec()
    }

    /// The pages go.
    fn change(&mut self, range: PageRange) {
        for page in range.start()..range.end() {
            self.changes += 1;
            self.memory[page as usize] = self.changes;
        }
    }

    fn report(&mut self, range: PageRange, kind: ChangeKind) {
        self.ledger.report(&[Change { range, kind }], self.now);
    }

    /// As `ofi_mr_cache_search`: returns the entry that the transfer uses.
    fn transfer(&mut self, cache: usize, range: PageRange, is_watched: bool, change: Option<PageRange>) -> Entry {
        self.ledger.settle(self.now);
        let ledger = &self.ledger;
        let found = self.caches[cache].iter().find(|entry| entry.range.contains(range));
        if let Some(entry) = found.filter(|entry| ledger.is_valid(entry.range)) {
            return entry.clone();
        }
        let (_, pages) = (self.caches[cache].retain(|entry| !entry.range.overlaps(range)), self.pages(range));
        let entry = Entry { range, pages };
        if let Ok(gaps) = self.ledger.begin(range) {
            if let Some(range) = change {
                self.change(range);
                self.report(range, ChangeKind::Gone);
                self.ledger.settle(self.now);
            }
            let answers: Vec<_> = gaps.into_iter().map(|gap| self.ledger.answer(gap, is_watched)).collect();
            if answers.into_iter().all(|answer| answer) {
                self.caches[cache].push(entry.clone());
            }
        }
        entry
    }

    fn begin_notification(&mut self) {
        self.ledger.settle(self.now);
        self.told = self.told.or_else(|| self.ledger.next_due());
    }

    fn end_notification(&mut self) {
        if let Some(range) = self.told.take() {
            self.caches.iter_mut().for_each(|cache| cache.retain(|entry| !entry.range.overlaps(range)));
            self.ledger.told(range);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Transfer { cache, range, is_watched, change } => {
                let entry = self.transfer(cache, range, is_watched, change);
                // A change during the subscription ends an entry that this transfer may use: libfabric registers before it subscribes.
                if change.is_none() {
                    assert_eq!(entry.pages, self.pages(entry.range), "old bytes of {:?}", entry.range);
                }
            }
            Step::Change(range) => {
                self.change(range);
                self.report(range, ChangeKind::Gone);
            }
            Step::Discard(range, later) => {
                self.report(range, ChangeKind::Discarding);
                self.change(range);
                self.now += later;
                self.change(range);
                // What was pinned while the pages went is forgotten within the grace.
            }
            Step::BeginNotification => self.begin_notification(),
            Step::EndNotification => self.end_notification(),
            Step::Pass(time) => self.now += time,
        }
    }

    /// All that is due is told, and no range is barred.
    fn settle(&mut self) {
        self.now += 1000;
        for _ in 0..2 * PAGES {
            self.begin_notification();
            self.end_notification();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_hit_is_stale(steps in prop::collection::vec(step(), 1..200), room in 1..40_usize) {
        let mut world = World::new(room);
        for step in &steps {
            world.step(step);
            prop_assert!(world.ledger.pieces.len() <= room);
        }
    }

    #[test]
    fn settled_range_hits_again(steps in prop::collection::vec(step(), 1..100), range in range()) {
        let mut world = World::new(100);
        steps.iter().for_each(|step| world.step(step));
        world.settle();
        prop_assert!(world.ledger.due.is_empty());
        world.transfer(0, range, true, None);
        prop_assert!(world.ledger.is_valid(range), "{:?}", world.ledger.pieces);
    }
}

fn gone(start: u64, end: u64) -> Change {
    Change { range: PageRange::between(start, end), kind: ChangeKind::Gone }
}

/// A ledger with these ranges subscribed to.
fn watched(ranges: &[(u64, u64)]) -> Ledger {
    let mut ledger = Ledger::new(10);
    for &(start, end) in ranges {
        for gap in ledger.begin(PageRange::between(start, end)).unwrap() {
            assert!(ledger.answer(gap, true));
        }
    }
    ledger
}

#[test]
fn change_ends_whole_pieces_only() {
    let mut ledger = watched(&[(0, 10), (5, 20), (30, 40)]);
    ledger.report(&[gone(12, 13)], 0);
    ledger.settle(0);
    let valid = |ledger: &Ledger, start, end| ledger.is_valid(PageRange::between(start, end));
    // (5, 20) added the piece of pages 10 to 20.
    assert!(valid(&ledger, 0, 10) && valid(&ledger, 30, 40) && !valid(&ledger, 5, 20) && !valid(&ledger, 18, 20));
    assert_eq!(ledger.next_due(), Some(PageRange::between(10, 20)));
    assert_eq!(ledger.next_due(), None);
}

#[test]
fn range_with_a_hole_is_not_valid() {
    let ledger = watched(&[(0, 10), (11, 20)]);
    let valid = |start, end| ledger.is_valid(PageRange::between(start, end));
    assert!(valid(0, 10) && valid(12, 20) && !valid(0, 20) && !valid(5, 12) && !valid(10, 12) && !valid(15, 21));
}

#[test]
fn nothing_begins_before_libfabric_is_told() {
    let mut ledger = watched(&[(0, 10)]);
    ledger.report(&[gone(0, 1)], 0);
    ledger.settle(0);
    let range = PageRange::between(4, 20);
    assert_eq!(ledger.begin(range), Err(Refusal::Changing));
    let piece = ledger.next_due().unwrap();
    assert_eq!(ledger.begin(range), Err(Refusal::Changing));
    ledger.told(piece);
    assert_eq!(ledger.begin(range), Ok(vec![range]));
}

#[test]
fn piece_that_changes_while_asked_is_forgotten() {
    let mut ledger = Ledger::new(10);
    let range = PageRange::between(0, 4);
    ledger.begin(range).unwrap();
    assert!(!ledger.is_valid(range));
    ledger.report(&[gone(3, 9)], 0);
    ledger.settle(0);
    assert!(!ledger.answer(range, true));
    assert!(!ledger.is_valid(range) && ledger.pieces.is_empty());
}

#[test]
fn discard_bars_its_range_for_the_grace() {
    let mut ledger = watched(&[]);
    let range = PageRange::between(0, 4);
    ledger.report(&[Change { range, kind: ChangeKind::Discarding }], 100);
    ledger.settle(109);
    assert_eq!(ledger.begin(range), Err(Refusal::Changing));
    assert!(ledger.begin(PageRange::between(4, 5)).is_ok());
    ledger.settle(110);
    assert!(ledger.begin(range).is_ok());
}

#[test]
fn bursts_of_changes_are_drawn_together() {
    let ranges: Vec<_> = (0..3000).map(|nth| (nth * 4, nth * 4 + 1)).collect();
    let mut ledger = watched(&ranges);
    let room = ledger.arrived.capacity();
    for &(start, end) in &ranges[1..] {
        ledger.report(&[gone(start, end)], 0);
    }
    assert_eq!(ledger.arrived.capacity(), room);
    ledger.settle(0);
    let valid = ranges.iter().filter(|&&(start, end)| ledger.is_valid(PageRange::between(start, end))).count();
    assert_eq!((valid, ledger.due.len()), (1, 2999));
}

#[test]
fn full_ledger_ends_all_pieces() {
    let mut ledger = Ledger::with_room(10, 4);
    for start in 0..4 {
        let range = PageRange::between(start * 2, start * 2 + 1);
        ledger.begin(range).unwrap();
        ledger.answer(range, true);
    }
    assert_eq!(ledger.begin(PageRange::between(100, 101)), Err(Refusal::Full));
    let mut told = 0;
    while let Some(piece) = ledger.next_due() {
        ledger.told(piece);
        told += 1;
    }
    assert_eq!((told, ledger.pieces.len()), (4, 0));
}
