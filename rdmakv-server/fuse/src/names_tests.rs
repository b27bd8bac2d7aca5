//! Two mounts change one directory, each request at any time, and one of them may die at any time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rdmakv_proto::files::{BUCKETS, Bucket, Directory, Ino, Inode, Key, Kind, MountId, Rename, Standing, bucket_of};

use crate::faults;
use crate::fixtures::empty_file;
use crate::names::{Acquire, Acquired, Held, Lookup, Sequence, Step, look_up};
use crate::store::{Answer, Progress, Refusal, Request};

/// A cluster that answers each request at once.
#[derive(Default)]
struct Store {
    keys: BTreeMap<Key, (u64, Vec<u8>)>,
    writes: u64,
}

impl Store {
    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Get(key) => match self.keys.get(key) {
                Some((version, value)) => Answer::Found(*version, value.clone()),
                None => Answer::Absent,
            },
            Request::Cas { key, version, value } => {
                if self.keys.get(key).map(|(version, _)| *version) != *version {
                    return Answer::Conflict;
                }
                self.writes += 1;
                match value {
                    Some(value) => drop(self.keys.insert(*key, (self.writes, value.clone()))),
                    None => drop(self.keys.remove(key)),
                }
                Answer::Stored
            }
        }
    }

    fn bucket(&self, directory: Ino, name: &[u8]) -> Option<Bucket> {
        let (_, value) = self.keys.get(&Key::Bucket(directory, bucket_of(name)))?;
        Some(Bucket::decode(value).expect("a bucket"))
    }

    fn find(&self, name: &[u8]) -> Option<Ino> {
        match look_up(self.bucket(Ino::ROOT, name).as_ref(), name) {
            Lookup::Found(ino, _) => Some(ino),
            Lookup::Removed | Lookup::AskBacking => None,
        }
    }

    fn inode(&self, ino: Ino) -> Option<Inode> {
        let (_, value) = self.keys.get(&Key::Inode(ino))?;
        Some(Inode::decode(value).expect("an inode"))
    }

    fn run(&mut self, steps: Vec<Step>) -> Result<(), Refusal> {
        let (mut sequence, mut request) = Sequence::begin(steps).expect("steps");
        loop {
            match sequence.take(&self.answer(&request)) {
                Progress::Ask(next) => request = next,
                Progress::Ended(result) => return result,
            }
        }
    }

    fn acquire(&mut self, mount: MountId) -> Acquired {
        let (mut acquire, mut request) = Acquire::begin(Ino::ROOT, mount);
        loop {
            match acquire.take(&self.answer(&request)) {
                Acquired::Ask(next) => request = next,
                other => return other,
            }
        }
    }
}

const A: MountId = MountId(1);
const B: MountId = MountId(2);

fn inode(name: &[u8], kind: Kind) -> Inode {
    Inode { kind, name: name.to_vec(), ..empty_file() }
}

/// A root directory that A holds, and both mounts alive.
fn store() -> (Store, Held) {
    let mut store = Store::default();
    let lease = Directory { term: 1, holder: Some(A), ..Directory::default() };
    store.keys.insert(Key::Directory(Ino::ROOT), (0, lease.encode()));
    for mount in [A, B] {
        store.keys.insert(Key::Mount(mount), (0, Vec::new()));
    }
    (store, Held { directory: Ino::ROOT, mount: A, term: 1 })
}

fn rename(ino: u64, replaced: Option<u64>, source: &[u8], target: &[u8]) -> Rename {
    let replaced = replaced.map(Ino);
    Rename { ino: Ino(ino), kind: Kind::File, replaced, source: source.to_vec(), target: target.to_vec() }
}

