//! A walk through all names, for what the backing does not show yet.

use std::collections::BTreeMap;

use rdmakv_client::Value;
use rdmakv_proto::files::{BUCKETS, Bucket, Entry, Generation, Ino, Inode, Key, Kind, Standing, State};

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::finish::AGENT;

/// Keys that are asked for at once.
pub(crate) const KEYS: usize = 256;

/// A directory on the way from the root: its inode and its name.
pub(crate) type Way = Vec<(Ino, Vec<u8>)>;

/// A directory in which the backing does not show each name as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) directory: Ino,
    /// The directories from below the root to this one.
    pub(crate) way: Way,
}

impl Place {
    /// Returns the path of a name here.
    pub(crate) fn path(&self, name: &[u8]) -> Vec<u8> {
        let names = self.way.iter().map(|(_, name)| name.as_slice()).chain([name]);
        names.flat_map(|name| [b"/", name].concat()).collect()
    }
}

/// A walk in the order in which names are published: those that are new from the root down, then those that are gone from below.
#[derive(Debug)]
pub(crate) struct Walk(Vec<Stop>);

#[derive(Debug)]
enum Stop {
    Down(Place),
    Up(Place, Vec<Entry>),
}

impl Walk {
    /// Begins at the root.
    pub(crate) fn new() -> Self {
        Self(vec![Stop::Down(Place { directory: Ino::ROOT, way: Vec::new() })])
    }

    /// Returns the next directory, with names that the backing does not show as they are: perhaps none. Without a directory it is at its end.
    ///
    /// # Errors
    ///
    /// The cluster does not serve, or a value cannot be read.
    pub(crate) fn next(&mut self, cluster: &mut Cluster) -> Result<Option<(Place, Vec<Entry>)>> {
        let place = match self.0.pop() {
            None => return Ok(None),
            Some(Stop::Up(place, gone)) => return Ok(Some((place, gone))),
            Some(Stop::Down(place)) => place,
        };
        let entries = entries(cluster, place.directory)?;
        let (new, others): (Vec<Entry>, Vec<Entry>) =
            entries.into_iter().partition(|entry| entry.standing == Standing::New);
        let directories = others.iter().filter(|entry| entry.kind == Kind::Directory);
        // A directory that is not shown yet has nothing on the backing.
        let below = directories.map(|entry| {
            let way = [place.way.as_slice(), &[(entry.ino, entry.name.clone())]].concat();
            Stop::Down(Place { directory: entry.ino, way })
        });
        let below: Vec<Stop> = below.collect();
        let gone: Vec<Entry> = others.into_iter().filter(|entry| entry.standing == Standing::Whiteout).collect();
        if !gone.is_empty() {
            self.0.push(Stop::Up(place.clone(), gone));
        }
        self.0.extend(below);
        Ok(Some((place, new)))
    }
}

/// Returns one path that the backing does not show as it is, if there is one. It is this path, below it, or on the way to it.
///
/// # Errors
///
/// As [`Walk::next`].
pub(crate) fn unsettled(cluster: &mut Cluster, path: &[u8]) -> Result<Option<Vec<u8>>> {
    let mut walk = Walk::new();
    while let Some((place, entries)) = walk.next(cluster)? {
        let mut paths = entries.iter().map(|entry| place.path(&entry.name));
        if let Some(left) = paths.find(|left| is_within(left, path) || is_within(path, left)) {
            return Ok(Some(left));
        }
    }
    Ok(None)
}

/// Returns whether a path is another one, or below it.
fn is_within(path: &[u8], other: &[u8]) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns a path as [`Place::path`] has it, with nothing for the root; None if the cluster has no such name.
///
/// # Errors
///
/// As [`Walk::next`].
pub(crate) fn known(cluster: &mut Cluster, path: &[u8]) -> Result<Option<Vec<u8>>> {
    let (mut at, mut whole) = (Ino::ROOT, Vec::new());
    let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    for name in names {
        let bucket = cluster.bucket_of(at, name)?;
        let Some(entry) = bucket.as_ref().and_then(|bucket| bucket.find(name)) else { return Ok(None) };
        at = entry.ino;
        whole.extend([b"/", name].concat());
    }
    Ok(Some(whole))
}

/// The frozen generations that the backing does not show, each with the ranges that the agent wrote of it.
pub(crate) type Undrained = BTreeMap<(Ino, Generation), Option<Vec<u8>>>;

