//! Servers over fabrics: one-sided reads where there is a tag, messages and transfers where there is none.

mod channel;
mod choice;
mod items;
pub(super) mod link;
mod outbox;
pub(super) mod parts;
mod reads;
mod requests;
mod table;
