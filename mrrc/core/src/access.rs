//! The rights that a registration grants on its pages.

use std::fmt;

bitflags::bitflags! {
    /// A set of rights. Every registration can at least be read by the card on behalf of its owner.
    ///
    /// Rights fall into two *classes*. Those that stay on this machine ([`Access::LOCAL`] and less) make
    /// local regions; any right for a peer makes a remote region. The cache keeps the classes apart: no
    /// page is ever opened to peers because a neighbour was.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct Access: u8 {
        /// The card reads the pages for this process: what a send needs.
        const LOCAL_READ = 1;
        /// The card writes the pages for this process: what a receive needs.
        const LOCAL_WRITE = 1 << 1;
        /// A peer reads the pages.
        const REMOTE_READ = 1 << 2;
        /// A peer writes the pages. Verbs asks for [`Access::LOCAL_WRITE`] besides.
        const REMOTE_WRITE = 1 << 3;
        /// A peer runs atomic operations on the pages. Verbs asks for [`Access::LOCAL_WRITE`] besides.
        const REMOTE_ATOMIC = 1 << 4;
        /// Both local rights.
        const LOCAL = Self::LOCAL_READ.bits() | Self::LOCAL_WRITE.bits();
        /// All rights for peers.
        const REMOTE = Self::REMOTE_READ.bits() | Self::REMOTE_WRITE.bits() | Self::REMOTE_ATOMIC.bits();
    }
}

impl Access {
    /// Returns whether any right is for peers.
    #[inline]
    pub const fn is_remote(self) -> bool {
        self.intersects(Self::REMOTE)
    }

    /// These and the right that every registration has.
    #[inline]
    pub const fn with_read(self) -> Self {
        self.union(Self::LOCAL_READ)
    }

    /// Which of the two classes of regions holds such rights.
    #[inline]
    pub const fn class(self) -> usize {
        self.is_remote() as usize
    }
}

/// `local-read + remote-write`.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::LOCAL_READ, "local-read"),
            (Self::LOCAL_WRITE, "local-write"),
            (Self::REMOTE_READ, "remote-read"),
            (Self::REMOTE_WRITE, "remote-write"),
            (Self::REMOTE_ATOMIC, "remote-atomic"),
        ];
        let mut first = true;
        for (_, name) in names.into_iter().filter(|(right, _)| self.contains(*right)) {
            f.write_str(if first { "" } else { " + " })?;
            f.write_str(name)?;
            first = false;
        }
        if first { f.write_str("no rights") } else { Ok(()) }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_read_as_a_sum() {
        assert_eq!(Access::LOCAL.to_string(), "local-read + local-write");
        assert_eq!((Access::LOCAL_READ | Access::REMOTE_READ).to_string(), "local-read + remote-read");
        assert_eq!(Access::empty().to_string(), "no rights");
    }

    #[test]
    fn any_right_of_a_peer_makes_a_remote_region() {
        assert!(!Access::LOCAL.is_remote());
        for right in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!((Access::LOCAL | right).class(), 1);
        }
    }
}
