//! Faults put in on purpose, so that a checker of histories can be seen to find them.
//!
//! They exist only in builds with `--cfg rdmakv_fault_injection`; there the environment variable `RDMAKV_FAULT` chooses one.
//! In every other build [`injected`] is `false` at compile time, and nothing of them is left.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `index-before-dead`: a replacement is seen before what it replaces is dead.
    IndexBeforeDead,
    /// `reuse-early`: a chunk is free when its item ends or moves with its page, whatever leases there are. The GET table still names
    /// the chunk for a few operations.
    ReuseEarly,
    /// `no-crc`: the client believes a value without comparing its sum.
    NoCrc,
    /// `dead-after-reply`: a client that is told that an item is gone may still find it alive in memory.
    DeadAfterReply,
    /// `no-restart-wait`: a server does not wait for the leases of a predecessor that had RDMA devices.
    NoRestartWait,
    /// `believes-the-dead`: a client reads the memory of a server that was killed, and believes it (in frrwp's shm provider).
    BelievesTheDead,
    /// `flash-damage`: bytes that are read from flash are changed now and then.
    FlashDamage,
    /// `flash-no-crc`: the same, and records are believed without comparing their CRC.
    FlashNoCrc,
    /// `flash-kept-at-overwrite`: flash keeps the old value of a key that was written again, unless the new one goes there.
    FlashKeptAtOverwrite,
    /// `flash-kept-at-end`: flash keeps the value of an item that ends in memory.
    FlashKeptAtEnd,
    /// `flash-load-not-orphaned`: a value that is read from flash is believed though its item ended or changed meanwhile.
    FlashLoadNotOrphaned,
    /// `flash-moves-the-dead`: reclaim writes a record again though its item ended or was flushed meanwhile.
    FlashMovesTheDead,
    /// `flushed-late`: the kernel's program learns of a flush only with the next one.
    FlushedLate,
    /// `no-replies`: the server forgets which mutations in datagrams it executed.
    NoReplies,
    /// `resend-on-switch`: a client that moves to a connection sends there what is under way by datagrams.
    ResendOnSwitch,
    /// `floor-back`: the server lets a client's floor fall, and forgets what it executed above it.
    FloorBack,
    /// `mixed-executions`: a client makes one reply of the parts of several executions.
    MixedExecutions,
    /// `no-executing`: the server begins a request in datagrams again that it is executing, and executes all that came before it replies.
    NoExecuting,
}

/// Returns whether this fault was chosen.
#[cfg(not(rdmakv_fault_injection))]
#[inline(always)]
pub const fn injected(_: Fault) -> bool {
    false
}

/// Returns whether this fault was chosen.
///
/// # Panics
///
/// If the variable names none.
#[cfg(rdmakv_fault_injection)]
pub fn injected(fault: Fault) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Fault>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        Some(match std::env::var("RDMAKV_FAULT").ok()?.as_str() {
            "" => return None,
            "index-before-dead" => Fault::IndexBeforeDead,
            "reuse-early" => Fault::ReuseEarly,
            "no-crc" => Fault::NoCrc,
            "dead-after-reply" => Fault::DeadAfterReply,
            "no-restart-wait" => Fault::NoRestartWait,
            "believes-the-dead" => Fault::BelievesTheDead,
            "flash-damage" => Fault::FlashDamage,
            "flash-no-crc" => Fault::FlashNoCrc,
            "flash-kept-at-overwrite" => Fault::FlashKeptAtOverwrite,
            "flash-kept-at-end" => Fault::FlashKeptAtEnd,
            "flash-load-not-orphaned" => Fault::FlashLoadNotOrphaned,
            "flash-moves-the-dead" => Fault::FlashMovesTheDead,
            "flushed-late" => Fault::FlushedLate,
            "no-replies" => Fault::NoReplies,
            "resend-on-switch" => Fault::ResendOnSwitch,
            "floor-back" => Fault::FloorBack,
            "mixed-executions" => Fault::MixedExecutions,
            "no-executing" => Fault::NoExecuting,
            other => panic!(
                "RDMAKV_FAULT={other}: one of index-before-dead, reuse-early, no-crc, dead-after-reply, no-restart-wait, \
                 believes-the-dead, flash-damage, flash-no-crc, flash-kept-at-overwrite, flash-kept-at-end, \
                 flash-load-not-orphaned, flash-moves-the-dead, flushed-late, no-replies, \
                 resend-on-switch, floor-back, mixed-executions, no-executing"
            ),
        })
    });
    *chosen == Some(fault)
}
