//! Memory that is registered.

use frrwp::fabric::verbs::VerbsDomain;
use frrwp::fabric::{Domain, Local};
use frrwp::wire::Segment;
use mrrc::registrar::verbs::MemoryRegion;
use mrrc::registrar::{Registered, Registrar};
use mrrc::{Access, PAGE, PageRange};

/// Registered memory of whole pages.
pub(super) struct Memory {
    domain: VerbsDomain,
    pages: Box<[u8]>,
    start: usize,
    length: usize,
    registered: Option<Registered<MemoryRegion>>,
}

impl Memory {
    pub(super) fn new(domain: &VerbsDomain, length: usize) -> Self {
        let mut pages = vec![0; length + 2 * PAGE as usize].into_boxed_slice();
        let start = pages.as_ptr().align_offset(PAGE as usize);
        let range = PageRange::of_bytes(pages[start..].as_mut_ptr() as u64, length as u64).unwrap();
        let access = Access::LOCAL | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let registration = domain.register(range, access).unwrap();
        Self {
            domain: domain.clone(),
            pages,
            start,
            length,
            registered: Some(Registered { range, access, registration }),
        }
    }

    pub(super) fn of(domain: &VerbsDomain, bytes: &[u8]) -> Self {
        let mut memory = Self::new(domain, bytes.len());
        memory.bytes().copy_from_slice(bytes);
        memory
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.pages[self.start..self.start + self.length]
    }

    pub(super) fn registration(&self) -> &MemoryRegion {
        &self.registered.as_ref().unwrap().registration
    }

    pub(super) fn local(&mut self, from: usize, length: usize) -> Local<'_, MemoryRegion> {
        let address = self.bytes()[from..from + length].as_mut_ptr();
        Local { address, length, registration: self.registration() }
    }

    pub(super) fn remote(&mut self, from: usize, length: usize) -> Segment {
        let address = self.bytes()[from..].as_ptr();
        self.domain.remote(self.registration(), address, length)
    }

    pub(super) fn deregister(&mut self) {
        let mut batch: Vec<_> = self.registered.take().into_iter().collect();
        self.domain.deregister(&mut batch).unwrap();
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.deregister();
    }
}
