//! The states of a file, and the changes from one to the next. Each is one `cas` of `i/INO`.
//!
//! ```text
//!            Open             Begin            Sync, closed        Settle             Persist
//! persisted ──────► reserved ───────► open ◄──────────────► closed ────────► frozen ──────────► persisted
//! or frozen         (a writer)          │     Sync            │    Abandon ▲
//!                                       └─────────────────────┴────────────┘ its mount died: torn if it was open
//! ```
//!
//! * **A generation has one writer, for good.** [`Edit::Open`] reserves a number that no mount had before. A mount that seems dead and
//!   wakes writes chunks that no later generation reads.
//! * **An inode names whole bytes only.** The writer copies the file into its generation, or begins without bytes. Then [`Edit::Begin`]
//!   makes it the file's. Until then the earlier generation is the file's, and is drained if it is frozen.
//! * **A frozen generation never changes.** An edit that would change it is refused.
//! * **A mount's death** ends its writing by [`Edit::Abandon`], which an agent makes once the mount's key expired. A late edit of the
//!   mount is refused with [`Refusal::Lost`].
//!
//! A writer of a file that had another generation marks the file's name ([`crate::names::BucketEdit::Mark`]) after [`Edit::Open`] and
//! before [`Edit::Begin`]. So an agent that looks through the names finds each generation that is not persisted.

use rdmakv_proto::files::{Generation, Ino, Inode, Key, Kind, MountId, Run, State, Time};

use crate::faults::is_planted;
use crate::store::{Change, Decision, Refusal};

/// A writer's view of a file that it has written and synced.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Written {
    /// Bytes of the file.
    pub size: u64,
    /// Its chunks in memory, all published.
    pub map: Vec<Run>,
    /// Its data file has others, all synced.
    pub is_spilled: bool,
    /// When its bytes changed.
    pub modified: Time,
}

/// The attributes that programs set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Attributes {
    /// Permissions: 12 bits.
    pub mode: u16,
    /// The user that owns it.
    pub owner: u32,
    /// The group that owns it.
    pub group: u32,
    /// When its bytes changed.
    pub modified: Time,
    /// When its bytes or attributes changed.
    pub changed: Time,
}

/// A change of an inode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Edit {
    /// Makes the inode, of a number that was drawn for it.
    Create(Box<Inode>),
    /// A mount opens the file for writing, and gets the next generation.
    Open(MountId),
    /// The mount's generation becomes the file's: all its chunks are published.
    Begin(MountId, Written),
    /// The mount's generation was synced. It is closed, if so stated, and may be reopened for a while.
    Sync(MountId, Written, bool),
    /// The mount writes no more: the generation is frozen, if it began one.
    Settle(MountId),
    /// The mount is dead: the same, and what it had open is torn.
    Abandon(MountId),
    /// The backing shows a generation, by an inode of this number.
    Persist(Generation, u64),
    /// The backing alone has the bytes of a generation: its chunks are gone, and readers look there at once.
    Evict(Generation),
    /// A program set attributes.
    Attributes(Attributes),
    /// A rename within its directory: from, to.
    Rename(Vec<u8>, Vec<u8>),
    /// The inode lost its name.
    Unlink,
    /// The inode goes: it has no name and no writer.
    Remove,
}

/// A change of the inode with this number.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct InodeEdit {
    /// The inode.
    pub ino: Ino,
    /// The change.
    pub edit: Edit,
}

impl Change for InodeEdit {
    fn key(&self) -> Key {
        Key::Inode(self.ino)
    }

    fn decide(&self, value: Option<&[u8]>) -> Result<Decision, Refusal> {
        let Some(value) = value else {
            return match &self.edit {
                Edit::Create(inode) => Ok(Decision::Write(inode.encode())),
                Edit::Unlink | Edit::Remove | Edit::Abandon(_) => Ok(Decision::Already),
                // A lost file keeps no directory: neither by a rename that is noted nor by its writer, which is to end.
                Edit::Rename(..) | Edit::Settle(_) => Ok(Decision::Already),
                _ => Err(Refusal::NotFound),
            };
        };
        let inode = Inode::decode(value)?;
        if self.edit == Edit::Remove {
            let is_unused = inode.is_unlinked && inode.writer.is_none();
            return if is_unused { Ok(Decision::Delete) } else { Err(Refusal::Busy) };
        }
        let next = apply(&inode, &self.edit)?;
        Ok(if next == inode { Decision::Already } else { Decision::Write(next.encode()) })
    }
}

