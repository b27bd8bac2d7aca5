//! An endpoint around another one, for tests that count, refuse or add something in between.

use frrwp::fabric::poller::Bell;
use frrwp::fabric::{Armed, Capabilities, Completion, Domain, Endpoint, Local};
use frrwp::wire::{MESSAGE, Segment};
use mrrc::registrar::Registrar;
use std::io;

type Key<E> = <<E as Endpoint>::Domain as Registrar>::Registration;

/// A test's part in the calls of an endpoint. By default it has none, and the endpoint can only be waited for alone.
pub(crate) trait Around {
    /// The endpoint in the middle.
    type Inner: Endpoint;

    fn capabilities(&self, inner: Capabilities) -> Capabilities {
        inner
    }

    fn send(&mut self, message: &[u8], inner: &mut Self::Inner) -> io::Result<()> {
        inner.send(message)
    }

    /// Comes before a post of receives.
    fn before_receive(&mut self) {}

    /// Comes before a write, which is not posted if this fails.
    fn before_write(&mut self, to: Segment) -> io::Result<()> {
        let _ = to;
        Ok(())
    }

    /// Comes before a read, of a buffer of so many pieces; the read is not posted if this fails.
    fn before_read(&mut self, pieces: usize) -> io::Result<()> {
        let _ = pieces;
        Ok(())
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE], inner: &mut Self::Inner) -> Option<Completion> {
        inner.poll(message)
    }

    /// Comes before a wait.
    fn before_wait(&mut self) {}

    fn attach(&mut self, bell: &Bell, inner: &mut Self::Inner) -> io::Result<()> {
        let _ = (bell, inner);
        Err(io::ErrorKind::Unsupported.into())
    }

    fn arm(&mut self, inner: &mut Self::Inner) -> Armed {
        let _ = inner;
        Armed::News
    }
}

/// An endpoint, and a test's part in its calls.
pub(crate) struct Between<A: Around> {
    inner: A::Inner,
    pub(crate) around: A,
}

impl<A: Around> Between<A> {
    pub(crate) fn new(inner: A::Inner, around: A) -> Self {
        Self { inner, around }
    }
}

// SAFETY: `Endpoint` promises what has ended when it says so. The inner endpoint keeps that, as it carries out all that is posted and
// makes all completions but of messages.
unsafe impl<A: Around<Inner: Endpoint<Domain: Domain>>> Endpoint for Between<A> {
    type Domain = <A::Inner as Endpoint>::Domain;

    fn capabilities(&self) -> Capabilities {
        self.around.capabilities(self.inner.capabilities())
    }

    fn now(&self) -> u64 {
        self.inner.now()
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.around.send(message, &mut self.inner)
    }

    fn receive(&mut self, more: u16) -> io::Result<()> {
        self.around.before_receive();
        self.inner.receive(more)
    }

    unsafe fn write(
        &mut self,
        id: u64,
        from: &[Local<'_, Key<A::Inner>>],
        to: Segment,
        immediate: Option<u32>,
    ) -> io::Result<()> {
        self.around.before_write(to)?;
        // SAFETY: the caller makes the promises of the inner endpoint's call.
        unsafe { self.inner.write(id, from, to, immediate) }
    }

    unsafe fn read(&mut self, id: u64, into: &[Local<'_, Key<A::Inner>>], from: Segment) -> io::Result<()> {
        self.around.before_read(into.len())?;
        // SAFETY: the caller makes the promises of the inner endpoint's call.
        unsafe { self.inner.read(id, into, from) }
    }

    fn poll(&mut self, message: &mut [u8; MESSAGE]) -> Option<Completion> {
        self.around.poll(message, &mut self.inner)
    }

    fn wait(&mut self, until: Option<u64>) {
        self.around.before_wait();
        self.inner.wait(until);
    }

    fn attach(&mut self, bell: &Bell) -> io::Result<()> {
        self.around.attach(bell, &mut self.inner)
    }

    fn arm(&mut self) -> Armed {
        self.around.arm(&mut self.inner)
    }

    fn disconnect(&mut self) {
        self.inner.disconnect();
    }
}
