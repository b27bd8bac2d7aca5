//! Procedures: short programs of clients that run where their far memory is.
//!
//! Pure, but for the memory that they are given. A procedure goes from step to step. Between steps it is nothing but its arguments, by
//! which it may go on later, or at another server.
//!
//! * [`step`]: what a step may do, and what it spends.
//! * `walk`, `bucket`, `filter`, `cas64`: the procedures, whose arguments are in [`rdmakv_proto::far::procedures`].
//! * `wasm`: those that clients write.

mod bucket;
mod cas64;
mod filter;
mod step;
#[cfg(test)]
mod tests;
mod walk;
#[cfg(feature = "wasm")]
mod wasm;

use rdmakv_proto::far::messages::RunStatus;
use rdmakv_proto::far::procedures::Procedure;

use step::{Cx, Run, Step, Stop};
pub(super) use step::{LIMITS, Limits, Miss, Space, Spent};
#[cfg(feature = "wasm")]
pub use wasm::try_module;
#[cfg(feature = "wasm")]
pub(super) use wasm::{Call, Modules};

/// The end of a procedure at this server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    pub(super) status: RunStatus,
    /// The address that it found, or at which it goes on.
    pub(super) at: u64,
}

fn step(of: &mut Procedure, cx: &mut Cx<'_>) -> Result<Step, Stop> {
    match of {
        Procedure::Walk(of) => of.step(cx),
        Procedure::Bucket(of) => of.step(cx),
        Procedure::Filter(of) => of.step(cx),
        Procedure::Cas64(of) => of.step(cx),
        // Workers run none.
        Procedure::Module(of) => Err(Stop::Failed(of.at)),
    }
}

/// Takes so many steps of a procedure, and puts its reply behind what is there. Returns None if it has not ended.
///
/// A step that stops has done nothing. So the procedure goes on with it.
pub(super) fn take_steps(
    of: &mut Procedure,
    space: &mut dyn Space,
    (spent, limits): (&mut Spent, &Limits),
    reply: &mut Vec<u8>,
    steps: u32,
) -> Option<End> {
    if spent.hops > limits.hops {
        return Some(End { status: RunStatus::Hops, at: of.at() });
    }
    let mut cx = Cx::new(space, (spent, limits), reply);
    let mut end = None;
    for _ in 0..steps {
        match step(of, &mut cx) {
            Ok(Step::Again) => continue,
            Ok(Step::Done(at)) => end = Some(End { status: RunStatus::Done, at }),
            Err(stop) => end = Some(stop.end(of.at())),
        }
        break;
    }
    end
}
