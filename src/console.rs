//! The admin port: `GET /livez`, `GET /readyz`, `GET /readyz/PART` and `GET /metrics` over
//! HTTP/1.1.
//!
//! Alive means that the process answers. Ready means that all required parts are ready. A relay
//! sends wake-ups without its store, so its store is not a required part. `/readyz?verbose` lists
//! all parts, `/readyz/PART` reports one. The metrics are Prometheus text. The port is for
//! operators: it listens on loopback by default, and accepts only configured host names. Its
//! connections and deadlines are separate from those of gRPC, so that neither port can exhaust the
//! other. A relay adds the routes of its page.

mod connection;
pub(crate) mod hosts;
mod process;
mod prometheus;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    extract::{Extension, Path, RawQuery, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

pub(crate) use connection::{LongAnswer, Peer};
pub(crate) use prometheus::{Metric, Metrics, metric_table};

use self::hosts::Hosts;
use crate::{
    base::{evicting_pool::EvictingPool, task::Scope},
    error::{Error, ErrorKind, Result},
};

/// The source of a console's readiness and metrics: a relay, a listener or a sweeper.
#[async_trait]
pub(crate) trait StatusSource: Send + Sync + 'static {
    /// Checks readiness: the checks in the order of the page. A check of the store costs a request;
    /// without `reads_store` it is listed as passed.
    async fn checks(&self, reads_store: bool) -> Vec<Check>;

    /// Returns the current values.
    fn metrics(&self) -> Metrics;
}

/// The check of one part of the process.
#[derive(Debug)]
pub(crate) struct Check {
    name: &'static str,
    /// Whether the process is ready only with this part.
    is_required: bool,
    /// Why the part is not ready; none if it is.
    failures: Vec<String>,
}

/// The check that reads the store.
pub(crate) const STORE: &str = "store";

/// Decides who may read a page, by its path, the request's headers and the peer.
pub(crate) type Admission =
    Arc<dyn Fn(&str, &HeaderMap, SocketAddr) -> std::result::Result<(), Refusal> + Send + Sync>;

/// Why a page is refused, with a text for the caller.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The caller is not known.
    Unknown(String),
    /// No rule allows it.
    Denied(String),
    /// The caller's address has failed too often; it may try again after this time.
    Later(String, Duration),
}

/// The bound port of a console.
pub(crate) struct ConsolePort {
    listener: TcpListener,
    address: SocketAddr,
}

/// An admin port: `GET /livez`, `/readyz`, `/metrics`. Ends when it is dropped.
#[derive(Debug)]
pub struct Console {
    address: SocketAddr,
    scope: Arc<Scope>,
}

/// The state of the route handlers.
#[derive(Clone)]
struct ConsoleState {
    source: Arc<dyn StatusSource>,
    connections: EvictingPool,
}

impl ConsolePort {
    /// Binds the port. Connections wait until [`Console::serve`].
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], with the address, if it cannot listen there.
    pub(crate) async fn bind(listen: SocketAddr) -> Result<Self> {
        let failed = |error| {
            let message = format!("cannot listen on {listen} for the admin port");
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }
}

impl Console {
    /// Binds a port, and serves its probes and metrics.
    ///
    /// # Errors
    /// As [`ConsolePort::bind`].
    #[cfg(any(feature = "listener", feature = "sweep"))]
    pub(crate) async fn start(
        source: Arc<dyn StatusSource>,
        listen: SocketAddr,
        hosts: &[String],
    ) -> Result<Self> {
        let port = ConsolePort::bind(listen).await?;
        Ok(Self::serve(port, hosts, source, None, Router::new()))
    }

    /// Serves on a bound port. Requests may state `hosts` as their host, in addition to IP addresses and
    /// `localhost`. Pages that are not probes need the `admission`, if there is one. The `further`
    /// routes check their callers themselves.
    pub(crate) fn serve(
        port: ConsolePort,
        hosts: &[String],
        source: Arc<dyn StatusSource>,
        admission: Option<Admission>,
        further: Router,
    ) -> Self {
        let ConsolePort { listener, address } = port;
        let connections = connection::pool();
        let hosts = Arc::new(Hosts::new(hosts));
        let router = Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/readyz/{part}", get(readyz_part))
            .route("/metrics", get(metrics_text))
            .with_state(ConsoleState {
                source,
                connections: connections.clone(),
            })
            // Before the layer: also an unknown page needs the admission.
            .fallback(async || StatusCode::NOT_FOUND)
            .layer(middleware::from_fn_with_state(admission, admit))
            .merge(further)
            .layer(middleware::from_fn_with_state(hosts, hosts::check));
        let scope = Arc::new(Scope::new());
        scope.spawn(connection::accept(
            listener,
            router,
            connections,
            Arc::clone(&scope),
        ));
        Self { address, scope }
    }

