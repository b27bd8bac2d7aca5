//! The read of a value that may be in fragments, as a state machine without input, output or clock.
//!
//! The primary is asked for the value, and as many others as may be needed for their newest fragments, at once. The primary's answer tells
//! the version: [`Reader`] believes what is of that, and the others are asked again, by the version. Members that do not answer soon are
//! passed over, as are fragments that make no sound value with the others.

use super::erasure::Parts;
use rdmakv_cluster::config::ServerId;
use rdmakv_cluster::helper::{Calls, Target};
use rdmakv_cluster::messages::{Answer, Call, Form, Piece, Version};
use rdmakv_cluster::reader::{ChunkState, Reader, Reading, Seen};
use rdmakv_cluster::wire::Attributes;

/// Nanoseconds after which others are asked in the place of members that do not answer.
pub(super) const HEDGE: u64 = 20_000_000;

/// A read that was begun.
#[derive(Debug)]
pub(super) struct Gathering {
    target: Target,
    /// The published version, its piece at the primary and its attributes; None before the primary tells them.
    told: Option<(Version, Piece, Attributes)>,
    /// Answers of others that came before.
    early: Vec<Early>,
    reader: Reader,
    parts: Parts,
    /// Which member gave each of them.
    from: Vec<(ServerId, u8)>,
    /// The reader believes enough fragments.
    is_enough: bool,
    /// Others that were not asked for this version.
    others: Vec<ServerId>,
    /// Others without an answer.
    asked: Vec<Asked>,
    /// Others did not answer: they may have fragments.
    is_silent: bool,
    /// When members without an answer are passed over.
    hedge_at: u64,
}

/// The answer of a member that came before the primary's, with its fragment if it has one.
#[derive(Debug)]
struct Early {
    from: ServerId,
    found: Option<(Version, Piece)>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    server: ServerId,
    /// For its newest fragment, of whichever version.
    is_any: bool,
    /// Another is asked in its place.
    is_late: bool,
}

/// The fragments that a value was made of, and the members that have them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MadeOf {
    pub(super) version: Version,
    /// The value's form, length and sum.
    pub(super) piece: Piece,
    pub(super) fragments: Vec<(ServerId, u8)>,
}

/// How a read of fragments goes on.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Gathered {
    /// By these calls, or by answers that will come.
    Waits(Calls),
    /// The value of this version.
    Value(Version, Attributes, Vec<u8>),
    /// All members have answered, and have too few fragments of this version.
    Lost { version: Version, found: usize, needed: usize },
    /// All members have answered, and no choice of their fragments has the sum of the value.
    Damaged,
    /// Members did not answer, and the others have too few sound fragments. It begins again.
    Unsure,
}

impl Gathering {
    /// Begins a read at the primary, and at so many others for a fragment of whichever version they have.
    pub(super) fn begin(target: Target, spread: usize, now: u64) -> (Self, Calls) {
        let (asked, others) = target.others().split_at(spread.min(target.others().len()));
        let mut calls = target.primary(Call::Read);
        calls.extend(target.each(asked, &Call::Fetch { version: Version::ABSENT }));
        let asked = asked.iter().map(|&server| Asked { server, is_any: true, is_late: false }).collect();
        let primary = target.members.first().copied().unwrap_or(ServerId(0));
        let gathering = Self {
            others: others.to_vec(),
            asked,
            target,
            told: None,
            early: Vec::new(),
            reader: Reader::new(primary),
            parts: Parts::default(),
            from: Vec::new(),
            is_enough: false,
            is_silent: false,
            hedge_at: now.saturating_add(HEDGE),
        };
        (gathering, calls)
    }

    /// Returns where the calls go.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Returns whether the primary has told the version.
    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Takes the primary's fragment.
    pub(super) fn tell(&mut self, from: ServerId, (version, piece): (Version, Piece), came: (Vec<u8>, Attributes)) {
        let (bytes, attributes) = came;
        self.told = Some((version, piece, attributes));
        self.believe(from, Some((version, piece)), bytes);
        for Early { from, found, bytes } in std::mem::take(&mut self.early) {
            self.weigh(from, true, found, bytes);
        }
    }

