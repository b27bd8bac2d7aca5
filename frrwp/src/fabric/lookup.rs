//! Names of hosts, looked up with a deadline.
//!
//! The system's call cannot be interrupted, and may take a minute. So a thread makes it, and those that ask wait for the thread, each
//! until its own deadline. All that ask for one name meanwhile wait for one thread, so a name that no server resolves costs one thread.

use super::attempt::{Attempt, Flag};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Names that are looked up at a time. Those that come later wait for one of them to end.
const MOST: usize = 64;
/// How often they look.
const AGAIN: Duration = Duration::from_millis(5);

static NAMES: Lookups = Lookups::new(|host| Ok((host, 0).to_socket_addrs()?.collect()));

/// Returns the addresses of a host, at least one.
pub(super) fn resolve(host: &str, port: u16, attempt: &Attempt) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    let mut found = NAMES.resolve(host, attempt)?;
    found.iter_mut().for_each(|address| address.set_port(port));
    if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
}

/// Asks the system.
type Ask = fn(&str) -> io::Result<Vec<SocketAddr>>;

struct Lookups {
    ask: Ask,
    /// By process, because a child of a fork has not the threads of its parent.
    running: Mutex<BTreeMap<(u32, String), Arc<Lookup>>>,
}

struct Lookup {
    done: Flag,
    found: OnceLock<io::Result<Vec<SocketAddr>>>,
}

impl Lookups {
    const fn new(ask: Ask) -> Self {
        Self { ask, running: Mutex::new(BTreeMap::new()) }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<(u32, String), Arc<Lookup>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resolve(&'static self, host: &str, attempt: &Attempt) -> io::Result<Vec<SocketAddr>> {
        let no_answer = || {
            let text = format!("no answer within {} ms", attempt.within().as_millis());
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let lookup = loop {
            if let Some(lookup) = self.join(host)? {
                break lookup;
            }
            if !attempt.pause(AGAIN) {
                return Err(no_answer());
            }
        };
        attempt.wait(&lookup.done, PollFlags::IN);
        match lookup.found.get() {
            None => Err(no_answer()),
            Some(Ok(found)) => Ok(found.clone()),
            Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }

    /// Returns the lookup of this name, which begins if there is none. None if there are too many of others.
    fn join(&'static self, host: &str) -> io::Result<Option<Arc<Lookup>>> {
        let mut running = self.running();
        let process = std::process::id();
        running.retain(|(of, _), _| *of == process);
        let key = (process, host.to_owned());
        if let Some(lookup) = running.get(&key) {
            return Ok(Some(Arc::clone(lookup)));
        }
        if running.len() >= MOST {
            return Ok(None);
        }
        let lookup = Arc::new(Lookup { done: Flag::new()?, found: OnceLock::new() });
        let (theirs, name) = (Arc::clone(&lookup), key.clone());
        mrrc::spawn_own_thread("lookup", move || {
            let found = (self.ask)(&name.1);
            self.running().remove(&name);
            let _ = theirs.found.set(found);
            theirs.done.raise();
        })?;
        running.insert(key, Arc::clone(&lookup));
        Ok(Some(lookup))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const HOUR: Duration = Duration::from_secs(3600);

    fn short() -> Attempt {
        Attempt::new(Duration::from_millis(20))
    }

    #[test]
    fn addresses_are_looked_up_by_nobody() {
        let over = Attempt::new(Duration::ZERO);
        assert_eq!(resolve("::1", 7, &over).unwrap(), ["[::1]:7".parse().unwrap()]);
        assert_eq!(resolve("localhost", 7, &Attempt::new(HOUR)).unwrap()[0].port(), 7);
    }

    #[test]
    fn a_name_without_an_answer_costs_one_thread() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        static ANSWER: Mutex<()> = Mutex::new(());
        static SILENT: Lookups = Lookups::new(|_| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            drop(ANSWER.lock());
            Ok(vec!["10.0.0.1:0".parse().expect("an address")])
        });
        let held = ANSWER.lock().unwrap();
        for _ in 0..3 {
            let error = SILENT.resolve("silent", &short()).unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::TimedOut, "no answer within 20 ms"));
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| SILENT.resolve("silent", &Attempt::new(HOUR)));
            drop(held);
            assert_eq!(waiting.join().unwrap().unwrap().len(), 1);
        });
        // The last one may have come after the answer.
        assert!((1..=2).contains(&ASKED.load(Ordering::SeqCst)));
    }

    #[test]
    fn names_beyond_the_bound_wait_for_a_place() {
        static ANSWER: Mutex<()> = Mutex::new(());
        static SLOW: Lookups = Lookups::new(|_| {
            drop(ANSWER.lock());
            Err(io::Error::new(io::ErrorKind::NotFound, "no such host"))
        });
        let held = ANSWER.lock().unwrap();
        let names: Vec<_> = (0..MOST).map(|number| SLOW.join(&format!("{number}")).unwrap()).collect();
        assert!(names.iter().all(Option::is_some) && SLOW.join("more").unwrap().is_none());
        assert_eq!(SLOW.resolve("more", &short()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(held);
        let error = SLOW.resolve("more", &Attempt::new(HOUR)).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::NotFound, "no such host"));
    }
}
