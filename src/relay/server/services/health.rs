//! The standard health service. A server serves while it is ready, as `/readyz` of its admin port states it.
//!
//! There is no `Watch`: gRPC's clients then take the server as healthy.

use std::sync::{Arc, OnceLock};

use futures_core::stream::BoxStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server,
};

use crate::{
    console::{StatusSource, not_ready},
    wire::NOT_READY,
};

/// The health service of a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Health {
    /// Of the readiness, set once the server listens. A host of queues has none.
    source: Arc<OnceLock<Arc<dyn StatusSource>>>,
    draining: CancellationToken,
}

impl Health {
    pub(super) fn new(draining: CancellationToken) -> Self {
        Self {
            source: Arc::default(),
            draining,
        }
    }

    /// Reports the readiness of this source from now on.
    pub(crate) fn follow(&self, source: Arc<dyn StatusSource>) {
        let _ = self.source.set(source);
    }

    /// Returns why the server is not ready.
    async fn reasons(&self) -> Vec<String> {
        match self.source.get() {
            Some(source) => not_ready(&**source).await,
            None if self.draining.is_cancelled() => vec!["shutting down".to_owned()],
            None => Vec::new(),
        }
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