#[test]
fn names_are_made_renamed_and_removed() {
    let (mut store, held) = store();
    store.run(held.create(Ino(10), inode(b"a", Kind::File))).unwrap();
    store.run(held.create(Ino(11), inode(b"b", Kind::File))).unwrap();
    assert_eq!(store.run(held.create(Ino(12), inode(b"a", Kind::File))), Err(Refusal::Exists));
    store.run(held.rename(&rename(10, Some(11), b"a", b"b")).unwrap()).unwrap();
    assert_eq!([store.find(b"a"), store.find(b"b")], [None, Some(Ino(10))]);
    assert_eq!(look_up(store.bucket(Ino::ROOT, b"a").as_ref(), b"a"), Lookup::Removed);
    assert_eq!(store.inode(Ino(10)).unwrap().name, b"b");
    assert!(store.inode(Ino(11)).unwrap().is_unlinked);
    store.run(held.unlink(b"b", Ino(10))).unwrap();
    assert_eq!(store.find(b"b"), None);
    store.run(held.create(Ino(13), inode(b"b", Kind::File))).unwrap();
    assert_eq!(store.find(b"b"), Some(Ino(13)));
}

#[test]
fn a_directory_is_removed_only_when_empty() {
    let (mut store, held) = store();
    store.run(held.create(Ino(20), inode(b"dir", Kind::Directory))).unwrap();
    let child = Held { directory: Ino(20), mount: A, term: 1 };
    let file = Inode { parent: Some(Ino(20)), ..inode(b"x", Kind::File) };
    store.run(child.create(Ino(21), file)).unwrap();
    assert_eq!(store.run(held.remove_directory(b"dir", &child)), Err(Refusal::NotEmpty));
    store.run(child.unlink(b"x", Ino(21))).unwrap();
    store.run(held.remove_directory(b"dir", &child)).unwrap();
    assert_eq!(store.find(b"dir"), None);
    assert!(!store.keys.contains_key(&Key::Directory(Ino(20))));
    assert_eq!(
        held.rename(&Rename { kind: Kind::Directory, ..rename(20, None, b"d", b"e") }),
        Err(Refusal::OtherDirectory)
    );
}

#[test]
fn a_lease_passes_when_given_up_or_dead() {
    let (mut store, held) = store();
    assert_eq!(store.acquire(B), Acquired::Wait);
    let lease = |store: &Store| Directory::decode(&store.keys[&Key::Directory(Ino::ROOT)].1).unwrap();
    assert_eq!(lease(&store).wanted, Some(B));
    store.run(vec![held.release()]).unwrap();
    let next = Held { directory: Ino::ROOT, mount: B, term: 2 };
    assert_eq!(store.acquire(B), Acquired::Held(next));
    assert_eq!((lease(&store).wanted, store.acquire(B)), (None, Acquired::Held(next)));
    // Each bucket has the term, so the first holder's names are refused, and it may not release.
    assert_eq!(store.run(held.create(Ino(10), inode(b"a", Kind::File))), Err(Refusal::Lost));
    store.run(vec![held.release()]).unwrap();
    assert_eq!(lease(&store).holder, Some(B));
    store.keys.remove(&Key::Mount(B));
    assert_eq!(store.acquire(A), Acquired::Held(Held { term: 3, ..held }));
}

/// Has A stop before each request of an operation, lets B take over, then lets A's last request arrive. Returns what B finds.
fn interrupted(steps: &[Step], prepare: impl Fn(&mut Store, &Held), check: impl Fn(&Store)) {
    for stop in 0.. {
        let (mut store, held) = store();
        prepare(&mut store, &held);
        let (mut sequence, mut request) = Sequence::begin(steps.to_vec()).expect("steps");
        let mut ended = false;
        for _ in 0..stop {
            match sequence.take(&store.answer(&request)) {
                Progress::Ask(next) => request = next,
                Progress::Ended(result) => {
                    assert_eq!(result, Ok(()));
                    ended = true;
                    break;
                }
            }
        }
        store.keys.remove(&Key::Mount(A));
        let Acquired::Held(next) = store.acquire(B) else { panic!("B takes over") };
        assert_eq!(next.term, 2);
        check(&store);
        // The dead mount's last request arrives, and it goes on.
        let before = store.find(b"a");
        store.run(next.create(Ino(30), inode(b"c", Kind::File))).unwrap();
        if !ended {
            let mut answer = store.answer(&request);
            while let Progress::Ask(next) = sequence.take(&answer) {
                answer = store.answer(&next);
            }
        }
        assert_eq!((store.find(b"a"), store.find(b"c")), (before, Some(Ino(30))), "stopped after {stop}");
        check(&store);
        if ended {
            return;
        }
    }
}

