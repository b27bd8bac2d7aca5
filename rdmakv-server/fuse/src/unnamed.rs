//! Files that lost their names while a program has them open.
//!
//! Their mount removes them once they are closed. If it dies before, no name leads to their inodes, and servers would keep their chunks as
//! dirty ones. So a mount notes such a file before the name goes: in the buckets of [some numbers](FIRST), which no name leads to either. The
//! agent looks there, and removes the files that nothing writes any more.
//!
//! A note of a file that has a name still is one of an operation that failed, or has not ended. It goes once the file has no writer. The
//! bucket is read before the inode, and each note writes the bucket, so a `cas` removes no note that was made since.

use std::collections::BTreeSet;

use rdmakv_client::{Frozen, Value};
use rdmakv_proto::files::{BUCKETS, Bucket, Entry, Generation, Ino, Inode, Key, Kind, MAX_CHUNKS, Standing, bucket_of};

use crate::backing::Backing;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::inode::Edit;
use crate::map::Map;
use crate::store::{Change, Decision, Refusal, Request};
use crate::walk::{KEYS, inodes};

/// The numbers under which the notes are, as the names of a directory are under its own: from this one to [`LAST`]. All mounts of a cluster write
/// them, so there are many buckets. A mount draws one of them with odds of one to 2^60, and then draws again.
const FIRST: u64 = 2;

/// See [`FIRST`].
pub(crate) const LAST: Ino = Ino(FIRST + 15);

/// Notes in a bucket at most. A file for which there is no room is not noted, and none is in a bucket that cannot be read.
const MOST: usize = 1024;

/// Chunks of which servers are told at once.
const PART: u32 = 4096;

/// A note of a file without a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Note {
    /// It is made. It always writes, so an agent that read the bucket before does not remove it.
    Make(Ino),
    /// It goes: the file is removed.
    Remove(Ino),
}

impl Change for Note {
    fn key(&self) -> Key {
        let (Self::Make(ino) | Self::Remove(ino)) = self;
        // Numbers of files are random.
        let spread = FIRST + ino.0 % (LAST.0 + 1 - FIRST);
        Key::Bucket(Ino(spread), bucket_of(&name(*ino)))
    }

    fn decide(&self, value: Option<&[u8]>) -> std::result::Result<Decision, Refusal> {
        // The removal of a name does not fail for its note's sake.
        let Ok(mut bucket) = value.map_or(Ok(Bucket::new(1)), Bucket::decode) else { return Ok(Decision::Already) };
        let changed = match *self {
            Self::Make(ino) => {
                let is_full = bucket.entries().len() >= MOST && bucket.find(&name(ino)).is_none();
                let entry = Entry { name: name(ino), ino, kind: Kind::File, standing: Standing::Whiteout };
                !is_full && bucket.put(entry)
            }
            Self::Remove(ino) => bucket.remove(&name(ino)),
        };
        Ok(if changed { Decision::Write(bucket.encode()) } else { Decision::Already })
    }
}

fn name(ino: Ino) -> Vec<u8> {
    format!("{:x}", ino.0).into_bytes()
}

/// The fate of a file that is noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// A program may have it open.
    Stays,
    /// Nothing needs it: it has no name, and its writer ended or died.
    Goes,
    /// Its note alone goes.
    Forgotten,
}

/// Returns what becomes of a file; None stands for an inode that is gone.
fn fate(inode: Option<&Inode>, writer_lives: bool) -> Fate {
    match inode {
        None => Fate::Forgotten,
        Some(inode) if inode.writer.is_some() && (writer_lives || !inode.is_unlinked) => Fate::Stays,
        Some(inode) if inode.is_unlinked => Fate::Goes,
        Some(_) => Fate::Forgotten,
    }
}

/// Returns the noted files that nothing needs. Notes of others that are gone, or have a name and no writer, are removed. A bucket that cannot be
/// read is passed over, and its error is returned, too.
pub(crate) fn look(cluster: &mut Cluster) -> (Vec<Ino>, Result<()>) {
    let (mut unneeded, mut outcome) = (Vec::new(), Ok(()));
    for number in FIRST..=LAST.0 {
        let keys: Vec<Key> = (0..BUCKETS).map(|bucket| Key::Bucket(Ino(number), bucket)).collect();
        let values = match cluster.many(&keys) {
            Ok(values) => values,
            // It does not serve, and is not asked again and again.
            Err(error) => return (unneeded, Err(error)),
        };
        for (key, value) in keys.iter().zip(values).filter_map(|(key, value)| Some((key, value?))) {
            outcome = outcome.and(look_at(cluster, key, &value, &mut unneeded));
        }
    }
    (unneeded, outcome)
}

