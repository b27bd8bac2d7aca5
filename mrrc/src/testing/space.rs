//! The page table of a process that does not exist.
//!
//! Virtual pages lead to *frames*, physical pages that are numbered and never numbered twice. A frame lives
//! as long as a virtual page leads to it or a device has pinned it. Each holds one word, by which a test can
//! prove which frame a transfer reached.
//!
//! **Which access is stale.** A change of mappings is a call, with a beginning and an end. An access that finds
//! another frame than the address leads to is *stale* if the change that took the frame away had returned
//! before the access began, and *racing* if not: no cache can promise more than that. So changes are
//! numbered, an access notes when it begins which of them are under way ([`AddressSpace::begin`]), and a
//! pinned frame remembers which change took it from which address.
//!
//! One lock guards all of it; it is the innermost and never held while a listener is called.

use super::lock;
use crate::invalidation::{Change, ChangeKind};
use crate::range::PageRange;
use crate::shim::sync::Mutex;
use crate::shim::sync::atomic::{AtomicU64, Ordering};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The mappings and the memory of a process.
///
/// Addresses are page numbers, as everywhere in this crate. A clone is the same address space;
/// [`AddressSpace::fork`] makes another.
///
/// ```
/// use mrrc::PageRange;
/// use mrrc::testing::AddressSpace;
/// let space = AddressSpace::new(64);
/// let range = PageRange::new(16, 2)?;
/// space.map(range)?;
/// space.store(range, 7)?;
/// assert_eq!(space.load(16), Some(7));
/// space.discard(range)?; // as madvise(MADV_DONTNEED)
/// assert_eq!(space.load(16), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct AddressSpace {
    shared: Arc<Shared>,
}

struct Shared {
    numbers: Arc<Numbers>,
    memory: u64,
    state: Mutex<State>,
    listeners: Mutex<Vec<(ListenerId, Arc<Listener>)>>,
}

type Listener = dyn Fn(&Announcement<'_>) + Send + Sync;

/// Shared by a process and its children, so that no frame of one, nor key of its devices, is taken for the other's.
struct Numbers {
    frames: AtomicU64,
    devices: AtomicU64,
}

#[derive(Default)]
struct State {
    table: BTreeMap<u64, Page>,
    frames: FxHashMap<u64, Frame>,
    pins: u64,
    /// The number of the next change of mappings, and those that have not returned.
    next_change: u64,
    under_way: Vec<u64>,
    next_listener: u64,
}

/// A virtual page that is mapped.
#[derive(Clone, Copy, Default)]
struct Page {
    /// None before the first touch.
    frame: Option<u64>,
    /// A monitor has asked to hear of changes. A property of the mapping, not the address: it goes where that goes.
    watched: bool,
}

#[derive(Default)]
struct Frame {
    word: u64,
    mapped: bool,
    pins: u64,
    /// From which address it was taken, and by which change: the last one for each address. Kept while it is
    /// pinned.
    taken: Vec<(u64, u64)>,
}

/// Why an address space refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// All memory is mapped or pinned.
    #[error("{range}: memory is full: unmap or deregister something, or make the address space larger")]
    Full {
        /// The range that needed memory.
        range: PageRange,
    },
    /// Part of the range is not mapped.
    #[error("{range}: not all of it is mapped")]
    Unmapped {
        /// The range.
        range: PageRange,
    },
    /// A mapping cannot move to where it is, even in part, nor past the end of the address space.
    #[error("{from} cannot move to page {to:#x}: choose a target that is clear of it and within the address space")]
    Target {
        /// The mapping.
        from: PageRange,
        /// The first page of where it was to go.
        to: u64,
    },
}

/// A change of mappings, as a listener hears it. Changes of addresses where nothing is mapped are not announced.
#[derive(Clone, Copy, Debug)]
pub struct Announcement<'a> {
    /// Before it, or after it.
    pub moment: Moment,
    /// The changes: two ranges for a mapping that moves onto another.
    pub changes: &'a [Change],
    /// Whether any page of these was [watched](AddressSpace::watch).
    pub watched: bool,
}

/// When an [`Announcement`] is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// Nothing has changed yet. An announced change may still be refused.
    Before,
    /// Everything has changed, and the call that did it has not returned.
    After,
}

/// Names a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerId(u64);

/// When an access began: which changes of mappings had returned by then.
#[derive(Clone, Debug)]
pub struct Began {
    next_change: u64,
    under_way: Vec<u64>,
}

impl Began {
    fn after(&self, change: u64) -> bool {
        change < self.next_change && !self.under_way.contains(&change)
    }
}

