//! The standard health service, with single checks and watches.
//!
//! Watches of tonic's implementation outlive a drain. Here a watch reports the drain and ends. It also
//! ends at the maximum age of its connection.

use futures_util::stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server,
};

use super::service::ConnectionEnd;

#[derive(Debug)]
pub(super) struct HealthService {
    /// The names of the served services.
    names: &'static [&'static str],
    serving: watch::Receiver<bool>,
}

/// Sets the state that `grpc.health.v1` reports.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    serving: watch::Sender<bool>,
}

type Watch = futures_core::stream::BoxStream<'static, Result<HealthCheckResponse, Status>>;

/// The services of a relay.
pub(super) const OF_RELAY: &[&str] = &[
    "reveille.v1.Relay",
    "reveille.v1.Flags",
    "reveille.v1.Admin",
];
/// The services of a relay that hosts queues.
#[cfg(feature = "courier")]
pub(super) const OF_RELAY_AND_QUEUES: &[&str] = &[
    "reveille.v1.Relay",
    "reveille.v1.Flags",
    "reveille.v1.Admin",
    "reveille.v1.Courier",
];
/// The services of a host of queues.
#[cfg(feature = "courier")]
pub(super) const OF_QUEUES: &[&str] = &["reveille.v1.Courier"];

impl HealthService {
    /// Creates the service of a serving server with these services, and the handle of its state.
    pub(super) fn new(names: &'static [&'static str]) -> (Self, Health) {
        let (sender, serving) = watch::channel(true);
        (Self { names, serving }, Health { serving: sender })
    }

    /// Checks the name of a service; the empty one is the whole server.
    fn check_name(&self, request: &HealthCheckRequest) -> Result<(), Status> {
        let name = request.service.as_str();
        match name.is_empty() || self.names.contains(&name) {
            true => Ok(()),
            false => Err(Status::not_found("service: is not served here")),
        }
    }
}

impl Health {
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
        Ok(Response::new(answer(*self.serving.borrow())))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watch>, Status> {
        self.check_name(request.get_ref())?;
        let end = request.extensions().get::<ConnectionEnd>();
        let end = end.map_or_else(CancellationToken::new, |end| end.0.clone());
        // `None` once the drain was reported.
        let state = Some((self.serving.clone(), end, true));
        let answers = stream::unfold(state, |state| async move {
            let (mut serving, end, is_first) = state?;
            if !is_first {
                tokio::select! {
                    biased;
                    // First: a drain also ends the connection, and is reported.
                    changed = serving.changed() => changed.ok()?,
                    () = end.cancelled() => return None,
                }
            }
            let now = *serving.borrow_and_update();
            Some((Ok(answer(now)), now.then_some((serving, end, false))))
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
