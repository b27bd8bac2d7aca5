//! Which registrations can be served from a cache: a decision on what was asked for, and nothing else.
//!
//! A cached region serves a request only with the very rights that were asked for. One right is excepted: a region
//! may let the card write for its own process. So each set of other flags is a *class* with caches of its own. A
//! request that may mean something else when it lasts longer than the program asked for goes straight on.

use crate::abi::flag;
use crate::benefit::Cause;
use mrrc::Access;

/// A registration as a program asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) pd: usize,
    pub(crate) address: usize,
    pub(crate) length: usize,
    /// The address by which work requests name the first byte.
    pub(crate) iova: u64,
    pub(crate) access: u32,
}

/// Whether registrations with rights for peers are cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Remote {
    /// They are passed on.
    #[default]
    Off,
    /// Regions have the rights themselves, so a peer keeps them for a while after the program ended the registration.
    Trusted,
    /// Regions have local rights, and a memory window gives the peer its rights until the program ends the registration.
    Windows,
}

/// Flags that regions of a cache have in common: all but [`flag::LOCAL_WRITE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class(u32);

/// Why a registration goes straight on to libibverbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passed {
    /// Nothing is cached in this process.
    Off,
    /// Rights for peers, which are cached only on demand.
    Remote,
    /// Rights for peers, and windows of the device do not hold.
    Windows,
    /// Rights to atomic operations, and windows of the device do not hold for these.
    Atomics,
    /// Rights for peers, for which no window could be bound.
    Unbound,
    /// A flag that says something else of the registration than rights.
    Flags,
    /// Named by other addresses than its own.
    Iova,
    /// No bytes, or bytes beyond the end of the address space.
    Range,
    /// A protection domain that this process did not get from `ibv_alloc_pd`, or that there are too many of.
    Domain,
    /// The program may yet be one that registers once and for all.
    First,
    /// The cache stands aside.
    Aside(Cause),
    /// The thread has little stack.
    Stack,
    /// The cache refused; or libibverbs did, and says so once more.
    Refused,
}

impl Passed {
    pub(crate) const ALL: [Self; 15] = [
        Self::Off,
        Self::Remote,
        Self::Windows,
        Self::Atomics,
        Self::Unbound,
        Self::Flags,
        Self::Iova,
        Self::Range,
        Self::Domain,
        Self::First,
        Self::Aside(Cause::Unmapped),
        Self::Aside(Cause::Evicted),
        Self::Aside(Cause::Unkept),
        Self::Stack,
        Self::Refused,
    ];

    /// Returns the name of the reason in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Remote => "remote",
            Self::Windows => "windows",
            Self::Atomics => "atomics",
            Self::Unbound => "unbound",
            Self::Flags => "flags",
            Self::Iova => "iova",
            Self::Range => "range",
            Self::Domain => "domain",
            Self::First => "first",
            Self::Aside(Cause::Unmapped) => "unmapped",
            Self::Aside(Cause::Evicted) => "evicted",
            Self::Aside(Cause::Unkept) => "unkept",
            Self::Stack => "stack",
            Self::Refused => "refused",
        }
    }

    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Off => "nothing is cached in this process",
            Self::Remote => "with rights for peers (MRRC_PRELOAD=trusted caches them)",
            Self::Windows => "with rights for peers, because the device's memory windows do not hold",
            Self::Atomics => {
                "with rights to atomic operations, because the device's memory windows do not hold for these"
            }
            Self::Unbound => "with rights for peers, because no memory window could be bound for them",
            Self::Flags => "with flags that are not cached",
            Self::Iova => "by other addresses than their own",
            Self::Range => "of no bytes",
            Self::Domain => "in protection domains that did not come from ibv_alloc_pd",
            Self::First => "before any was made again after a deregistration",
            Self::Aside(Cause::Unmapped) => "because memory is unmapped before it comes again",
            Self::Aside(Cause::Evicted) => "because regions are evicted before they come again",
            Self::Aside(Cause::Unkept) => "because the cache could keep few of those before",
            Self::Stack => "on threads, or fibres, with little stack",
            Self::Refused => "that the cache could not serve",
        }
    }
}

impl Request {
    /// Returns the class of the caches that can serve it.
    pub(crate) fn class(&self, remote: Remote) -> Result<Class, Passed> {
        let Self { address, length, iova, access, .. } = *self;
        let rights = flag::LOCAL_WRITE | flag::REMOTE;
        if access & !(rights | flag::RELAXED_ORDERING) != 0 {
            // On demand: no pages are pinned, so there is nothing to keep, and the registration follows the mapping. Memory
            // windows: drivers look at the region itself. Zero-based and huge pages: the device's layout of this one
            // registration. A bit without a name may mean anything.
            return Err(Passed::Flags);
        }
        if access & flag::REMOTE != 0 && remote == Remote::Off {
            return Err(Passed::Remote);
        }
        if access & (flag::REMOTE_WRITE | flag::REMOTE_ATOMIC) != 0 && access & flag::LOCAL_WRITE == 0 {
            // Not allowed. libibverbs says so.
            return Err(Passed::Flags);
        }
        if iova != address as u64 {
            return Err(Passed::Iova);
        }
        if address == 0 || length == 0 || address.checked_add(length).is_none() {
            // Which may mean all of memory, to some devices.
            return Err(Passed::Range);
        }
        if access & flag::REMOTE != 0 && remote == Remote::Windows {
            return Ok(Class(access & !rights | flag::MW_BIND));
        }
        Ok(Class(access & !flag::LOCAL_WRITE))
    }