/// A page that a transfer touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landed {
    /// The virtual page that was meant.
    pub page: u64,
    /// The frame that the device touched.
    pub frame: u64,
    /// The frame that the address leads to; none if nothing is mapped there or it was never touched.
    pub mapped: Option<u64>,
    /// The word in the frame now.
    pub word: u64,
    /// The judgement.
    pub landing: Landing,
}

/// Whether a transfer touched the pages that it meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// The frame that the address leads to.
    Current,
    /// Another, but the change that took it away had not returned when the access began.
    Racing,
    /// Another, though the change had returned: data is lost.
    Stale,
}

impl AddressSpace {
    /// Returns an empty one. At most `memory` pages can be mapped, and as many frames be mapped or pinned:
    /// memory that was unmapped but is pinned is not free.
    pub fn new(memory: u64) -> Self {
        let numbers = Arc::new(Numbers { frames: AtomicU64::new(1), devices: AtomicU64::new(1) });
        Self::with(numbers, memory, State::default())
    }

    fn with(numbers: Arc<Numbers>, memory: u64, state: State) -> Self {
        let (state, listeners) = (Mutex::new(state), Mutex::new(Vec::new()));
        Self { shared: Arc::new(Shared { numbers, memory, state, listeners }) }
    }

    /// Maps fresh memory, in place of whatever is there.
    ///
    /// # Errors
    /// [`SpaceError::Full`]; nothing has changed then.
    pub fn map(&self, range: PageRange) -> Result<(), SpaceError> {
        self.change(&[gone(range)], |state, memory, change| {
            let there = state.mapped(range) as u64;
            if (state.table.len() as u64 - there).saturating_add(range.pages()) > memory {
                return Err(SpaceError::Full { range });
            }
            state.unmap(range, change);
            state.table.extend((range.start()..range.end()).map(|page| (page, Page::default())));
            Ok(())
        })
    }

    /// Unmaps what is mapped in the range.
    pub fn unmap(&self, range: PageRange) {
        let unmapped = self.change(&[gone(range)], |state, _, change| {
            state.unmap(range, change);
            Ok(())
        });
        debug_assert!(unmapped.is_ok());
    }

    /// Moves a mapping with its memory to page `to`, in place of whatever is there.
    ///
    /// # Errors
    /// [`SpaceError::Unmapped`], [`SpaceError::Target`]; nothing has changed then.
    pub fn remap(&self, from: PageRange, to: u64) -> Result<(), SpaceError> {
        let target = PageRange::new(to, from.pages())
            .ok()
            .filter(|target| !target.overlaps(from))
            .ok_or(SpaceError::Target { from, to })?;
        self.change(&[gone(from), gone(target)], |state, _, change| {
            state.check_mapped(from)?;
            state.unmap(target, change);
            for (old, new) in (from.start()..from.end()).zip(to..) {
                let Some(page) = state.table.remove(&old) else { continue };
                if let Some(frame) = page.frame {
                    state.take(old, frame, change);
                }
                state.table.insert(new, page);
            }
            Ok(())
        })
    }

    /// Gives the memory back and keeps the mapping: the next touch finds a new frame.
    ///
    /// # Errors
    /// [`SpaceError::Unmapped`]; nothing has changed then.
    pub fn discard(&self, range: PageRange) -> Result<(), SpaceError> {
        self.change(&[Change { range, kind: ChangeKind::Discarding }], |state, _, change| {
            state.check_mapped(range)?;
            for page in range.start()..range.end() {
                if let Some(frame) = state.table.get_mut(&page).and_then(|page| page.frame.take()) {
                    state.take(page, frame, change);
                    state.release(frame, |frame| frame.mapped = false);
                }
            }
            Ok(())
        })
    }

    /// Returns a child with the same mappings and memory of its own: it gets copies of all frames at once,
    /// pinned or not, and has no listeners. The parent's frames stay where they are, so nothing is
    /// announced.
    pub fn fork(&self) -> Self {
        let state = lock(&self.shared.state);
        let mut child = State::default();
        for (&address, page) in &state.table {
            let frame = page.frame.map(|frame| {
                let number = self.shared.numbers.frames.fetch_add(1, Ordering::Relaxed);
                let word = state.frames.get(&frame).map_or(0, |frame| frame.word);
                child.frames.insert(number, Frame { word, mapped: true, ..Frame::default() });
                number
            });
            child.table.insert(address, Page { frame, watched: false });
        }
        drop(state);
        Self::with(Arc::clone(&self.shared.numbers), self.shared.memory, child)
    }

