//! The admin port: `GET /livez`, `GET /readyz` and `GET /metrics` over HTTP/1.1.
//!
//! Alive means that the process answers; ready that it takes streams and can read its store; the
//! metrics are Prometheus text. For operators: it listens on loopback unless told otherwise.

mod metrics;

use std::{future::IntoFuture, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(crate) use metrics::Figures;

use crate::{
    error::{Error, ErrorKind, Result},
    task::Scope,
};

/// What the console asks of the relay that it belongs to.
#[async_trait]
pub(crate) trait Subject: Send + Sync + 'static {
    /// Returns why the relay is not ready, or `None` where it is.
    async fn unready(&self) -> Option<String>;

    /// Returns the figures of this moment.
    fn figures(&self) -> Figures;
}

/// A request that is not answered by then does not hold up the end: half of one may never be whole.
const GRACE: Duration = Duration::from_secs(1);

/// A console that listens. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Console {
    address: SocketAddr,
    scope: Scope,
}

impl Console {
    /// Listens.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where the address cannot be listened on; it is named.
    pub(crate) async fn start(listen: SocketAddr, subject: Arc<dyn Subject>) -> Result<Self> {
        let failed = |error| {
            let message = format!("cannot listen on {listen} for the admin port");
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let router = Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics_text))
            .with_state(subject);
        let scope = Scope::new();
        let ended: CancellationToken = scope.token();
        scope.spawn_graceful(async move {
            let served = axum::serve(listener, router)
                .with_graceful_shutdown(ended.clone().cancelled_owned());
            let late = async {
                ended.cancelled().await;
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                served = served.into_future() => if let Err(error) = served {
                    tracing::error!(%error, "the admin port ended");
                },
                () = late => tracing::debug!("left a connection to the admin port behind"),
            }
        });
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

async fn readyz(State(subject): State<Arc<dyn Subject>>) -> impl IntoResponse {
    match subject.unready().await {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: {why}\n"),
        ),
    }
}

async fn metrics_text(State(subject): State<Arc<dyn Subject>>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], subject.figures().render())
}
