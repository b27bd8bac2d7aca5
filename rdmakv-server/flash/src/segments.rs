//! The segments of a log: what each is used for, and how many records and units of it stubs name.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Open,
    Sealed,
    Reclaiming,
    /// Its records count no more; it is free when no stub names it and no write is in progress.
    Condemned,
    /// Its file is given up, with records that counted or none.
    Lost {
        counted: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) state: State,
    pub(crate) sequence: u64,
    pub(crate) live: u32,
    /// Units of the records that stubs name, as their coded lengths say.
    pub(crate) live_units: u32,
    pub(crate) records: u32,
}

#[derive(Debug)]
pub(crate) struct Segments {
    all: Vec<Segment>,
    free: VecDeque<u32>,
    /// Sealed segments, the oldest first; some have been freed since.
    sealed: VecDeque<(u32, u64)>,
    freed: u64,
    lost: usize,
}

impl Segments {
    pub(crate) fn new(count: u32) -> Self {
        let segment = Segment { state: State::Free, sequence: 0, live: 0, live_units: 0, records: 0 };
        Self {
            all: vec![segment; count as usize],
            free: (0..count).collect(),
            sealed: VecDeque::new(),
            freed: 0,
            lost: 0,
        }
    }
    pub(crate) fn get(&self, number: u32) -> Segment {
        self.all[number as usize]
    }
    pub(crate) fn len(&self) -> u32 {
        self.all.len() as u32
    }
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }
    /// Returns how many were given up.
    pub(crate) fn lost(&self) -> usize {
        self.lost
    }
    /// Returns how many were ever freed.
    pub(crate) fn freed(&self) -> u64 {
        self.freed
    }
    pub(crate) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Segment>() + self.free.capacity() * 4 + self.sealed.capacity() * 16
    }
    /// Returns whether records of it count.
    pub(crate) fn counts(&self, number: u32) -> bool {
        matches!(self.get(number).state, State::Open | State::Sealed | State::Reclaiming)
    }

    pub(crate) fn take_free(&mut self, sequence: u64) -> Option<u32> {
        let number = self.free.pop_front()?;
        self.all[number as usize] = Segment { state: State::Open, sequence, live: 0, live_units: 0, records: 0 };
        Some(number)
    }
    pub(crate) fn seal(&mut self, number: u32, records: u32) {
        let segment = &mut self.all[number as usize];
        if segment.state == State::Open {
            (segment.state, segment.records) = (State::Sealed, records);
            self.sealed.push_back((number, segment.sequence));
        }
    }
    pub(crate) fn named(&mut self, number: u32, units: u32) {
        let segment = &mut self.all[number as usize];
        (segment.live, segment.live_units) = (segment.live + 1, segment.live_units + units);
    }
    pub(crate) fn unnamed(&mut self, number: u32, units: u32) {
        let segment = &mut self.all[number as usize];
        (segment.live, segment.live_units) = (segment.live - 1, segment.live_units - units);
    }
    /// Returns the sealed segment of which least is named, the oldest of these.
    pub(crate) fn emptiest(&self) -> Option<u32> {
        let sealed = self.all.iter().enumerate().filter(|(_, segment)| segment.state == State::Sealed);
        sealed.min_by_key(|(_, segment)| (segment.live_units, segment.sequence)).map(|(number, _)| number as u32)
    }
    /// Returns the oldest sealed segment.
    pub(crate) fn oldest(&mut self) -> Option<u32> {
        while let Some(&(number, sequence)) = self.sealed.front() {
            let segment = self.get(number);
            if segment.state == State::Sealed && segment.sequence == sequence {
                return Some(number);
            }
            self.sealed.pop_front();
        }
        None
    }
    pub(crate) fn set_state(&mut self, number: u32, state: State) {
        self.all[number as usize].state = state;
    }
    /// Condemns a segment whose records no longer count; returns whether stubs may name it.
    pub(crate) fn condemn(&mut self, number: u32) -> bool {
        let is = self.counts(number);
        if is {
            self.set_state(number, State::Condemned);
        }
        is
    }
    /// Frees a segment, in which there is nothing.
    pub(crate) fn release(&mut self, number: u32) {
        self.set_state(number, State::Free);
        self.freed += 1;
        // Of one that is freed early, the entry among the sealed goes when it is met; there are not more of them than segments.
        if self.sealed.len() > self.all.len() {
            let all = &self.all;
            self.sealed.retain(|&(number, sequence)| {
                let segment = all[number as usize];
                segment.state == State::Sealed && segment.sequence == sequence
            });
        }
        self.free.push_back(number);
    }
    /// Gives up a segment with its file.
    pub(crate) fn lose(&mut self, number: u32) {
        self.free.retain(|&free| free != number);
        if !matches!(self.get(number).state, State::Lost { .. }) {
            self.lost += 1;
            self.set_state(number, State::Lost { counted: self.counts(number) });
        }
    }
    /// Takes a segment over from before a restart, sealed.
    pub(crate) fn restore(&mut self, number: u32, sequence: u64, records: u32) {
        self.free.retain(|&free| free != number);
        self.all[number as usize] = Segment { state: State::Sealed, sequence, live: 0, live_units: 0, records };
    }
    /// Puts back a segment that was to be reclaimed.
    pub(crate) fn reseal(&mut self, number: u32) {
        if self.get(number).state == State::Reclaiming {
            self.set_state(number, State::Sealed);
            self.sealed.push_front((number, self.get(number).sequence));
        }
    }
    /// Puts what was restored in order.
    pub(crate) fn order(&mut self) {
        let sealed = self.all.iter().enumerate().filter(|(_, segment)| segment.state == State::Sealed);
        let mut sealed: Vec<_> = sealed.map(|(number, segment)| (number as u32, segment.sequence)).collect();
        sealed.sort_by_key(|&(_, sequence)| sequence);
        self.sealed = sealed.into();
    }
}
