//! Servers over fabrics: one-sided reads where there is a tag, messages and transfers where there is none.

pub(super) mod domains;
pub(super) mod end;
mod items;
pub(super) mod link;
mod outbox;
mod reads;
pub(super) mod replies;
mod table;
