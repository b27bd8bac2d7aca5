//! The certificates in use: what new connections are given.
//!
//! Lock: the current ones, taken for as long as it takes to count a reference up or to put others in their place.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::TlsStream;
use super::options::{Options, Verify};

/// Sessions that may be resumed at most.
const SESSIONS: usize = 10_000;
/// A file of certificates is no longer than that.
const FILE_MAX: u64 = 16 << 20;

/// The certificates, and where they come from.
#[derive(Debug)]
pub(crate) struct Certificates {
    options: Options,
    /// Whether there is a place where clients have to show a certificate whatever the options say.
    mutual: bool,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    usual: Arc<ServerConfig>,
    mutual: Option<Arc<ServerConfig>>,
}

impl Current {
    fn load(options: &Options, mutual: bool) -> Result<Self, String> {
        let asks = || load(options, Verify::Always);
        Ok(Self { usual: load(options, options.verify)?, mutual: mutual.then(asks).transpose()? })
    }
}

impl Certificates {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// Which file is wrong, and how.
    pub(crate) fn read(options: Options, mutual: bool) -> Result<Self, String> {
        let current = Mutex::new(Current::load(&options, mutual)?);
        Ok(Self { options, mutual, current })
    }

    /// Reads them again. Where they are wrong, the old ones stay in use.
    ///
    /// # Errors
    ///
    /// Which file is wrong, and how.
    pub(crate) fn refresh(&self) -> Result<(), String> {
        let fresh = Current::load(&self.options, self.mutual)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// A connection that is to begin with a handshake; if it is `mutual`, its client has to show a certificate.
    ///
    /// # Errors
    ///
    /// Those of rustls.
    pub(crate) fn accept(&self, socket: mio::net::TcpStream, mutual: bool) -> Result<TlsStream, rustls::Error> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let asks = current.mutual.as_ref().filter(|_| mutual);
        // Without a configuration of its own no such place is served.
        let config = match (asks, mutual) {
            (Some(config), _) => config.clone(),
            (None, true) => return Err(rustls::Error::General("no certificates of clients to ask for".into())),
            (None, false) => current.usual.clone(),
        };
        drop(current);
        TlsStream::new(socket, config, self.options.buffer)
    }
}

fn bytes(option: &str, file: &str) -> Result<Vec<u8>, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("loading {option} {file}: {why}");
    let length = std::fs::metadata(file).map_err(|error| wrong(&error))?.len();
    if length > FILE_MAX {
        return Err(wrong(&"that is no certificate: it is too long"));
    }
    std::fs::read(file).map_err(|error| wrong(&error))
}

fn chain(option: &str, file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("loading {option} {file}: {why}");
    let bytes = bytes(option, file)?;
    let chain = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    if chain.is_empty() {
        return Err(wrong(&"there is no certificate in it (in PEM: -----BEGIN CERTIFICATE-----)"));
    }
    Ok(chain)
}

fn key(options: &Options) -> Result<PrivateKeyDer<'static>, String> {
    let (option, file) = match &options.key {
        Some(file) => ("ssl_key", file),
        None => ("ssl_chain_cert", &options.chain),
    };
    let bytes = bytes(option, file)?;
    let wrong = |why: &dyn std::fmt::Display| format!("loading the key from {option} {file}: {why}");
    if options.key_is_der && options.key.is_some() {
        return PrivateKeyDer::try_from(bytes).map_err(|why| wrong(&why));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            wrong(&"there is no private key in it (in PEM, not encrypted); -o ssl_key=FILE names another")
        }
        other => wrong(&other),
    })
}

/// Returns the suites by OpenSSL's names. As there, a list that names none of TLS 1.3 leaves those as they are.
fn provider(options: &Options) -> Result<CryptoProvider, String> {
    let mut provider = ring::default_provider();
    let Some(names) = &options.ciphers else { return Ok(provider) };
    let known: Vec<String> = provider.cipher_suites.iter().map(|suite| openssl_name(*suite)).collect();
    let names: Vec<String> = names.split(':').filter(|name| !name.is_empty()).map(str::to_ascii_uppercase).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        return Err(format!("-o ssl_ciphers: {unknown} is not offered; these are: {}", known.join(":")));
    }
    let is_1_3 = |name: &String| name.starts_with("TLS_");
    let leave_1_3 = !names.iter().any(is_1_3);
    provider.cipher_suites.retain(|suite| {
        let name = openssl_name(*suite);
        names.contains(&name) || (leave_1_3 && is_1_3(&name))
    });
    Ok(provider)
}

fn openssl_name(suite: rustls::SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    match name.strip_prefix("TLS13_") {
        Some(rest) => format!("TLS_{rest}"),
        None => name
            .trim_start_matches("TLS_")
            .replace("_WITH_", "-")
            .replace("AES_", "AES")
            .replace("POLY1305_SHA256", "POLY1305")
            .replace('_', "-"),
    }
}

fn load(options: &Options, verify: Verify) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(provider(options)?);
    let versions: &[_] =
        if options.only_1_3 { &[&rustls::version::TLS13] } else { &[&rustls::version::TLS13, &rustls::version::TLS12] };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| format!("-o ssl_ciphers: {error}"))?;
    let builder = match (&options.ca, verify) {
        (Some(file), Verify::IfShown | Verify::Always) => {
            let wrong = |error: &dyn std::fmt::Display| format!("loading ssl_ca_cert {file}: {error}");
            let mut roots = RootCertStore::empty();
            for certificate in chain("ssl_ca_cert", file)? {
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if verify == Verify::IfShown { verifier.allow_unauthenticated() } else { verifier };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| wrong(&error))?)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(chain("ssl_chain_cert", &options.chain)?, key(options)?)
        .map_err(|error| format!("loading ssl_chain_cert {} and its key: {error}", options.chain))?;
    if options.cache {
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    } else {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_have_openssls_names() {
        let choose = |names: &str| {
            let options = Options { ciphers: Some(names.into()), ..Options::default() };
            provider(&options).map(|provider| {
                provider.cipher_suites.iter().map(|suite| openssl_name(*suite)).collect::<Vec<_>>().join(":")
            })
        };
        assert_eq!(choose("TLS_AES_128_GCM_SHA256:ECDHE-RSA-CHACHA20-POLY1305").unwrap().matches(':').count(), 1);
        let left = choose("ECDHE-ECDSA-AES256-GCM-SHA384").unwrap();
        assert!(left.contains("TLS_AES_256_GCM_SHA384") && !left.contains("RSA"), "{left}");
        let error = choose("HIGH:!aNULL").unwrap_err();
        assert!(error.contains("HIGH is not offered") && error.contains("ECDHE-RSA-AES128-GCM-SHA256"), "{error}");
    }

    #[test]
    fn files_that_are_wrong_are_named() {
        let read = |chain: &str| {
            Certificates::read(Options { chain: chain.into(), ..Options::default() }, false).expect_err("it is wrong")
        };
        assert!(read("/does/not/exist").contains("/does/not/exist"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        std::fs::write(&file, "no certificate").unwrap();
        assert!(read(file.to_str().unwrap()).contains("there is no certificate in it"));
    }
}
