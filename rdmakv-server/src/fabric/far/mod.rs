//! Far memory: regions of this server's memory that clients own. Nothing uses it yet: the driver of its
//! [messages](rdmakv_proto::far::messages) will call it.
//!
//! * [`offers`]: which client has which region, until when.
//! * [`places`]: which parts of the arena are free, in use, or may still be written by a former owner.

pub mod offers;
pub mod places;
