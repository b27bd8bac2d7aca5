//! A key that lives as long as a process touches it: that of a mount, and that of the agent that works.

#[cfg(feature = "cli")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[cfg(feature = "cli")]
use rdmakv_client::{Cluster as Address, Options};
use rdmakv_proto::files::{Key, Mount, MountId};
use rustix::io::Errno;

use crate::cluster::Cluster;
use crate::error::{Error, Result};

/// How often a life is looked at that may have to be touched.
const TICK: Duration = Duration::from_millis(200);

/// How often it is tried to have the agent's key while another agent has it.
#[cfg(feature = "cli")]
const AGAIN: Duration = Duration::from_millis(500);

/// How long the agent's key lives after it was touched.
#[cfg(feature = "cli")]
const OF_AGENT: Duration = Duration::from_secs(12);

/// The number that stands for the agent. A mount draws it with odds of one to 2^64.
#[cfg(feature = "cli")]
const AGENT: MountId = MountId(u64::MAX);

/// Returns whether an agent works for the cluster.
///
/// # Errors
///
/// The cluster does not serve.
#[cfg(feature = "cli")]
pub(crate) fn has_agent(cluster: &mut Cluster) -> Result<bool> {
    Ok(cluster.many(&[Key::Mount(AGENT)])?.pop().flatten().is_some())
}

/// Whether a process's key lives.
#[derive(Debug)]
pub(crate) struct Life {
    key: Key,
    value: Vec<u8>,
    /// How long the key lives after it was touched. It is touched six times as often, and its process stops after half of it.
    lives: Duration,
    touched: Mutex<Instant>,
    is_dead: AtomicBool,
    ends: Mutex<bool>,
    end: Condvar,
}

impl Life {
    /// Makes the key. Returns the life, and the key's version; None if another process has it.
    ///
    /// # Errors
    ///
    /// The cluster does not serve.
    pub(crate) fn begin(cluster: &mut Cluster, mount: MountId, lives: Duration) -> Result<Option<(Self, u64)>> {
        let host = rustix::system::uname().nodename().to_bytes().iter().copied().take(255).collect();
        let value = Mount { process: std::process::id(), host }.encode();
        let key = Key::Mount(mount);
        let begun = Instant::now();
        let Some(version) = cluster.touch(&key, &value, None, lives)? else { return Ok(None) };
        let (touched, is_dead) = (Mutex::new(begun), AtomicBool::new(false));
        let life = Self { key, value, lives, touched, is_dead, ends: Mutex::new(false), end: Condvar::new() };
        Ok(Some((life, version)))
    }

    /// Fails once the process may seem dead to others. `remedy` follows the reason.
    ///
    /// # Errors
    ///
    /// `EIO`.
    pub(crate) fn check(&self, remedy: &str) -> Result<()> {
        let silence = self.lives / 2;
        if self.is_dead.load(Ordering::Relaxed) || lock(&self.touched).elapsed() > silence {
            let seconds = silence.as_secs();
            let why = format!(
                "touch {}: it could not be touched for {seconds} s, so others may take its place: {remedy}",
                self.key
            );
            return Err(Error::new(Errno::IO, why));
        }
        Ok(())
    }

    /// Waits for so long. Returns whether the process goes on.
    pub(crate) fn waits(&self, longest: Duration) -> bool {
        let waited = self.end.wait_timeout_while(lock(&self.ends), longest, |ends| !*ends);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Has [`Self::keep`] end, and all that wait.
    pub(crate) fn end(&self) {
        *lock(&self.ends) = true;
        self.end.notify_all();
    }

    /// Touches the key until the process ends, then removes it.
    pub(crate) fn keep(&self, cluster: &mut Cluster, mut version: u64) {
        while self.waits(TICK) && !self.is_dead.load(Ordering::Relaxed) {
            let begun = Instant::now();
            if lock(&self.touched).elapsed() < self.lives / 6 {
                continue;
            }
            match cluster.touch(&self.key, &self.value, Some(version), self.lives) {
                Ok(Some(next)) => {
                    version = next;
                    *lock(&self.touched) = begun;
                }
                // It expired, or was changed by an earlier touch whose answer was lost.
                Ok(None) => match cluster.many(&[self.key]).map(|mut values| values.pop().flatten()) {
                    Ok(Some(found)) if *found == *self.value => version = found.version(),
                    Ok(_) => self.is_dead.store(true, Ordering::Relaxed),
                    Err(_) => {}
                },
                Err(_) => {}
            }
        }
        let _ = cluster.touch(&self.key, b"", Some(version), Duration::from_secs(1));
    }
}

/// The turn of the one agent that works for a cluster. It is given up when it is dropped.
#[cfg(feature = "cli")]
#[derive(Debug)]
pub(crate) struct Turn {
    life: Arc<Life>,
    thread: Option<JoinHandle<()>>,
}

#[cfg(feature = "cli")]
impl Turn {
    /// Waits until no other agent works. `tell` is called once if one does.
    ///
    /// # Errors
    ///
    /// Etcd or the cluster does not answer.
    pub(crate) fn take(cluster: &Address, options: Options, tell: impl FnOnce()) -> Result<Self> {
        let mut keeper = Cluster::open(cluster, options)?;
        let mut tell = Some(tell);
        let (life, version) = loop {
            if let Some(begun) = Life::begin(&mut keeper, AGENT, OF_AGENT)? {
                break begun;
            }
            // The key of a turn that was given up stays for a second.
            if tell.is_some() && has_agent(&mut keeper)? {
                tell.take().into_iter().for_each(|tell| tell());
            }
            std::thread::sleep(AGAIN);
        };
        let life = Arc::new(life);
        let kept = Arc::clone(&life);
        let run = move || kept.keep(&mut keeper, version);
        let thread = spawn("rdmakv-life", run)?;
        Ok(Self { life, thread: Some(thread) })
    }

    /// Fails once another agent may work.
    ///
    /// # Errors
    ///
    /// `EIO`.
    pub(crate) fn check(&self) -> Result<()> {
        self.life.check("start the agent again")
    }
}

#[cfg(feature = "cli")]
impl Drop for Turn {
    fn drop(&mut self) {
        self.life.end();
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Starts a thread.
///
/// # Errors
///
/// The system has no more.
pub(crate) fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| Error::new(Errno::AGAIN, format!("start thread: {error}: allow more threads")))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
