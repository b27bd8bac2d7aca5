//! Keys that are bound.

use super::binding::Binding;
use super::provider::Provider;
use super::tags::Scope;
use crate::wire::Segment;
use std::fmt;
use std::io;
use std::sync::Arc;

/// A key that is bound. It ends when it is dropped.
pub struct Handle {
    provider: Arc<Provider>,
    binding: Arc<Binding>,
    segment: Segment,
}

impl Handle {
    /// The most bytes of a handle: 2 MiB. With CRCs a connection of a peer that asks and does not receive keeps a copy of so many.
    pub const LONGEST: usize = 2 << 20;

    /// Makes a key by which peers read so many bytes of whatever is bound.
    pub(super) fn new(
        provider: &Arc<Provider>,
        binding: &Arc<Binding>,
        length: usize,
        scope: Scope,
    ) -> io::Result<Self> {
        if length == 0 || length > Self::LONGEST {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let tag = provider.shared.common.tags.open_bound(Arc::clone(binding), length as u64, scope);
        let key = tag.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let segment = Segment { address: 0, length: length as u64, key };
        Ok(Self { provider: Arc::clone(provider), binding: Arc::clone(binding), segment })
    }

    /// Returns the segment that lets the peer read it: its address is 0.
    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// Returns its binding.
    pub fn binding(&self) -> &Arc<Binding> {
        &self.binding
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("segment", &self.segment).field("binding", &self.binding).finish()
    }
}

impl Drop for Handle {
    /// When this returns, nothing is read by it any more; a read that comes later ends the connection. The peer may have ended
    /// it before, by sending with invalidate.
    fn drop(&mut self) {
        self.provider.shared.common.tags.close(self.segment.key);
    }
}
