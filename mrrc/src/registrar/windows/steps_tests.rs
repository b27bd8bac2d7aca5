//! Random registrations over a model of a device, with failures of each step.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A device that keeps the rules of verbs, and fails where it is told to.
#[derive(Default)]
struct Model {
    made: u32,
    /// Each window, its key, and what it is bound to.
    windows: BTreeMap<u32, (u32, Option<Bytes>)>,
    /// The region that each window was bound to last.
    last: HashMap<u32, usize>,
    /// Whether there is a queue pair, and how many were made.
    pair: bool,
    pairs: u32,
    /// The outcome of the next steps: none is success.
    faults: Vec<Fault>,
    /// Bindings and unbindings that were asked for.
    steps: u32,
    /// A new window gets the number of the one that ended last, and a last byte that is greater by this.
    reuse: Option<u8>,
    numbers: Vec<u32>,
    /// The windows that it has, at most.
    most: Option<usize>,
    last_byte: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    Refuse,
    Break,
    /// There is no answer.
    Stay,
    /// The step is carried out, and then the pair breaks.
    Late,
}

impl Model {
    fn fault(&mut self) -> Fault {
        self.faults.pop().unwrap_or(Fault::None)
    }

    fn step(&mut self, window: u32, bytes: Option<&Bytes>) -> Result<u32, Failure> {
        self.pairs += u32::from(!self.pair);
        self.pair = true;
        self.steps += 1;
        match self.fault() {
            Fault::Refuse => Err(Failure::Refused(libc::ENOMEM)),
            Fault::Break => Err(Failure::Broken),
            Fault::Stay => Err(Failure::Silent),
            fault => {
                let (key, to) = self.windows.get_mut(&window).expect("a window that was ended is bound");
                *key = (*key & !255) | (key.wrapping_add(1) & 255);
                *to = bytes.copied();
                if fault == Fault::Late {
                    return Err(Failure::Broken);
                }
                Ok(*key)
            }
        }
    }

    fn opens(&self, key: u32) -> Option<Bytes> {
        self.windows.values().find(|(of, _)| *of == key).and_then(|(_, to)| *to)
    }
}

impl Device for Model {
    type Window = u32;

    fn make(&mut self) -> Result<u32, i32> {
        if self.fault() == Fault::Refuse || self.most.is_some_and(|most| self.windows.len() >= most) {
            return Err(libc::ENOMEM);
        }
        self.made += 1;
        let mut key = self.made << 8;
        if let Some(step) = self.reuse {
            self.last_byte = self.last_byte.wrapping_add(step);
            key = self.numbers.pop().unwrap_or(self.made) << 8 | u32::from(self.last_byte);
        }
        self.windows.insert(self.made, (key, None));
        Ok(self.made)
    }

    fn key(&self, window: u32) -> u32 {
        self.windows[&window].0
    }

    fn bind(&mut self, window: u32, bytes: &Bytes) -> Result<u32, Failure> {
        let key = self.step(window, Some(bytes))?;
        self.last.insert(window, bytes.region);
        Ok(key)
    }

    fn unbind(&mut self, window: u32, _: usize) -> Result<(), Failure> {
        self.step(window, None).map(|_| ())
    }

    fn end(&mut self, window: u32) -> Result<(), i32> {
        if self.fault() == Fault::Refuse {
            return Err(libc::EBUSY);
        }
        let (key, _) = self.windows.remove(&window).ok_or(libc::ENOENT)?;
        self.numbers.push(key >> 8);
        Ok(())
    }

    fn tear_down(&mut self) {
        self.pair = false;
    }

    fn abandon(&mut self) {}
}