/// Adds the files of a bucket that nothing needs.
fn look_at(cluster: &mut Cluster, key: &Key, value: &Value, unneeded: &mut Vec<Ino>) -> Result<()> {
    let mut bucket = Bucket::decode(value).map_err(|error| Error::of_value(&error, key))?;
    let inos: Vec<Ino> = bucket.entries().iter().map(|entry| entry.ino).collect();
    let mut is_changed = false;
    for some in inos.chunks(KEYS) {
        let inodes = inodes(cluster, some)?;
        let writers = inodes.values().filter_map(|inode| inode.writer);
        let writers: Vec<Key> = writers.collect::<BTreeSet<_>>().into_iter().map(Key::Mount).collect();
        let lives = cluster.many(&writers)?;
        let living: BTreeSet<Key> =
            writers.into_iter().zip(lives).filter(|(_, life)| life.is_some()).map(|(key, _)| key).collect();
        for &ino in some {
            let inode = inodes.get(&ino);
            let writer = inode.and_then(|inode| inode.writer).map(Key::Mount);
            match fate(inode, writer.is_some_and(|writer| living.contains(&writer))) {
                Fate::Stays => {}
                Fate::Goes => unneeded.push(ino),
                Fate::Forgotten => is_changed |= bucket.remove(&name(ino)),
            }
        }
    }
    if is_changed {
        // After a change by others the notes go with the next sweep.
        cluster.ask(&Request::Cas { key: *key, version: Some(value.version()), value: Some(bucket.encode()) })?;
    }
    Ok(())
}

/// Removes a file that nothing writes any more, and its note. Returns false if it is gone. The agent may be killed at any step.
///
/// # Errors
///
/// The cluster does not serve, or the backing fails.
pub(crate) fn remove(cluster: &mut Cluster, backing: &Backing, ino: Ino) -> Result<bool> {
    if let Some(writer) = cluster.inode_now(ino)?.and_then(|inode| inode.writer) {
        // A late change of the dead mount is refused from here on.
        cluster.edit(ino, Edit::Abandon(writer))?;
    }
    // Without a name it gets no other writer.
    let Some(inode) = cluster.inode_now(ino)?.filter(|inode| fate(Some(inode), false) == Fate::Goes) else {
        return Ok(false);
    };
    // Chunks that no sync told of, too, and those whose writes have not ended. Servers take no more of them, and may evict those that they have.
    // Generation 0 has none.
    for generation in
        BTreeSet::from([inode.generation, inode.reserved]).into_iter().filter(|generation| generation.0 > 0)
    {
        for part in parts_of(ino, generation, inode.chunk_bits) {
            cluster.freeze(&part)?;
            cluster.persisted(&part)?;
        }
    }
    cluster.drop_chunks(ino, Map::new(&inode.map).chunks());
    cluster.finish_deletions();
    backing.drop_data(ino, 0..inode.reserved.0.saturating_add(1))?;
    cluster.edit(ino, Edit::Remove)?;
    // One that stays goes with the next sweep.
    let _ = cluster.update(Note::Remove(ino));
    Ok(true)
}

