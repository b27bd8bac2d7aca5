//! `filter`: finds records by a number in them. A step looks at as many as it reads at a time.

use rdmakv_proto::far::procedures::{Filter, READ_MAX};

use super::step::{Cx, Run, Step, Stop, number, part};

impl Run for Filter {
    fn step(&mut self, cx: &mut Cx<'_>) -> Result<Step, Stop> {
        if self.found != 0 {
            reply_from(self, self.found, cx)?;
            pass(self, 1)?;
            return Ok(Step::Again);
        }
        if self.records == 0 {
            return Ok(Step::Done(self.at));
        }
        let stride = self.stride as usize;
        let most = self.records.min((READ_MAX / stride) as u64) as usize;
        let records = (cx.here(self.at, most * stride) / stride).max(1);
        let bytes = cx.read(self.at, records * stride)?;
        let found: Vec<(u64, Found)> = (0..records).filter_map(|at| look(self, at, &bytes[at * stride..])).collect();
        for (at, found) in found {
            let replied = match &found {
                Found::Pointer(address) => reply_from(self, *address, cx),
                Found::Bytes(bytes) => cx.reply(bytes),
            };
            if let Err(stop) = replied {
                return stop_at(self, at, found, stop);
            }
        }
        pass(self, records as u64)?;
        Ok(Step::Again)
    }
}

/// The part of a record that goes into the reply.
enum Found {
    Pointer(u64),
    Bytes(Vec<u8>),
}

/// Returns what the reply has of a record, if its number is meant.
fn look(of: &Filter, at: usize, record: &[u8]) -> Option<(u64, Found)> {
    if !(of.least..=of.greatest).contains(&number(record, of.field)) {
        return None;
    }
    let found = match of.pointer {
        Some(pointer) => Found::Pointer(number(record, pointer)),
        None => Found::Bytes(part(record, of.from, of.length as usize).to_vec()),
    };
    (!matches!(found, Found::Pointer(0))).then_some((at as u64, found))
}

fn reply_from(of: &Filter, address: u64, cx: &mut Cx<'_>) -> Result<(), Stop> {
    let from = address.checked_add(of.from.into()).ok_or(Stop::Failed(address))?;
    cx.reply_from(from, of.length as usize)
}

/// Ends a step at a record for which something is missing. The ones before are done, and the next step stops at once.
fn stop_at(of: &mut Filter, at: u64, found: Found, stop: Stop) -> Result<Step, Stop> {
    let pointer = if let Found::Pointer(address) = found { address } else { 0 };
    if at == 0 && pointer == 0 {
        return Err(stop);
    }
    pass(of, at)?;
    of.found = pointer;
    Ok(Step::Again)
}

/// Goes on behind so many records.
fn pass(of: &mut Filter, records: u64) -> Result<(), Stop> {
    let bytes = records.checked_mul(of.stride.into());
    let at = bytes.and_then(|bytes| of.at.checked_add(bytes)).ok_or(Stop::Failed(of.at))?;
    (of.at, of.records, of.found) = (at, of.records.saturating_sub(records), 0);
    Ok(())
}