    /// Takes the answer of another member.
    pub(super) fn take(&mut self, from: ServerId, answer: &Answer, bytes: Vec<u8>) {
        let Some(at) = self.asked.iter().position(|asked| asked.server == from) else { return };
        let Asked { is_any, .. } = self.asked.remove(at);
        match answer {
            Answer::Value(found) => {
                let found = found.as_ref().map(|stored| (stored.version, stored.piece));
                if self.told.is_some() {
                    self.weigh(from, is_any, found, bytes);
                } else {
                    self.early.push(Early { from, found, bytes });
                }
            }
            _ => self.is_silent = true,
        }
    }

    /// Notes that another member gives no answer.
    pub(super) fn lose(&mut self, from: ServerId) {
        let before = self.asked.len();
        self.asked.retain(|asked| asked.server != from);
        self.is_silent |= self.asked.len() < before;
    }

    /// Returns when members without an answer are passed over; None if no others are left to ask.
    pub(super) fn hedges_at(&self) -> Option<u64> {
        let is_open = self.asked.iter().any(|asked| !asked.is_late);
        (self.told.is_some() && is_open && !self.others.is_empty()).then_some(self.hedge_at)
    }

    /// Passes over the members that have not answered yet.
    pub(super) fn hedge(&mut self, now: u64) {
        self.asked.iter_mut().for_each(|asked| asked.is_late = true);
        self.hedge_at = now.saturating_add(HEDGE);
    }

    /// Returns how the read goes on, once the primary has told the version.
    pub(super) fn go_on(&mut self) -> Gathered {
        let Some((version, piece, attributes)) = self.told else { return Gathered::Waits(Calls::new()) };
        let needed = if let Form::Fragment { k, .. } = piece.form { usize::from(k) } else { 1 };
        let found = self.parts.len();
        let coming = self.asked.iter().filter(|asked| !asked.is_late).count();
        let lacking = if self.is_enough {
            if let Some(bytes) = self.parts.value(&piece) {
                return Gathered::Value(version, attributes, bytes);
            }
            // A fragment is damaged, and it is not known which.
            self.others.len()
        } else {
            needed.saturating_sub(found + coming)
        };
        let servers: Vec<ServerId> = self.others.drain(..lacking.min(self.others.len())).collect();
        self.asked.extend(servers.iter().map(|&server| Asked { server, is_any: false, is_late: false }));
        if !self.asked.is_empty() {
            return Gathered::Waits(self.target.each(&servers, &Call::Fetch { version }));
        }
        match (self.is_silent, self.is_enough) {
            (true, _) => Gathered::Unsure,
            (false, true) => Gathered::Damaged,
            (false, false) => Gathered::Lost { version, found, needed },
        }
    }

    /// Returns which fragments the value was made of; None if more were needed than make one, because some are damaged.
    pub(super) fn made_of(&self) -> Option<MadeOf> {
        let (version, piece, _) = self.told?;
        let Form::Fragment { k, .. } = piece.form else { return None };
        (self.from.len() == usize::from(k)).then(|| MadeOf { version, piece, fragments: self.from.clone() })
    }

    /// Takes a fragment of the told version. A member that was not asked for that, and showed another, may have it.
    fn weigh(&mut self, from: ServerId, is_any: bool, found: Option<(Version, Piece)>, bytes: Vec<u8>) {
        let of_version = found.filter(|&(version, _)| self.told.is_some_and(|(told, ..)| version == told));
        if of_version.is_none() && is_any {
            self.others.push(from);
        }
        self.believe(from, of_version, bytes);
    }

    fn believe(&mut self, from: ServerId, found: Option<(Version, Piece)>, bytes: Vec<u8>) {
        let state = if self.target.is_primary(from) { ChunkState::Alive } else { ChunkState::Held };
        let seen = found.filter(|(_, piece)| self.parts.take(piece, bytes));
        if let Some((_, Piece { form: Form::Fragment { index, .. }, .. })) = seen {
            self.from.push((from, index));
        }
        let reading = self.reader.take(from, seen.map(|(version, piece)| Seen { state, version, piece }));
        self.is_enough = matches!(reading, Reading::Value(..));
    }
}