    /// Returns the address of the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends, and returns when the port is free again.
    pub(crate) async fn shutdown(self) {
        self.scope.shutdown().await;
    }
}

impl Drop for Console {
    /// Cancels the scope. Dropping it is not enough, as the accept loop holds it as well.
    fn drop(&mut self) {
        self.scope.token().cancel();
    }
}

/// Refuses a page to a caller that may not read it. The probes of an orchestrator have no credential,
/// and learn only whether the process is alive and ready.
async fn admit(
    State(admission): State<Option<Admission>>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let uri = request.uri();
    let is_probe = matches!(uri.path(), "/livez" | "/readyz") && uri.query().is_none();
    if let Some(admission) = admission.filter(|_| !is_probe)
        && let Err(refusal) = admission(uri.path(), request.headers(), peer.0)
    {
        return refusal.into_response();
    }
    next.run(request).await
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Unknown(text) => {
                let scheme = [(header::WWW_AUTHENTICATE, "Bearer")];
                (StatusCode::UNAUTHORIZED, scheme, text + "\n").into_response()
            }
            Self::Denied(text) => (StatusCode::FORBIDDEN, text + "\n").into_response(),
            Self::Later(text, after) => {
                let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
                let after = [(header::RETRY_AFTER, seconds.to_string())];
                (StatusCode::TOO_MANY_REQUESTS, after, text + "\n").into_response()
            }
        }
    }
}

/// Returns why the process is not ready: no reason if it is.
pub(crate) async fn not_ready(source: &dyn StatusSource) -> Vec<String> {
    required_failures(source.checks(false).await)
}

fn required_failures(checks: Vec<Check>) -> Vec<String> {
    let required = checks.into_iter().filter(|check| check.is_required);
    required.flat_map(|check| check.failures).collect()
}

async fn readyz(
    State(state): State<ConsoleState>,
    RawQuery(query): RawQuery,
) -> (StatusCode, String) {
    let is_verbose = |pair: &str| pair.split('=').next() == Some("verbose");
    let verbose = query.is_some_and(|query| query.split('&').any(is_verbose));
    let checks = state.source.checks(verbose).await;
    let lines: String = checks.iter().map(Check::line).collect();
    let (status, text) = verdict(required_failures(checks));
    match verbose {
        true => (status, lines + &text),
        false => (status, text),
    }
}

async fn readyz_part(
    State(state): State<ConsoleState>,
    Path(name): Path<String>,
) -> (StatusCode, String) {
    let mut checks = state.source.checks(name == STORE).await;
    match checks.iter().position(|check| check.name == name) {
        Some(at) => verdict(checks.swap_remove(at).failures),
        None => {
            let known: Vec<_> = checks.iter().map(|check| check.name).collect();
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

impl Check {
    pub(crate) fn required(name: &'static str, failures: impl IntoIterator<Item = String>) -> Self {
        Self {
            name,
            is_required: true,
            failures: failures.into_iter().collect(),
        }
    }

    pub(crate) fn optional(name: &'static str, failures: impl IntoIterator<Item = String>) -> Self {
        Self {
            is_required: false,
            ..Self::required(name, failures)
        }
    }

    /// Returns a line of the verbose page, in the format of Kubernetes.
    fn line(&self) -> String {
        let name = self.name;
        if self.failures.is_empty() {
            return format!("[+]{name} ok\n");
        }
        let note = if self.is_required {
            ""
        } else {
            " (not required)"
        };
        format!("[-]{name} failed{note}: {}\n", self.failures.join("; "))
    }
}

async fn metrics_text(State(state): State<ConsoleState>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut metrics = state.source.metrics();
    metrics.counters.push((
        "admin_connections_displaced",
        "Connections to the admin port closed for newer ones",
        state.connections.evictions(),
    ));
    ([(header::CONTENT_TYPE, kind)], metrics.render())
}
