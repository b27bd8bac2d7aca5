//! The server's address and transport.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rdmakv_client::ServerAddress;

/// A server's place: `HOST:PORT` or `tcp:HOST:PORT`, `udp:HOST:PORT`, `unix:PATH`, which the generator speaks to itself; or an address
/// that rdmakv-server's client library takes, through which it is spoken to: one that begins with a fabric (`shm:@NAME`,
/// `iwarp:HOST:PORT`, `verbs:HOST:PORT`, each with what to fall back to after a comma), or any after `client:`. Our own
/// protocol over datagrams is `client:udp:HOST:PORT`.
///
/// ```
/// use rdmakv_bench::Target;
///
/// let target: Target = "udp:127.0.0.1:11211".parse().unwrap();
/// assert_eq!(target, Target::Udp("127.0.0.1:11211".into()));
/// let target: Target = "iwarp:10.0.0.1:11211,tcp:10.0.0.1:11211".parse().unwrap();
/// assert!(target.is_through_client());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A name or address, and a port.
    Tcp(String),
    /// The same; for GETs only.
    Udp(String),
    /// A socket's path.
    Unix(PathBuf),
    /// Whatever the client library reaches.
    Client(ServerAddress),
}

impl Target {
    /// Returns whether requests go through the client library.
    pub fn is_through_client(&self) -> bool {
        matches!(self, Self::Client(_))
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme @ ("tcp" | "udp" | "unix"), rest)) => (scheme, rest),
            Some(("iwarp" | "shm" | "verbs" | "verbs-ud", _)) => return through_client(text),
            Some(("client", rest)) => return through_client(rest),
            _ => ("tcp", text),
        };
        if scheme == "unix" {
            return if rest.is_empty() {
                Err("unix: needs the socket's path: unix:/run/kv".into())
            } else {
                Ok(Self::Unix(rest.into()))
            };
        }
        let good = rest.rsplit_once(':').is_some_and(|(host, port)| {
            // Colons in an address stand in brackets, else the port would be part of it.
            let bare = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
            !host.is_empty() && !bare && port.parse::<u16>().is_ok_and(|port| port != 0)
        });
        if !good {
            return Err(format!("{text}: a host and a port are needed: 127.0.0.1:11211, [::1]:11211, unix:/run/kv"));
        }
        Ok(if scheme == "udp" { Self::Udp(rest.into()) } else { Self::Tcp(rest.into()) })
    }
}

fn through_client(text: &str) -> Result<Target, String> {
    text.parse().map(Target::Client).map_err(|error: rdmakv_client::Error| error.to_string())
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(place) => write!(f, "tcp:{place}"),
            Self::Udp(place) => write!(f, "udp:{place}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Client(address) if address.fabrics().is_empty() => write!(f, "client:{address}"),
            Self::Client(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for text in [
            "tcp:localhost:11211",
            "udp:[::1]:1",
            "unix:/tmp/a:b",
            "client:tcp:h:5",
            "shm:@kv,tcp:h:5",
            "iwarp:10.0.0.1:5",
            "verbs:10.0.0.1:5,unix:/tmp/a",
            "verbs-ud:10.0.0.1:6,verbs:10.0.0.1:5",
        ] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        assert_eq!("h:5".parse::<Target>().unwrap().to_string(), "tcp:h:5");
    }

    #[test]
    fn what_is_no_place_says_what_one_looks_like() {
        for text in ["", "host", "host:", ":5", "host:0", "host:70000", "::1:5", "unix:", "tcp:x"] {
            let wrong = text.parse::<Target>().unwrap_err();
            assert!(wrong.contains("unix:/run/kv"), "{text}: {wrong}");
        }
        for text in ["client:", "shm:", "iwarp:x", "verbs:", "shm:@kv,"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