/// Returns the inode after a change. It is the same if the change was made before.
///
/// # Errors
///
/// The reason why the inode cannot have the change.
pub fn apply(inode: &Inode, edit: &Edit) -> Result<Inode, Refusal> {
    let mut next = inode.clone();
    let has_begun = inode.generation == inode.reserved;
    match edit {
        // Its number is random, so it is this one, made before an answer was lost.
        Edit::Create(_) | Edit::Remove => {}
        Edit::Open(mount) => match inode.writer {
            _ if inode.kind != Kind::File => return Err(Refusal::IsDirectory),
            Some(writer) if writer == *mount => {}
            Some(_) => return Err(Refusal::Busy),
            None if inode.is_unlinked => return Err(Refusal::NotFound),
            None => {
                let reserved = inode.reserved.0.checked_add(1).ok_or(Refusal::Invalid)?;
                (next.writer, next.reserved) = (Some(*mount), Generation(reserved));
            }
        },
        Edit::Begin(mount, written) => {
            check_writer(inode, *mount)?;
            if !has_begun {
                (next.generation, next.state, next.is_torn) = (inode.reserved, State::Open, false);
                set_written(&mut next, written);
            }
        }
        Edit::Sync(mount, written, is_closed) => {
            check_writer(inode, *mount)?;
            if !has_begun {
                return Err(Refusal::Invalid);
            }
            next.state = if *is_closed { State::Closed } else { State::Open };
            set_written(&mut next, written);
        }
        Edit::Settle(mount) => match inode.state {
            // It was settled before. Nothing else ends a writer that lives.
            _ if inode.writer.is_none() => {}
            _ if inode.writer != Some(*mount) => return Err(Refusal::Lost),
            State::Open => return Err(Refusal::Busy),
            _ => end_writing(&mut next),
        },
        Edit::Abandon(mount) if inode.writer == Some(*mount) => {
            next.is_torn |= inode.state == State::Open;
            end_writing(&mut next);
        }
        Edit::Abandon(_) => {}
        Edit::Persist(generation, backing) => match inode.state {
            _ if inode.generation != *generation => return Err(Refusal::Superseded),
            State::Frozen | State::Persisted => {
                (next.state, next.backing, next.is_spilled) = (State::Persisted, *backing, false);
            }
            State::Open | State::Closed => return Err(Refusal::Superseded),
        },
        Edit::Evict(generation) if may_evict(inode, *generation) => next.map.clear(),
        Edit::Evict(_) => return Err(Refusal::Superseded),
        Edit::Attributes(attributes) => {
            let Attributes { mode, owner, group, modified, changed } = *attributes;
            next = Inode { mode: mode & 0o7777, owner, group, modified, changed, ..next };
        }
        Edit::Rename(from, to) if inode.name == *from => next.name.clone_from(to),
        Edit::Rename(..) => {}
        Edit::Unlink => next.is_unlinked = true,
    }
    next.check().map_err(|_| Refusal::Invalid)?;
    Ok(next)
}

fn check_writer(inode: &Inode, mount: MountId) -> Result<(), Refusal> {
    if inode.writer == Some(mount) { Ok(()) } else { Err(Refusal::Lost) }
}

fn set_written(inode: &mut Inode, written: &Written) {
    inode.size = written.size;
    inode.map.clone_from(&written.map);
    inode.is_spilled = written.is_spilled;
    (inode.modified, inode.changed) = (written.modified, written.modified);
}

fn end_writing(inode: &mut Inode) {
    inode.writer = None;
    if matches!(inode.state, State::Open | State::Closed) {
        inode.state = State::Frozen;
    }
}

/// Returns whether the chunks of a generation may be evicted: the backing has them, and reads find them there.
pub fn may_evict(inode: &Inode, generation: Generation) -> bool {
    let is_persisted = inode.state == State::Persisted || is_planted("dirty-evicted");
    is_persisted && inode.generation == generation
}

