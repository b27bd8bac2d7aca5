//! A registrar that counts, costs and fails as it is told, around any other.
//!
//! One lock guards the books and the settings. It is never held while the wrapped registrar, a hook or a
//! [`Fault`] is called.

use super::faults::Told;
use super::{Fault, NoopRegistrar, lock};
use crate::access::Access;
use crate::core::{Cost, Counters};
use crate::cost::Linear;
use crate::range::PageRange;
use crate::registrar::{Limits, Registered, Registrar};
use crate::shim::sync::Mutex;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, mem};

/// A registrar on a virtual clock, with exact books, limits and faults.
///
/// A registration goes through these, in this order: it is counted as an attempt; the hook is called
/// ([`Event::Registering`]); rights, faults and limits are looked at, and its pages booked; the wrapped
/// registrar registers it; the clock moves; the hook is called again ([`Event::Registered`]). A batch of
/// deregistrations likewise. The counts are the most that a device can see: pages count from before the
/// wrapped registrar is called until after they are deregistered. A cache that keeps to its limit therefore
/// never takes [`Counts::peak_pages`] above it.
///
/// ```
/// use mrrc::cost::Linear;
/// use mrrc::registrar::{Registered, Registrar};
/// use mrrc::testing::{Fault, Model};
/// use mrrc::{Access, PageRange};
///
/// let model = Model::new(Linear::PAPER);
/// let (range, access) = (PageRange::new(1, 4)?, Access::LOCAL);
/// let registration = model.register(range, access)?;
///
/// model.fail_deregister(Fault::next(1, libc::EIO));
/// let mut batch = vec![Registered { range, access, registration }];
/// assert!(model.deregister(&mut batch).is_err());
/// assert_eq!((batch.len(), model.counts().pages), (1, 4)); // it is still there
/// model.deregister(&mut batch)?;
/// assert_eq!(model.clock_us(), Linear::PAPER.reload(4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Model<R = NoopRegistrar> {
    inner: Arc<Inner<R>>,
}

struct Inner<R> {
    device: R,
    cost: Linear,
    state: Mutex<State>,
}

struct State {
    counts: Counts,
    /// The answer of [`Registrar::limits`], if not the wrapped registrar's.
    told: Option<Limits>,
    enforced: Limits,
    rights: Option<Access>,
    hook: Option<Hook>,
    register: Faults,
    deregister: Faults,
}

type Hook = Arc<dyn Fn(&Event) + Send + Sync>;
/// Shared so that faults judge without the lock.
type Faults = Arc<[Arc<Fault>]>;

/// The progress of a call to a [`Model`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A registration begins; nothing has been looked at.
    Registering {
        /// The requested range.
        range: PageRange,
        /// With these rights.
        access: Access,
    },
    /// A registration has ended, and the caller has not heard of it.
    Registered {
        /// The requested range.
        range: PageRange,
        /// Whether it is registered.
        done: bool,
    },
    /// A batch begins; all of it is registered.
    Deregistering {
        /// Registrations in it.
        regions: u64,
        /// Their pages.
        pages: u64,
    },
    /// A batch has ended, and the caller has not heard of it.
    Deregistered {
        /// Registrations that left.
        regions: u64,
        /// Their pages.
        pages: u64,
    },
}

/// The counters of a [`Model`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Calls of [`Registrar::register`].
    pub reg_attempts: u64,
    /// Those that succeeded.
    pub regs: u64,
    /// Pages registered by them.
    pub reg_pages: u64,
    /// Calls of [`Registrar::deregister`].
    pub dereg_attempts: u64,
    /// Those that deregistered something.
    pub dereg_batches: u64,
    /// Registrations taken back.
    pub deregs: u64,
    /// Their pages.
    pub dereg_pages: u64,
    /// Registrations that were to be taken back and stayed, each time that it happened.
    pub dereg_failures: u64,
    /// Registrations that the device sees now, calls under way included.
    pub regions: u64,
    /// Their pages.
    pub pages: u64,
    /// The most registrations that it ever saw.
    pub peak_regions: u64,
    /// The most pages that it ever saw.
    pub peak_pages: u64,
}

