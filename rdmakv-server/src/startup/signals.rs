//! The meanings of signals: the end (SIGTERM, SIGINT), the end once clients are done (SIGUSR1), files read again
//! (SIGHUP).
//!
//! SIGXFSZ would end it, and with it the memory of all: a write beyond an inherited limit on file sizes fails with `EFBIG` instead.
//!
//! A handler only sets a flag; maintenance looks at them. A second signal ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;

/// The received signals.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    end: Arc<AtomicBool>,
    finish: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    ///
    /// The system does not let us.
    pub(super) fn listen() -> Result<Self, String> {
        let signals = Self::default();
        let wrong = |signal: i32| move |error: std::io::Error| format!("handling signal {signal}: {error}");
        for signal in [SIGTERM, SIGINT] {
            flag::register_conditional_shutdown(signal, 128 + signal, signals.end.clone()).map_err(wrong(signal))?;
        }
        for (signal, asked) in
            [(SIGTERM, &signals.end), (SIGINT, &signals.end), (SIGUSR1, &signals.finish), (SIGHUP, &signals.reload)]
        {
            flag::register(signal, asked.clone()).map_err(wrong(signal))?;
        }
        // With a handler, whose flag nothing looks at, the write tells.
        flag::register(SIGXFSZ, Arc::default()).map_err(wrong(SIGXFSZ))?;
        Ok(signals)
    }

    pub(super) fn is_end_wanted(&self) -> bool {
        self.end.load(Relaxed)
    }

    pub(super) fn is_finish_wanted(&self) -> bool {
        self.finish.load(Relaxed)
    }

    /// Returns whether files are to be read again; returns so once.
    pub(super) fn take_reload(&self) -> bool {
        self.reload.swap(false, Relaxed)
    }
}
