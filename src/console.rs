//! The admin port: `GET /livez`, `GET /readyz`, `GET /readyz/PART` and `GET /metrics` over HTTP/1.1.
//!
//! Alive means that the process answers. Ready means that all required parts are: a relay sends
//! wake-ups without its store, so its store is a part that is not required. `/readyz?verbose` names
//! each part, `/readyz/PART` answers for one. The metrics are Prometheus text. For operators: it
//! listens on loopback unless told otherwise, and answers only to its own names. It has connections
//! and deadlines of its own, so that what is held on one port is not missing on the other.

mod connection;
mod hosts;
mod metrics;
mod process;

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use axum::{
    Router,
    extract::{Path, RawQuery, State},
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
    /// Returns the parts that readiness is made of, in the order in which they are shown.
    fn parts(&self) -> &'static [Part];

    /// Returns the reasons why a part is not ready; none where it is.
    async fn unready(&self, part: &str) -> Vec<String>;

    /// Returns the figures of this moment.
    fn figures(&self) -> Figures;
}

/// A part of readiness.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Without it the whole is not ready.
    pub(crate) required: bool,
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
            .route("/readyz/{part}", get(readyz_part))
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

async fn readyz(State(asked): State<Asked>, RawQuery(query): RawQuery) -> (StatusCode, String) {
    let is_verbose = |pair: &str| pair.split('=').next() == Some("verbose");
    let verbose = query.is_some_and(|query| query.split('&').any(is_verbose));
    let (mut lines, mut reasons) = (String::new(), Vec::new());
    for part in asked.subject.parts() {
        // Asking the store costs a request: only where its answer is shown.
        if !verbose && !part.required {
            continue;
        }
        let failed = asked.subject.unready(part.name).await;
        lines.push_str(&part.line(&failed));
        if part.required {
            reasons.extend(failed);
        }
    }
    let (status, text) = verdict(reasons);
    match verbose {
        true => (status, lines + &text),
        false => (status, text),
    }
}

async fn readyz_part(State(asked): State<Asked>, Path(name): Path<String>) -> (StatusCode, String) {
    let parts = asked.subject.parts();
    match parts.iter().find(|part| part.name == name) {
        Some(part) => verdict(asked.subject.unready(part.name).await),
        None => {
            let known: Vec<_> = parts.iter().map(|part| part.name).collect();
            let text = format!("no such part; there are: {}\n", known.join(", "));
            (StatusCode::NOT_FOUND, text)
        }
    }
}

fn verdict(reasons: Vec<String>) -> (StatusCode, String) {
    if reasons.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    let line = |reason| format!("not ready: {reason}\n");
    let text = reasons.into_iter().map(line).collect();
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

impl Part {
    /// Returns a line of the verbose page, as Kubernetes' own have them.
    fn line(self, failed: &[String]) -> String {
        let name = self.name;
        let note = if self.required { "" } else { " (not required)" };
        match failed {
            [] => format!("[+]{name} ok\n"),
            _ => format!("[-]{name} failed{note}: {}\n", failed.join("; ")),
        }
    }
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
