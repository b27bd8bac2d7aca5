//! Faults that tests plant, to show that the model finds them. Only tests of this crate can plant one.

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<&'static str> = const { std::cell::Cell::new("") };
}

/// Returns whether a test planted this fault.
#[cfg(test)]
pub(super) fn is_planted(fault: &str) -> bool {
    PLANTED.get() == fault
}

/// Returns false: no fault can be planted.
#[cfg(not(test))]
#[inline]
pub(super) fn is_planted(_: &str) -> bool {
    false
}

/// Plants a fault on this thread, in place of the one before. An empty name removes it.
#[cfg(test)]
pub(super) fn plant(fault: &'static str) {
    PLANTED.set(fault);
}
