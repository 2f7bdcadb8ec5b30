//! The `Admin` service: lists of listeners and queues.
//!
//! A page of a list is bounded in bytes, and concurrent answers in number.

use std::time::Duration;

use prost::Message;
use tonic::{Request, Response, Status, async_trait};

use super::{access::Access, answers::LargeAnswers, requester::Requester};
use crate::{
    base::task::{Work, spend_and_yield},
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        hub::{ListenerStats, QueueStats, SubscriptionId},
        runtime::Relay,
    },
    types::{Limits, QueueAddress},
    wire::{proto, selector_to_wire, span_to_wire, to_status},
};

#[derive(Debug)]
pub(super) struct AdminService {
    relay: Relay,
    answers: LargeAnswers,
    access: Access,
}

/// The stream of a call that this version refuses.
type Never<T> = tokio_stream::Empty<Result<T, Status>>;

/// Encoded bytes of a page; the next one begins where an entry would exceed it.
const PAGE_BYTES: usize = 1024 * 1024;
/// Encoded bytes of the selectors in one listener's entry: 246 of the longest names, or thousands
/// of usual ones. Further selectors are omitted; `queues` counts the matches of all.
const SELECTOR_BYTES: usize = 64 * 1024;
/// Listeners fetched at a time: each has up to 4,096 selectors before the cut.
const BATCH: usize = 8;
/// Least queues fetched at a time for a caller that may see some of them only.
const QUEUES: usize = 256;
/// Time to find the entries of a page.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes around an entry: the field's number and the entry's length.
const FRAMING: usize = 6;

/// The entries of a page, up to its limits. The next page's token names its last entry, so that
/// concurrently added or removed entries shift no page.
struct Page<T> {
    entries: Vec<T>,
    count: usize,
    bytes: usize,
}

impl<T: Message> Page<T> {
    fn new(count: usize) -> Self {
        Self {
            entries: Vec::new(),
            count,
            bytes: 0,
        }
    }

    /// Adds an entry, or returns `false` if the page is full. The first entry always fits.
    fn push(&mut self, entry: T) -> bool {
        let bytes = self.bytes + entry.encoded_len() + FRAMING;
        let full = self.entries.len() == self.count || bytes > PAGE_BYTES;
        if full && !self.entries.is_empty() {
            return false;
        }
        self.bytes = bytes;
        self.entries.push(entry);
        true
    }
}

impl AdminService {
    pub(super) fn new(relay: Relay, answers: LargeAnswers, access: Access) -> Self {
        Self {
            relay,
            answers,
            access,
        }
    }

    async fn listeners(
        &self,
        request: &proto::ListListenersRequest,
        requester: &Requester,
    ) -> Result<proto::ListListenersResponse> {
        let count = page_size(request.page_size)?;
        let mut after = match request.page_token.as_str() {
            "" => None,
            token => Some(SubscriptionId(
                u128::from_str_radix(token, 16).map_err(|_| bad_token())?,
            )),
        };
        let mut page = Page::new(count);
        // As for queues: the token names a listener that the caller may see.
        let mut last = None;
        loop {
            let views = match may_see_any(requester) {
                true => self.relay.listeners(after, BATCH),
                false => Vec::new(),
            };
            for view in &views {
                after = Some(view.subscription);
                if !may_see_listener(requester, view) {
                    continue;
                }
                let entry = listener(self.relay.relay_id(), view);
                if !page.push(entry) {
                    let next = last.map(|last: SubscriptionId| format!("{:032x}", last.0));
                    return Ok(proto::ListListenersResponse {
                        listeners: page.entries,
                        next_page_token: next.unwrap_or_default(),
                    });
                }
                last = Some(view.subscription);
            }
            let names = views.iter().map(|view| view.selectors.len()).sum();
            spend_and_yield(Work::Names(names)).await;
            if views.len() < BATCH {
                return Ok(proto::ListListenersResponse {
                    listeners: page.entries,
                    next_page_token: String::new(),
                });
            }
        }
    }

    async fn queues(
        &self,
        request: &proto::ListQueuesRequest,
        requester: &Requester,
    ) -> Result<proto::ListQueuesResponse> {
        let count = page_size(request.page_size)?;
        let mut from = match request.page_token.as_str() {
            "" => String::new(),
            token => after(&token.parse().map_err(|_| bad_token())?),
        };
        let batch = match sees_all_queues(requester) {
            true => count + 1,
            false => QUEUES.max(count + 1),
        };
        let mut page = Page::new(count);
        // The token of the next page is the last queue of this one: never a queue that the caller
        // may not see.
        let mut last = None;
        loop {
            let views = match requester.seek_queue(&from) {
                Some(from) => self.relay.queues(&from, batch),
                None => Vec::new(),
            };
            for view in &views {
                if !may_see_queue(requester, view) {
                    continue;
                }
                if !page.push(queue(view)) {
                    return Ok(proto::ListQueuesResponse {
                        queues: page.entries,
                        next_page_token: last.unwrap_or_default(),
                    });
                }
                last = Some(view.address.to_string());
            }
            spend_and_yield(Work::Names(views.len())).await;
            match views.last() {
                Some(last) if views.len() == batch => from = after(&last.address),
                _ => {
                    return Ok(proto::ListQueuesResponse {
                        queues: page.entries,
                        next_page_token: String::new(),
                    });
                }
            }
        }
    }
}

