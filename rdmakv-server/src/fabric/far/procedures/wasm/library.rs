//! The modules of logins, and those that are being stored. Pure.

use std::collections::BTreeMap;

use rdmakv_proto::far::messages::Refusal;
use rdmakv_proto::far::modules::{MODULE_MAX, MODULES_MAX};

/// A part of a module, as a client sends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<'a> {
    /// The module's name.
    pub(super) name: &'a [u8],
    /// Bytes of the module.
    pub(super) length: u32,
    /// The first byte of this part.
    pub(super) at: u32,
    pub(super) part: &'a [u8],
}

/// The effect of a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Came {
    /// So many bytes have come.
    Some(u32),
    /// All have come. [`Library::store`] follows.
    All(Vec<u8>),
}

/// A module whose parts come. A login has one at a time.
#[derive(Debug)]
struct Coming {
    name: Vec<u8>,
    length: u32,
    bytes: Vec<u8>,
}

/// A module that can be run.
#[derive(Debug)]
struct Stored<M> {
    length: u32,
    module: M,
}

/// The modules of a server.
#[derive(Debug)]
pub(super) struct Library<M> {
    stored: BTreeMap<(u32, Vec<u8>), Stored<M>>,
    coming: BTreeMap<u32, Coming>,
}

impl<M> Default for Library<M> {
    fn default() -> Self {
        Self { stored: BTreeMap::new(), coming: BTreeMap::new() }
    }
}

impl<M: Clone> Library<M> {
    /// Takes a part of a module. The first part begins it anew, and a part that has come already may come again.
    ///
    /// # Errors
    ///
    /// The module is too long, the login has too many, or parts are missing.
    pub(super) fn take(&mut self, login: u32, sent: Sent<'_>) -> Result<Came, Refusal> {
        let Sent { name, length, at, part } = sent;
        if length as usize > MODULE_MAX {
            return Err(Refusal::LongModule);
        }
        self.has_room(login, name)?;
        let end = at.saturating_add(part.len() as u32);
        if at == 0 {
            self.coming.insert(login, Coming { name: name.to_vec(), length, bytes: Vec::new() });
        }
        let is_it = |coming: &&mut Coming| coming.name == name && coming.length == length;
        let Some(coming) = self.coming.get_mut(&login).filter(is_it) else {
            // Its last part, once more.
            let is_stored = |stored: &Stored<M>| stored.length == length && end == length;
            let stored = self.stored.get(&(login, name.to_vec()));
            return if stored.is_some_and(is_stored) { Ok(Came::Some(length)) } else { Err(Refusal::State) };
        };
        let have = coming.bytes.len();
        if at as usize > have || end > length {
            return Err(Refusal::State);
        }
        if let Some(new) = part.get(have - at as usize..) {
            coming.bytes.extend_from_slice(new);
        }
        if coming.bytes.len() < length as usize {
            return Ok(Came::Some(coming.bytes.len() as u32));
        }
        let bytes = self.coming.remove(&login).map(|coming| coming.bytes);
        bytes.map(Came::All).ok_or(Refusal::State)
    }

    /// Stores a module under a name. It replaces one of that name; runs under way go on with the old one.
    ///
    /// # Errors
    ///
    /// The login has too many.
    pub(super) fn store(&mut self, login: u32, name: &[u8], length: u32, module: M) -> Result<(), Refusal> {
        self.has_room(login, name)?;
        self.stored.insert((login, name.to_vec()), Stored { length, module });
        Ok(())
    }

    /// Removes a module.
    ///
    /// # Errors
    ///
    /// The login has none of that name.
    pub(super) fn forget(&mut self, login: u32, name: &[u8]) -> Result<(), Refusal> {
        self.stored.remove(&(login, name.to_vec())).map(drop).ok_or(Refusal::NoModule)
    }

    /// Returns a module.
    ///
    /// # Errors
    ///
    /// The login has none of that name.
    pub(super) fn find(&self, login: u32, name: &[u8]) -> Result<M, Refusal> {
        let stored = self.stored.get(&(login, name.to_vec()));
        stored.map(|stored| stored.module.clone()).ok_or(Refusal::NoModule)
    }

    /// Returns the names of a login's modules, in order, and the bytes of each.
    pub(super) fn list(&self, login: u32) -> Vec<(Vec<u8>, u32)> {
        self.of(login).map(|(name, stored)| (name.to_vec(), stored.length)).collect()
    }

    /// Returns how many there are, of all logins.
    pub(super) fn count(&self) -> usize {
        self.stored.len()
    }

    fn of(&self, login: u32) -> impl Iterator<Item = (&[u8], &Stored<M>)> {
        let from = self.stored.range((login, Vec::new())..);
        from.take_while(move |((of, _), _)| *of == login).map(|((_, name), stored)| (&name[..], stored))
    }