fn check_interrupted_rename() {
    let made = |store: &mut Store, held: &Held| {
        store.run(held.create(Ino(10), inode(b"a", Kind::File))).unwrap();
        store.run(held.create(Ino(11), inode(b"b", Kind::File))).unwrap();
    };
    let (_, held) = store();
    interrupted(&held.rename(&rename(10, Some(11), b"a", b"b")).unwrap(), made, |store| {
        let names = (store.find(b"a"), store.find(b"b"));
        let (before, after) = ((Some(Ino(10)), Some(Ino(11))), (None, Some(Ino(10))));
        assert!(names == before || names == after, "{names:?}");
        assert_eq!(store.inode(Ino(11)).unwrap().is_unlinked, names == after);
    });
}

fn check_interrupted_create() {
    let (_, held) = store();
    interrupted(
        &held.create(Ino(10), inode(b"a", Kind::File)),
        |_, _| (),
        |store| {
            assert!(store.find(b"a").is_none_or(|ino| store.inode(ino).is_some()));
        },
    );
}

#[test]
fn a_rename_happens_wholly_or_not_at_all() {
    check_interrupted_rename();
}

#[test]
fn a_late_create_does_not_show_up() {
    check_interrupted_create();
}

#[test]
fn planted_faults_of_names_are_found() {
    let checks: [(&str, fn()); 3] = [
        ("mark-read-as-done", check_interrupted_rename),
        ("no-term", check_interrupted_create),
        ("term-not-checked", check_interrupted_create),
    ];
    for (fault, check) in checks {
        let found = std::panic::catch_unwind(|| {
            faults::plant(fault);
            check();
        });
        faults::plant("");
        assert!(found.is_err(), "{fault}");
    }
}

proptest! {
    /// Answers are lost at random. Each operation has its effect, once.
    #[test]
    fn lost_answers_change_nothing(lost in proptest::collection::vec(any::<bool>(), 0..60)) {
        let (mut store, held) = store();
        let operations = [
            held.create(Ino(10), inode(b"a", Kind::File)),
            held.create(Ino(11), inode(b"b", Kind::File)),
            held.rename(&rename(10, Some(11), b"a", b"b")).unwrap(),
            held.create(Ino(12), inode(b"a", Kind::File)),
            held.unlink(b"b", Ino(10)),
        ];
        let mut lost = lost.into_iter();
        for steps in operations {
            let (mut sequence, mut request) = Sequence::begin(steps).expect("steps");
            loop {
                let answer = store.answer(&request);
                let is_lost = matches!(request, Request::Cas { .. }) && lost.next().unwrap_or(false);
                match sequence.take(if is_lost { &Answer::Unknown } else { &answer }) {
                    Progress::Ask(next) => request = next,
                    Progress::Ended(result) => {
                        prop_assert_eq!(result, Ok(()));
                        break;
                    }
                }
            }
        }
        prop_assert_eq!([store.find(b"a"), store.find(b"b")], [Some(Ino(12)), None]);
        prop_assert!(store.inode(Ino(11)).unwrap().is_unlinked && store.inode(Ino(10)).unwrap().is_unlinked);
        let entries = (0..BUCKETS).filter_map(|bucket| store.keys.get(&Key::Bucket(Ino::ROOT, bucket)));
        let whiteouts = entries.flat_map(|(_, value)| Bucket::decode(value).unwrap().entries().to_vec());
        prop_assert_eq!(whiteouts.filter(|entry| entry.standing == Standing::Whiteout).count(), 1);
    }
}
