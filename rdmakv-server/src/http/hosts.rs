//! The names by which requests may ask for the pages.
//!
//! The owner of a name can make it lead to this server, after a browser loaded a page by it (DNS rebinding). To the browser that page
//! and ours are of one site, so it may read ours. A request has the name that the browser asked for in its `Host` header.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Ends of names that no web site can have: they are reserved for a machine and for private networks.
const PRIVATE: [&str; 3] = [".localhost", ".local", ".internal"];

/// The names that this server has beside those that no web site can have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    /// Returns the machine's own name, and these.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self(std::iter::once(machine).chain(names).map(|name| plain(&name)).collect())
    }

    /// Returns whether a request with this `Host` header is answered: it has an address, or a name that is this server's or no web
    /// site's.
    pub(super) fn allows(&self, header: &str) -> bool {
        let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let host = header.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(header, |(host, _)| host);
        if let Some(address) = host.strip_prefix('[') {
            return address.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
        }
        let name = plain(host);
        name.parse::<Ipv4Addr>().is_ok()
            || !name.contains('.')
            || PRIVATE.iter().any(|end| name.ends_with(end))
            || self.0.contains(&name)
    }
}

/// Returns a name in the form that names are compared in.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_web_sites_are_refused_unless_given() {
        let hosts = Hosts::new(["Cache1.Example.com".into(), "kv.example.com.".into()]);
        for header in [
            "127.0.0.1:9150",
            "192.0.2.1",
            "[::1]:9150",
            "[2001:db8::1]",
            "localhost:9150",
            "LOCALHOST.",
            "kv.localhost:9150",
            "kv",
            "kv:9150",
            "vm.local:1",
            "kv.default.svc.cluster.local:9150",
            "ip-192-0-2-1.ec2.internal",
            "cache1.example.com:9150",
            "CACHE1.example.com.:9150",
            "kv.example.com",
            "",
        ] {
            assert!(hosts.allows(header), "{header}");
        }
        for header in [
            "evil.example:9150",
            "example.com",
            "cache1.example.com.evil.example",
            "xcache1.example.com",
            "127.0.0.1.evil.example:9150",
            "localhost.evil.example",
            "evil.example:x",
            "[evil.example]:9150",
            "[::1].evil.example",
            "[::1",
            "a.b",
        ] {
            assert!(!hosts.allows(header), "{header}");
        }
    }

    #[test]
    fn machine_has_its_name() {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert!(Hosts::new([]).allows(&format!("{machine}:9150")));
    }
}
