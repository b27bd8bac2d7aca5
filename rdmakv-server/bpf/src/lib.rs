//! GETs answered in the kernel: the XDP program, its loader, and the tables that program and server share.
//!
//! A BPF program at XDP and at tcx ingress answers GETs in datagrams from the server's own items. It keeps no copy of a value.
//! It finds an item by the [table], and believes what it read only if the item was the key's value all the while. All
//! else goes on to the server's socket.
//!
//! * [layout]: what the maps have where, and the hash of keys. The program has the same in `layout.h`.
//! * [table]: the server's writer of the table of places.
//! * `load`, with the feature `bpf`: maps, programs and links.
//! * `pair`, with it: two interfaces in namespaces, for tests.

pub mod layout;
#[cfg(feature = "bpf")]
pub mod load;
#[cfg(feature = "bpf")]
pub mod pair;
pub mod table;