/// Returns whether the chunks of a generation are needed no more; None stands for an inode that is gone.
///
/// A reserved generation is its writer's, and those between are of writers that ended.
pub fn is_garbage(inode: Option<&Inode>, generation: Generation) -> bool {
    let Some(inode) = inode else { return true };
    let is_read = inode.map.iter().any(|run| run.generation == generation);
    let is_written = inode.writer.is_some() && inode.reserved == generation;
    generation <= inode.reserved && !is_read && !is_written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::empty_file;

    const A: MountId = MountId(1);
    const B: MountId = MountId(2);

    fn new_file() -> Inode {
        empty_file()
    }

    fn written(generation: u64) -> Written {
        let run = Run { first: 0, count: 1, generation: Generation(generation) };
        Written { size: 10, map: vec![run], is_spilled: false, modified: Time::default() }
    }

    fn after(edits: &[Edit]) -> Inode {
        edits.iter().fold(new_file(), |inode, edit| {
            let next = apply(&inode, edit).unwrap_or_else(|refusal| panic!("{edit:?}: {refusal:?}"));
            // Each change may be repeated after a lost answer.
            assert_eq!(apply(&next, edit), Ok(next.clone()), "{edit:?}");
            next
        })
    }

    fn opened() -> Vec<Edit> {
        vec![Edit::Open(A), Edit::Begin(A, written(1))]
    }

    fn frozen() -> Vec<Edit> {
        [opened(), vec![Edit::Sync(A, written(1), true), Edit::Settle(A)]].concat()
    }

    #[test]
    fn a_file_is_written_frozen_and_persisted() {
        let inode = after(&[frozen(), vec![Edit::Persist(Generation(1), 42)]].concat());
        assert_eq!((inode.state, inode.backing, inode.is_torn), (State::Persisted, 42, false));
        assert!(may_evict(&inode, Generation(1)) && !may_evict(&inode, Generation(0)));
    }

    #[test]
    fn only_a_persisted_generation_is_evicted() {
        let evict = |edits: Vec<Edit>| apply(&after(&edits), &Edit::Evict(Generation(1)));
        assert_eq!(evict(frozen()), Err(Refusal::Superseded));
        let persisted = [frozen(), vec![Edit::Persist(Generation(1), 42)]].concat();
        let inode = evict(persisted.clone()).unwrap();
        assert!(inode.map.is_empty() && (inode.state, inode.size) == (State::Persisted, 10));
        assert!(is_garbage(Some(&inode), Generation(1)));
        // A mount that has it open for writing finds the bytes on the backing.
        assert!(evict([persisted.clone(), vec![Edit::Open(B)]].concat()).is_ok());
        let begun = [persisted, vec![Edit::Open(B), Edit::Begin(B, written(2))]].concat();
        assert_eq!(evict(begun), Err(Refusal::Superseded));
    }

    #[test]
    fn a_second_writer_is_refused() {
        assert_eq!(apply(&after(&opened()), &Edit::Open(B)), Err(Refusal::Busy));
        assert_eq!(apply(&after(&frozen()), &Edit::Sync(A, written(1), true)), Err(Refusal::Lost));
    }

    #[test]
    fn a_reserved_generation_leaves_the_file_as_it_is() {
        let inode = after(&[frozen(), vec![Edit::Open(B)]].concat());
        assert_eq!((inode.state, inode.generation, inode.reserved), (State::Frozen, Generation(1), Generation(2)));
        assert_eq!(apply(&inode, &Edit::Sync(B, written(1), false)), Err(Refusal::Invalid));
        let persisted = apply(&inode, &Edit::Persist(Generation(1), 42)).unwrap();
        assert_eq!(apply(&persisted, &Edit::Settle(B)).unwrap().state, State::Persisted);
    }

    #[test]
    fn a_dead_mount_leaves_a_torn_file_only_if_open() {
        let torn = after(&[opened(), vec![Edit::Abandon(A)]].concat());
        assert_eq!((torn.state, torn.is_torn, torn.writer), (State::Frozen, true, None));
        let closed = [opened(), vec![Edit::Sync(A, written(1), true), Edit::Abandon(A)]].concat();
        assert!(!after(&closed).is_torn);
        for late in [Edit::Begin(A, written(1)), Edit::Sync(A, written(1), true)] {
            assert_eq!(apply(&torn, &late), Err(Refusal::Lost));
        }
        // The next writer gets another generation, and its bytes are whole.
        let next = apply(&apply(&torn, &Edit::Open(B)).unwrap(), &Edit::Begin(B, written(2))).unwrap();
        assert_eq!((next.generation, next.is_torn), (Generation(2), false));
    }

    #[test]
    fn a_superseded_generation_is_not_persisted() {
        let inode = after(&[frozen(), vec![Edit::Open(B), Edit::Begin(B, written(2))]].concat());
        assert_eq!(apply(&inode, &Edit::Persist(Generation(1), 42)), Err(Refusal::Superseded));
        assert_eq!(apply(&inode, &Edit::Persist(Generation(2), 42)), Err(Refusal::Superseded));
        assert!(is_garbage(Some(&inode), Generation(1)) && !is_garbage(Some(&inode), Generation(2)));
    }

    #[test]
    fn chunks_of_reserved_generations_are_kept() {
        let inode = after(&[frozen(), vec![Edit::Open(B)]].concat());
        assert!(!is_garbage(Some(&inode), Generation(1)) && !is_garbage(Some(&inode), Generation(2)));
        let left = apply(&inode, &Edit::Abandon(B)).unwrap();
        assert!(!is_garbage(Some(&left), Generation(1)) && is_garbage(Some(&left), Generation(2)));
        // A generation that this view of the inode does not know yet is not garbage.
        assert!(!is_garbage(Some(&left), Generation(3)) && is_garbage(None, Generation(1)));
    }

    #[test]
    fn a_lost_inode_keeps_no_directory() {
        for edit in [Edit::Rename(b"a".to_vec(), b"b".to_vec()), Edit::Settle(A)] {
            assert_eq!(InodeEdit { ino: Ino(7), edit }.decide(None), Ok(Decision::Already));
        }
    }

    #[test]
    fn an_inode_goes_without_name_and_writer() {
        let remove = InodeEdit { ino: Ino(7), edit: Edit::Remove };
        let decide = |inode: &Inode| remove.decide(Some(&inode.encode()));
        assert_eq!(decide(&after(&frozen())), Err(Refusal::Busy));
        assert_eq!(decide(&after(&[opened(), vec![Edit::Unlink]].concat())), Err(Refusal::Busy));
        assert_eq!(decide(&after(&[frozen(), vec![Edit::Unlink]].concat())), Ok(Decision::Delete));
        assert_eq!(remove.decide(None), Ok(Decision::Already));
    }
}