impl Counts {
    /// Microseconds that the successful calls take by a cost model, one after the other. The formula is that
    /// of [`Counters::cost`], to the last bit.
    pub fn cost(&self, model: &Linear) -> Cost {
        let &Self { regs, reg_pages, dereg_batches, dereg_pages, .. } = self;
        let mut counted = Counters::default();
        (counted.regs, counted.reg_pages) = (regs, reg_pages);
        (counted.dereg_batches, counted.dereg_pages) = (dereg_batches, dereg_pages);
        counted.cost(model)
    }

    /// Books a registration that is about to be tried, or says which error refuses it.
    fn book(&mut self, pages: u64, limits: &Limits) -> Result<(), i32> {
        let over = |count: u64, limit: Option<u64>| limit.is_some_and(|limit| count > limit);
        if over(pages, limits.region_pages) {
            return Err(libc::EINVAL);
        }
        if over(self.regions + 1, limits.regions) {
            return Err(libc::ENOSPC);
        }
        let total = self.pages.checked_add(pages).filter(|&total| !over(total, limits.pages)).ok_or(libc::ENOMEM)?;
        (self.regions, self.pages) = (self.regions + 1, total);
        self.peak_regions = self.peak_regions.max(self.regions);
        self.peak_pages = self.peak_pages.max(self.pages);
        Ok(())
    }

    fn unbook(&mut self, (regions, pages): (u64, u64)) {
        // A caller may hand in what was never registered, or say wrong ranges.
        self.regions = self.regions.saturating_sub(regions);
        self.pages = self.pages.saturating_sub(pages);
    }
}

impl Model {
    /// Over nothing: registrations exist in the books alone.
    pub fn new(cost: Linear) -> Self {
        Self::over(cost, NoopRegistrar::new())
    }
}

impl<R> Model<R> {
    /// Over another registrar: a [`FakeNic`](super::FakeNic), or one that really pins.
    pub fn over(cost: Linear, device: R) -> Self {
        let state = State {
            counts: Counts::default(),
            told: None,
            enforced: Limits::NONE,
            rights: None,
            hook: None,
            register: Arc::default(),
            deregister: Arc::default(),
        };
        Self { inner: Arc::new(Inner { device, cost, state: Mutex::new(state) }) }
    }

