//! The `Admin` service: lists of listeners and queues, the relay's figures, and the drain.

use futures_core::stream::BoxStream;
use tonic::{Request, Response, Status, async_trait};

use super::{
    Services,
    stats::{StatsWatch, checked_interval},
};
use crate::{
    base::backoff::about,
    error::Result,
    relay::{
        auth::{Action, Target},
        link::MISSING_AFTER,
        runtime::Relay,
        server::{access::requester::Needs, http2::activity::check_accepts_streams, lists::ranked},
    },
    types::QueueAddress,
    wire::{checked_span, proto, span_from_wire},
};

#[async_trait]
impl proto::admin_server::Admin for Services {
    type WatchStatsStream = BoxStream<'static, Result<proto::WatchStatsResponse, Status>>;

    async fn list_listeners(
        &self,
        request: Request<proto::ListListenersRequest>,
    ) -> Result<Response<proto::ListListenersResponse>, Status> {
        self.list(request).await
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Result<Response<proto::ListQueuesResponse>, Status> {
        if request.get_ref().order_by == proto::QueueOrder::Unspecified as i32 {
            return self.list(request).await;
        }
        let requester = self.access.requester(request.extensions())?;
        let page = ranked::page(&self.relay, request.get_ref(), &requester);
        Ok(Response::new(self.in_time(page).await?))
    }

    async fn list_relays(
        &self,
        _: Request<proto::ListRelaysRequest>,
    ) -> Result<Response<proto::ListRelaysResponse>, Status> {
        Ok(Response::new(relays(&self.relay)))
    }

    async fn watch_stats(
        &self,
        request: Request<proto::WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let requester = self.access.requester(request.extensions())?;
        check_accepts_streams(&self.relay, request.extensions())?;
        let interval = checked_interval(request.get_ref())?;
        let guard = requester.guard(|| Needs::Relay(Action::Admin));
        let max_age = about(
            self.relay.config().stream_max_age,
            &mut fastrand::Rng::new(),
        );
        let watch = self.stats.watch(interval, max_age, guard);
        let responses = futures_util::stream::unfold(Some(watch), StatsWatch::next);
        Ok(Response::new(Box::pin(responses)))
    }

    async fn get_history(
        &self,
        request: Request<proto::GetHistoryRequest>,
    ) -> Result<Response<proto::GetHistoryResponse>, Status> {
        Ok(Response::new(self.relay.history(request.get_ref().day)))
    }

    async fn open_console(
        &self,
        request: Request<proto::OpenConsoleRequest>,
    ) -> Result<Response<proto::OpenConsoleResponse>, Status> {
        let Some(address) = self.console.address() else {
            let why = "this relay has no console: see `serve --admin-listen` and `--console`";
            return Err(Status::failed_precondition(why));
        };
        let code = if self.access.is_controlled() {
            let headers = request.metadata().as_ref();
            let Some(authorization) = headers.get(http::header::AUTHORIZATION) else {
                let why = "the console needs a token: a certificate opens no session";
                return Err(Status::failed_precondition(why));
            };
            self.console.code(authorization.clone())?
        } else {
            String::new()
        };
        let address = address.to_string();
        Ok(Response::new(proto::OpenConsoleResponse { address, code }))
    }

    async fn explain(
        &self,
        request: Request<proto::ExplainRequest>,
    ) -> Result<Response<proto::ExplainResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let request = request.get_ref();
        let queue = QueueAddress::new(&request.storage_account, &request.queue_name)?;
        requester.check_sees(&queue)?;
        let explained = async { Ok(self.stats.explain(&queue).await) };
        Ok(Response::new(self.in_time(explained).await?))
    }

    async fn drain(
        &self,
        request: Request<proto::DrainRequest>,
    ) -> Result<Response<proto::DrainResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let span = checked_span("grace", request.into_inner().grace)?;
        // Before it begins: the end of the relay must not be without a trace.
        requester.record("drain", Target::Relay, "");
        tracing::info!(?span, "a caller drains the relay");
        self.relay.drain_over(span);
        Ok(Response::new(proto::DrainResponse {}))
    }
}

/// Returns the relays of the cluster by their heartbeats; no request is needed.
fn relays(relay: &Relay) -> proto::ListRelaysResponse {
    let peers = relay.cluster_stats().map(|(_, peers)| peers);
    let peers = peers.unwrap_or_default().into_iter().map(|peer| peer.info);
    // One whose first heartbeat has not come is known by its frames only.
    let mut peers: Vec<_> = peers.filter(|info| !info.relay_id.is_empty()).collect();
    for info in &mut peers {
        // A relay that is cut off takes no silence for an end (C7), but says what it does not hear.
        let is_silent = span_from_wire(info.silent_for) >= MISSING_AFTER;
        if is_silent && info.state() == proto::RelayState::Present {
            info.set_state(proto::RelayState::Missing);
        }
    }
    peers.sort_by(|one, two| one.relay_id.cmp(&two.relay_id));
    proto::ListRelaysResponse {
        relays: std::iter::once(relay.own_info()).chain(peers).collect(),
    }
}
