//! The number of a cluster's backing directory, in etcd.
//!
//! Servers have only memory. Once all of them were restarted, the cluster has no files. Then any directory could seem to be its first one, such as
//! a mount point without its file system. So each directory has a number of its own, in `.rdmakv/directory`. The first one that a mount or an
//! agent uses is noted in etcd, and all others are refused from then on. The key is `/rdmakv/NAME/directory/UUID`, by the cluster's name and
//! number.

use std::time::Duration;

use rdmakv_client::Cluster as Address;
use rdmakv_cluster::etcd::gateway::Write;
use rdmakv_cluster::etcd::{self, Endpoint, Etcd, Operation};
use rdmakv_cluster::facts::Keys;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// The key in etcd that has the number of a cluster's directory.
#[derive(Debug)]
pub(crate) struct Noted {
    etcd: Etcd,
    key: String,
}

impl Noted {
    /// Returns the key of the cluster with this number. Etcd has so long for an answer.
    ///
    /// # Errors
    ///
    /// The address is not one of etcd, or the name is not one of a cluster.
    pub(crate) fn of(cluster: &Address, uuid: u128, longest: Duration) -> Result<Self> {
        let failed = |why: String| Error::new(Errno::IO, why);
        let endpoints = Endpoint::list(&cluster.etcd).map_err(|error| failed(error.to_string()))?;
        let keys = Keys::of(&cluster.name).map_err(|error| failed(error.to_string()))?;
        let key = format!("{}directory/{uuid:032x}", keys.prefix());
        Ok(Self { etcd: Etcd::new(endpoints, longest), key })
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the number of the cluster's directory; None if none was used yet.
    ///
    /// # Errors
    ///
    /// Etcd does not answer, or the key has another value.
    pub(crate) fn read(&mut self) -> Result<Option<u128>> {
        let (_, found) = self.etcd.range(&self.key).map_err(|error| self.failed(&error))?;
        let Some(found) = found.iter().find(|found| found.key == self.key.as_bytes()) else { return Ok(None) };
        let number = std::str::from_utf8(&found.value).ok().and_then(parse);
        let why =
            || Error::new(Errno::IO, format!("read {} in etcd: it is no number of a directory: delete it", self.key));
        number.map(Some).ok_or_else(why)
    }

    /// Notes a directory's number, unless one is noted. Returns the one that is.
    ///
    /// # Errors
    ///
    /// Etcd does not answer, or refuses.
    pub(crate) fn claim(&mut self, number: u128) -> Result<u128> {
        let text = text(number);
        let put = [Write::Put(&self.key, text.as_bytes(), None)];
        match self.etcd.transaction(Operation::Write, Some((&self.key, 0)), &put) {
            // What is there now decides.
            Ok(_) | Err(etcd::Error::OutcomeUnknown { .. }) => {}
            Err(error) => return Err(self.failed(&error)),
        }
        let noted = self.read()?;
        let why = || format!("write {} in etcd: the outcome is not known: try again", self.key);
        noted.ok_or_else(|| Error::new(Errno::IO, why()))
    }

    fn failed(&self, error: &etcd::Error) -> Error {
        Error::new(Errno::IO, format!("use {} in etcd: {error}", self.key))
    }
}

/// Returns the text of a directory's number.
pub(crate) fn text(number: u128) -> String {
    format!("{number:032x}")
}

/// Returns the number of a text; None if it has another form.
pub(crate) fn parse(text: &str) -> Option<u128> {
    let number = u128::from_str_radix(text.trim(), 16).ok();
    number.filter(|&number| self::text(number) == text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form() {
        assert_eq!(parse(&text(0x1f)), Some(0x1f));
        assert_eq!(parse(&(text(u128::MAX) + "\n")), Some(u128::MAX));
        for other in ["", "1f", "+000000000000000000000000000001f", &text(0xabc).to_uppercase(), &(text(1) + "0")] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