    /// Returns the wrapped registrar.
    pub fn device(&self) -> &R {
        &self.inner.device
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> Counts {
        lock(&self.inner.state).counts
    }

    /// Returns the virtual clock: microseconds that all successful calls take, one after the other. A
    /// failure takes no time.
    pub fn clock_us(&self) -> f64 {
        self.counts().cost(&self.inner.cost).total_us()
    }

    /// Tells these limits and enforces them: a registration that is too long fails with `EINVAL`, one too
    /// many with `ENOSPC`, one page too many with `ENOMEM`.
    pub fn limit(&self, limits: Limits) {
        let mut state = lock(&self.inner.state);
        (state.told, state.enforced) = (Some(limits), limits);
    }

    /// Enforces these limits without announcing them: limits that others use up too, or that shrink.
    pub fn limit_untold(&self, limits: Limits) {
        lock(&self.inner.state).enforced = limits;
    }

    /// Grants these rights and no others: a registration that asks for more fails with `EPERM`.
    pub fn grant(&self, rights: Access) {
        lock(&self.inner.state).rights = Some(rights.with_read());
    }

    /// Registrations fail by this rule, besides those set before. The first that strikes says the error.
    pub fn fail_register(&self, fault: Fault) {
        add(&mut lock(&self.inner.state).register, fault);
    }

    /// Deregistrations fail by this rule, besides those set before. The first that strikes a region says what
    /// becomes of it; the error of a batch is that of its first region to fail.
    pub fn fail_deregister(&self, fault: Fault) {
        add(&mut lock(&self.inner.state).deregister, fault);
    }

    /// Takes back all faults. Limits and rights stay.
    pub fn heal(&self) {
        let mut state = lock(&self.inner.state);
        (state.register, state.deregister) = (Arc::default(), Arc::default());
    }

    /// Calls the hook at the beginning and at the end of every call, with no lock held: to wait at a
    /// [`Gate`](super::Gate), to sleep, to change a mapping at an awkward time. It replaces the one before.
    /// A hook that panics at the beginning leaves everything as it was.
    pub fn on_call(&self, hook: impl Fn(&Event) + Send + Sync + 'static) {
        lock(&self.inner.state).hook = Some(Arc::new(hook));
    }

    fn call(&self, hook: Option<&Hook>, event: Event) {
        if let Some(hook) = hook {
            hook(&event);
        }
    }
}

/// Adds a fault, and forgets those that are spent.
fn add(faults: &mut Faults, fault: Fault) {
    let kept = faults.iter().filter(|fault| !fault.is_spent()).cloned();
    *faults = kept.chain([Arc::new(fault)]).collect();
}

/// Registrations and pages of a batch.
fn size<T>(batch: &[Registered<T>]) -> (u64, u64) {
    (batch.len() as u64, batch.iter().fold(0, |sum, registered| sum.saturating_add(registered.range.pages())))
}

// SAFETY: registrations are those of the wrapped registrar. A failed registration reached it not at all, or
// failed there; what is taken out of a batch was taken out by it. The faults that tell lies change only what is
// said of a batch, never which registrations are in it.
#[expect(unsafe_code, reason = "the trait of the edge; what it promises is promised by the wrapped registrar")]
unsafe impl<R: Registrar> Registrar for Model<R> {
    type Registration = R::Registration;

    fn register(&self, range: PageRange, access: Access) -> io::Result<R::Registration> {
        let hook = {
            let mut state = lock(&self.inner.state);
            state.counts.reg_attempts += 1;
            state.hook.clone()
        };
        self.call(hook.as_ref(), Event::Registering { range, access });
        let result = self.try_register(range, access);
        self.call(hook.as_ref(), Event::Registered { range, done: result.is_ok() });
        result
    }

    fn probe(&self, range: PageRange, access: Access) -> io::Result<()> {
        self.inner.device.probe(range, access)
    }

    fn deregister(&self, batch: &mut Vec<Registered<R::Registration>>) -> io::Result<()> {
        let (hook, before) = {
            let mut state = lock(&self.inner.state);
            state.counts.dereg_attempts += 1;
            (state.hook.clone(), size(batch))
        };
        self.call(hook.as_ref(), Event::Deregistering { regions: before.0, pages: before.1 });
        let result = self.try_deregister(batch);
        let after = size(batch);
        let gone = (before.0.saturating_sub(after.0), before.1.saturating_sub(after.1));
        {
            let counts = &mut lock(&self.inner.state).counts;
            counts.unbook(gone);
            counts.dereg_batches += u64::from(gone.0 > 0);
            counts.deregs += gone.0;
            counts.dereg_pages = counts.dereg_pages.saturating_add(gone.1);
            counts.dereg_failures += after.0;
        }
        self.call(hook.as_ref(), Event::Deregistered { regions: gone.0, pages: gone.1 });
        result
    }

    fn clock(&self) -> Option<Duration> {
        self.inner.device.clock()
    }

    fn limits(&self) -> Limits {
        let told = lock(&self.inner.state).told;
        told.unwrap_or_else(|| self.inner.device.limits())
    }

    fn rights(&self) -> Access {
        let granted = lock(&self.inner.state).rights;
        granted.unwrap_or(Access::all()) & self.inner.device.rights()
    }

    fn name(&self) -> &'static str {
        "model"
    }
}

