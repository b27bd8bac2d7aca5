//! Bytes between a client and a server that stop at a chosen one.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::spawn;

use super::common::soon;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Towards {
    Client,
    Server,
}

#[derive(Debug, Default)]
struct Gate {
    /// The server's address.
    server: String,
    /// Which way is to be held, and how many bytes pass before that.
    hold: Option<(Towards, usize)>,
    held: bool,
}

/// Takes connections, and makes one to the server for each. When one end goes, so does the other.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    gate: Arc<(Mutex<Gate>, Condvar)>,
    pub(crate) address: String,
}

impl Relay {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { gate: Arc::default(), address: listener.local_addr().unwrap().to_string() };
        let own = relay.clone();
        spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = own.gate().server.clone();
                let Ok(server) = TcpStream::connect(server) else { continue };
                for (towards, from, to) in [(Towards::Client, &server, &client), (Towards::Server, &client, &server)] {
                    let (own, from, to) = (own.clone(), from.try_clone().unwrap(), to.try_clone().unwrap());
                    spawn(move || own.carry(towards, from, to));
                }
            }
        });
        relay
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.0.lock().unwrap()
    }

    fn carry(&self, towards: Towards, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let mut passes = count;
            let mut gate = self.gate();
            if let Some((way, left)) = &mut gate.hold
                && *way == towards
            {
                passes = count.min(*left);
                *left -= passes;
            }
            drop(gate);
            if to.write_all(&bytes[..passes]).is_err() {
                break;
            }
            if passes < count {
                let mut gate = self.gate();
                gate.held = true;
                while gate.held {
                    gate = self.gate.1.wait(gate).unwrap();
                }
                // Nothing more comes.
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// Leads all later connections to this server.
    pub(crate) fn leads_to(&self, server: &str) {
        self.gate().server = server.to_owned();
    }

    /// Holds what goes this way after so many more bytes.
    pub(crate) fn hold(&self, towards: Towards, after: usize) {
        self.gate().hold = Some((towards, after));
    }

    /// Waits until it has come to that.
    pub(crate) fn is_held(&self) {
        soon("that the byte comes at which the relay holds", || self.gate().held);
    }

    /// Ends what is held, and holds nothing more.
    pub(crate) fn let_go(&self) {
        let mut gate = self.gate();
        (gate.hold, gate.held) = (None, false);
        self.gate.1.notify_all();
    }
}
