//! The paper's study again, on workloads generated from what it publishes of them.
//!
//! * [`claim`]: what the paper says, what is found here, and whether that is the same.
//! * [`workload`]: the two workloads and their cache sizes, whole or a sixteenth.
//! * [`figures`]: Table 2 and Figures 9 to 12, from the replays.
//! * [`machine`]: Figure 1 and Table 1, as far as this machine can tell.
//! * [`handshake`]: the latency analysis of section 8, by running both processes.
//! * [`latency`]: section 8, with its claims.
//! * [`logs`]: the same comparison on real traces.
//! * [`page`]: all of it as a page.
//!
//! The workloads are calibrated to figures of themselves, never to what a cache makes of them, and what counts as holding is
//! stated with every claim: figures here are measured, not fitted.

pub mod claim;
pub mod figures;
pub mod handshake;
pub mod latency;
pub mod logs;
pub mod machine;
pub mod page;
pub mod workload;
