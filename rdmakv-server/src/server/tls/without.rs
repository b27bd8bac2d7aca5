//! What stands for TLS in a build without it: nothing that could be had.

use std::convert::Infallible;
use std::io::{self, IoSlice};

use super::Options;

/// None can be had.
#[derive(Debug)]
pub(in crate::server) struct Certificates(Infallible);

/// None can be had.
#[derive(Debug)]
pub(in crate::server) struct TlsStream(Infallible);

impl Certificates {
    pub(in crate::server) fn read(_: Options, _: bool) -> Result<Self, String> {
        Err("-Z: this build has no TLS; build it with the feature tls (on by default)".into())
    }
    pub(in crate::server) fn refresh(&self) -> Result<(), String> {
        match self.0 {}
    }
    pub(in crate::server) fn accept(&self, _: mio::net::TcpStream, _: bool) -> Result<TlsStream, Infallible> {
        match self.0 {}
    }
}

impl TlsStream {
    pub(in crate::server) fn socket(&mut self) -> &mut mio::net::TcpStream {
        match self.0 {}
    }
    pub(in crate::server) fn is_handshaking(&self) -> bool {
        match self.0 {}
    }
    pub(in crate::server) fn has_failed(&self) -> bool {
        match self.0 {}
    }
    pub(in crate::server) fn has_ended(&self) -> bool {
        match self.0 {}
    }
    pub(in crate::server) fn waits(&self) -> bool {
        match self.0 {}
    }
    pub(in crate::server) fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
    pub(in crate::server) fn write(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.0 {}
    }
    pub(in crate::server) fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
    pub(in crate::server) fn say_goodbye(&mut self) {
        match self.0 {}
    }
}