#[async_trait]
impl proto::admin_server::Admin for AdminService {
    type WatchStatsStream = Never<proto::WatchStatsResponse>;

    async fn list_listeners(
        &self,
        request: Request<proto::ListListenersRequest>,
    ) -> Result<Response<proto::ListListenersResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let permit = self.answers.permit(request.extensions()).await?;
        let page = in_time(self.listeners(request.get_ref(), &requester)).await;
        let page = page.map_err(to_status)?;
        Ok(permit.attach(page))
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Result<Response<proto::ListQueuesResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        if request.get_ref().page_size == 1 && sees_all_queues(&requester) {
            // A small answer without a search.
            let page = self.queues(request.get_ref(), &requester).await;
            return page.map(Response::new).map_err(to_status);
        }
        let permit = self.answers.permit(request.extensions()).await?;
        let page = in_time(self.queues(request.get_ref(), &requester)).await;
        let page = page.map_err(to_status)?;
        Ok(permit.attach(page))
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

/// Runs the search for the entries of a page with a time limit.
async fn in_time<T>(search: impl Future<Output = Result<T>>) -> Result<T> {
    let late = || {
        let message = "the list took too long; try again, or state a smaller page_size";
        Error::new(ErrorKind::Unavailable, message)
    };
    let found = tokio::time::timeout(TIMEOUT, search).await;
    found.unwrap_or_else(|_| Err(late()))
}

/// Returns the least text after an address.
fn after(address: &QueueAddress) -> String {
    format!("{address}\0")
}

/// Returns whether the caller may see every queue, so that none is skipped.
fn sees_all_queues(requester: &Requester) -> bool {
    requester.allows(Action::Admin, Target::Relay)
}

/// Returns whether the caller may see any queue or listener: the others need no search.
fn may_see_any(requester: &Requester) -> bool {
    [
        Action::Subscribe,
        Action::Notify,
        Action::Report,
        Action::Admin,
    ]
    .iter()
    .any(|action| requester.may_some(*action))
}

/// Returns whether the caller may see a queue: it may use it, or administer the relay.
fn may_see_queue(requester: &Requester, view: &QueueStats) -> bool {
    let queue = Target::Queue(&view.address);
    [Action::Subscribe, Action::Notify, Action::Report]
        .iter()
        .any(|action| requester.allows(*action, queue))
        || requester.allows(Action::Admin, Target::Relay)
}

/// Returns whether the caller may see a listener: it may subscribe to all of its queues.
fn may_see_listener(requester: &Requester, view: &ListenerStats) -> bool {
    let allows = |selector| requester.allows(Action::Subscribe, Target::Selector(selector));
    view.selectors.iter().all(allows) || requester.allows(Action::Admin, Target::Relay)
}

pub(crate) fn page_size(stated: u32) -> Result<usize> {
    match usize::try_from(stated).unwrap_or(usize::MAX) {
        0 => Ok(Limits::PAGE),
        count if count <= Limits::PAGE_MAX => Ok(count),
        count => Err(Error::invalid(
            "page_size",
            format_args!("must be at most 1000, but is {count}"),
        )),
    }
}

fn bad_token() -> Error {
    Error::invalid("page_token", "must come from the previous page")
}

fn listener(relay_id: &str, view: &ListenerStats) -> proto::Listener {
    proto::Listener {
        listener_id: view.listener_id.to_string(),
        subscription_id: format!("{relay_id}/{:032x}", view.subscription.0),
        selectors: selectors(view),
        capacity: view.capacity,
        visibility_timeout: Some(span_to_wire(view.visibility_timeout)),
        connected_for: Some(span_to_wire(view.connected_for)),
        queues: count(view.queues),
        busy: count(view.busy),
        owed: count(view.behind),
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

/// Returns the first selectors of a listener, as many as fit into its entry.
fn selectors(view: &ListenerStats) -> Vec<proto::Selector> {
    let mut left = SELECTOR_BYTES;
    let selectors = view.selectors.iter().map(selector_to_wire);
    let fitting = selectors.map_while(|selector| {
        left = left.checked_sub(selector.encoded_len() + FRAMING)?;
        Some(selector)
    });
    fitting.collect()
}

fn queue(view: &QueueStats) -> proto::Queue {
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
        current_queue_depth: view.depth.map(|(messages, _)| messages),
        depth_age: view.depth.map(|(_, age)| span_to_wire(age)),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
