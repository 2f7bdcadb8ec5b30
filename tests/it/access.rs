//! Who may do what: tokens, JWTs, certificates and rules, against the real relay.

mod admin_port;
#[cfg(target_os = "linux")]
mod ages;
mod audit;
mod credentials;
mod over_tls;
mod proxied;
mod quotas;
mod reload;
mod secrets;
mod streams;
mod table;

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use reveille::{
    AccessFiles, Client, ClientConfig, Credential, NodeConfig,
    auth::{IssuedToken, NewToken, Principal, TokenFile},
    testing::TestRelay,
};
use tempfile::TempDir;

/// A relay with rules and tokens, and the directory of its files.
struct GuardedRelay {
    relay: TestRelay,
    home: TempDir,
}

/// The owner may do everything; the other, only on queues and flags of its own.
const RULES: &str = r#"
tokens = "tokens.toml"

[[rule]]
principals = ["owner"]
actions = ["notify", "subscribe", "report", "hand_over"]
queues = ["*/*"]

[[rule]]
principals = ["owner"]
actions = ["watch", "unleash", "admin"]
flags = ["*"]

[[rule]]
principals = ["other"]
actions = ["notify", "subscribe", "report"]
queues = ["other/*"]

[[rule]]
principals = ["other"]
actions = ["watch", "unleash"]
flags = ["other*"]
"#;

impl GuardedRelay {
    async fn start() -> Self {
        Self::with(RULES, |config| config).await
    }

    /// Starts a relay with these rules, and with further configuration.
    async fn with(rules: &str, further: impl FnOnce(NodeConfig) -> NodeConfig) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(home.path().join("auth.toml"), rules).expect("written");
        token(home.path(), "owner", None);
        let config = further(NodeConfig {
            access: Some(AccessFiles {
                rules: home.path().join("auth.toml"),
                audit_log: Some(home.path().join("audit.jsonl")),
            }),
            ..NodeConfig::default()
        });
        let relay = TestRelay::with_config(config).await.expect("a relay");
        Self { relay, home }
    }

    /// Adds a token of a principal, and applies it.
    async fn token(&self, principal: &str) -> IssuedToken {
        let token = token(self.home.path(), principal, None);
        self.reload().await;
        token
    }

    async fn reload(&self) {
        let node = self.relay.node().expect("it runs");
        node.reload_access().await.expect("valid files");
    }

    fn tokens(&self) -> TokenFile {
        TokenFile::new(self.path("tokens.toml"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn audit(&self) -> String {
        std::fs::read_to_string(self.path("audit.jsonl")).expect("an audit log")
    }

    fn client(&self, credential: Credential) -> Client {
        client(&self.relay.url(), credential)
    }
}

/// Adds a token of a principal to the file of a directory.
fn token(home: &Path, principal: &str, expires: Option<SystemTime>) -> IssuedToken {
    let new = NewToken {
        principal: Principal::new(principal).expect("a name"),
        expires,
        note: String::new(),
    };
    let file = TokenFile::new(home.join("tokens.toml"));
    file.add(&new, SystemTime::now()).expect("added")
}

fn client(url: &str, credential: Credential) -> Client {
    let config = ClientConfig {
        credential,
        ..ClientConfig::default()
    };
    Client::with_config(url, config).expect("a client")
}