fn bytes(region: usize, number: u64) -> Bytes {
    Bytes {
        region,
        address: 4096 * region as u64 + number,
        length: 1 + number % 99,
        rights: (1 + number as u32 % 7) << 1,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Bind { region: usize },
    Unbind { which: usize },
    End { region: usize },
    Close,
}

fn steps() -> impl Strategy<Value = Vec<(Step, Vec<Fault>)>> {
    let step = prop_oneof![
        8 => (1_usize..5).prop_map(|region| Step::Bind { region }),
        8 => (0_usize..64).prop_map(|which| Step::Unbind { which }),
        1 => (1_usize..5).prop_map(|region| Step::End { region }),
        1 => Just(Step::Close),
    ];
    let fault = proptest::sample::select(vec![Fault::None, Fault::Refuse, Fault::Break, Fault::Stay, Fault::Late]);
    let faults = prop_oneof![9 => Just(Vec::new()), 1 => proptest::collection::vec(fault, 1..4)];
    proptest::collection::vec((step, faults), 0..600)
}

proptest! {
    #[test]
    fn keys_open_their_bytes_and_nothing_after(steps in steps()) {
        let mut windows = Windows::new(Model::default());
        // The last is whether the device failed to end it.
        let mut held: Vec<(Bound<u32>, Bytes, bool)> = Vec::new();
        let mut ended = HashSet::new();
        for (number, (step, faults)) in (0..).zip(steps) {
            windows.device.faults = faults;
            match step {
                Step::Bind { region } => {
                    let asked = bytes(region, number);
                    if let Ok(bound) = windows.bind(&asked) {
                        prop_assert!(!ended.contains(&bound.key), "an old key opens other bytes");
                        held.push((bound, asked, false));
                    }
                }
                Step::Unbind { which } if !held.is_empty() => {
                    let (bound, asked, _) = held.swap_remove(which % held.len());
                    let key = bound.key;
                    match windows.unbind(bound) {
                        Ok(()) => _ = ended.insert(key),
                        Err((bound, _)) => held.push((bound, asked, true)),
                    }
                }
                // The cache ends a region once no registration uses it.
                Step::End { region } if held.iter().all(|(_, of, _)| of.region != region) => {
                    windows.region_ends(region);
                    let Model { windows: there, last, .. } = &windows.device;
                    let outlive = there.keys().filter(|window| last.get(window) == Some(&region));
                    let outlive = outlive.filter(|window| !windows.left.contains(window)).count();
                    prop_assert_eq!(outlive, 0, "an idle window outlives its region");
                }
                Step::Close => windows.close(),
                _ => {}
            }
            windows.device.faults.clear();
            for (bound, asked, failed) in &held {
                let opens = windows.device.opens(bound.key);
                // One that the device failed to end may be unbound by now.
                let is_unbound = *failed && opens.is_none();
                prop_assert!(is_unbound || opens == Some(*asked), "a key opens {opens:?}, not {asked:?}");
            }
            for &key in &ended {
                prop_assert_eq!(windows.device.opens(key), None, "an ended key opens something");
            }
            prop_assert!(windows.counts().1 <= MOST_IDLE);
            prop_assert_eq!(windows.counts().0, held.len());
        }
        for (bound, ..) in held {
            prop_assert!(windows.unbind(bound).is_ok());
        }
        windows.close();
        prop_assert_eq!((windows.device.windows.len(), windows.device.pair), (0, false), "something is left behind");
    }
}

#[test]
fn a_broken_pair_is_made_anew_and_not_for_ever() {
    let mut windows = Windows::new(Model::default());
    // The first binding makes a window, breaks, ends it, makes another.
    windows.device.faults = vec![Fault::None, Fault::None, Fault::None, Fault::Break, Fault::None];
    assert!(windows.bind(&bytes(1, 1)).is_ok());
    assert_eq!((windows.device.pairs, windows.failures), (2, 0));
    let mut tries = 0;
    while windows.failures < MOST_FAILURES {
        windows.device.faults = vec![Fault::Break, Fault::None, Fault::None, Fault::Break, Fault::None];
        assert_eq!(windows.bind(&bytes(1, 1)).err(), Some(libc::EIO));
        tries += 1;
        assert!(tries <= MOST_FAILURES, "it is tried for ever");
    }
    windows.device.faults.clear();
    let pairs = windows.device.pairs;
    assert_eq!((windows.bind(&bytes(1, 1)).err(), windows.device.pairs), (Some(libc::EIO), pairs));
}

#[test]
fn a_silent_pair_is_waited_for_a_few_times_in_all() {
    for (fault, most) in [(Fault::Stay, 2), (Fault::Break, 8)] {
        let mut windows = Windows::new(Model::default());
        let held: Vec<_> = (0..1000).map(|number| windows.bind(&bytes(1, number)).unwrap()).collect();
        let before = windows.device.steps;
        windows.device.faults = vec![fault; 3000];
        held.into_iter().for_each(|bound| windows.unbind(bound).unwrap());
        assert_eq!(windows.device.steps - before, most, "{fault:?}");
        assert_eq!((windows.device.windows.len(), windows.counts()), (0, (0, 0)));
        assert_eq!(windows.bind(&bytes(1, 1)).err(), Some(libc::EIO));
        assert!(windows.trouble().is_some());
    }
}

#[test]
fn keys_that_may_have_changed_count() {
    let mut windows = Windows::new(Model::default());
    let mut bound = windows.bind(&bytes(1, 1)).unwrap();
    for _ in 0..300 {
        // It is unbound, but the device does not say so, and does not end the window.
        windows.device.faults = vec![Fault::Refuse, Fault::Late];
        (bound, _) = windows.unbind(bound).unwrap_err();
        windows.failures = 0;
    }
    assert!(windows.unbind(bound).is_ok());
    assert_eq!((windows.counts(), windows.device.windows.len()), ((0, 0), 0), "a window whose keys came round");
}

proptest! {
    /// On a device that gives a new window the number of the one that ended last.
    #[test]
    fn an_ended_key_is_not_the_next(step in any::<u8>(), regions in proptest::collection::vec((1_usize..6, 1_usize..4), 1..400)) {
        let mut windows = Windows::new(Model { reuse: Some(step), ..Model::default() });
        let mut ended: Vec<u32> = Vec::new();
        for (region, leases) in regions {
            let held: Vec<_> = (0..leases as u64).map(|number| windows.bind(&bytes(region, number)).unwrap()).collect();
            for bound in held {
                let lately = &ended[ended.len().saturating_sub(MOST_ENDED)..];
                prop_assert!(!lately.contains(&bound.key), "{:#x} ended lately", bound.key);
                let key = bound.key;
                windows.unbind(bound).unwrap();
                ended.push(key);
            }
            if region == 1 {
                (1..6).for_each(|region| windows.region_ends(region));
            }
        }
    }
}

#[test]
fn a_device_with_one_window_goes_on() {
    let mut windows = Windows::new(Model { reuse: Some(2), most: Some(1), ..Model::default() });
    for number in 0..1000 {
        let bound = windows.bind(&bytes(1, number)).unwrap();
        windows.unbind(bound).unwrap();
        if number % 3 == 0 {
            windows.region_ends(1);
        }
    }
}

#[test]
fn a_refused_window_changes_nothing() {
    let mut windows = Windows::new(Model::default());
    windows.device.faults = vec![Fault::Refuse];
    assert_eq!(windows.bind(&bytes(1, 1)).err(), Some(libc::ENOMEM));
    windows.device.faults = vec![Fault::Refuse, Fault::None];
    assert_eq!(windows.bind(&bytes(1, 1)).err(), Some(libc::ENOMEM));
    assert_eq!(windows.counts(), (0, 1));
    assert!(windows.bind(&bytes(1, 1)).is_ok());
    assert_eq!(windows.counts(), (1, 0));
}

#[test]
fn a_window_that_cannot_be_unbound_is_ended() {
    for fault in [Fault::Refuse, Fault::Break, Fault::Late] {
        let mut windows = Windows::new(Model::default());
        let bound = windows.bind(&bytes(1, 1)).unwrap();
        windows.device.faults = vec![fault];
        assert!(windows.unbind(bound).is_ok());
        assert_eq!((windows.device.windows.len(), windows.counts()), (0, (0, 0)), "{fault:?}");
    }
    let mut windows = Windows::new(Model::default());
    let bound = windows.bind(&bytes(1, 1)).unwrap();
    windows.device.faults = vec![Fault::Refuse, Fault::Break];
    let (bound, why) = windows.unbind(bound).unwrap_err();
    assert_eq!((why, windows.counts().0), (libc::EBUSY, 1));
    assert!(windows.unbind(bound).is_ok());
}
