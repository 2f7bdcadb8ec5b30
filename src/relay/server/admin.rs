//! The `Admin` service: lists of listeners and queues, and the drain.
//!
//! A page of a list is bounded in bytes, and concurrent answers in number.

use std::time::Duration;

use tonic::{Request, Response, Status, async_trait};

use super::{
    access::Access,
    answers::LargeAnswers,
    cluster_lists::{all_listeners, all_queues, relays, stream_id},
    pages::{Entry, Page, PageLimits},
    requester::Requester,
};
use crate::{
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        runtime::{Relay, SilentRelays},
    },
    types::{Limits, QueueAddress, Selector},
    wire::{checked_span, proto, to_status},
};

#[derive(Debug)]
pub(super) struct AdminService {
    relay: Relay,
    answers: LargeAnswers,
    access: Access,
}

/// The stream of a call that this version refuses.
type Never<T> = tokio_stream::Empty<Result<T, Status>>;

/// Least queues fetched at a time for a caller that may see some of them only.
const QUEUES: usize = 256;
/// Time to find the entries of a page.
const TIMEOUT: Duration = Duration::from_secs(5);

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
            token => Some(stream_id(token).ok_or_else(bad_token)?),
        };
        let mut page = Page::new(PageLimits::of_client(count));
        let mut silent = SilentRelays::default();
        // As for queues: the token names a listener that the caller may see.
        let (mut last, mut is_full) = (None, false);
        while may_see_any(requester) && !is_full {
            let part =
                all_listeners(&self.relay, after, request.lost, count + 1, &mut silent).await;
            after = part
                .entries
                .last()
                .and_then(|entry| stream_id(&entry.key()));
            let visible = part.entries.into_iter();
            for entry in visible.filter(|entry| may_see_listener(requester, entry)) {
                let key = entry.key();
                if !page.push(entry) {
                    is_full = true;
                    break;
                }
                last = Some(key);
            }
            if !part.more || after.is_none() {
                break;
            }
        }
        Ok(proto::ListListenersResponse {
            listeners: page.into_entries(),
            next_page_token: last.filter(|_| is_full).unwrap_or_default(),
            unanswered_relays: silent.ids.into_iter().collect(),
        })
    }

    async fn queues(
        &self,
        request: &proto::ListQueuesRequest,
        requester: &Requester,
    ) -> Result<proto::ListQueuesResponse> {
        let count = page_size(request.page_size)?;
        let mut from = match request.page_token.as_str() {
            "" => String::new(),
            token => {
                let last: QueueAddress = token.parse().map_err(|_| bad_token())?;
                after(&last.to_string())
            }
        };
        // One more than the page has shows whether there is a next one.
        let batch = match sees_all_queues(requester) {
            true => count + 1,
            false => QUEUES.max(count + 1),
        };
        let mut page = Page::new(PageLimits::of_client(count));
        let mut silent = SilentRelays::default();
        // The token of the next page is the last queue of this one: never a queue that the caller
        // may not see.
        let (mut last, mut is_full) = (None, false);
        while let Some(start) = requester.seek_queue(&from).filter(|_| !is_full) {
            let part = all_queues(&self.relay, &start, batch, &mut silent).await;
            let Some(end) = part.entries.last().map(Entry::key) else {
                break;
            };
            let visible = part.entries.into_iter();
            for entry in visible.filter(|entry| may_see_queue(requester, entry)) {
                let key = entry.key();
                if !page.push(entry) {
                    is_full = true;
                    break;
                }
                last = Some(key);
            }
            if !part.more {
                break;
            }
            from = after(&end);
        }
        Ok(proto::ListQueuesResponse {
            queues: page.into_entries(),
            next_page_token: last.filter(|_| is_full).unwrap_or_default(),
            unanswered_relays: silent.ids.into_iter().collect(),
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
            let page = in_time(self.queues(request.get_ref(), &requester)).await;
            return page.map(Response::new).map_err(to_status);
        }
        let permit = self.answers.permit(request.extensions()).await?;
        let page = in_time(self.queues(request.get_ref(), &requester)).await;
        let page = page.map_err(to_status)?;
        Ok(permit.attach(page))
    }

    async fn list_relays(
        &self,
        request: Request<proto::ListRelaysRequest>,
    ) -> Result<Response<proto::ListRelaysResponse>, Status> {
        let permit = self.answers.permit(request.extensions()).await?;
        Ok(permit.attach(relays(&self.relay)))
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
        request: Request<proto::DrainRequest>,
    ) -> Result<Response<proto::DrainResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let span = checked_span("grace", request.into_inner().grace).map_err(to_status)?;
        // Before it begins: the end of the relay must not be without a trace.
        requester.record("drain", Target::Relay, "");
        tracing::info!(?span, "a caller drains the relay");
        self.relay.drain_over(span);
        Ok(Response::new(proto::DrainResponse {}))
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
fn after(address: &str) -> String {
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
fn may_see_queue(requester: &Requester, entry: &proto::Queue) -> bool {
    let Ok(address) = QueueAddress::new(&entry.storage_account, &entry.queue_name) else {
        return false;
    };
    let queue = Target::Queue(&address);
    [Action::Subscribe, Action::Notify, Action::Report]
        .iter()
        .any(|action| requester.allows(*action, queue))
        || requester.allows(Action::Admin, Target::Relay)
}

/// Returns whether the caller may see a listener: it may subscribe to all of its queues.
fn may_see_listener(requester: &Requester, entry: &proto::Listener) -> bool {
    let allows = |selector: &proto::Selector| {
        let selector = Selector::new(&selector.storage_account, &selector.queue_name);
        selector
            .is_ok_and(|selector| requester.allows(Action::Subscribe, Target::Selector(&selector)))
    };
    requester.allows(Action::Admin, Target::Relay)
        || !entry.selectors_omitted && entry.selectors.iter().all(allows)
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
