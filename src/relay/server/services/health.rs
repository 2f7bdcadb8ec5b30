//! The standard health service, with single checks and watches.
//!
//! A server serves while it is ready, as `/readyz` of its admin port states it. Watches of tonic's
//! implementation outlive a drain. Here a watch reports the drain and ends. It also ends at the maximum
//! age of its connection.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server,
};

use crate::{
    console::{StatusSource, not_ready},
    relay::server::http2::service::Connection,
    wire::NOT_READY,
};

#[derive(Debug)]
pub(crate) struct HealthService {
    /// Serves the services of a relay.
    has_relay: bool,
    /// Serves those of a host of queues.
    has_queues: bool,
    serving: watch::Receiver<bool>,
    readiness: Readiness,
}

/// Sets the state that `grpc.health.v1` reports.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    serving: watch::Sender<bool>,
    readiness: Readiness,
}

/// The source of the readiness, set once the server listens.
#[derive(Clone, Default)]
struct Readiness(Arc<OnceLock<Arc<dyn StatusSource>>>);

/// A watch reads the readiness at this interval.
const WATCH_EVERY: Duration = Duration::from_secs(1);

type Watch = futures_core::stream::BoxStream<'static, Result<HealthCheckResponse, Status>>;

impl HealthService {
    /// Creates the service of a serving server, and the handle of its state.
    pub(crate) fn new(has_relay: bool, has_queues: bool) -> (Self, Health) {
        let (sender, serving) = watch::channel(true);
        let readiness = Readiness::default();
        let health = Health {
            serving: sender,
            readiness: readiness.clone(),
        };
        let service = Self {
            has_relay,
            has_queues,
            serving,
            readiness,
        };
        (service, health)
    }

    /// Checks the name of a service; the empty one is the whole server.
    fn check_name(&self, request: &HealthCheckRequest) -> Result<(), Status> {
        let is_served = match request.service.as_str() {
            "" => true,
            "reveille.v1.Relay" | "reveille.v1.Flags" | "reveille.v1.Admin" => self.has_relay,
            "reveille.v1.Courier" => self.has_queues,
            _ => false,
        };
        if is_served {
            return Ok(());
        }
        Err(Status::not_found("service: is not served here"))
    }
}

impl Readiness {
    /// Returns why the server is not ready.
    async fn reasons(&self) -> Vec<String> {
        match self.0.get() {
            Some(source) => not_ready(&**source).await,
            None => Vec::new(),
        }
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readiness")
    }
}

impl Health {
    /// Reports the readiness of this source from now on.
    pub(crate) fn follow(&self, source: Arc<dyn StatusSource>) {
        let _ = self.readiness.0.set(source);
    }

    /// Reports from now on that the relay does not serve, and ends all watches.
    pub(crate) fn end(&self) {
        self.serving.send_replace(false);
    }
}

#[async_trait]
impl health_server::Health for HealthService {
    type WatchStream = Watch;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.check_name(request.get_ref())?;
        let mut reasons = self.readiness.reasons().await;
        if !*self.serving.borrow() && reasons.is_empty() {
            reasons.push("shutting down".to_owned());
        }
        let mut response = Response::new(answer(reasons.is_empty()));
        if let Ok(text) = reasons.join("; ").parse()
            && !reasons.is_empty()
        {
            response.metadata_mut().insert(NOT_READY, text);
        }
        Ok(response)
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watch>, Status> {
        self.check_name(request.get_ref())?;
        let end = request.extensions().get::<Connection>();
        let end = end.map_or_else(CancellationToken::new, |end| end.ending().clone());
        // `None` once the drain was reported.
        let state = Some((self.serving.clone(), self.readiness.clone(), end, None));
        let answers = stream::unfold(state, |state| async move {
            let (mut serving, readiness, end, told) = state?;
            loop {
                let lives = *serving.borrow_and_update();
                let ready = lives && readiness.reasons().await.is_empty();
                if told != Some(ready) {
                    let next = lives.then_some((serving, readiness, end, Some(ready)));
                    return Some((Ok(answer(ready)), next));
                }
                if !lives {
                    return None;
                }
                tokio::select! {
                    biased;
                    // First: a drain also ends the connection, and is reported.
                    changed = serving.changed() => changed.ok()?,
                    () = end.cancelled() => return None,
                    () = tokio::time::sleep(WATCH_EVERY) => {}
                }
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn answer(serving: bool) -> HealthCheckResponse {
    let status = match serving {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    };
    HealthCheckResponse {
        status: status.into(),
    }
}
