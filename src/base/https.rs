//! The HTTP client for cloud services, with TLS by ring and time-outs.
//!
//! Each client gets its TLS configuration explicitly. So a program needs no process-wide crypto
//! provider, and does not panic for want of one.

use std::{sync::Arc, time::Duration};

use reqwest::{Client, redirect::Policy};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::{
    base::network::is_loopback,
    error::{Error, ErrorKind, Result},
};

/// The limit for connecting; the rest of a request's time is for its answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The destination of a client's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// The scheme is `https`.
    pub(crate) secure: bool,
    /// The host is this machine, so proxies are not used.
    pub(crate) loopback: bool,
}

/// The time limit of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestTimeout {
    /// From connecting to the end of the answer.
    Total(Duration),
    /// Between two chunks of the answer, for large transfers.
    PerChunk(Duration),
}

/// Creates a client that follows no redirect.
///
/// # Errors
/// [`ErrorKind::Unavailable`] where the machine's trusted certificates cannot be read.
pub(crate) fn client(target: Target, timeout: RequestTimeout) -> Result<Client> {
    let builder = Client::builder()
        .tls_backend_preconfigured(tls(target.secure)?)
        .redirect(Policy::none());
    let mut builder = match timeout {
        RequestTimeout::Total(all) => builder
            .connect_timeout(all.min(CONNECT_TIMEOUT))
            .timeout(all),
        RequestTimeout::PerChunk(each) => builder
            .connect_timeout(each.min(CONNECT_TIMEOUT))
            .read_timeout(each),
    };
    if target.loopback {
        // Overrides the proxy settings of the environment.
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| {
        Error::new(ErrorKind::Internal, "the HTTP client cannot be created")
            .with_source(error.without_url())
    })
}

/// Returns a configuration with the machine's trusted certificates, or with none if TLS is not used.
fn tls(secure: bool) -> Result<ClientConfig> {
    let failed = |error: rustls::Error| {
        let message = "the machine's trusted certificates cannot be read";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let builder = if secure {
        builder.with_platform_verifier().map_err(failed)?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

impl Target {
    /// Returns the target of a URL.
    pub(crate) fn of(url: &reqwest::Url) -> Self {
        Self {
            secure: url.scheme() == "https",
            loopback: url.host_str().is_some_and(is_loopback),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_https_client_needs_no_installed_crypto_provider() {
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
        let target = Target {
            secure: true,
            loopback: false,
        };
        client(target, RequestTimeout::Total(Duration::from_secs(1))).expect("a client");
    }

    #[test]
    fn this_machine_is_known_by_its_addresses() {
        for (url, loopback) in [
            ("http://127.0.0.1:7/", true),
            ("http://[::1]:7/", true),
            ("http://localhost/", true),
            ("https://acct.queue.core.windows.net/", false),
            ("http://10.0.0.1/", false),
        ] {
            let url = reqwest::Url::parse(url).expect(url);
            assert_eq!(Target::of(&url).loopback, loopback, "{url}");
            assert_eq!(Target::of(&url).secure, url.scheme() == "https");
        }
    }
}
