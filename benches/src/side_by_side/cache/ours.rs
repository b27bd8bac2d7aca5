//! Our cache under test, as applications get it: rights are checked, everything is counted, and a monitor
//! watches the memory, by userfaultfd where the system lets it.

use crate::subject::{Behaviour, Setup, Subject};
use mrrc::invalidation::{Explicit, Userfaultfd};
use mrrc::registrar::{Limits, Registered, Registrar};
use mrrc::{Access, Cache, PAGE, PageRange};
use std::io;
use std::ptr;

/// The registrar that does nothing, or what [`Behaviour`] says.
pub struct Dummy(Behaviour);

#[expect(unsafe_code, reason = "nothing is registered, so nobody's safety rests on it")]
// SAFETY: no device is behind it and its keys are never used: there is nothing to keep valid or to keep out of.
unsafe impl Registrar for Dummy {
    type Registration = ();

    #[inline]
    fn register(&self, range: PageRange, _: Access) -> io::Result<()> {
        let good = self.0.register((range.start() * PAGE) as usize);
        if good { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
    }

    #[inline]
    fn deregister(&self, batch: &mut Vec<Registered<()>>) -> io::Result<()> {
        self.0.deregister(batch.len());
        batch.clear();
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn name(&self) -> &'static str {
        "dummy"
    }
}

/// Our cache.
pub struct Ours(Cache<Dummy>);

impl Subject for Ours {
    fn create(setup: &Setup) -> Result<Option<Self>, String> {
        let builder = Cache::builder(Dummy(setup.behaviour())).capacity_pages(setup.most_pages);
        let builder = match Userfaultfd::new() {
            Ok(monitor) if !setup.unwatched => builder.monitor(monitor),
            _ => builder.monitor(Explicit),
        };
        Ok(Some(Self(builder.build().map_err(|error| error.to_string())?)))
    }

    fn about() -> String {
        let version = env!("CARGO_PKG_VERSION");
        let monitor =
            Userfaultfd::new().map(drop).map_or_else(|error| format!("explicit ({error})"), |()| "userfaultfd".into());
        match Cache::builder(Dummy(Behaviour::default())).capacity_pages(1).monitor(Explicit).build() {
            Ok(cache) => {
                let barrier = format!("{:?}", cache.barrier()).to_lowercase();
                format!("mrrc {version}: acquire and drop of the lease; hits ordered by {barrier}, monitor: {monitor}")
            }
            Err(error) => format!("mrrc {version}: {error}"),
        }
    }

    #[inline(always)]
    fn touch(&self, address: usize, length: usize) -> bool {
        #[expect(unsafe_code, reason = "what is measured")]
        // SAFETY: nothing is transferred: the registrar registers nothing, and no key is used.
        let lease = unsafe { self.0.acquire(ptr::without_provenance(address), length, Access::LOCAL) };
        lease.is_ok()
    }

    fn behaviour(&self) -> &Behaviour {
        &self.0.registrar().0
    }
}
