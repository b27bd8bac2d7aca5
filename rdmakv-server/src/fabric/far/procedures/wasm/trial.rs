//! A module without a server: what fuzzing gives it.

use rdmakv_proto::far::messages::{ARGUMENTS_MAX, Answer, Reply, RunStatus};
use rdmakv_proto::far::modules::{MODULE_MAX, Modules, STATE_MAX, Stored, is_name};
use rdmakv_proto::far::procedures::{Module, Procedure};

use super::super::{LIMITS, Miss, Space, Spent};
use super::Call;
use super::budget::TOTAL;
use super::library::{Came, Library, Sent};
use super::machine::Compiled;

/// Bytes of far memory.
const BYTES: usize = 8192;

/// Far memory that is all here.
struct Bytes(Vec<u8>);

impl Bytes {
    fn at(&mut self, at: u64, length: usize) -> Option<&mut [u8]> {
        self.0.get_mut(usize::try_from(at).ok()?..)?.get_mut(..length)
    }
}

impl Space for Bytes {
    fn here(&mut self, at: u64, length: usize) -> usize {
        let left = usize::try_from(at).ok().and_then(|at| self.0.len().checked_sub(at));
        left.unwrap_or(0).min(length)
    }
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        self.at(at, into.len()).map(|from| into.copy_from_slice(from)).is_some()
    }
    fn cas64(&mut self, at: u64, old: u64, new: u64) -> Result<u64, Miss> {
        assert!(at.is_multiple_of(8), "the host looks at the address");
        let place = self.at(at, size_of::<u64>()).ok_or(Miss::Elsewhere)?;
        let was = u64::from_le_bytes((&*place).try_into().map_err(|_| Miss::Elsewhere)?);
        if was == old {
            place.copy_from_slice(&new.to_le_bytes());
        }
        Ok(was)
    }
}

/// Stores a module in parts, lists it, compiles it, and runs it. The input is the length of parts, in units of 16 bytes, the length of the
/// state, the state, and the module. Returns whether it can be run.
///
/// # Panics
/// A part is not taken, the list has another module, or a run exceeds a limit.
pub fn try_module(input: &[u8]) -> bool {
    let Some((&[unit, state], rest)) = input.split_first_chunk() else { return false };
    let (state, code) = rest.split_at(rest.len().min(state.into()).min(STATE_MAX));
    if code.len() > MODULE_MAX {
        return false;
    }
    let (name, length) = (if is_name(state) { state } else { b"module" }, code.len() as u32);
    let mut library = Library::default();
    let mut at = 0;
    for part in code.chunks(usize::from(unit) * 16 + 1) {
        let came = library.take(1, Sent { name, length, at, part }).expect("parts in order are taken");
        at += part.len() as u32;
        match came {
            Came::Some(sum) => assert!(sum == at && at < length),
            Came::All(all) => assert!(all == code && at == length),
        }
    }
    let Ok(compiled) = Compiled::new(code) else { return false };
    library.store(1, name, length, ()).expect("there is room for one");
    list(&library.list(1));
    let (space, spent) = (Box::new(Bytes(vec![7; BYTES])), Spent::default());
    let ran = compiled.run(Call { at: 0, state: state.to_vec(), space, spent, micros: 0 });
    assert!(ran.reply.len() == ran.spent.replied as usize && ran.spent.replied <= LIMITS.reply, "{ran:?}");
    // A step is not longer than what is left, and costs a microsecond at least.
    assert!(ran.spent.bytes <= LIMITS.bytes && u64::from(ran.micros) <= TOTAL + 1, "{ran:?}");
    if ran.end.status != RunStatus::Done {
        let next = Procedure::Module(Module { at: ran.at, name: name.to_vec(), state: ran.state });
        let mut arguments = Vec::new();
        next.encode(&mut arguments);
        assert!(arguments.len() <= ARGUMENTS_MAX);
        assert_eq!(Procedure::decode(Procedure::MODULE, &arguments), Ok(next), "it can go on");
    }
    true
}

/// Sends a list of modules, and compares what arrives.
fn list(all: &[(Vec<u8>, u32)]) {
    let mut written = Vec::new();
    let modules = Modules::write(all.iter().map(|(name, length)| Stored { name, length: *length }), &mut written);
    let mut bytes = Vec::new();
    Reply { memory: 0, region: 0, epoch: 0, answer: Answer::Modules { modules } }.encode(&mut bytes);
    let Ok(Reply { answer: Answer::Modules { modules }, .. }) = Reply::decode(&bytes) else { panic!("{all:?}") };
    assert!(modules.iter().map(|Stored { name, length }| (name.to_vec(), length)).eq(all.iter().cloned()));
}