    fn has_room(&self, login: u32, name: &[u8]) -> Result<(), Refusal> {
        let others = self.of(login).filter(|(of, _)| *of != name).count();
        if others < MODULES_MAX { Ok(()) } else { Err(Refusal::ManyModules) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent<'a>(name: &'a [u8], length: u32, at: u32, part: &'a [u8]) -> Sent<'a> {
        Sent { name, length, at, part }
    }

    #[test]
    fn modules_are_of_their_login() {
        let mut library = Library::default();
        library.store(1, b"walk", 9, 'a').unwrap();
        library.store(2, b"walk", 8, 'b').unwrap();
        library.store(2, b"find", 7, 'c').unwrap();
        assert_eq!((library.find(1, b"walk"), library.find(2, b"walk")), (Ok('a'), Ok('b')));
        assert_eq!(library.find(1, b"find"), Err(Refusal::NoModule), "another login's");
        assert_eq!(library.forget(3, b"walk"), Err(Refusal::NoModule));
        assert_eq!(library.list(2), [(b"find".to_vec(), 7), (b"walk".to_vec(), 8)]);
        assert_eq!(library.forget(2, b"walk"), Ok(()));
        assert_eq!((library.find(2, b"walk"), library.count()), (Err(Refusal::NoModule), 2));
    }

    #[test]
    fn logins_have_sixteen_modules() {
        let mut library = Library::default();
        for number in 0..MODULES_MAX as u8 {
            library.store(1, &[number], 1, ()).unwrap();
        }
        assert_eq!(library.store(1, b"one more", 1, ()), Err(Refusal::ManyModules));
        assert_eq!(library.take(1, sent(b"one more", 1, 0, b"x")), Err(Refusal::ManyModules), "before it is compiled");
        assert_eq!(library.store(1, &[3], 2, ()), Ok(()), "it replaces one");
        assert_eq!(library.store(2, b"one more", 1, ()), Ok(()));
        library.forget(1, &[5]).unwrap();
        assert_eq!(library.store(1, b"one more", 1, ()), Ok(()));
    }

    #[test]
    fn parts_of_another_module_are_refused() {
        let mut library = Library::<()>::default();
        assert_eq!(library.take(1, sent(b"a", 6, 3, b"end")), Err(Refusal::State), "it has not begun");
        assert_eq!(library.take(1, sent(b"a", 6, 0, b"be")), Ok(Came::Some(2)));
        assert_eq!(library.take(1, sent(b"b", 6, 2, b"x")), Err(Refusal::State));
        assert_eq!(library.take(1, sent(b"a", 7, 2, b"x")), Err(Refusal::State));
        assert_eq!(library.take(2, sent(b"a", 6, 2, b"x")), Err(Refusal::State));
        assert_eq!(library.take(1, sent(b"a", 6, 3, b"end")), Err(Refusal::State), "a part is missing");
        let long = sent(b"a", MODULE_MAX as u32 + 1, 0, b"");
        assert_eq!(library.take(1, long), Err(Refusal::LongModule));
        assert_eq!(library.take(1, sent(b"b", 1, 0, b"x")), Ok(Came::All(b"x".to_vec())), "it begins anew");
        assert_eq!(library.take(1, sent(b"a", 6, 2, b"g")), Err(Refusal::State), "one at a time");
    }

    #[test]
    fn last_parts_may_come_again() {
        let mut library = Library::default();
        assert_eq!(library.take(1, sent(b"a", 3, 0, b"ab")), Ok(Came::Some(2)));
        assert_eq!(library.take(1, sent(b"a", 3, 2, b"c")), Ok(Came::All(b"abc".to_vec())));
        library.store(1, b"a", 3, ()).unwrap();
        assert_eq!(library.take(1, sent(b"a", 3, 2, b"c")), Ok(Came::Some(3)));
        assert_eq!(library.take(1, sent(b"a", 4, 3, b"d")), Err(Refusal::State), "another one");
    }

    proptest! {
        #[test]
        fn parts_add_up_to_the_module(
            bytes in prop::collection::vec(any::<u8>(), 1..60), steps in prop::collection::vec((0..60_usize, 1..20_usize), 0..200),
        ) {
            let mut library = Library::<()>::default();
            let (length, mut have) = (bytes.len() as u32, 0_usize);
            prop_assert_eq!(library.take(1, sent(b"a", length, 0, b"")), Ok(Came::Some(0)));
            for (at, most) in steps.into_iter().chain((0..60).map(|at| (at, 1))) {
                let at = at.max(1);
                let part = bytes.get(at - 1..).map(|rest| &rest[..rest.len().min(most)]);
                let Some(part) = part.filter(|_| at > 1 || have == 0) else { continue };
                let came = library.take(1, sent(b"a", length, at as u32 - 1, part));
                if at > have + 1 {
                    prop_assert_eq!(came, Err(Refusal::State));
                    continue;
                }
                have = have.max(at - 1 + part.len());
                if have == bytes.len() {
                    prop_assert_eq!(came, Ok(Came::All(bytes.clone())));
                    return Ok(());
                }
                prop_assert_eq!(came, Ok(Came::Some(have as u32)));
            }
            prop_assert!(false, "all parts have come");
        }
    }
}
