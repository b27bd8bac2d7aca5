//! The client's side of a reply that comes in parts.

use super::limits::UNASKED;
use super::parts::{Assembly, Bits};
use super::wire::{LISTED, List, Part};

/// Later parts that came before a missing one, when it counts as lost.
pub(super) const OVERTAKEN: u16 = 3;

/// Returns whether a clock shows an earlier time than another; both may have begun anew.
pub(super) fn is_before(clock: u32, other: u32) -> bool {
    (clock.wrapping_sub(other) as i32) < 0
}

/// The reply that comes for a request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Down {
    execution: u32,
    assembly: Assembly,
    /// Parts that are there, or on their way.
    asked: Bits,
    /// Whether parts are to be asked for again.
    has_lost: bool,
    /// The clock when lost parts were last asked for.
    recovery: Option<u32>,
}

impl Down {
    /// Returns the execution whose reply it is.
    pub(super) fn execution(&self) -> u32 {
        self.execution
    }

    /// Returns whether all parts are there.
    pub(super) fn is_whole(&self) -> bool {
        self.assembly.is_whole()
    }

    /// Returns how many parts are on their way.
    pub(super) fn flight(&self) -> u16 {
        self.asked.count() - self.assembly.have().count()
    }

    /// All parts that are on their way count as lost.
    pub(super) fn give_up_flight(&mut self) {
        self.asked = self.assembly.have().clone();
        self.has_lost = true;
    }

    /// Returns the reply that this part begins.
    pub(super) fn of(part: &Part<'_>) -> Option<Self> {
        let mut asked = Bits::new(part.parts);
        for part in 0..part.parts.min(UNASKED) {
            asked.add(part);
        }
        let assembly = Assembly::of(part)?;
        Some(Self { execution: part.execution, assembly, asked, has_lost: false, recovery: None })
    }

    /// Takes a part; returns whether it is new.
    pub(super) fn place(&mut self, part: &Part<'_>) -> bool {
        let is_new = self.assembly.place(part) == Some(true);
        if is_new {
            self.asked.add(part.part);
        }
        is_new
    }

    /// Notes parts as lost that this one has overtaken; returns how many. A part that was sent before lost ones were last asked for tells
    /// nothing of these.
    pub(super) fn find_lost(&mut self, by: u16, echo: u32) -> u16 {
        if self.recovery.is_some_and(|recovery| is_before(echo, recovery)) {
            return 0;
        }
        let mut lost = 0;
        for part in self.assembly.have().first_missing()..by.saturating_sub(OVERTAKEN - 1) {
            if self.asked.has(part) && !self.assembly.have().has(part) {
                self.asked.remove(part);
                lost += 1;
            }
        }
        self.has_lost |= lost > 0;
        lost
    }

    /// Returns the list of a WANT for at most `room` parts, if it is time for one.
    pub(super) fn next_list(&mut self, room: u16, clock: u32) -> Option<List> {
        let (have, parts) = (self.assembly.have(), self.assembly.parts());
        let next = have.first_missing();
        let lacking = parts - self.asked.count();
        let is_due = self.has_lost || self.asked.count() == have.count() || room.min(lacking) >= lacking.min(UNASKED);
        if lacking == 0 || !is_due {
            return None;
        }
        let mut list = List { next, upto: next, execution: self.execution, there: [0; 4] };
        let mut left = room;
        for part in next..parts.min(next.saturating_add(LISTED)) {
            if left == 0 {
                break;
            }
            list.upto = part + 1;
            if self.asked.has(part) {
                list.add(part);
            } else {
                self.asked.add(part);
                left -= 1;
            }
        }
        if std::mem::take(&mut self.has_lost) {
            self.recovery = Some(clock);
        }
        Some(list)
    }

    /// Takes the message; it is whole.
    pub(super) fn take_message(&mut self) -> Vec<u8> {
        let empty = Assembly::of(&Part { execution: 0, part: 0, parts: 1, length: 0, bytes: &[] });
        self.asked = Bits::new(1);
        empty.map(|empty| std::mem::replace(&mut self.assembly, empty).into_bytes()).unwrap_or_default()
    }
}
