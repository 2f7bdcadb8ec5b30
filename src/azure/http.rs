//! The client's network: HTTP, and TLS by ring.
//!
//! TLS is handed to each client, so that no program has to install anything for its process, and
//! none ends because it did not. A request is sent once and has its time: trying again is for who
//! wraps the queue, where it is counted and said.

use std::{sync::Arc, time::Duration};

use azure_core::http::{ClientOptions, RetryOptions, Transport, Url};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_platform_verifier::BuilderVerifierExt;

use super::{account::StorageAccount, signing::Signing};
use crate::error::{Error, ErrorKind, Result};

/// Nothing that is near takes longer to connect to; the rest of a request's time is for its answer.
const CONNECT: Duration = Duration::from_secs(10);

/// Returns how requests for an account's queues are signed and sent; each has `timeout`, from
/// connecting to the end of the answer.
pub(crate) fn client_options(account: &StorageAccount, timeout: Duration) -> Result<ClientOptions> {
    let url = account.queue_url("");
    let mut builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls(&url)?)
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(timeout.min(CONNECT))
        .timeout(timeout);
    if is_loopback(&url) {
        // No proxy leads to this machine, whatever the environment says.
        builder = builder.no_proxy();
    }
    let client = builder.build().map_err(|error| {
        let message = format!(
            "no HTTP client can be made for account `{}`",
            account.name()
        );
        Error::new(ErrorKind::Internal, message).with_source(error.without_url())
    })?;
    Ok(ClientOptions {
        per_try_policies: vec![Arc::new(Signing::new(account.clone()))],
        retry: RetryOptions::none(),
        transport: Some(Transport::new(Arc::new(client))),
        ..ClientOptions::default()
    })
}

/// Returns TLS as the machine trusts it; without it, none that trusts anybody.
fn tls(url: &Url) -> Result<ClientConfig> {
    let failed = |error: rustls::Error| {
        let message = "the machine's trusted certificates cannot be read";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let builder = match url.scheme() {
        "https" => builder.with_platform_verifier().map_err(failed)?,
        _ => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(builder.with_no_client_auth())
}

fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_for_https_is_made_without_anything_installed() {
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
        let account = StorageAccount::with_key("acct", "a2V5").expect("an account");
        assert!(account.queue_endpoint().starts_with("https://"));
        let options = client_options(&account, Duration::from_secs(1)).expect("a client");
        let shown = format!("{options:?}");
        assert!(!shown.contains("a2V5"), "{shown}");
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
            let url = Url::parse(url).expect(url);
            assert_eq!(is_loopback(&url), loopback, "{url}");
        }
    }
}
