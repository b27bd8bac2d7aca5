//! The modules of a server, or their absence in a server without the feature `wasm`.

#[cfg(feature = "wasm")]
pub(super) use super::procedures::{Call, Modules};
#[cfg(not(feature = "wasm"))]
pub(super) use absent::{Call, Modules};

#[cfg(not(feature = "wasm"))]
mod absent {
    use std::io;

    use rdmakv_proto::far::messages::Refusal;

    use super::super::procedures::{End, Space, Spent};

    /// A run of a module, as a server with them sees it.
    #[expect(dead_code, reason = "nothing takes it")]
    pub(in super::super) struct Call {
        pub(in super::super) at: u64,
        pub(in super::super) state: Vec<u8>,
        pub(in super::super) space: Box<dyn Space + Send>,
        pub(in super::super) spent: Spent,
        pub(in super::super) micros: u32,
    }

    /// The end of a run.
    pub(in super::super) struct Ran {
        pub(in super::super) end: End,
        pub(in super::super) at: u64,
        pub(in super::super) state: Vec<u8>,
        pub(in super::super) spent: Spent,
        pub(in super::super) nanos: u64,
        pub(in super::super) micros: u32,
        pub(in super::super) reply: Vec<u8>,
    }

    /// Modules. There are none.
    #[derive(Debug)]
    pub(in super::super) enum Modules {}

    impl Modules {
        pub(in super::super) fn start(_: u32) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }
        pub(in super::super) fn take(&self, _: u32, _: (u32, u32, &[u8], &[u8])) -> Result<u32, Refusal> {
            match *self {}
        }
        pub(in super::super) fn forget(&self, _: u32, _: &[u8]) -> Result<(), Refusal> {
            match *self {}
        }
        pub(in super::super) fn list(&self, _: u32) -> Vec<(Vec<u8>, u32)> {
            match *self {}
        }
        pub(in super::super) fn count(&self) -> usize {
            match *self {}
        }
        pub(in super::super) fn run(&self, _: u32, _: &[u8], _: Call) -> Result<Ran, Refusal> {
            match *self {}
        }
        pub(in super::super) fn end(&self) {
            match *self {}
        }
    }
}