impl<R: Registrar> Model<R> {
    fn try_register(&self, range: PageRange, access: Access) -> io::Result<R::Registration> {
        let (faults, rights) = {
            let state = lock(&self.inner.state);
            (Arc::clone(&state.register), state.rights)
        };
        if rights.is_some_and(|rights| !rights.contains(access)) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        if let Some(fault) = faults.iter().find(|fault| fault.strikes(range)) {
            return Err(fault.error());
        }
        {
            let state = &mut *lock(&self.inner.state);
            state.counts.book(range.pages(), &state.enforced).map_err(io::Error::from_raw_os_error)?;
        }
        let result = self.inner.device.register(range, access);
        let counts = &mut lock(&self.inner.state).counts;
        match &result {
            Ok(_) => {
                counts.regs += 1;
                counts.reg_pages = counts.reg_pages.saturating_add(range.pages());
            }
            Err(_) => counts.unbook((1, range.pages())),
        }
        result
    }

    fn try_deregister(&self, batch: &mut Vec<Registered<R::Registration>>) -> io::Result<()> {
        let faults = Arc::clone(&lock(&self.inner.state).deregister);
        let mut leaving = mem::take(batch);
        let (mut staying, mut error) = (Vec::new(), None);
        if !faults.is_empty() {
            let mut at = 0;
            while let Some(registered) = leaving.get(at) {
                match faults.iter().find(|fault| fault.strikes(registered.range)) {
                    Some(fault) => {
                        if fault.told != Told::Nothing {
                            error.get_or_insert_with(|| fault.error());
                        }
                        match fault.told {
                            Told::FalseAlarm => at += 1,
                            Told::Truth | Told::Nothing => staying.push(leaving.swap_remove(at)),
                        }
                    }
                    None => at += 1,
                }
            }
        }
        let result = if leaving.is_empty() { Ok(()) } else { self.inner.device.deregister(&mut leaving) };
        *batch = leaving;
        batch.append(&mut staying);
        error.map_or(result, Err)
    }
}

