//! Addresses of etcd.

use std::fmt;

use thiserror::Error;

use crate::text::percent_decoded;

/// The most endpoints of a client.
pub const MAX_ENDPOINTS: usize = 16;

/// The port of etcd's clients.
const PORT: u16 = 2379;

/// The address of one server of etcd, with the user that asks it. It is shown without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host and port, as the standard library takes them.
    pub(crate) address: String,
    pub(crate) login: Option<Login>,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) password: String,
}

/// A text that is no list of endpoints.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EndpointError {
    /// No endpoint at all, or too many.
    #[error("read etcd's addresses: {0} of them: give 1 to 16, with commas between them")]
    Count(usize),
    /// An address over TLS.
    #[error(
        "read etcd's address {0}: https is not supported: use http:// in a private network, or a TLS proxy on this machine"
    )]
    Tls(String),
    /// Another form.
    #[error("read etcd's address {0}: not an address: use http://HOST:PORT or http://USER:PASSWORD@HOST:PORT")]
    Form(String),
}

impl Endpoint {
    /// Returns the endpoints of a list with commas, such as `http://10.0.0.1:2379,10.0.0.2`.
    ///
    /// # Errors
    ///
    /// The list is empty or has more than 16, or an address has another form. The error shows no password.
    pub fn list(text: &str) -> Result<Vec<Self>, EndpointError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let endpoints = parts.map(Self::parse).collect::<Result<Vec<_>, _>>()?;
        let count = endpoints.len();
        if (1..=MAX_ENDPOINTS).contains(&count) { Ok(endpoints) } else { Err(EndpointError::Count(count)) }
    }

    fn parse(text: &str) -> Result<Self, EndpointError> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (login, at) = rest.rsplit_once('@').map_or((None, rest), |(login, at)| (Some(login), at));
        let shown = || format!("{scheme}://{at}");
        match scheme {
            "http" => {}
            "https" => return Err(EndpointError::Tls(shown())),
            _ => return Err(EndpointError::Form(shown())),
        }
        let malformed = || EndpointError::Form(shown());
        let login = login.map(|login| Login::parse(login).ok_or_else(malformed)).transpose()?;
        let address = address(at).ok_or_else(malformed)?;
        Ok(Self { address, login })
    }
}

/// Returns host and port: etcd's port if the text has no port.
fn address(text: &str) -> Option<String> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, port) = match bracketed {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':')?)),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let in_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let in_bracket = |byte: u8| byte.is_ascii_hexdigit() || b":.%".contains(&byte);
    let sound = host.bytes().all(|byte| if bracketed.is_some() { in_bracket(byte) } else { in_host(byte) });
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok()).flatten();
    let port: u16 = port.map_or(Some(PORT), digits).filter(|&port| port > 0)?;
    (sound && !host.is_empty()).then(|| match bracketed {
        Some(_) => format!("[{host}]:{port}"),
        None => format!("{host}:{port}"),
    })
}

impl Login {
    /// Returns the user of `NAME:PASSWORD`, in which `%` and two hexadecimal digits are a byte.
    fn parse(text: &str) -> Option<Self> {
        let (name, password) = text.split_once(':')?;
        let plain = |text| String::from_utf8(percent_decoded(text)?).ok();
        let login = Self { name: plain(name)?, password: plain(password)? };
        (!login.name.is_empty()).then_some(login)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.address)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_with_defaults() {
        let list = Endpoint::list("http://10.0.0.1:23, etcd-2,[::1]/,http://u:p%40@h").unwrap();
        let addresses: Vec<_> = list.iter().map(|endpoint| endpoint.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.1:23", "etcd-2:2379", "[::1]:2379", "h:2379"]);
        let login = list[3].login.as_ref().unwrap();
        assert_eq!((login.name.as_str(), login.password.as_str()), ("u", "p@"));
        assert_eq!(list[3].to_string(), "http://h:2379");
    }

    #[test]
    fn refuses_other_forms_without_the_password() {
        for text in ["", ",", "ftp://h", "http://", "h:0", "h:65536", "h:+1", "h:1:2", "[::1]x", "h/path", "h\r\nX: y"]
        {
            assert!(Endpoint::list(text).is_err(), "{text}");
        }
        assert!(Endpoint::list(&"h,".repeat(17)).is_err());
        for text in ["https://u:secret@h", "http://secret@h", "http://:secret@h", "http://u:secret%4@h"] {
            let why = Endpoint::list(text).unwrap_err().to_string();
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
