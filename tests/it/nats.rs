//! The broker of a cluster: NATS servers that fit the settings of `serve --cluster`, and others.

mod refusals;
pub(crate) mod routes;
mod secure;

use std::time::Duration;

use reveille::{ClusterConfig, Error, ErrorKind, NatsConfig, Node, NodeConfig, RelayConfig};

use crate::support::within;

/// Starts a node in a cluster, and returns whether its broker is accepted.
async fn accepted(nats: NatsConfig) -> Result<(), Error> {
    let home = tempfile::tempdir().expect("a directory");
    let config = NodeConfig {
        relay: RelayConfig::default(),
        listen: ([127, 0, 0, 1], 0).into(),
        admin_listen: None,
        store: format!("sqlite:{}", home.path().join("flags.db").display()),
        cluster: Some(ClusterConfig {
            nats,
            ..ClusterConfig::default()
        }),
        ..NodeConfig::default()
    };
    match within("the start", Node::start(config)).await {
        Ok(node) => {
            node.shutdown(Duration::from_secs(1)).await;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Returns the error's text; it has this kind and names this setting.
async fn refused(nats: NatsConfig, kind: ErrorKind, setting: &str) -> String {
    let error = accepted(nats).await.expect_err(setting);
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(
        text.starts_with(&format!("{setting}: ")),
        "{setting}: {text}"
    );
    text
}