impl<R> Clone for Model<R> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<R> fmt::Debug for Model<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("cost", &self.inner.cost).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn pages(start: u64, pages: u64) -> PageRange {
        PageRange::new(start, pages).unwrap()
    }

    fn register(model: &Model, range: PageRange) -> io::Result<Registered<crate::testing::Registration>> {
        let access = Access::LOCAL;
        model.register(range, access).map(|registration| Registered { range, access, registration })
    }

    fn errno<T: fmt::Debug>(result: io::Result<T>) -> Option<i32> {
        result.unwrap_err().raw_os_error()
    }

    #[test]
    fn each_limit_has_its_error() {
        let model = Model::new(Linear::PAPER);
        model.limit(Limits { regions: Some(3), pages: Some(10), region_pages: Some(8), ..Limits::NONE });
        assert_eq!(model.limits().regions, Some(3));
        assert_eq!(errno(register(&model, pages(1, 9))), Some(libc::EINVAL));
        let mut batch = vec![register(&model, pages(1, 8)).unwrap()];
        assert_eq!(errno(register(&model, pages(1, 3))), Some(libc::ENOMEM));
        batch.push(register(&model, pages(1, 1)).unwrap());
        batch.push(register(&model, pages(1, 1)).unwrap());
        assert_eq!(errno(register(&model, pages(1, 1))), Some(libc::ENOSPC));
        let counts = model.counts();
        assert_eq!((counts.reg_attempts, counts.regs, counts.regions, counts.pages), (6, 3, 3, 10));
        model.deregister(&mut batch).unwrap();
        let counts = model.counts();
        assert_eq!((counts.regions, counts.pages, counts.peak_regions, counts.peak_pages), (0, 0, 3, 10));
    }

    #[test]
    fn an_untold_limit_is_enforced_and_can_shrink() {
        let model = Model::new(Linear::PAPER);
        model.limit_untold(Limits { pages: Some(4), ..Limits::NONE });
        assert_eq!(model.limits(), Limits::NONE);
        register(&model, pages(1, 4)).unwrap();
        model.limit_untold(Limits { pages: Some(2), ..Limits::NONE });
        assert_eq!(errno(register(&model, pages(9, 1))), Some(libc::ENOMEM));
    }

    #[test]
    fn page_total_cannot_overflow() {
        let model = Model::new(Linear::PAPER);
        for _ in 0..4095 {
            register(&model, PageRange::EVERYTHING).unwrap();
        }
        assert_eq!(errno(register(&model, PageRange::EVERYTHING)), Some(libc::ENOMEM));
        assert_eq!(model.counts().pages, 4095 << 52);
    }

    #[test]
    fn rights_that_are_not_granted_are_refused() {
        let model = Model::new(Linear::PAPER);
        model.grant(Access::LOCAL_WRITE);
        assert_eq!(model.rights(), Access::LOCAL);
        assert!(register(&model, pages(1, 1)).is_ok());
        assert_eq!(errno(model.register(pages(1, 1), Access::REMOTE_READ)), Some(libc::EPERM));
    }

    #[test]
    fn of_a_batch_only_what_a_fault_strikes_stays() {
        let model = Model::new(Linear::PAPER);
        let mut batch: Vec<_> = (0..6).map(|n| register(&model, pages(10 * n, 2)).unwrap()).collect();
        model.fail_deregister(Fault::within(pages(40, 11), libc::EBUSY));
        assert_eq!(errno(model.deregister(&mut batch)), Some(libc::EBUSY));
        let mut left: Vec<_> = batch.iter().map(|registered| registered.range.start()).collect();
        left.sort_unstable();
        assert_eq!(left, [40, 50]);
        let counts = model.counts();
        assert_eq!((counts.deregs, counts.dereg_batches, counts.dereg_failures, counts.regions), (4, 1, 2, 2));
        model.heal();
        model.deregister(&mut batch).unwrap();
        let counts = model.counts();
        assert_eq!((counts.dereg_attempts, counts.dereg_batches, counts.pages), (2, 2, 0));
    }

    #[test]
    fn lying_deregistration_is_simulated() {
        let model = Model::new(Linear::PAPER);
        let one = || vec![register(&model, pages(1, 1)).unwrap()];
        model.fail_deregister(Fault::next(1, libc::EIO).untold());
        let mut batch = one();
        assert!(model.deregister(&mut batch).is_ok());
        assert_eq!((batch.len(), model.counts().regions, model.counts().dereg_batches), (1, 1, 0));
        assert!(model.deregister(&mut batch).is_ok());
        model.fail_deregister(Fault::next(1, libc::EIO).false_alarm());
        let mut batch = one();
        assert_eq!(errno(model.deregister(&mut batch)), Some(libc::EIO));
        assert_eq!((batch.len(), model.counts().regions), (0, 0));
    }

    #[test]
    fn a_hook_may_set_faults_and_read_the_books() {
        let model = Model::new(Linear::PAPER);
        let inside = model.clone();
        model.on_call(move |event| {
            if matches!(event, Event::Registering { .. }) && inside.counts().regs == 1 {
                inside.fail_register(Fault::next(1, libc::EAGAIN));
            }
        });
        assert!(register(&model, pages(1, 1)).is_ok());
        assert_eq!(errno(register(&model, pages(1, 1))), Some(libc::EAGAIN));
        model.on_call(|_| {});
    }

    #[test]
    fn panicking_hook_keeps_counts_balanced() {
        let model = Model::new(Linear::PAPER);
        let mut batch = vec![register(&model, pages(1, 1)).unwrap()];
        model.on_call(|event| {
            if matches!(event, Event::Registering { .. } | Event::Deregistering { .. }) {
                panic!("as the test wants")
            }
        });
        let quiet = |act: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_err();
        quiet(&mut || drop(register(&model, pages(5, 1))));
        quiet(&mut || drop(model.deregister(&mut batch)));
        assert_eq!((model.counts().regions, batch.len()), (1, 1));
    }
}
