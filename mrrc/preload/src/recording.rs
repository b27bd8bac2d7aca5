//! What the program asks for, recorded: where `MRRC_RECORD` names a file, every registration that a program gets and every one that
//! it ends goes into that, whether a cache serves it or not, and also where caching is off. `tracesim record` runs a program so.
//!
//! The recorder is that of the process, follows into forked children, and needs no end. It is opened with the first registration,
//! so that programs without any do not count as recorded.

use crate::abi::flag;
use crate::treatment::Request;
use mrrc_record::layout::Operation;
use mrrc_record::{Source, of_process};

/// A registration, as a recording has it.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    address: u64,
    length: u64,
    rights: u8,
}

impl Span {
    pub(crate) fn new(address: usize, length: usize, access: u32) -> Self {
        Self { address: address as u64, length: length as u64, rights: rights(access) }
    }

    pub(crate) fn of(request: &Request) -> Self {
        Self::new(request.address, request.length, request.access)
    }
}

/// Whether anybody wants to know.
pub(crate) fn is_on() -> bool {
    of_process(Source::Verbs).is_some()
}

/// The program has it from now on.
pub(crate) fn acquired(span: Span) {
    tell(Operation::Acquire, span);
}

/// It has it no more.
pub(crate) fn released(span: Span) {
    tell(Operation::Release, span);
}

fn tell(operation: Operation, Span { address, length, rights }: Span) {
    if let Some(recorder) = of_process(Source::Verbs) {
        recorder.record(operation, rights, address, length);
    }
}

/// Every registration can be read by the card for this process.
fn rights(access: u32) -> u8 {
    let bits = [
        (flag::LOCAL_WRITE, 1 << 1),
        (flag::REMOTE_READ, 1 << 2),
        (flag::REMOTE_WRITE, 1 << 3),
        (flag::REMOTE_ATOMIC, 1 << 4),
    ];
    bits.into_iter().filter(|(asked, _)| access & asked != 0).fold(1, |all, (_, bit)| all | bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_the_recordings() {
        assert_eq!(rights(0), 0b1);
        assert_eq!(rights(flag::LOCAL_WRITE | flag::REMOTE_WRITE), 0b1011);
        assert_eq!(rights(flag::REMOTE_READ | flag::REMOTE_ATOMIC | flag::RELAXED_ORDERING), 0b1_0101);
    }
}
