//! The standard health service: whether the relay serves, asked once or watched.
//!
//! tonic's own has watches that outlive a drain; here a watch tells of the drain and ends.

use futures_util::stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server,
};

/// The service.
#[derive(Debug)]
pub(super) struct HealthService {
    serving: watch::Receiver<bool>,
}

/// Says over `grpc.health.v1` whether the relay serves.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    serving: watch::Sender<bool>,
}

/// A watch's answers.
type Watch = futures_core::stream::BoxStream<'static, Result<HealthCheckResponse, Status>>;

/// The services' names, as health checks ask for them; the empty one is the whole server.
const NAMES: [&str; 4] = [
    "",
    "reveille.v1.Relay",
    "reveille.v1.Flags",
    "reveille.v1.Admin",
];

impl HealthService {
    /// Makes the service of a relay that serves, and the handle on what it says.
    pub(super) fn new() -> (Self, Health) {
        let (sender, serving) = watch::channel(true);
        (Self { serving }, Health { serving: sender })
    }
}

impl Health {
    /// The relay takes no more: checks say so, and watches end.
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
        known(request.get_ref())?;
        Ok(Response::new(answer(*self.serving.borrow())))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watch>, Status> {
        known(request.get_ref())?;
        // `None` once it has told of the drain.
        let state = Some((self.serving.clone(), true));
        let answers = stream::unfold(state, |state| async move {
            let (mut serving, is_first) = state?;
            if !is_first {
                serving.changed().await.ok()?;
            }
            let now = *serving.borrow_and_update();
            Some((Ok(answer(now)), now.then_some((serving, false))))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn known(request: &HealthCheckRequest) -> Result<(), Status> {
    match NAMES.contains(&request.service.as_str()) {
        true => Ok(()),
        false => Err(Status::not_found("service: is not served here")),
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
