//! iWARP in user space, over TCP: what Linux's siw and iWARP cards speak.
//!
//! [`mpa`] frames the stream (RFC 5044, RFC 6581), [`ddp`] says where bytes belong and what is done with them (RFC 5041,
//! RFC 5040), [`terminate`] how a side says what was wrong. All of it reads bytes where they lie, and none of it does input
//! or output.

pub mod ddp;
pub mod mpa;
pub mod terminate;
