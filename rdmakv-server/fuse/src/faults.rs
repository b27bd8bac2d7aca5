//! Faults that tests plant, to show that they are found. Only tests of this crate can plant one.

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

/// Returns whether a test planted this fault.
#[cfg(test)]
pub(crate) fn is_planted(fault: &str) -> bool {
    PLANTED.get() == fault
}

/// Returns false: no fault can be planted.
#[cfg(not(test))]
#[inline]
pub(crate) fn is_planted(_: &str) -> bool {
    false
}

/// Plants a fault on this thread, in place of the one before. An empty name removes it.
#[cfg(test)]
pub(crate) fn plant(fault: &'static str) {
    PLANTED.set(fault);
}

/// A countdown of the steps that a process takes, for tests that kill it between two of them.
#[cfg(feature = "library")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Countdown(Option<u64>);

#[cfg(feature = "library")]
impl Countdown {
    /// Has the process end by a signal before the step after so many.
    pub(crate) fn end_after(steps: u64) -> Self {
        Self(Some(steps))
    }

    /// Takes a step.
    pub(crate) fn step(&mut self) {
        match &mut self.0 {
            Some(0) => std::process::abort(),
            Some(left) => *left -= 1,
            None => {}
        }
    }
}
