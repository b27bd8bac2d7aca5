//! Modules: procedures that clients write, as WebAssembly.
//!
//! A module exports `step`, which takes the address of the step and returns that of the next one, and `memory`, if it has some. It imports
//! functions of `far`, and nothing else: no clock, no files, no other module. Steps have the same rules as those of built-in procedures.
//!
//! * [`budget`]: how long steps take.
//! * [`library`]: the modules of logins.
//! * [`outline`]: what is looked at before a module is compiled.
//! * `machine`: compiles modules and takes their steps. `host`: the functions `far`. `running`: what both know of a run.
//! * `threads`: which run them. `trial`: a module without a server.

mod budget;
mod host;
mod library;
mod machine;
mod outline;
mod running;
#[cfg(all(test, feature = "wasm-tests"))]
mod tests;
mod threads;
mod trial;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdmakv_proto::far::messages::Refusal;

use super::{End, Space, Spent};
use library::{Came, Library, Sent};
use machine::Compiled;
use threads::Threads;
pub use trial::try_module;

/// How long a module may take to be compiled, the wait for others included.
const COMPILE: Duration = Duration::from_secs(2);

/// A run of a module that begins here.
pub(in crate::fabric::far) struct Call {
    /// The address of the next step.
    pub(in crate::fabric::far) at: u64,
    pub(in crate::fabric::far) state: Vec<u8>,
    pub(in crate::fabric::far) space: Box<dyn Space + Send>,
    pub(in crate::fabric::far) spent: Spent,
    /// Microseconds at other servers.
    pub(in crate::fabric::far) micros: u32,
}

/// A run of a module that ended here.
#[derive(Debug)]
pub(in crate::fabric::far) struct Ran {
    pub(in crate::fabric::far) end: End,
    /// The address of the step that is next.
    pub(in crate::fabric::far) at: u64,
    pub(in crate::fabric::far) state: Vec<u8>,
    pub(in crate::fabric::far) spent: Spent,
    /// Nanoseconds of the processor here.
    pub(in crate::fabric::far) nanos: u64,
    /// Microseconds at all servers together.
    pub(in crate::fabric::far) micros: u32,
    pub(in crate::fabric::far) reply: Vec<u8>,
}

/// The modules of a server, and the threads that run them.
#[derive(Debug)]
pub(in crate::fabric::far) struct Modules {
    library: Mutex<Library<Arc<Compiled>>>,
    runners: Threads,
    /// One module is compiled at a time. Logins take turns.
    compiler: Threads,
}

impl Modules {
    /// Starts threads that run modules.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub(in crate::fabric::far) fn start(threads: u32) -> io::Result<Self> {
        Ok(Self {
            library: Mutex::default(),
            runners: Threads::start("far-wasm", threads)?,
            compiler: Threads::start("far-compile", 1)?,
        })
    }

    fn library(&self) -> MutexGuard<'_, Library<Arc<Compiled>>> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a part of a login's module. Returns how many bytes have come: once these are all, it can be run.
    ///
    /// # Errors
    ///
    /// [`Refusal`]
    pub(in crate::fabric::far) fn take(
        &self,
        login: u32,
        (length, at, name, part): (u32, u32, &[u8], &[u8]),
    ) -> Result<u32, Refusal> {
        let code = match self.library().take(login, Sent { name, length, at, part })? {
            Came::Some(bytes) => return Ok(bytes),
            Came::All(code) => code,
        };
        let until = Instant::now() + COMPILE;
        let compiled = self.compiler.give(login, move || {
            // Nothing waits for it any more.
            if Instant::now() >= until { Err(Refusal::CompileTime) } else { Compiled::new(&code) }
        });
        let compiled = compiled.recv_timeout(COMPILE).unwrap_or(Err(Refusal::CompileTime))?;
        self.library().store(login, name, length, Arc::new(compiled))?;
        Ok(length)
    }

    /// Removes a module of a login.
    ///
    /// # Errors
    ///
    /// It has none of that name.
    pub(in crate::fabric::far) fn forget(&self, login: u32, name: &[u8]) -> Result<(), Refusal> {
        self.library().forget(login, name)
    }

    /// Returns the names of a login's modules, and the bytes of each.
    pub(in crate::fabric::far) fn list(&self, login: u32) -> Vec<(Vec<u8>, u32)> {
        self.library().list(login)
    }

    /// Returns how many modules there are.
    pub(in crate::fabric::far) fn count(&self) -> usize {
        self.library().count()
    }

    /// Runs a module of a login, and waits for its end.
    ///
    /// # Errors
    ///
    /// It has none of that name, or the server ends.
    pub(in crate::fabric::far) fn run(&self, login: u32, name: &[u8], call: Call) -> Result<Ran, Refusal> {
        let compiled = self.library().find(login, name)?;
        self.runners.give(login, move || compiled.run(call)).recv().map_err(|_| Refusal::Unable)
    }

    /// Has the threads end.
    pub(in crate::fabric::far) fn end(&self) {
        self.runners.end();
        self.compiler.end();
    }
}
