//! Connections between processes of one user on one machine, by memory that they share.
//!
//! A [`ShmDomain`] makes [arenas](ShmArena), which are memory files; a connection passes them to its peer over a Unix socket.
//! The poster of a write or read copies the bytes itself, between its memory and the peer's: nothing at the other end runs
//! for that. Messages go through a ring; a sleeping end is woken over the socket.
//!
//! ```
//! use frrwp::fabric::shm::{Sharing, ShmAddress, ShmDomain, ShmListener, ShmOptions, connect};
//! use frrwp::fabric::{Completion, Endpoint};
//! use std::time::Duration;
//!
//! let one = ShmDomain::new(ShmOptions::default())?;
//! let other = ShmDomain::new(ShmOptions::default())?; // in another process, as a rule
//! let address: ShmAddress = format!("shm:@frrwp-doc-{}", std::process::id()).parse()?;
//! let listener = ShmListener::bind(&one, &address)?;
//! let arena = one.arena(1 << 20, Sharing::Writable)?; // what peers may be let at
//! let (accepted, connected) = std::thread::scope(|scope| {
//!     let connecting = scope.spawn(|| connect(&other, &address, 16, Duration::from_secs(5)));
//!     (listener.accept(16, Duration::from_secs(5)), connecting.join())
//! });
//! let (mut accepted, mut connected) = (accepted?, connected.expect("no panic")?);
//! connected.send(b"hello")?;
//! let mut message = Box::new([0; frrwp::wire::MESSAGE]);
//! accepted.wait(None);
//! assert_eq!(accepted.poll(&mut message), Some(Completion::Message { length: 5 }));
//! # drop(arena);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is shared
//!
//! | memory file | of | written by | mapped by | layout |
//! | --- | --- | --- | --- | --- |
//! | tag table | a domain | its owner | every peer, for reading | `table.rs` |
//! | outbox | an end of a connection | its owner | the peer, for reading | `link.rs`, `ring.rs` |
//! | arena | a domain | its owner; peers if it is [writable](Sharing::Writable) | every peer | the application's |
//!
//! All are sealed against shrinking and growing, and what only its owner writes against writable mappings too, so the kernel
//! and not good manners keeps peers from writing it. The socket's packets are in `packets.rs`.
//!
//! # Why no peer is at memory that was taken back
//!
//! To write or read, an end
//!
//! 1. stores the key into `at` of its outbox, and fences;
//! 2. looks whether either end has closed, and at the tag: key, life, bounds, right. If anything is wrong, it goes to 5;
//! 3. copies, 64 KiB at a time, looking again between;
//! 4. looks again; if the tag or its owner has died or an end has closed meanwhile, the operation is told as failed;
//! 5. stores 0 into `at`, with release.
//!
//! To take memory back, its owner
//!
//! 1. stores that the tag is dead (for a connection: that it is closed), and fences;
//! 2. waits until no peer's `at` is the tag's key (for a connection: until the peer's `at` is 0), or the peer is dead;
//! 3. uses the slot, and the memory, again.
//!
//! One of the two fences is first. If it is the initiator's, the owner's loads see `at`, and wait for 5, which comes after the
//! last byte was copied. If it is the owner's, the initiator's look sees that the tag is dead, and copies nothing. A key names
//! one tag as long as the slot is not used again, so the words of a slot that lives are what they were when it was found to
//! live. A key that comes again after its slot was freed is a tag like any other to an end that announces it then.
//!
//! # Memory of a process that died
//!
//! A mapping outlives the process that shared it, and its bytes stay as they were. A read of a dead peer's memory fails all the same: the kernel
//! marks the peer's tag table when the peer dies, before it closes a file of the peer's (`robust.rs`), and step 4 looks at the mark.
//! So once another process has the port or the socket that the dead one held, no read returns what the dead one left.
//!
//! # A peer that stops, or lies
//!
//! A peer can be stopped in mid-copy, and its mapping outlives the socket, so closing a connection takes nothing back. When
//! an honest peer uses memory longer than [`ShmOptions::stall`], the connection is ended and counts as
//! [`Flushed`](crate::fabric::Completion::Flushed), so that the application has its error. But the registration that it uses
//! stays in *quarantine* until it leaves or its process is dead: [`deregister`](mrrc::registrar::Registrar::deregister)
//! refuses it, so that a cache keeps it and tries again; a [buffer](ShmBuffer) that overlaps it is not reused when it is
//! dropped; and [`Quarantine`] counts it. At the [bound](ShmOptions::quarantine) nothing more is registered for peers. Memory
//! that the application must have back is replaced by [`ShmArena::take_back`].
//!
//! After such an end do not use the bytes again as if there were no writer: [`ShmBuffer::is_quarantined`] tells that, and so
//! does an engine's [`TransferError::Quarantined`](crate::engine::TransferError::Quarantined).
//!
//! A peer that lies about where it is cannot be held to it: it has the arenas, until it is dead. It can read and, where they are
//! writable, write them at any time, and nothing else of this process. Elsewhere it writes its own outbox and table, each word
//! of which is looked at once and checked against bounds. A broken one ends the connection ([`ShmEndpoint::fault`]). Truncation
//! is impossible by the seals. The other powers of a process of the same user, by debugging this one or through `/proc`, are the
//! system's business (`prctl(PR_SET_DUMPABLE)`, Yama), and a mapping that it hands on to a child by forking outlives its own
//! death.

//! # Processes
//!
//! The peer is the process that speaks: the one that sends the hello, and maps this side's memory. Each side takes it from what the
//! kernel attaches to the packets of the set-up (`set_up.rs`), and watches that process until it is dead. A server may fork after
//! it listens, and a process may listen for another one and pass accepted sockets to it ([`accept_passed`]). A process that the
//! system does not show (in another PID namespace, on Linux before 6.5) is refused. Another user is refused too, and a user that
//! the user namespace does not know.
//!
//! A child of a fork has nothing of its parent's. An endpoint that it inherits is of no use there: what is posted fails, and polling
//! tells the end; the parent's connection goes on. Peers' memory is not mapped in the child. A domain begins anew, without arenas,
//! registrations and connections, so that workers that are forked have tags of their own. A listener goes on with the connections
//! that come to the child. Fork while no other thread uses them.

mod accepting;
mod address;
mod arena;
mod connect;
mod domain;
mod endpoint;
mod error;
mod failpoints;
mod link;
mod memory;
mod packets;
mod pool;
mod registry;
mod ring;
mod robust;
mod set_up;
mod table;
#[cfg(test)]
mod tests;

pub use address::ShmAddress;
pub use arena::{NoBuffer, Outside, ShmArena, ShmBuffer, TakeBackError};
pub(in crate::fabric) use connect::connect_within;
pub use connect::{ShmListener, accept_passed, connect};
pub use domain::{ShmDomain, ShmKey};
pub use endpoint::ShmEndpoint;
pub use error::{Foreign, NotOffered, ShmError};
pub use pool::Sharing;
pub use registry::{Quarantine, ShmOptions};
