//! Modules: procedures that a program writes, as WebAssembly, and stores at servers.
//!
//! A user has 16 modules at a server, of up to 256 KiB each. They stay until they are removed, or the server ends. A [`Runner`](super::Runner)
//! runs them by name: [`Module`](super::Module) is such a procedure.
//!
//! A module exports `step`, a function of an address (i64) that returns the address of the next step (i64). The server that has an
//! address takes the step. It exports `memory`, too, up to 1 MiB. The module imports these functions of `far`, and nothing else:
//!
//! | function | effect |
//! | --- | --- |
//! | `here(at: i64, most: i32) -> i32` | how many of so many bytes this server has, from an address on |
//! | `read(at: i64, into: i32, length: i32)` | copies up to 4,096 bytes. If they are on another server, the step begins again there |
//! | `reply(from: i32, length: i32)` | puts bytes behind the reply, 4,096 in all |
//! | `cas64(at: i64, old: i64, new: i64) -> i64` | replaces an aligned number if it is as expected, and returns what was there. Nothing that may stop comes behind it in the step |
//! | `state(into: i32, most: i32) -> i32` | copies the state, up to 128 bytes, and returns its length |
//! | `set_state(from: i32, length: i32)` | replaces the state |
//! | `done()` | makes this step the last one: it returns the address that was found |
//!
//! Only the state goes from step to step for certain. A step that stops is taken again from its beginning.

use super::connection::{Connection, Trouble};
use super::memory::{Memory, ask};
use super::shared::failed;
use super::table::MemoryError;
use crate::Client;
use crate::domains::Fabrics;
use rdmakv_proto::far::messages::{Answer, PART_MAX, Refusal, Request, Verb};
use rdmakv_proto::far::modules::{MODULE_MAX, MODULES_MAX, is_name};
use std::time::Duration;

/// How long compiling may take besides the usual time.
const COMPILE: Duration = Duration::from_secs(5);

/// A module that a server has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredModule {
    /// The server, as it was given.
    pub server: String,
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub length: u32,
}

/// The reason why a server does not take a module, or has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModuleFault {
    /// A name that cannot be one.
    #[error("a name has 1 to 64 bytes: choose another one")]
    Name,
    /// It is too long.
    #[error("it has more than 256 KiB: strip its names and debug information, or divide it")]
    TooLong,
    /// The server runs none.
    #[error("the server runs no modules: start it with --far-wasm; it has to be built with --features wasm")]
    NoModules,
    /// The user has too many there.
    #[error("this user has {MODULES_MAX} there already: remove one")]
    TooMany,
    /// It cannot be read.
    #[error(
        "it is no valid WebAssembly, or has more functions, tables or data than a module may: see whether it is compiled for wasm32"
    )]
    Malformed,
    /// It has no step.
    #[error("it exports no function `step` of an i64 that returns an i64: export one")]
    NoStep,
    /// It needs something else.
    #[error("it imports something that is none of the functions `far`: leave that out, such as WASI")]
    Import,
    /// It has a start function.
    #[error("it has a start function: do its work in the first step")]
    Start,
    /// It begins with too much memory.
    #[error("it begins with more than 1 MiB of memory: give it less, such as a smaller stack")]
    Memory,
    /// It takes too long.
    #[error("it was not compiled in time: make it shorter, or try again when the server is less busy")]
    Time,
    /// It is not there.
    #[error("there is none of that name: list them")]
    Unknown,
    /// Another process stores one at the same time.
    #[error("another process of this user stores a module at the same time: try again")]
    Busy,
}

/// A module that is not stored or removed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModuleError {
    /// A server is not reached.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A server refuses.
    #[error("{action} module {name:?} at {server}: {why}")]
    Refused {
        /// The request: store, remove or list.
        action: &'static str,
        /// Its name.
        name: String,
        /// The server, as it was given.
        server: String,
        /// The reason.
        why: ModuleFault,
    },
}

fn fault(of: Refusal) -> Option<ModuleFault> {
    Some(match of {
        Refusal::NoModules | Refusal::Unable => ModuleFault::NoModules,
        Refusal::ManyModules => ModuleFault::TooMany,
        Refusal::LongModule => ModuleFault::TooLong,
        Refusal::BadModule => ModuleFault::Malformed,
        Refusal::NoStep => ModuleFault::NoStep,
        Refusal::UnknownImport => ModuleFault::Import,
        Refusal::StartFunction => ModuleFault::Start,
        Refusal::MemorySize => ModuleFault::Memory,
        Refusal::CompileTime => ModuleFault::Time,
        Refusal::NoModule => ModuleFault::Unknown,
        Refusal::State => ModuleFault::Busy,
        _ => return None,
    })
}

/// A request at a server, for errors.
#[derive(Clone, Copy)]
struct Doing<'a> {
    action: &'static str,
    name: &'a str,
    server: &'a str,
}

impl Doing<'_> {
    fn refused(self, why: ModuleFault) -> ModuleError {
        let Self { action, name, server } = self;
        ModuleError::Refused { action, name: name.to_owned(), server: server.to_owned(), why }
    }

    fn failed(self, trouble: Trouble) -> ModuleError {
        let why = if let Trouble::Refused(why, _) = trouble { fault(why) } else { None };
        match why {
            Some(why) => self.refused(why),
            None => failed(trouble, self.server, MemoryError::Ended).into(),
        }
    }
}

