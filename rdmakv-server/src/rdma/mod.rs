//! The store over RDMA: what client and server say to each other, and the server's side.
//!
//! Public for what is beside this crate, and no part of what [semantic versions](crate) are about.
//!
//! A client asks once, and is told a *tag*: where the item lies in the server's memory, and what lets the client read it there.
//! Until the tag's lease is over it reads the item itself, and the server's CPU has no part in it. What it reads it
//! [checks](crate::item::check); whatever is not right, the server is asked about.
//!
//! Over shared memory it needs no tag: it looks the item up in the [GET table](crate::get_table).
//!
//! One connection of one fabric carries three things, in one order: *messages* ([`wire`]), *transfers* of `frrwp`'s handshake, by
//! which the server writes large values into the client's buffer, and *reads*: the client's of items, and the server's of values
//! that the client wants stored.

pub mod eager;
#[cfg(feature = "server")]
pub mod server;
pub mod wire;