/// Returns what the agent has to do, and how far it came.
///
/// # Errors
///
/// As [`Walk::next`].
pub(crate) fn undrained(cluster: &mut Cluster) -> Result<Undrained> {
    let (mut left, mut all) = (vec![Ino::ROOT], Undrained::new());
    while let Some(directory) = left.pop() {
        let entries = entries(cluster, directory)?;
        // Below directories that are not shown yet, too: the agent comes there in a later round.
        let live = entries.iter().filter(|entry| entry.standing != Standing::Whiteout);
        left.extend(live.filter(|entry| entry.kind == Kind::Directory).map(|entry| entry.ino));
        let is_left = |entry: &&Entry| entry.kind == Kind::File && entry.standing != Standing::Shown;
        let files: Vec<Ino> = entries.iter().filter(is_left).map(|entry| entry.ino).collect();
        for some in files.chunks(KEYS) {
            let inodes: Vec<Key> = some.iter().map(|&ino| Key::Inode(ino)).collect();
            let decoded = |value: Option<Value>| value.and_then(|value| Inode::decode(&value).ok());
            let inodes = some.iter().zip(cluster.many(&inodes)?.into_iter().map(decoded));
            let frozen = inodes.filter_map(|(&ino, inode)| Some((ino, inode?)));
            let frozen = frozen.filter(|(_, inode)| inode.state == State::Frozen && inode.writer.is_none());
            let frozen: Vec<(Ino, Generation)> = frozen.map(|(ino, inode)| (ino, inode.generation)).collect();
            let ranges: Vec<Key> =
                frozen.iter().map(|&(ino, generation)| Key::Persisted(ino, generation, AGENT)).collect();
            let ranges = cluster.many(&ranges)?.into_iter().map(|value| value.map(Value::into_vec));
            all.extend(frozen.into_iter().zip(ranges));
        }
    }
    Ok(all)
}

/// Returns whether the agent came further between two looks.
pub(crate) fn has_drained(before: &Undrained, now: &Undrained) -> bool {
    before.iter().any(|(file, ranges)| now.get(file) != Some(ranges))
}

/// Returns all entries of a directory.
///
/// # Errors
///
/// As [`Walk::next`].
pub(crate) fn entries(cluster: &mut Cluster, directory: Ino) -> Result<Vec<Entry>> {
    let keys: Vec<Key> = (0..BUCKETS).map(|bucket| Key::Bucket(directory, bucket)).collect();
    let mut entries = Vec::new();
    for (key, value) in keys.iter().zip(cluster.many(&keys)?) {
        let Some(value) = value else { continue };
        let bucket = Bucket::decode(&value).map_err(|error| Error::of_value(&error, key))?;
        entries.extend(bucket.entries().iter().cloned());
    }
    Ok(entries)
}

/// Returns those of some inodes that there are.
///
/// # Errors
///
/// The cluster does not serve, or a value cannot be read.
pub(crate) fn inodes(cluster: &mut Cluster, inos: &[Ino]) -> Result<BTreeMap<Ino, Inode>> {
    let keys: Vec<Key> = inos.iter().map(|&ino| Key::Inode(ino)).collect();
    let mut found = BTreeMap::new();
    for ((&ino, key), value) in inos.iter().zip(&keys).zip(cluster.many(&keys)?) {
        let Some(value) = value else { continue };
        found.insert(ino, Inode::decode(&value).map_err(|error| Error::of_value(&error, key))?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_within_itself_and_directories() {
        for (path, other, is) in [
            (&b"/a/b"[..], &b"/a"[..], true),
            (b"/a", b"/a", true),
            (b"/ab", b"/a", false),
            (b"/a", b"/a/b", false),
            (b"/a", b"", true),
        ] {
            assert_eq!(is_within(path, other), is, "{path:?} {other:?}");
        }
    }

    #[test]
    fn only_what_was_left_counts_as_drained() {
        let file = |ino, ranges: Option<&[u8]>| ((Ino(ino), Generation(1)), ranges.map(<[u8]>::to_vec));
        let before = Undrained::from([file(5, None), file(6, Some(b"1"))]);
        assert!(!has_drained(&before, &before) && !has_drained(&Undrained::new(), &before));
        // A file that came is no progress, one that went or got further is.
        let more = Undrained::from([file(5, None), file(6, Some(b"1")), file(7, None)]);
        assert!(!has_drained(&before, &more));
        assert!(has_drained(&before, &Undrained::from([file(6, Some(b"1"))])));
        assert!(has_drained(&before, &Undrained::from([file(5, Some(b"0")), file(6, Some(b"1"))])));
    }
}
