//! A server that was built without the programs: no plan asks for any.

use std::io;
use std::sync::Arc;

use super::Server;
use super::options::Plan;
use crate::metrics::KernelReported;
use crate::session::Shards;
use crate::store::Memory;

/// No value of this type exists.
#[derive(Debug)]
pub(crate) enum Kernel {}

impl Kernel {
    pub(crate) fn attach(_: &Plan, _: &Server<'_>) -> Result<Self, String> {
        Err("--xdp: this server was built without GETs in the kernel".to_owned())
    }
    pub(crate) fn said(&self) -> &[String] {
        match *self {}
    }
    pub(crate) fn memory(&self) -> Box<dyn FnMut(usize) -> io::Result<Memory>> {
        match *self {}
    }
    pub(crate) fn list(&self, _: &Shards, _: u32) {
        match *self {}
    }
    pub(crate) fn reported(&self) -> Arc<dyn KernelReported> {
        match *self {}
    }
    pub(crate) fn answer(&self) {
        match *self {}
    }
    pub(crate) fn end(&self) {
        match *self {}
    }
}
