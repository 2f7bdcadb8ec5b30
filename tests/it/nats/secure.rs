//! TLS to NATS: authorities, names, client certificates, and servers without TLS.

use std::path::Path;

use reveille::{ErrorKind, NatsConfig};
use tempfile::TempDir;

use super::{accepted, refused};
use crate::{
    support::nats::NatsServer,
    tls::{Authority, Files},
};

/// An authority, and the directory of its files.
struct Home {
    directory: TempDir,
    authority: Authority,
}

impl Home {
    fn new() -> Self {
        Self::of("brokers")
    }

    /// Makes an authority of this name.
    fn of(name: &str) -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            authority: Authority::new(name),
        }
    }

    fn issue(&self, name: &str, hosts: &[&str]) -> Files {
        let issued = self.authority.issue(hosts);
        self.authority.write(self.directory.path(), name, issued)
    }
}

/// Starts a server with a certificate, which asks for a client's if `clients` is set.
fn secure(files: &Files, clients: Option<&Files>) -> NatsServer {
    let path = |path: &Path| format!("{:?}", path.to_str().expect("UTF-8"));
    let (cert, key) = (path(&files.certificate), path(&files.key));
    let clients = clients.map_or_else(String::new, |files| {
        format!(", ca_file: {}, verify: true", path(&files.ca))
    });
    NatsServer::with_config(&format!(
        "tls {{ cert_file: {cert}, key_file: {key}{clients} }}"
    ))
}

fn at(url: String, ca: Option<&Files>, identity: Option<&Files>) -> NatsConfig {
    NatsConfig {
        servers: vec![url],
        ca: ca.map(|files| files.ca.clone()),
        cert: identity.map(|files| files.certificate.clone()),
        key: identity.map(|files| files.key.clone()),
        ..NatsConfig::default()
    }
}

#[tokio::test]
async fn a_server_of_a_known_authority_is_accepted_and_no_other() {
    let home = Home::new();
    let files = home.issue("server", &["127.0.0.1"]);
    let server = secure(&files, None);
    // A server may require TLS where the URL does not.
    for url in [server.tls_url(), server.url()] {
        let trusting = accepted(at(url.clone(), Some(&files), None)).await;
        trusting.expect("accepted");
        for name in ["foreign", "brokers"] {
            let home = Home::of(name);
            let foreign = home.issue("foreign", &["127.0.0.1"]);
            let unknown = at(url.clone(), Some(&foreign), None);
            refused(unknown, ErrorKind::Invalid, "cluster").await;
        }
        refused(at(url, None, None), ErrorKind::Invalid, "cluster").await;
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let home = Home::new();
    let files = home.issue("server", &["broker.example.com"]);
    let server = secure(&files, None);
    let config = at(server.tls_url(), Some(&files), None);
    let text = refused(config, ErrorKind::Invalid, "cluster").await;
    assert!(text.contains("not valid for name"), "{text}");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_accepts_the_right_one_only() {
    let home = Home::new();
    let files = home.issue("server", &["127.0.0.1"]);
    let clients = Home::new();
    let relay = clients.issue("relay", &["relay"]);
    let server = secure(&files, Some(&relay));
    let with = |identity| at(server.tls_url(), Some(&files), identity);
    accepted(with(Some(&relay))).await.expect("accepted");
    refused(with(None), ErrorKind::Invalid, "cluster").await;
    let strangers = Home::new();
    let stranger = strangers.issue("stranger", &["relay"]);
    let foreign = with(Some(&stranger));
    refused(foreign, ErrorKind::Invalid, "cluster").await;
}

#[tokio::test]
async fn tls_is_required_also_of_a_server_that_offers_none() {
    let server = NatsServer::start();
    let config = at(server.tls_url(), None, None);
    let text = refused(config, ErrorKind::Invalid, "cluster").await;
    assert!(text.contains("InvalidContentType"), "{text}");
    accepted(at(server.url(), None, None))
        .await
        .expect("plain text");
}

#[tokio::test]
async fn files_that_do_not_fit_are_named() {
    let home = Home::new();
    let (one, two) = (
        home.issue("one", &["127.0.0.1"]),
        home.issue("two", &["127.0.0.1"]),
    );
    let empty = home.directory.path().join("empty.pem");
    std::fs::write(&empty, "").expect("written");
    let missing = home.directory.path().join("missing.pem");
    let server = secure(&one, None);
    let good = at(server.tls_url(), Some(&one), Some(&one));
    let with = |change: &dyn Fn(&mut NatsConfig)| {
        let mut config = good.clone();
        change(&mut config);
        config
    };
    for (config, setting, reason) in [
        (
            with(&|c| c.ca = Some(missing.clone())),
            "cluster_ca",
            "No such file",
        ),
        (
            with(&|c| c.ca = Some(empty.clone())),
            "cluster_ca",
            "no certificate in PEM",
        ),
        (
            with(&|c| c.cert = Some(empty.clone())),
            "cluster_cert",
            "no certificate in PEM",
        ),
        (
            with(&|c| c.key = Some(empty.clone())),
            "cluster_key",
            "no private key in PEM",
        ),
        (
            with(&|c| c.key = Some(two.key.clone())),
            "cluster_key",
            "KeyMismatch",
        ),
        (with(&|c| c.key = None), "cluster_key", "must be set"),
    ] {
        let text = refused(config, ErrorKind::Invalid, setting).await;
        assert!(
            text.to_lowercase().contains(&reason.to_lowercase()),
            "{text}"
        );
    }
}
