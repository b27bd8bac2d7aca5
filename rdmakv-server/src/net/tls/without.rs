//! The stand-in for TLS in a build without it: nothing that could be had.

use std::convert::Infallible;
use std::io::{self, IoSlice};

use super::Options;

/// None can be had.
#[derive(Debug)]
pub(crate) struct Certificates(Infallible);

/// None can be had.
#[derive(Debug)]
pub(crate) struct TlsStream(Infallible);

impl Certificates {
    pub(crate) fn read(_: Options, _: bool) -> Result<Self, String> {
        Err("-Z: this build has no TLS; build it with the feature tls (on by default)".into())
    }
    pub(crate) fn refresh(&self) -> Result<(), String> {
        match self.0 {}
    }
    pub(crate) fn accept(&self, _: mio::net::TcpStream, _: bool) -> Result<TlsStream, Infallible> {
        match self.0 {}
    }
}

impl TlsStream {
    pub(crate) fn socket(&mut self) -> &mut mio::net::TcpStream {
        match self.0 {}
    }
    pub(crate) fn is_handshaking(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn has_failed(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn has_ended(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn waits(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
    pub(crate) fn write(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.0 {}
    }
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
    pub(crate) fn close(&mut self) {
        match self.0 {}
    }
}