fn request(verb: Verb<'_>) -> Request<'_> {
    Request { memory: 0, region: 0, epoch: 0, verb }
}

/// Stores a module at a server.
fn store(connection: &mut Connection, doing: Doing<'_>, code: &[u8]) -> Result<(), ModuleError> {
    if !is_name(doing.name.as_bytes()) {
        return Err(doing.refused(ModuleFault::Name));
    }
    if code.len() > MODULE_MAX {
        return Err(doing.refused(ModuleFault::TooLong));
    }
    let (length, name) = (code.len() as u32, doing.name.as_bytes());
    let mut at = 0_u32;
    loop {
        let rest = &code[at as usize..];
        let part = &rest[..rest.len().min(PART_MAX)];
        let sent = request(Verb::Code { length, at, name, part });
        let come = connection.ask_for_long(&sent, COMPILE, |reply| match reply.answer {
            Answer::Code { length } => Some(length),
            _ => None,
        });
        let end = at + part.len() as u32;
        if come.map_err(|trouble| doing.failed(trouble))? < end {
            return Err(doing.refused(ModuleFault::Busy));
        }
        at = end;
        if at == length {
            return Ok(());
        }
    }
}

/// Does something at each server of a client.
fn at_each<T>(
    client: &Client,
    mut each: impl FnMut(&mut Connection, &str) -> Result<T, ModuleError>,
) -> Result<Vec<T>, ModuleError> {
    let source = client.far_source();
    let mut fabrics = Fabrics::new(&crate::Options::default());
    if source.servers.is_empty() {
        return Err(MemoryError::NoServer.into());
    }
    let mut all = Vec::new();
    for server in &source.servers {
        let mut asked = ask(server, &mut fabrics, &source)?;
        all.push(each(&mut asked.connection, asked.place.name())?);
    }
    Ok(all)
}

/// Stores a module at all servers of a client, under a name by which this user runs it. It replaces one of that name.
///
/// # Errors
/// [`ModuleError`], of the first server that does not take it. Servers before that one have it.
pub fn store_module(client: &Client, name: &str, code: &[u8]) -> Result<(), ModuleError> {
    at_each(client, |connection, server| store(connection, Doing { action: "store", name, server }, code)).map(drop)
}

/// Removes a module from all servers of a client. Runs under way go on.
///
/// # Errors
/// [`ModuleError`], of the first server that has none.
pub fn remove_module(client: &Client, name: &str) -> Result<(), ModuleError> {
    at_each(client, |connection, server| {
        let doing = Doing { action: "remove", name, server };
        if !is_name(name.as_bytes()) {
            return Err(doing.refused(ModuleFault::Name));
        }
        let asked = request(Verb::Forget { name: name.as_bytes() });
        let removed = connection.ask(&asked, |reply| matches!(reply.answer, Answer::Forget).then_some(()));
        removed.map_err(|trouble| doing.failed(trouble))
    })
    .map(drop)
}

/// Returns the modules of this user at the servers of a client.
///
/// # Errors
/// [`ModuleError`], of the first server that runs none.
pub fn list_modules(client: &Client) -> Result<Vec<StoredModule>, ModuleError> {
    let lists = at_each(client, |connection, server| {
        let of = |name: &[u8], length| {
            let name = String::from_utf8_lossy(name).into_owned();
            StoredModule { server: server.to_owned(), name, length }
        };
        let listed = connection.ask(&request(Verb::Modules), |reply| match reply.answer {
            Answer::Modules { modules } => {
                Some(modules.iter().map(|module| of(module.name, module.length)).collect::<Vec<_>>())
            }
            _ => None,
        });
        listed.map_err(|trouble| Doing { action: "list", name: "*", server }.failed(trouble))
    })?;
    Ok(lists.into_iter().flatten().collect())
}

impl Memory {
    /// Stores a module at the servers of the memory, as [`store_module`] does. Servers to which regions move later need it, too.
    ///
    /// # Errors
    /// [`ModuleError`].
    pub fn store_module(&mut self, name: &str, code: &[u8]) -> Result<(), ModuleError> {
        self.connections.iter_mut().try_for_each(|(place, connection)| {
            store(connection, Doing { action: "store", name, server: place.name() }, code)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let doing = Doing { action: "store", name: "walk", server: "shm:@far" };
        for (why, remedy) in [
            (Refusal::NoModules, "--far-wasm"),
            (Refusal::Unable, "--far-wasm"),
            (Refusal::ManyModules, "remove one"),
            (Refusal::LongModule, "256 KiB"),
            (Refusal::BadModule, "wasm32"),
            (Refusal::NoStep, "export one"),
            (Refusal::UnknownImport, "WASI"),
            (Refusal::StartFunction, "first step"),
            (Refusal::MemorySize, "1 MiB"),
            (Refusal::CompileTime, "shorter"),
            (Refusal::NoModule, "list them"),
        ] {
            let error = doing.failed(Trouble::Refused(why, 0)).to_string();
            assert!(error.starts_with("store module \"walk\" at shm:@far: ") && error.contains(remedy), "{error}");
        }
    }
}
