//! `bucket`: looks a key up in a bucket of a hash table. A step finds the next item of the hash, another one looks at its key.

use rdmakv_proto::far::procedures::{Bucket, ENTRY};

use super::step::{Cx, Run, Step, Stop, number, part};

impl Run for Bucket {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, Stop> {
        if self.item == 0 { next_item(self, cx) } else { look_at_item(self, cx) }
    }
}

fn next_item(of: &mut Bucket, cx: &mut Cx<'_>) -> Result<Step, Stop> {
    let left = of.entries - of.first;
    if left == 0 {
        return Ok(Step::Done(0));
    }
    let begin = of.at.checked_add(u64::from(of.first) * ENTRY as u64).ok_or(Stop::Failed(of.at))?;
    let entries = cx.read(begin, left as usize * ENTRY)?;
    let (hash, address) =
        (|entry| number(entries, entry * ENTRY as u32), |entry| number(entries, entry * ENTRY as u32 + 8));
    let found = (0..left).find(|&entry| hash(entry) == of.hash && address(entry) != 0);
    let Some(entry) = found else { return Ok(Step::Done(0)) };
    (of.item, of.first) = (address(entry), of.first + entry + 1);
    Ok(Step::Again)
}

fn look_at_item(of: &mut Bucket, cx: &mut Cx<'_>) -> Result<Step, Stop> {
    let (item, length) = (of.item, of.length as usize);
    let is_found = of.key.is_empty() || {
        // From the beginning, so that the server of the item has it all.
        let bytes = cx.read(item, of.span())?;
        part(bytes, of.key_at, of.key.len()) == of.key
    };
    if is_found {
        cx.reply_from(item, length)?;
        return Ok(Step::Done(item));
    }
    of.item = 0;
    Ok(Step::Again)
}
