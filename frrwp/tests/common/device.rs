//! The RDMA device to test with.
//!
//! `MRRC_VERBS_ADDRESS` is its IP address. Where it is not set a test says so in a line and passes, unless `MRRC_VERBS_MUST` is
//! set: then it fails.
#![allow(unreachable_pub, dead_code, reason = "shared by tests")]

/// A device, by its address.
pub struct Device {
    host: String,
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Device {
    pub fn get() -> Option<Self> {
        let host = setting("MRRC_VERBS_ADDRESS");
        if host.is_none() {
            assert!(setting("MRRC_VERBS_MUST").is_none(), "not run, and it must: MRRC_VERBS_ADDRESS names no device");
            println!("skipped: MRRC_VERBS_ADDRESS does not say by which IP address an RDMA device is reached");
        }
        host.map(|host| Self { host })
    }

    /// Its address, with this port.
    pub fn at(&self, port: u16) -> String {
        format!("verbs:{}:{port}", self.host)
    }
}
