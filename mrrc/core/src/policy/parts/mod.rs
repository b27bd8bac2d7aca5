//! Parts of policies: queues, orders and a memory of evicted ranges.
//!
//! The policies of this crate and those for research are made of these parts, and a policy of your own may be. Each part keeps
//! regions in one order and uses some of the notes that a region has for its policy; its documentation says which. All of them
//! set aside a region in use that they meet at the end where victims leave, as [`Policy`](super::Policy) asks for.
//!
//! | part | order | notes |
//! | --- | --- | --- |
//! | [`Lru`] | a whole policy: least recently used, under a [`Scheme`](super::Scheme) | `order` |
//! | [`Recency`] | by last use; a hit writes two words | `order` |
//! | [`Listed`] | the same [`Stack`], without a word for each region; a hit writes more | `order` |
//! | [`Queue`] | first in, first out, or by last use; knows its pages | `mark`, `weight` |
//! | [`Ordered`] | by a value that only rises; hits do not touch the heap | `weight`, `order` |
//! | [`Winners`] | the same [`Ranking`], in a byte for each region; hits may write more | `weight`, `order` |
//! | [`Ghosts`] | ranges that were evicted lately, with what the policy remembers of them | none |

mod ghosts;
mod lru;
mod ordered;
mod queue;
mod recency;
mod stack;
mod winners;

pub use ghosts::Ghosts;
pub use lru::Lru;
pub use ordered::Ordered;
pub use queue::Queue;
pub use recency::Recency;
pub use stack::{Listed, Stack};
pub use winners::{Ranking, Winners};
