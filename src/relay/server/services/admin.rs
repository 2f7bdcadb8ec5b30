//! The `Admin` service: lists of listeners and queues, the relay's figures, and the drain.
//!
//! A page of a list is bounded in bytes, and concurrent answers in number.

use std::time::Duration;

use futures_core::stream::BoxStream;
use tonic::{Request, Response, Status, async_trait};

use super::{
    explain::explain,
    stats::{StatsSource, StatsWatch, checked_interval},
    store_calls::StoreCalls,
};
use crate::{
    base::backoff::about,
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        hub::QueueOrder,
        runtime::{Relay, SilentRelays},
        server::{
            access::{
                Access,
                local_calls::ConsoleDoor,
                requester::{Needs, Requester},
            },
            http2::{answers::LargeAnswers, limits::to_refusal, service::ConnectionEnd},
            lists::{
                cluster_lists::{
                    all_listeners, all_queues, check_filter, order_from_wire, ranked_queues,
                    relays, stream_id,
                },
                own_lists::after,
                pages::{Entry, Page, PageLimits},
                stored::stored,
            },
        },
    },
    types::{Limits, QueueAddress, Selector},
    wire::{checked_span, link::QueueFacts, proto, to_status},
};

#[derive(Debug)]
pub(crate) struct AdminService {
    relay: Relay,
    stats: StatsSource,
    /// Maximum age of a stream of figures.
    max_age: Duration,
    answers: LargeAnswers,
    access: Access,
    console: ConsoleDoor,
    store_calls: StoreCalls,
}

/// Least queues fetched at a time for a caller that may see some of them only.
const QUEUES: usize = 256;
/// Time to find the entries of a page.
const TIMEOUT: Duration = Duration::from_secs(5);

impl AdminService {
    pub(crate) fn new(
        relay: Relay,
        stats: StatsSource,
        max_age: Duration,
        answers: LargeAnswers,
        access: Access,
        console: ConsoleDoor,
    ) -> Self {
        Self {
            relay,
            stats,
            max_age,
            answers,
            access,
            console,
            store_calls: StoreCalls::new(),
        }
    }

    async fn listeners(
        &self,
        request: &proto::ListListenersRequest,
        requester: &Requester,
    ) -> Result<proto::ListListenersResponse> {
        let count = page_size(request.page_size)?;
        check_filter(&request.filter)?;
        let query = (request.lost, &*request.filter);
        let mut after = match request.page_token.as_str() {
            "" => None,
            token => Some(stream_id(token).ok_or_else(bad_token)?),
        };
        let mut page = Page::new(PageLimits::of_client(count));
        let mut silent = SilentRelays::default();
        // As for queues: the token names a listener that the caller may see.
        let (mut last, mut is_full) = (None, false);
        while may_see_any(requester) && !is_full {
            let part = all_listeners(&self.relay, after, query, count + 1, &mut silent).await;
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
        check_filter(&request.filter)?;
        if let Some(order) = order_from_wire(request.order_by)? {
            return self.queues_by(order, request, requester).await;
        }
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
            let part = all_queues(&self.relay, &start, &request.filter, batch, &mut silent).await;
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

    /// Lists the first queues in another order than by name.
    async fn queues_by(
        &self,
        order: QueueOrder,
        request: &proto::ListQueuesRequest,
        requester: &Requester,
    ) -> Result<proto::ListQueuesResponse> {
        if !request.page_token.is_empty() {
            let rule = "must be empty: only a list by name has further pages";
            return Err(Error::invalid("page_token", rule));
        }
        let count = page_size(request.page_size)?;
        let search = (&*request.filter, count);
        let sees_all = sees_all_queues(requester);
        let is_visible = |queue: &QueueAddress| sees_all || may_use_queue(requester, queue);
        let mut silent = SilentRelays::default();
        let ranked = ranked_queues(&self.relay, order, search, is_visible, &mut silent).await;
        let mut page = Page::new(PageLimits::of_client(count));
        // A page has room for a thousand entries with names of usual lengths.
        _ = ranked.into_iter().all(|entry| page.push(entry));
        Ok(proto::ListQueuesResponse {
            queues: page.into_entries(),
            next_page_token: String::new(),
            unanswered_relays: silent.ids.into_iter().collect(),
        })
    }
}

#[async_trait]
impl proto::admin_server::Admin for AdminService {
    type WatchStatsStream = BoxStream<'static, Result<proto::WatchStatsResponse, Status>>;

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
        request: Request<proto::WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let accepts = self.relay.check_accepts_streams();
        let accepts = accepts.inspect_err(|_| ConnectionEnd::end_soon(request.extensions()));
        accepts.map_err(to_refusal)?;
        let interval = checked_interval(request.get_ref()).map_err(to_status)?;
        let guard = requester.guard(|| Needs::Relay(Action::Admin));
        let max_age = about(self.max_age, &mut fastrand::Rng::new());
        let watch = self.stats.watch(interval, max_age, guard);
        let responses = futures_util::stream::unfold(watch, StatsWatch::next);
        Ok(Response::new(Box::pin(responses)))
    }

    async fn get_history(
        &self,
        request: Request<proto::GetHistoryRequest>,
    ) -> Result<Response<proto::GetHistoryResponse>, Status> {
        let permit = self.answers.permit(request.extensions()).await?;
        Ok(permit.attach(self.stats.history(request.into_inner())))
    }

    async fn get_store(
        &self,
        request: Request<proto::GetStoreRequest>,
    ) -> Result<Response<proto::GetStoreResponse>, Status> {
        let permit = self.answers.permit(request.extensions()).await?;
        let read = stored(self.stats.store());
        let answer = self.store_calls.run(request.extensions(), read).await;
        Ok(permit.attach(answer.map_err(to_status)?))
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
            self.console
                .code(authorization.clone())
                .map_err(to_status)?
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
        let permit = self.answers.permit(request.extensions()).await?;
        let request = request.get_ref();
        let queue = QueueAddress::new(&request.storage_account, &request.queue_name);
        let queue = queue.map_err(to_status)?;
        if !may_see(&requester, &queue) {
            return Err(to_status(requester.deny_explanation(&queue)));
        }
        let hide = |facts: &mut QueueFacts| hide_others(&requester, facts);
        let explained = explain(&self.relay, self.stats.view(), &queue, hide).await;
        Ok(permit.attach(explained))
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
    may_see(requester, &address)
}

fn may_see(requester: &Requester, queue: &QueueAddress) -> bool {
    may_use_queue(requester, queue) || sees_all_queues(requester)
}

fn may_use_queue(requester: &Requester, address: &QueueAddress) -> bool {
    let queue = Target::Queue(address);
    [Action::Subscribe, Action::Notify, Action::Report]
        .iter()
        .any(|action| requester.allows(*action, queue))
}

/// Removes what only an operator is told: other callers, and a queue that the caller may not use.
fn hide_others(requester: &Requester, facts: &mut QueueFacts) {
    if sees_all_queues(requester) {
        return;
    }
    let is_told = |one: &proto::Finding| one.kind() != proto::FindingKind::Refused;
    facts.findings.retain(is_told);
    let near = facts.near_name.parse::<QueueAddress>();
    if !near.is_ok_and(|near| may_see(requester, &near)) {
        facts.near_name.clear();
    }
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
