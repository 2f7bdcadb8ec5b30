//! The `Admin` service: who is there, and what they do.

use tonic::{Request, Response, Status, async_trait};

use crate::{
    error::{Error, Result},
    hub::{ListenerView, QueueView, SubscriptionId},
    relay::Relay,
    wire::{proto, selector_to_wire, span_to_wire, to_status},
    words::{Limits, QueueAddress},
};

/// The service.
#[derive(Debug)]
pub(super) struct AdminService {
    relay: Relay,
}

/// The stream of a call that this version refuses.
type Never<T> = tokio_stream::Empty<Result<T, Status>>;

impl AdminService {
    pub(super) fn new(relay: Relay) -> Self {
        Self { relay }
    }

    fn listeners(
        &self,
        request: &proto::ListListenersRequest,
    ) -> Result<proto::ListListenersResponse> {
        let count = page_size(request.page_size)?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(SubscriptionId(
                u128::from_str_radix(token, 16).map_err(|_| bad_token())?,
            )),
        };
        let views = self.relay.listeners(after, count + 1);
        let token = |view: &ListenerView| format!("{:032x}", view.subscription.0);
        let (views, next_page_token) = page(views, count, token);
        let relay_id = self.relay.relay_id();
        Ok(proto::ListListenersResponse {
            listeners: views.iter().map(|view| listener(relay_id, view)).collect(),
            next_page_token,
        })
    }

    fn queues(&self, request: &proto::ListQueuesRequest) -> Result<proto::ListQueuesResponse> {
        let count = page_size(request.page_size)?;
        let after: Option<QueueAddress> = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| bad_token())?),
        };
        let views = self.relay.queues(after.as_ref(), count + 1);
        let token = |view: &QueueView| view.address.to_string();
        let (views, next_page_token) = page(views, count, token);
        Ok(proto::ListQueuesResponse {
            queues: views.iter().map(queue).collect(),
            next_page_token,
        })
    }
}

#[async_trait]
impl proto::admin_server::Admin for AdminService {
    type WatchStatsStream = Never<proto::WatchStatsResponse>;

    async fn list_listeners(
        &self,
        request: Request<proto::ListListenersRequest>,
    ) -> Result<Response<proto::ListListenersResponse>, Status> {
        self.listeners(request.get_ref())
            .map(Response::new)
            .map_err(to_status)
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Result<Response<proto::ListQueuesResponse>, Status> {
        self.queues(request.get_ref())
            .map(Response::new)
            .map_err(to_status)
    }

    async fn watch_stats(
        &self,
        _: Request<proto::WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        Err(Status::unimplemented(
            "WatchStats is not part of this version; read /metrics",
        ))
    }

    async fn drain(
        &self,
        _: Request<proto::DrainRequest>,
    ) -> Result<Response<proto::DrainResponse>, Status> {
        Err(Status::unimplemented(
            "Drain is not part of this version; send the relay a SIGTERM",
        ))
    }
}

fn page_size(stated: u32) -> Result<usize> {
    match usize::try_from(stated).unwrap_or(usize::MAX) {
        0 => Ok(Limits::PAGE),
        count if count <= Limits::PAGE_MAX => Ok(count),
        count => Err(Error::invalid(
            "page_size",
            format_args!("must be at most 1000, but is {count}"),
        )),
    }
}

/// Makes a page of what was found, one more than it holds, and the next one's token where there is
/// one: it names the last entry, so that entries which come and go meanwhile shift nothing.
fn page<T>(mut found: Vec<T>, count: usize, token: impl Fn(&T) -> String) -> (Vec<T>, String) {
    let more = found.len() > count;
    found.truncate(count);
    let next = found.last().filter(|_| more).map(token);
    (found, next.unwrap_or_default())
}

fn bad_token() -> Error {
    Error::invalid("page_token", "must be the one of the page before")
}

fn listener(relay_id: &str, view: &ListenerView) -> proto::Listener {
    proto::Listener {
        listener_id: view.listener_id.to_string(),
        subscription_id: format!("{relay_id}/{:032x}", view.subscription.0),
        selectors: view.selectors.iter().map(selector_to_wire).collect(),
        capacity: view.capacity,
        visibility_timeout: Some(span_to_wire(view.visibility_timeout)),
        connected_for: Some(span_to_wire(view.connected_for)),
        queues: count(view.queues),
        busy: count(view.busy),
        owed: count(view.owed),
        active_dequeue_tasks: view.active_dequeue_tasks,
        total_dequeue_tasks: view.total_dequeue_tasks,
        group: view
            .group
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        polling: view.polling,
    }
}

fn queue(view: &QueueView) -> proto::Queue {
    proto::Queue {
        storage_account: view.address.storage_account().to_owned(),
        queue_name: view.address.queue_name().to_owned(),
        sequence: view.sequence,
        notifications: view.notifications,
        payload_size: view.payload_size,
        messages: view.messages,
        listeners: count(view.listeners),
        timers: count(view.timers),
        idle_for: view.idle_for.map(span_to_wire),
        current_queue_depth: view.depth,
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
