//! The admin port: `GET /livez`, `GET /readyz` and `GET /metrics` over HTTP/1.1.
//!
//! Alive means that the process answers; ready that it takes streams and can read its store; the
//! metrics are Prometheus text. For operators: it listens on loopback unless told otherwise, and
//! answers only to its own names. It has connections and deadlines of its own, so that what is held
//! on one port is not missing on the other.

mod connection;
mod hosts;
mod metrics;
mod process;

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    middleware,
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;

pub(crate) use metrics::{Figure, Figures};

use self::hosts::Hosts;
use crate::{
    error::{Error, ErrorKind, Result},
    eviction::EvictingPool,
    task::Scope,
};

/// What the console asks of the relay that it belongs to.
#[async_trait]
pub(crate) trait Subject: Send + Sync + 'static {
    /// Returns the reasons why the relay is not ready; none where it is.
    async fn unready(&self) -> Vec<String>;

    /// Returns the figures of this moment.
    fn figures(&self) -> Figures;
}

/// Where a console listens, and by which names it is asked.
#[derive(Debug, Clone)]
pub(crate) struct ConsoleConfig {
    pub(crate) listen: SocketAddr,
    /// Host names that requests may state, beside IP addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
}

/// A console that listens. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Console {
    address: SocketAddr,
    scope: Arc<Scope>,
}

/// What answers are made of.
#[derive(Clone)]
struct Asked {
    subject: Arc<dyn Subject>,
    connections: EvictingPool,
}

impl Console {
    /// Listens.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where the address cannot be listened on; it is named.
    pub(crate) async fn start(config: &ConsoleConfig, subject: Arc<dyn Subject>) -> Result<Self> {
        let failed = |error| {
            let message = format!("cannot listen on {} for the admin port", config.listen);
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let connections = connection::pool();
        let hosts = Arc::new(Hosts::new(&config.hosts));
        let router = Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics_text))
            .with_state(Asked {
                subject,
                connections: connections.clone(),
            })
            .layer(middleware::from_fn_with_state(hosts, hosts::check));
        let scope = Arc::new(Scope::new());
        scope.spawn(connection::accept(
            listener,
            router,
            connections,
            Arc::clone(&scope),
        ));
        Ok(Self { address, scope })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends, and returns when the port is free again.
    pub(crate) async fn shutdown(self) {
        self.scope.shutdown().await;
    }
}

impl Drop for Console {
    /// The accept loop holds the scope as well: only cancelled it ends.
    fn drop(&mut self) {
        self.scope.token().cancel();
    }
}

async fn readyz(State(asked): State<Asked>) -> impl IntoResponse {
    let reasons = asked.subject.unready().await;
    if reasons.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    let line = |reason| format!("not ready: {reason}\n");
    let text = reasons.into_iter().map(line).collect();
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn metrics_text(State(asked): State<Asked>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut figures = asked.subject.figures();
    figures.counters.push((
        "admin_connections_displaced",
        "Connections to the admin port closed for newer ones",
        asked.connections.evictions(),
    ));
    ([(header::CONTENT_TYPE, kind)], figures.render())
}