/// Returns a generation with all chunks that it may have, in parts: a server answers nothing else while it goes through one.
pub(crate) fn parts_of(ino: Ino, generation: Generation, chunk_bits: u8) -> impl Iterator<Item = Frozen> {
    let size = u64::from(MAX_CHUNKS) << chunk_bits;
    let of = move |first| Frozen { ino: ino.0, generation: generation.0, size, chunk_bits, runs: vec![(first, PART)] };
    (0..MAX_CHUNKS).step_by(PART as usize).map(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::fixtures::empty_file;
    use rdmakv_proto::files::{MountId, State};

    fn after(notes: &[Note]) -> Bucket {
        let mut value: Option<Vec<u8>> = None;
        for note in notes {
            if let Ok(Decision::Write(next)) = note.decide(value.as_deref()) {
                value = Some(next);
            }
        }
        value.map_or(Bucket::default(), |value| Bucket::decode(&value).unwrap())
    }

    #[test]
    fn a_note_always_writes() {
        let bucket = after(&[Note::Make(Ino(7))]);
        assert_eq!(bucket.entries().iter().map(|entry| entry.ino).collect::<Vec<_>>(), [Ino(7)]);
        let again = Note::Make(Ino(7)).decide(Some(&bucket.encode()));
        assert_eq!(again, Ok(Decision::Write(bucket.encode())));
        assert!(after(&[Note::Make(Ino(7)), Note::Remove(Ino(7))]).entries().is_empty());
        assert_eq!(Note::Remove(Ino(7)).decide(None), Ok(Decision::Already));
    }

    #[test]
    fn only_files_without_a_name_go() {
        let inode = |is_unlinked, writer: Option<u64>| Inode {
            state: State::Open,
            is_unlinked,
            generation: Generation(1),
            reserved: Generation(1),
            writer: writer.map(MountId),
            ..empty_file()
        };
        for (is_unlinked, writer, lives, expected) in [
            (true, Some(9), true, Fate::Stays),
            (true, Some(9), false, Fate::Goes),
            (true, None, false, Fate::Goes),
            // Its name may be about to go, or never went.
            (false, Some(9), true, Fate::Stays),
            (false, Some(9), false, Fate::Stays),
            (false, None, false, Fate::Forgotten),
        ] {
            assert_eq!(fate(Some(&inode(is_unlinked, writer)), lives), expected, "{is_unlinked} {writer:?} {lives}");
        }
        assert_eq!(fate(None, false), Fate::Forgotten);
    }

    #[test]
    fn a_broken_bucket_takes_no_note() {
        for note in [Note::Make(Ino(7)), Note::Remove(Ino(7))] {
            assert_eq!(note.decide(Some(b"no bucket")), Ok(Decision::Already));
        }
    }

    #[test]
    fn parts_have_each_chunk_once() {
        let runs: Vec<(u32, u32)> = parts_of(Ino(7), Generation(1), 16).flat_map(|part| part.runs).collect();
        let mut ends = runs.iter().map(|(first, count)| first + count);
        assert!(runs[0].0 == 0 && ends.clone().zip(&runs[1..]).all(|(end, (first, _))| end == *first));
        assert_eq!(ends.next_back(), Some(MAX_CHUNKS));
    }

    /// As where all processes of a job remove a file that they have open. Each reads its bucket, and then each attempts to write it.
    #[test]
    fn many_mounts_note_files_at_once() {
        use crate::store::{Answer, Progress, Update};
        let mut values: BTreeMap<Key, (u64, Vec<u8>)> = BTreeMap::new();
        let mut mounts: Vec<_> =
            (1..=2000_u64).map(|at| Update::begin(Note::Make(Ino(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))))).collect();
        while !mounts.is_empty() {
            mounts.retain_mut(|(update, request)| {
                let answer = match request {
                    Request::Get(key) => values
                        .get(key)
                        .map_or(Answer::Absent, |(version, value)| Answer::Found(*version, value.clone())),
                    Request::Cas { key, version, value } => {
                        let now = values.get(key).map(|(version, _)| *version);
                        if now == *version {
                            values.insert(*key, (now.unwrap_or(0) + 1, value.clone().unwrap()));
                            Answer::Stored
                        } else {
                            Answer::Conflict
                        }
                    }
                };
                match update.take(&answer) {
                    Progress::Ask(next) => {
                        *request = next;
                        true
                    }
                    Progress::Ended(outcome) => {
                        assert_eq!(outcome, Ok(()));
                        false
                    }
                }
            });
        }
        let noted = values.values().map(|(_, value)| Bucket::decode(value).unwrap().entries().len());
        assert_eq!(noted.sum::<usize>(), 2000);
    }

    #[test]
    fn a_full_bucket_takes_no_more_notes() {
        let notes: Vec<Note> = (10..10 + MOST as u64).map(|ino| Note::Make(Ino(ino))).collect();
        let full = after(&notes).encode();
        assert_eq!(Note::Make(Ino(5)).decide(Some(&full)), Ok(Decision::Already));
        assert!(matches!(Note::Make(Ino(10)).decide(Some(&full)), Ok(Decision::Write(_))));
    }
}
