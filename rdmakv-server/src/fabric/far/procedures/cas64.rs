//! `cas64`: replaces an aligned number that is as expected, in one step.

use rdmakv_proto::far::procedures::Cas64;

use super::step::{Cx, Run, Step, Stop};

impl Run for Cas64 {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, Stop> {
        // Once it is done there is no way back.
        cx.make_room(8)?;
        let was = cx.cas64(self.at, self.old, self.new)?;
        cx.reply(&was.to_le_bytes())?;
        Ok(Step::Done(self.at))
    }
}
