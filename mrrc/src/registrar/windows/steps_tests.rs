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
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    Refuse,
    Break,
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
        match self.fault() {
            Fault::Refuse => Err(Failure::Refused(libc::ENOMEM)),
            Fault::Break => Err(Failure::Broken),
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
        if self.fault() == Fault::Refuse {
            return Err(libc::ENOMEM);
        }
        self.made += 1;
        self.windows.insert(self.made, (self.made << 8, None));
        Ok(self.made)
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
        self.windows.remove(&window).map(|_| ()).ok_or(libc::ENOENT)
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
    let fault = prop_oneof![Just(Fault::None), Just(Fault::Refuse), Just(Fault::Break), Just(Fault::Late)];
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
