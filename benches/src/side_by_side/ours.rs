//! Our cache under test.
//!
//! For now a stand-in: the core behind one mutex, which is correct and slow. The concurrent cache takes its
//! place here and nowhere else.

use super::subject::{Behaviour, Setup, Subject};
use mrrc::registrar::{Limits, Registrar};
use mrrc::{Access, Config, Core, PAGE, PageRange, Segment};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// The registrar that does nothing, or what [`Behaviour`] says.
pub struct Dummy(pub Arc<Behaviour>);

#[expect(unsafe_code, reason = "nothing is registered, so nobody's safety rests on it")]
// SAFETY: no device is behind it and nobody uses its keys: there is nothing to keep valid or to keep out of.
unsafe impl Registrar for Dummy {
    type Registration = ();

    #[inline]
    fn register(&self, range: PageRange, _: Access) -> io::Result<()> {
        let good = self.0.register((range.start() * PAGE) as usize);
        if good { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
    }

    #[inline]
    fn deregister(&self, batch: &mut Vec<()>) -> io::Result<()> {
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
pub struct Ours {
    core: Mutex<Core>,
    registrar: Dummy,
}

impl Subject for Ours {
    fn create(setup: &Setup) -> Result<Option<Self>, String> {
        let core = Config::new(setup.most_pages).build().map_err(|error| error.to_string())?;
        Ok(Some(Self { core: Mutex::new(core), registrar: Dummy(Arc::new(setup.behaviour())) }))
    }

    fn about() -> String {
        "mrrc's core behind one mutex: a stand-in until the concurrent cache is there".into()
    }

    #[inline(always)]
    fn touch(&self, address: usize, length: usize) -> bool {
        let Ok(asked) = PageRange::of_bytes(address as u64, length as u64) else { return false };
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = core.hit(asked) else { return self.missed(&mut core, asked) };
        core.hold(region);
        drop(core);
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        core.release(region);
        true
    }

    fn behaviour(&self) -> &Behaviour {
        &self.registrar.0
    }
}

impl Ours {
    #[inline(never)]
    fn missed(&self, core: &mut Core, asked: PageRange) -> bool {
        let Ok(outcome) = core.request(asked) else { return false };
        for batch in outcome.batches() {
            let mut registrations = vec![(); batch.len()];
            if self.registrar.deregister(&mut registrations).is_err() {
                return false;
            }
        }
        let gaps = outcome.segments().iter().filter(|segment| matches!(segment, Segment::Gap { .. }));
        let failed = gaps.map(Segment::range).find(|&gap| self.registrar.register(gap, Access::LOCAL).is_err());
        match failed {
            Some(gap) => {
                core.invalidate(gap);
                false
            }
            None => true,
        }
    }
}
