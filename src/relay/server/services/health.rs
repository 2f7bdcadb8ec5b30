//! The standard health service. A server serves while it is ready, as `/readyz` of its admin port states it.
//!
//! There is no `Watch`: gRPC's clients then take the server as healthy.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures_core::stream::BoxStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server,
};

use crate::{
    console::{StatusSource, not_ready},
    wire::NOT_READY,
};

/// The health service of a server, and the state that it reports. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Health(Arc<HealthState>);

#[derive(Default)]
struct HealthState {
    has_ended: AtomicBool,
    /// Of the readiness, set once the server listens.
    source: OnceLock<Arc<dyn StatusSource>>,
}

impl Health {
    /// Reports the readiness of this source from now on.
    pub(crate) fn follow(&self, source: Arc<dyn StatusSource>) {
        let _ = self.0.source.set(source);
    }

    /// Reports from now on that the server does not serve.
    pub(crate) fn end(&self) {
        self.0.has_ended.store(true, Relaxed);
    }

    /// Returns why the server is not ready.
    async fn reasons(&self) -> Vec<String> {
        let mut reasons = match self.0.source.get() {
            Some(source) => not_ready(&**source).await,
            None => Vec::new(),
        };
        if self.0.has_ended.load(Relaxed) && reasons.is_empty() {
            reasons.push("shutting down".to_owned());
        }
        reasons
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Health")
    }
}

#[async_trait]
impl health_server::Health for Health {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !request.get_ref().service.is_empty() {
            return Err(Status::not_found(
                "service: must be empty, for the whole server",
            ));
        }
        let reasons = self.reasons().await;
        let status = match reasons.is_empty() {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        let mut response = Response::new(HealthCheckResponse {
            status: status.into(),
        });
        if let Ok(text) = reasons.join("; ").parse()
            && !reasons.is_empty()
        {
            response.metadata_mut().insert(NOT_READY, text);
        }
        Ok(response)
    }

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("Watch is not implemented: use Check"))
    }
}
