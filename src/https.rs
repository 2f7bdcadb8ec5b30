//! The HTTP client of the clouds: TLS by ring, and time-outs.
//!
//! TLS is handed to each client, so that no program has to install anything for its process, and
//! none ends because it did not. Knows no service.

use std::{sync::Arc, time::Duration};

use reqwest::{Client, redirect::Policy};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::error::{Error, ErrorKind, Result};

/// Nothing that is near takes longer to connect to; the rest of a request's time is for its answer.
const CONNECT: Duration = Duration::from_secs(10);

/// Where a client's requests go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// It is spoken to by `https`.
    pub(crate) secure: bool,
    /// It is this machine, to which no proxy leads.
    pub(crate) loopback: bool,
}

/// How long a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// From connecting to the end of the answer.
    Whole(Duration),
    /// From one piece of the answer to the next: what is large takes long.
    Pieces(Duration),
}

/// Makes a client with so much patience for each request. It follows no redirection.
///
/// # Errors
/// [`ErrorKind::Unavailable`] where the machine's trusted certificates cannot be read.
pub(crate) fn client(target: Target, patience: Patience) -> Result<Client> {
    let builder = Client::builder()
        .tls_backend_preconfigured(tls(target.secure)?)
        .redirect(Policy::none());
    let mut builder = match patience {
        Patience::Whole(all) => builder.connect_timeout(all.min(CONNECT)).timeout(all),
        Patience::Pieces(each) => builder
            .connect_timeout(each.min(CONNECT))
            .read_timeout(each),
    };
    if target.loopback {
        // Whatever the environment says.
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| {
        Error::new(ErrorKind::Internal, "no HTTP client can be made")
            .with_source(error.without_url())
    })
}

/// Returns TLS as the machine trusts it; without it, none that trusts anybody.
fn tls(secure: bool) -> Result<ClientConfig> {
    let failed = |error: rustls::Error| {
        let message = "the machine's trusted certificates cannot be read";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let builder = match secure {
        true => builder.with_platform_verifier().map_err(failed)?,
        false => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(builder.with_no_client_auth())
}

impl Target {
    /// Reads it off a URL's scheme and host.
    pub(crate) fn of(url: &reqwest::Url) -> Self {
        let loopback = match url.host_str() {
            Some("localhost") => true,
            Some(host) => host
                .trim_matches(['[', ']'])
                .parse()
                .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
            None => false,
        };
        Self {
            secure: url.scheme() == "https",
            loopback,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_for_https_is_made_without_anything_installed() {
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
        let target = Target {
            secure: true,
            loopback: false,
        };
        client(target, Patience::Whole(Duration::from_secs(1))).expect("a client");
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
