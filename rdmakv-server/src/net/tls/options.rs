//! The options of `-Z` and `-o ssl_…`, by memcached's names.

/// The files and the terms.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(super) chain: String,
    pub(super) key: Option<String>,
    pub(super) key_is_der: bool,
    pub(super) ca: Option<String>,
    pub(super) verify: Verify,
    /// Names of cipher suites, as OpenSSL has them; none for all.
    pub(super) ciphers: Option<String>,
    pub(super) only_1_3: bool,
    pub(super) cache: bool,
    pub(super) buffer: usize,
}

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verify {
    No,
    IfShown,
    Always,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            chain: String::new(),
            key: None,
            key_is_der: false,
            ca: None,
            verify: Verify::No,
            ciphers: None,
            only_1_3: false,
            cache: false,
            buffer: 16 << 10,
        }
    }
}

impl Options {
    /// Takes one `-o ssl_…`.
    ///
    /// # Errors
    ///
    /// The fault and the right form.
    pub(crate) fn take(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        let text = || value.filter(|value| !value.is_empty());
        let file =
            |what: &str| text().map(str::to_owned).ok_or_else(|| format!("-o {name}: needs {what}: {name}=FILE"));
        match name {
            "ssl_chain_cert" => self.chain = file("a file of certificates in PEM, the server's first")?,
            "ssl_key" => self.key = Some(file("a file with the private key")?),
            "ssl_ca_cert" => self.ca = Some(file("a file with the certificates that clients' are signed by, in PEM")?),
            "ssl_keyformat" => {
                self.key_is_der = match text().map(str::to_ascii_uppercase).as_deref() {
                    Some("PEM") => false,
                    Some("DER") => true,
                    Some("ENGINE") => return Err(format!("-o {name}: there are no engines here; use PEM or DER")),
                    _ => return Err(format!("-o {name}: PEM or DER")),
                }
            }
            "ssl_verify_mode" => {
                self.verify = match text() {
                    Some("0") => Verify::No,
                    Some("1") => Verify::IfShown,
                    // No handshake is ever repeated on a connection, so "once" is "always".
                    Some("2" | "3") => Verify::Always,
                    _ => return Err(format!("-o {name}: 0 (none), 1 (request), 2 (require) or 3 (once)")),
                }
            }
            "ssl_ciphers" => {
                let names = text().ok_or_else(|| format!("-o {name}: needs names with colons between them"))?;
                self.ciphers = Some(names.to_owned());
            }
            "ssl_min_version" => {
                self.only_1_3 = match text() {
                    Some("2" | "tlsv1.2") => false,
                    Some("3" | "tlsv1.3") => true,
                    Some("0" | "1" | "tlsv1.0" | "tlsv1.1") => {
                        return Err(format!("-o {name}: what is older than TLS 1.2 is not spoken; use 2 or 3"));
                    }
                    _ => return Err(format!("-o {name}: 2 (tlsv1.2) or 3 (tlsv1.3)")),
                }
            }
            "ssl_wbuf_size" => {
                let kilobytes =
                    text().and_then(|text| text.parse().ok()).filter(|size| (1..=1024_usize).contains(size));
                self.buffer = kilobytes.ok_or_else(|| format!("-o {name}: kilobytes, 1 to 1024"))? << 10;
            }
            "ssl_session_cache" => self.cache = true,
            "no_ssl_session_cache" | "no_ssl_kernel_tls" => {}
            "ssl_kernel_tls" => {
                return Err(format!("-o {name}: records are encrypted in the server itself; start without it"));
            }
            _ => return Err(format!("-o {name}: there is no such option (-h lists the flags)")),
        }
        Ok(())
    }