    /// The processor writes a word to every page of a range.
    ///
    /// # Errors
    /// [`SpaceError::Unmapped`], [`SpaceError::Full`]; nothing is written then.
    pub fn store(&self, range: PageRange, word: u64) -> Result<(), SpaceError> {
        let mut state = lock(&self.shared.state);
        state.check_mapped(range)?;
        self.touch(&mut state, range)?;
        let State { table, frames, .. } = &mut *state;
        for number in table.range(range.start()..range.end()).filter_map(|(_, page)| page.frame) {
            frames.entry(number).or_default().word = word;
        }
        Ok(())
    }

    /// Returns the processor reads the word of a page: 0 if nothing was ever written, nothing if it is not mapped.
    pub fn load(&self, page: u64) -> Option<u64> {
        let state = lock(&self.shared.state);
        let frame = state.table.get(&page)?.frame;
        Some(frame.and_then(|frame| state.frames.get(&frame)).map_or(0, |frame| frame.word))
    }

    /// Returns the frame that a page leads to; none if it is not mapped or was never touched.
    pub fn frame(&self, page: u64) -> Option<u64> {
        lock(&self.shared.state).table.get(&page)?.frame
    }

    /// Frames that are mapped or pinned.
    pub fn frames(&self) -> u64 {
        lock(&self.shared.state).frames.len() as u64
    }

    /// Pins that all devices together hold: a frame pinned twice counts twice.
    pub fn pinned_pages(&self) -> u64 {
        lock(&self.shared.state).pins
    }

    /// An access begins: note this *before* asking a cache for the range, and hand it to
    /// [`FakeNic::perform`](super::FakeNic::perform).
    pub fn begin(&self) -> Began {
        let state = lock(&self.shared.state);
        Began { next_change: state.next_change, under_way: state.under_way.clone() }
    }

    /// Calls the listener before and after every change, in the thread that makes it, with no lock of the
    /// address space held. The call that makes the change returns when the listener has.
    ///
    /// A listener that holds a cache whose registrar holds this address space keeps all three alive: let it
    /// hold a [`Weak`](std::sync::Weak) reference, or [unlisten](AddressSpace::unlisten).
    pub fn listen(&self, listener: impl Fn(&Announcement<'_>) + Send + Sync + 'static) -> ListenerId {
        let mut state = lock(&self.shared.state);
        let id = ListenerId(state.next_listener);
        state.next_listener += 1;
        drop(state);
        lock(&self.shared.listeners).push((id, Arc::new(listener)));
        id
    }

    /// Calls that listener no more, but for calls under way.
    pub fn unlisten(&self, id: ListenerId) {
        lock(&self.shared.listeners).retain(|(other, _)| *other != id);
    }

    /// Asks that changes of the mappings in this range be announced as [watched](Announcement::watched). False,
    /// and nothing is done, if part of it is not mapped. A mapping that is unmapped takes its watch with it: what is
    /// mapped there later is not watched.
    pub fn watch(&self, range: PageRange) -> bool {
        let mut state = lock(&self.shared.state);
        if state.check_mapped(range).is_err() {
            return false;
        }
        for (_, page) in state.table.range_mut(range.start()..range.end()) {
            page.watched = true;
        }
        true
    }

    /// Numbers a change, announces it, makes it, announces it again.
    fn change(
        &self,
        changes: &[Change],
        make: impl FnOnce(&mut State, u64, u64) -> Result<(), SpaceError>,
    ) -> Result<(), SpaceError> {
        let (number, here) = {
            let mut state = lock(&self.shared.state);
            let number = state.next_change;
            state.next_change += 1;
            state.under_way.push(number);
            (number, state.concerns(changes))
        };
        // Also when a listener panics, the change is over when its call is.
        let _returning = Returning { space: &self.shared, number };
        self.announce(Moment::Before, changes, here);
        let here = {
            let mut state = lock(&self.shared.state);
            let here = state.concerns(changes);
            make(&mut state, self.shared.memory, number)?;
            here
        };
        self.announce(Moment::After, changes, here);
        Ok(())
    }

    fn announce(&self, moment: Moment, changes: &[Change], here: Option<bool>) {
        let Some(watched) = here else { return };
        let listeners: Vec<_> = lock(&self.shared.listeners).iter().map(|(_, listener)| Arc::clone(listener)).collect();
        for listener in listeners {
            listener(&Announcement { moment, changes, watched });
        }
    }

    /// Gives every page of a mapped range a frame, or none of them.
    fn touch(&self, state: &mut State, range: PageRange) -> Result<(), SpaceError> {
        let pages = range.start()..range.end();
        let missing = state.table.range(pages.clone()).filter(|(_, page)| page.frame.is_none()).count() as u64;
        if state.frames.len() as u64 + missing > self.shared.memory {
            return Err(SpaceError::Full { range });
        }
        let State { table, frames, .. } = state;
        for (_, page) in table.range_mut(pages) {
            page.frame.get_or_insert_with(|| {
                let number = self.shared.numbers.frames.fetch_add(1, Ordering::Relaxed);
                frames.insert(number, Frame { mapped: true, ..Frame::default() });
                number
            });
        }
        Ok(())
    }

    /// Pins the frames of a range, in order.
    pub(super) fn pin(&self, range: PageRange) -> Result<Box<[u64]>, SpaceError> {
        let mut state = lock(&self.shared.state);
        state.check_mapped(range)?;
        self.touch(&mut state, range)?;
        let pinned: Box<[u64]> =
            state.table.range(range.start()..range.end()).filter_map(|(_, page)| page.frame).collect();
        for number in &pinned {
            state.frames.entry(*number).or_default().pins += 1;
        }
        state.pins += pinned.len() as u64;
        Ok(pinned)
    }

    pub(super) fn unpin(&self, pinned: &[u64]) {
        let mut state = lock(&self.shared.state);
        for &number in pinned {
            state.release(number, |frame| frame.pins -= 1);
        }
        state.pins -= pinned.len() as u64;
    }

    /// A device touches pinned frames in the name of the pages from `start` on.
    pub(super) fn land(&self, start: u64, pinned: &[u64], writes: Option<u64>, began: &Began) -> Vec<Landed> {
        let mut state = lock(&self.shared.state);
        let State { table, frames, .. } = &mut *state;
        let landed = (start..).zip(pinned).map(|(page, &number)| {
            let mapped = table.get(&page).and_then(|page| page.frame);
            let frame = frames.entry(number).or_default();
            frame.word = writes.unwrap_or(frame.word);
            let landing = match frame.taken.iter().find(|(from, _)| *from == page) {
                _ if mapped == Some(number) => Landing::Current,
                Some(&(_, change)) if !began.after(change) => Landing::Racing,
                _ => Landing::Stale,
            };
            Landed { page, frame: number, mapped, word: frame.word, landing }
        });
        landed.collect()
    }

    /// Returns a number for one more device.
    pub(super) fn new_device(&self) -> u64 {
        self.shared.numbers.devices.fetch_add(1, Ordering::Relaxed)
    }
}

impl State {
    fn mapped(&self, range: PageRange) -> usize {
        self.table.range(range.start()..range.end()).count()
    }

