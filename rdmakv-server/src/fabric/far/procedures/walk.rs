//! `walk`: follows a chain of nodes. A step reads a node.

use rdmakv_proto::far::procedures::Walk;

use super::step::{Cx, Run, Step, Stop, number, part};

impl Run for Walk {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, Stop> {
        let (at, length) = (self.at, self.length as usize);
        let node = cx.read(at, self.span())?;
        let next = number(node, self.next);
        let is_last = self.nodes == 1 || next == 0;
        let is_found = if self.key.is_empty() { is_last } else { part(node, self.key_at, self.key.len()) == self.key };
        if is_found {
            cx.reply_from(at, length)?;
            return Ok(Step::Done(at));
        }
        if is_last {
            return Ok(Step::Done(0));
        }
        (self.at, self.nodes) = (next, self.nodes - 1);
        Ok(Step::Again)
    }
}
