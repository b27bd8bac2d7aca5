//! Fast RDMA writes: both peers register their memory at once, and the write goes out when the keys have met.
//!
//! A *transfer* moves one buffer from the peer that has the bytes, the *writer*, to the peer that wants them, the
//! *target*, by RDMA write. Before that both have to register their memory, and the writer needs the target's keys.
//! Done one after the other, two registrations and the switch to the application stand between the wish and the
//! write. Ou, He and Han (2009) let them overlap:
//!
//! ```text
//!      opener                               peer
//!        │ ───────────── SYNC ─────────────► │
//!   registers                           registers         neither waits for the other
//!        │                                   │
//!      the writer posts a CRW: "write this buffer when the keys of tag T are known", and is free
//!        │ ◄──────────── STCRW ───────────── │            the target's keys
//!        │ ═══════════ RDMA write ═════════► │            by the engine, when CRW and STCRW have met
//!        │ ───────────── DONE ─────────────► │
//! ```
//!
//! * [`handshake`]: the rules as a state machine: no socket, no clock, no thread.
//! * [`wire`]: the messages, byte by byte.
//! * [`fabric`]: what is asked of a network, and the providers.
//! * [`engine`]: handshake, fabric and the registration cache tied together: what applications use.

pub mod engine;
pub mod fabric;
pub mod handshake;
pub mod latency;
pub mod wire;