    fn check_mapped(&self, range: PageRange) -> Result<(), SpaceError> {
        if self.mapped(range) as u64 == range.pages() { Ok(()) } else { Err(SpaceError::Unmapped { range }) }
    }

    /// Returns whether anything mapped there is watched; none if nothing is mapped there.
    fn concerns(&self, changes: &[Change]) -> Option<bool> {
        let pages = changes.iter().flat_map(|change| self.table.range(change.range.start()..change.range.end()));
        pages.map(|(_, page)| page.watched).reduce(|any, watched| any | watched)
    }

    fn unmap(&mut self, range: PageRange, change: u64) {
        let there: Vec<u64> = self.table.range(range.start()..range.end()).map(|(&page, _)| page).collect();
        for page in there {
            if let Some(frame) = self.table.remove(&page).and_then(|page| page.frame) {
                self.take(page, frame, change);
                self.release(frame, |frame| frame.mapped = false);
            }
        }
    }

    /// A change takes the frame from the address; a pin keeps a note of it.
    fn take(&mut self, page: u64, number: u64, change: u64) {
        let Some(frame) = self.frames.get_mut(&number).filter(|frame| frame.pins > 0) else { return };
        match frame.taken.iter_mut().find(|(from, _)| *from == page) {
            Some((_, last)) => *last = change,
            None => frame.taken.push((page, change)),
        }
    }

    /// Releases a frame, and frees it with the last holder.
    fn release(&mut self, number: u64, let_go: impl FnOnce(&mut Frame)) {
        let Some(frame) = self.frames.get_mut(&number) else { return };
        let_go(frame);
        if frame.pins == 0 {
            frame.taken.clear();
            if !frame.mapped {
                self.frames.remove(&number);
            }
        }
    }
}

fn gone(range: PageRange) -> Change {
    Change { range, kind: ChangeKind::Gone }
}

struct Returning<'a> {
    space: &'a Shared,
    number: u64,
}

impl Drop for Returning<'_> {
    fn drop(&mut self) {
        lock(&self.space.state).under_way.retain(|&number| number != self.number);
    }
}

impl fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.shared.state);
        f.debug_struct("AddressSpace")
            .field("mapped", &state.table.len())
            .field("frames", &state.frames.len())
            .field("pins", &state.pins)
            .field("under_way", &state.under_way)
            .finish_non_exhaustive()
    }
}
