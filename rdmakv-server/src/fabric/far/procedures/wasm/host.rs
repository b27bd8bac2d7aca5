//! The functions `far`, which modules import.

use rdmakv_proto::far::modules::STATE_MAX;
use rdmakv_proto::far::procedures::READ_MAX;
use wasmi::{Caller, Error, FuncType, Linker, TrapCode, ValType};

use super::super::LIMITS;
use super::super::step::Stop;
use super::budget::price;
use super::running::Running;

type Of<'c> = Caller<'c, Running>;

const MODULE: &str = "far";
const I32: ValType = ValType::I32;
const I64: ValType = ValType::I64;

/// Their names, parameters and results.
const FUNCTIONS: [(&str, &[ValType], &[ValType]); 7] = [
    ("here", &[I64, I32], &[I32]),
    ("read", &[I64, I32, I32], &[]),
    ("reply", &[I32, I32], &[]),
    ("cas64", &[I64, I64, I64], &[I64]),
    ("state", &[I32, I32], &[I32]),
    ("set_state", &[I32, I32], &[]),
    ("done", &[], &[]),
];

/// Returns whether there is such a function.
pub(super) fn has(module: &str, name: &str, of: &FuncType) -> bool {
    let is_it = |(known, parameters, results): &(&str, &[ValType], &[ValType])| {
        *known == name && of.params() == *parameters && of.results() == *results
    };
    module == MODULE && FUNCTIONS.iter().any(is_it)
}

/// Defines them.
pub(super) fn define(linker: &mut Linker<Running>) -> Result<(), Error> {
    linker
        .func_wrap(MODULE, "here", here)?
        .func_wrap(MODULE, "read", read)?
        .func_wrap(MODULE, "reply", reply)?
        .func_wrap(MODULE, "cas64", cas64)?
        .func_wrap(MODULE, "state", state)?
        .func_wrap(MODULE, "set_state", set_state)?
        .func_wrap(MODULE, "done", done)?;
    Ok(())
}

fn trap() -> Error {
    TrapCode::MemoryOutOfBounds.into()
}

/// Takes the fuel of a call.
fn charge(of: &mut Of<'_>, bytes: usize) -> Result<(), Error> {
    let left = of.get_fuel()?.checked_sub(price(bytes as u64));
    of.set_fuel(left.unwrap_or(0))?;
    left.map(drop).ok_or_else(|| TrapCode::OutOfFuel.into())
}

/// Returns the memory of the module, and its run.
fn parts<'a>(of: &'a mut Of<'_>) -> Result<(&'a mut [u8], &'a mut Running), Error> {
    let memory = of.data().memory.ok_or_else(trap)?;
    Ok(memory.data_and_store_mut(of))
}

/// Returns a range of the module's memory.
fn range(memory: &mut [u8], at: i32, length: usize) -> Result<&mut [u8], Error> {
    memory.get_mut(at.cast_unsigned() as usize..).and_then(|from| from.get_mut(..length)).ok_or_else(trap)
}

fn length(of: i32, most: usize) -> Result<usize, Error> {
    usize::try_from(of).ok().filter(|&length| length <= most).ok_or_else(trap)
}

/// Ends a step that stops.
fn halt(stop: &mut Option<Stop>, why: Stop) -> Error {
    *stop = Some(why);
    trap()
}

/// Returns how many of so many bytes are here, from an address on.
fn here(mut of: Of<'_>, at: i64, most: i32) -> Result<i32, Error> {
    charge(&mut of, 0)?;
    let most = length(most, READ_MAX)?;
    let (mut cx, _) = of.data_mut().cx().ok_or_else(trap)?;
    Ok(cx.here(at.cast_unsigned(), most) as i32)
}

/// Copies bytes of far memory. Where they are elsewhere, the step begins again there.
fn read(mut of: Of<'_>, at: i64, into: i32, bytes: i32) -> Result<(), Error> {
    let bytes = length(bytes, READ_MAX)?;
    charge(&mut of, bytes)?;
    let (memory, running) = parts(&mut of)?;
    let into = range(memory, into, bytes)?;
    let (mut cx, stop) = running.cx().ok_or_else(trap)?;
    match cx.read(at.cast_unsigned(), bytes) {
        Ok(read) => into.copy_from_slice(read),
        Err(why) => return Err(halt(stop, why)),
    }
    Ok(())
}

/// Puts bytes behind the reply.
fn reply(mut of: Of<'_>, from: i32, bytes: i32) -> Result<(), Error> {
    let bytes = length(bytes, LIMITS.reply as usize)?;
    charge(&mut of, bytes)?;
    let (memory, running) = parts(&mut of)?;
    let from = range(memory, from, bytes)?;
    let (mut cx, stop) = running.cx().ok_or_else(trap)?;
    cx.reply(from).map_err(|why| halt(stop, why))
}

/// Replaces an aligned number that is as expected, and returns what was there.
fn cas64(mut of: Of<'_>, at: i64, old: i64, new: i64) -> Result<i64, Error> {
    charge(&mut of, 8)?;
    let at = at.cast_unsigned();
    if !at.is_multiple_of(8) {
        return Err(trap());
    }
    let running = of.data_mut();
    let (mut cx, stop) = running.cx().ok_or_else(trap)?;
    let was = cx.cas64(at, old.cast_unsigned(), new.cast_unsigned()).map_err(|why| halt(stop, why))?;
    running.has_written = true;
    Ok(was.cast_signed())
}

/// Copies the state, as much of it as there is room for. Returns its length.
fn state(mut of: Of<'_>, into: i32, most: i32) -> Result<i32, Error> {
    let most = length(most, STATE_MAX)?;
    charge(&mut of, most)?;
    let (memory, running) = parts(&mut of)?;
    let bytes = most.min(running.state.len());
    range(memory, into, bytes)?.copy_from_slice(&running.state[..bytes]);
    Ok(running.state.len() as i32)
}

/// Replaces the state.
fn set_state(mut of: Of<'_>, from: i32, bytes: i32) -> Result<(), Error> {
    let bytes = length(bytes, STATE_MAX)?;
    charge(&mut of, bytes)?;
    let (memory, running) = parts(&mut of)?;
    let from = range(memory, from, bytes)?;
    running.state.clear();
    running.state.extend_from_slice(from);
    Ok(())
}

/// Makes this step the last one: the address that it returns is the one that was found.
fn done(mut of: Of<'_>) -> Result<(), Error> {
    charge(&mut of, 0)?;
    of.data_mut().is_done = true;
    Ok(())
}
