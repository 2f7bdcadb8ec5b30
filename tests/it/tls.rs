//! TLS on the gRPC port, with certificates made for each test.

mod certificates;
mod handshakes;
mod proxied;
mod reframing;
mod refusals;
mod renewal;
mod verbs;

use std::path::Path;

use reveille::{Client, ClientConfig, ClientTls, NodeConfig, testing::TestRelay};
use tempfile::TempDir;

pub(crate) use certificates::{Authority, Files};
pub(crate) use reframing::{ReframingProxy, SILENCE, are_served};

/// A relay with TLS, and the files of its certificate.
struct SecureRelay {
    relay: TestRelay,
    home: TempDir,
    authority: Authority,
    files: Files,
}

impl SecureRelay {
    async fn start() -> Self {
        Self::with_clients(None).await
    }

    /// Starts a relay that asks its clients for a certificate of an authority.
    async fn with_clients(clients: Option<&Authority>) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("relays");
        let files = authority.write(home.path(), "relay", authority.server());
        let clients =
            clients.map(|clients| clients.write(home.path(), "clients", clients.issue(&["any"])));
        let config = NodeConfig {
            tls: Some(files.server(clients.as_ref())),
            ..NodeConfig::default()
        };
        let relay = TestRelay::with_config(config).await.expect("a relay");
        Self {
            relay,
            home,
            authority,
            files,
        }
    }

    fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns a client that trusts the relay's authority.
    fn client(&self, identity: Option<&Files>) -> Client {
        client(&self.relay.url(), self.files.client(identity))
    }
}

fn client(url: &str, tls: ClientTls) -> Client {
    let config = ClientConfig {
        tls,
        ..ClientConfig::default()
    };
    Client::with_config(url, config).expect("a client")
}