    /// Returns the rights of peers that are asked for.
    pub(crate) fn peers_rights(&self) -> Access {
        self.rights() & Access::REMOTE
    }

    /// Returns the rights that are asked for, as the cache knows them.
    pub(crate) fn rights(&self) -> Access {
        let named = [
            (flag::LOCAL_WRITE, Access::LOCAL_WRITE),
            (flag::REMOTE_WRITE, Access::REMOTE_WRITE),
            (flag::REMOTE_READ, Access::REMOTE_READ),
            (flag::REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        ];
        let asked = named.into_iter().filter(|(bit, _)| self.access & bit != 0);
        asked.fold(Access::LOCAL_READ, |all, (_, right)| all | right)
    }

    /// Pages that it touches.
    pub(crate) fn pages(&self) -> u64 {
        mrrc::PageRange::of_bytes(self.address as u64, self.length as u64).map_or(0, |range| range.pages())
    }
}

impl Class {
    /// Returns whether its regions have rights for peers.
    pub(crate) fn is_for_peers(self) -> bool {
        self.0 & flag::REMOTE != 0
    }

    /// Returns whether its regions have local rights, and windows give peers theirs.
    pub(crate) fn has_windows(self) -> bool {
        self.0 & flag::MW_BIND != 0
    }

    /// Returns the flags of a region of this class.
    pub(crate) fn flags(self, access: Access) -> u32 {
        self.0 | if access.contains(Access::LOCAL_WRITE) { flag::LOCAL_WRITE } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(access: u32) -> Request {
        Request { pd: 1, address: 0x1234, length: 100, iova: 0x1234, access }
    }

    #[test]
    fn local_rights_form_one_class() {
        let classes = [asked(0), asked(flag::LOCAL_WRITE)].map(|request| request.class(Remote::Off).unwrap());
        assert_eq!(classes[0], classes[1]);
        assert_eq!([classes[0].flags(Access::LOCAL_READ), classes[0].flags(Access::LOCAL)], [0, 1]);
        let rights = [0, 1].map(|flags| asked(flags).rights());
        assert_eq!(rights, [Access::LOCAL_READ, Access::LOCAL]);
    }

    #[test]
    fn remote_rights_are_cached_only_on_demand() {
        assert_eq!(asked(1 | flag::REMOTE_READ).class(Remote::Off), Err(Passed::Remote));
        let sets = [0, flag::REMOTE_READ, flag::REMOTE_WRITE, flag::REMOTE_READ | flag::REMOTE_WRITE];
        let classes = sets.map(|set| asked(1 | set).class(Remote::Trusted).unwrap());
        for (at, class) in classes.iter().enumerate() {
            assert_eq!(classes.iter().position(|other| other == class), Some(at));
            assert_eq!(class.flags(asked(1 | sets[at]).rights()), 1 | sets[at]);
        }
    }

    #[test]
    fn regions_of_windows_have_local_rights() {
        let of = |access| asked(access).class(Remote::Windows).unwrap();
        let windows = of(1 | flag::REMOTE_READ);
        for access in [flag::REMOTE_READ, 1 | flag::REMOTE_WRITE, 1 | flag::REMOTE] {
            let (class, request) = (of(access), asked(access));
            assert_eq!((class, class.has_windows(), class.is_for_peers()), (windows, true, false));
            assert_eq!(class.flags(request.rights()), access & 1 | flag::MW_BIND);
            assert_eq!(request.peers_rights().is_empty(), access & flag::REMOTE == 0);
            assert_eq!(request.rights().contains(Access::REMOTE_WRITE), access & flag::REMOTE_WRITE != 0);
        }
        assert_eq!(of(1), asked(1).class(Remote::Off).unwrap());
        assert_eq!(of(flag::REMOTE_READ | flag::RELAXED_ORDERING).flags(Access::LOCAL_READ), 1 << 4 | 1 << 20);
        assert_eq!(asked(1 | flag::MW_BIND).class(Remote::Windows), Err(Passed::Flags));
        assert_eq!(asked(flag::REMOTE_WRITE).class(Remote::Windows), Err(Passed::Flags));
    }

    #[test]
    fn relaxed_ordering_is_a_class_of_its_own() {
        let relaxed = asked(1 | flag::RELAXED_ORDERING).class(Remote::Off).unwrap();
        assert_ne!(relaxed, asked(1).class(Remote::Off).unwrap());
        assert_eq!(relaxed.flags(Access::LOCAL), 1 | flag::RELAXED_ORDERING);
    }

    #[test]
    fn unknown_flags_pass_through() {
        for bit in 4..32 {
            let known = 1 << bit == flag::RELAXED_ORDERING;
            assert_eq!(asked(1 | 1 << bit).class(Remote::Trusted).is_ok(), known, "bit {bit}");
        }
        for bit in [flag::REMOTE_WRITE, flag::REMOTE_ATOMIC] {
            assert_eq!(asked(bit).class(Remote::Trusted), Err(Passed::Flags), "not allowed without LOCAL_WRITE");
        }
    }

    #[test]
    fn invalid_ranges_and_foreign_iova_pass_through() {
        assert_eq!(Request { iova: 0, ..asked(1) }.class(Remote::Trusted), Err(Passed::Iova));
        assert_eq!(Request { length: 0, ..asked(1) }.class(Remote::Trusted), Err(Passed::Range));
        assert_eq!(Request { address: 0, iova: 0, ..asked(1) }.class(Remote::Trusted), Err(Passed::Range));
        assert_eq!(Request { length: usize::MAX, ..asked(1) }.class(Remote::Trusted), Err(Passed::Range));
    }
}
