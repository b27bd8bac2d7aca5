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
//!   registers                           registers      neither waits for the other
//!     the writer posts a CRW, "write this buffer when the keys of tag T are known", and is free
//!        │ ◄──────────── STCRW ───────────── │         the target's keys
//!        │ ═══════════ RDMA write ═════════► │         once CRW and STCRW have met
//!        │ ───────────── DONE ─────────────► │
//! ```
//!
//! A first program is in [`engine`].
//!
//! * [`handshake`]: the rules as a state machine: no socket, no clock, no thread. Its drivers obey four rules, listed there.
//! * [`wire`]: the messages, byte by byte.
//! * [`fabric`]: what is asked of a network, and the providers.
//! * [`engine`]: handshake, fabric and the registration cache tied together: what applications use. Beside transfers, it
//!   carries messages of theirs and reads memory of the peer's.
//!
//! # The paper's figures, as they are here
//!
//! **Figure 5, the traditional process** ([`Process::Traditional`](handshake::Process)): one thing after the other. A write is
//! opened by the client, which has the bytes; in a read it is the target, and the server writes.
//!
//! ```text
//!   (a) read                                      (b) write
//!   client                      server            client                      server
//!   registers                     │               registers                     │
//!     │ ─── SYNC and STCRW ─────► │                 │ ───────── SYNC ─────────► │
//!     │                       registers             │                       registers
//!     │                  application: submit        │ ◄──────── STCRW ───────── │
//!     │ ◄═════════ write ════════ │            application: submit              │
//!     │ ◄────────── DONE ──────── │                 │ ══════════ write ═══════► │
//!                                                   │ ────────── DONE ────────► │
//! ```
//!
//! **Figure 6, FRRWP**: both register at once; the write goes out when both have.
//!
//! ```text
//!   (a) read                                      (b) write
//!   client                      server            client                      server
//!     │ ───────── SYNC ─────────► │                 │ ───────── SYNC ─────────► │
//!   registers                 registers           registers                 registers
//!     │ ───────── STCRW ────────► │                 │ ◄──────── STCRW ───────── │
//!     │ ◄═════════ write ════════ │                 │ ══════════ write ═══════► │
//!     │ ◄────────── DONE ──────── │                 │ ────────── DONE ────────► │
//! ```
//!
//! The registered parts of a buffer are announced at once (in a read, with the SYNC), and the rest later: `more`.
//!
//! ```text
//!   target, of whose buffer A is cached            writer
//!     │ ───────── STCRW A, more ─────────────────► │
//!   registers B                                    │
//!     │ ◄═════════════════ write A ═══════════════ │
//!     │ ───────── STCRW B ───────────────────────► │
//!     │ ◄═════════════════ write B ═══════════════ │
//!     │ ◄────────────────── DONE ───────────────── │
//! ```
//!
//! **Figures 7 and 8, the writer from inside**: what happens when the keys come. The numbers are the paper's.
//!
//! ```text
//!   7, traditional                                 8, conditional write
//!   application    engine       fabric             application    engine       fabric
//!       │            │ ◄(1) STCRW ─ │                  │ ─(1) CRW ─► │              │
//!       │ ◄─(2,3)─── │ KeysCame     │               is free          │              │
//!   (4) looks        │              │                  │             │ ◄(2) STCRW ─ │
//!       │ ─(5)─────► │ submit       │                  │           (3) finds the CRW│
//!       │            │ ─(6) write ► │                  │             │ ─(4) write ► │
//! ```
//!
//! A CRW has no call of its own: [`Engine::open_write`](engine::Engine::open_write) and [`Engine::accept_read`](engine::Engine::accept_read) post it.
//!
//! **Giving up.** A target that has sent no key says NAK and is free. One that has says CANCEL, and holds its buffer:
//!
//! ```text
//!   target                                         writer
//!     │ ───────── STCRW ─────────────────────────► │
//!     │ ═ ═ ═ ═ ═ ═ ═ ═ ═ write ═ ═ ═ ═ ═ ═ ═ ═ ═ │
//!   gives up ──── CANCEL ────────────────────────► │  posts nothing more
//!   holds its lease                                │  waits for what it has posted
//!     │ ◄──────── NAK(cancelled), or DONE ──────── │
//!   releases
//! ```
//!
//! Without an answer in time the connection is torn down and flushed, and then the lease goes.
//!
//! # Peers that are not trusted
//!
//! The handshake survives any message. Decoding never panics; messages without sense are answered a bounded number of
//! times. All that a peer can make this side keep is bounded ([`Limits`](handshake::Limits)). A target offers no more than
//! it was asked to receive: each segment is clipped to the buffer, also where the registered region is larger.
//!
//! But *clipping binds only an honest peer*. Where a key opens its whole region, as in plain verbs, every holder of the key
//! can write to all of the region. That holds for as long as it is registered and the connection stands: also beside the
//! buffer, and after the transfer. Give such keys to peers that you trust with the memory. For others register exactly the
//! buffer and for this transfer alone, or use a memory window. Then the key ends with the transfer, and invalidating it is
//! as good as closing the connection. Nor does any handshake make a peer write what it says that it wrote: a DONE is a
//! claim.
//!
//! # What was tried
//!
//! Each line with what it printed last; the seeds are fixed, so it prints the same again. In front of each:
//! `cargo test --release -p frrwp`.
//!
//! | command | what it does | what it printed |
//! | --- | --- | --- |
//! | `--test explored` | every interleaving of one transfer with every fault, and of two without; drivers that break a rule | all is explored, each break is noticed |
//! | `--test explored two_transfers_with_faults -- --ignored` | of two transfers, each way, with every two kinds of faults | 42 spaces, 78,878,680 states, 25,998,254 of them different |
//! | `--test explored two_transfers_with_every_fault -- --ignored` | a failed registration, a cancel, a time-out and a tear, all within two transfers | 2 spaces, 45,555,214 states, 16,296,742 of them different |
//! | `--test transfers -- --ignored` | random transfers with faults on [`sim`](fabric::sim), byte by byte | 910,782 ended well, 89,218 did not; nothing was held, no byte differed |
//! | `--test talked` | every interleaving of two sides that send messages, take them or not, and open transfers | nothing stands still |
//! | `--test iwarp_passive -- --ignored` | two million reads of the memory of an application that waits | it slept on |
//! | `--test hostile -- --ignored` | messages that are nearly right, against one side | 50,000,000, no panic, less than 64 KiB of state |
//! | `--test wire -- --ignored` | noise, and messages changed and cut, for the decoder | 100,000,000, of which 56,251,875 were understood |
//! | `--test cost -- --nocapture` | allocations of a transfer in steady state, and the state of an open one | none; 320 bytes |
//!
//! # Features
//!
//! None is on by default; without any there are [`sim`](fabric::sim), [`iwarp`](fabric::iwarp) and `shm`.
//!
//! * `verbs`: the provider over RDMA devices, `fabric::verbs`, by libibverbs and librdmacm, which are opened at run time. To build:
//!   cmake and libclang.
//! * `verbs-linked`: the same, linked with them. To build: libibverbs-dev, librdmacm-dev, pkg-config, and libclang 14, no later. Where
//!   both are on, `verbs` wins.
//!
//! # Beside this crate
//!
//! The caches are [`mrrc`]'s. [`tracesim`] reproduces the paper, and runs both processes for its section 8. [`benches`]
//! compares the handshake with the traditional process, and the fabrics with what they stand on. [`rdmakv-server`] serves
//! clients over a [`fabric`].
//!
//! [`tracesim`]: ../tracesim/index.html
//! [`benches`]: ../benches/index.html
//! [`rdmakv-server`]: ../rdmakv_server/index.html

pub mod engine;
pub mod fabric;
pub mod handshake;
pub mod wire;