    /// Whether it is complete; `mutual` says that there is a place where clients have to show a certificate.
    ///
    /// # Errors
    ///
    /// The missing option.
    pub(crate) fn check(&self, mutual: bool) -> Result<(), String> {
        if self.chain.is_empty() {
            return Err("-Z: needs a certificate and its key: -Z -o ssl_chain_cert=FILE,ssl_key=FILE".into());
        }
        if mutual && self.ca.is_none() {
            return Err("-l mtls: needs the certificates that clients' are signed by: -o ssl_ca_cert=FILE".into());
        }
        if self.verify != Verify::No && self.ca.is_none() {
            return Err(
                "-o ssl_verify_mode: needs the certificates that clients' are signed by: -o ssl_ca_cert=FILE".into()
            );
        }
        Ok(())
    }

    /// Returns a warning on a setting that is allowed and hardly meant.
    pub(crate) fn doubt(&self, mutual: bool) -> Option<String> {
        (!mutual && self.ca.is_some() && self.verify == Verify::No).then(|| {
            "-o ssl_ca_cert: has no effect, for no client is asked for a certificate: add ssl_verify_mode=1 or 2".into()
        })
    }

    /// For `stats settings`.
    pub(crate) fn list(&self) -> Vec<(&'static str, String)> {
        let or_null = |text: &Option<String>| text.clone().unwrap_or_else(|| "NULL".into());
        let verify = match self.verify {
            Verify::No => 0,
            Verify::IfShown => 1,
            Verify::Always => 2,
        };
        vec![
            ("ssl_chain_cert", self.chain.clone()),
            ("ssl_key", or_null(&self.key)),
            ("ssl_verify_mode", verify.to_string()),
            // By the numbers of OpenSSL.
            ("ssl_keyformat", if self.key_is_der { "2" } else { "1" }.into()),
            ("ssl_ciphers", or_null(&self.ciphers)),
            ("ssl_ca_cert", or_null(&self.ca)),
            ("ssl_wbuf_size", self.buffer.to_string()),
            ("ssl_session_cache", if self.cache { "yes" } else { "no" }.into()),
            ("ssl_kernel_tls", "no".into()),
            ("ssl_min_version", if self.only_1_3 { "tlsv1.3" } else { "tlsv1.2" }.into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_memcacheds() {
        let mut options = Options::default();
        assert!(options.check(false).unwrap_err().contains("ssl_chain_cert=FILE"));
        for option in
            ["ssl_chain_cert=c", "ssl_key=k", "ssl_keyformat=der", "ssl_min_version=tlsv1.3", "ssl_wbuf_size=8"]
        {
            let (name, value) = option.split_once('=').unwrap();
            options.take(name, Some(value)).unwrap();
        }
        assert!(options.key_is_der && options.only_1_3 && options.buffer == 8192 && options.check(false).is_ok());
        assert!(options.check(true).unwrap_err().contains("-l mtls"));
        options.take("ssl_verify_mode", Some("2")).unwrap();
        assert!(options.check(false).unwrap_err().contains("ssl_ca_cert"));
        options.take("ssl_ca_cert", Some("ca")).unwrap();
        assert!(options.check(true).is_ok() && options.doubt(false).is_none());
        options.take("ssl_verify_mode", Some("0")).unwrap();
        assert!(options.doubt(false).unwrap().contains("add ssl_verify_mode=1 or 2"));
    }

    #[test]
    fn wrong_ones_say_what_would_be_right() {
        for (name, value, words) in [
            ("ssl_chain_cert", None, "ssl_chain_cert=FILE"),
            ("ssl_keyformat", Some("ENGINE"), "PEM or DER"),
            ("ssl_keyformat", None, "PEM or DER"),
            ("ssl_verify_mode", Some("4"), "0 (none)"),
            ("ssl_min_version", Some("1"), "TLS 1.2"),
            ("ssl_wbuf_size", Some("0"), "1 to 1024"),
            ("ssl_kernel_tls", None, "start without it"),
            ("ssl_nonsense", None, "no such option"),
        ] {
            let error = Options::default().take(name, value).unwrap_err();
            assert!(error.contains(words), "{name}: {error}");
        }
    }
}
