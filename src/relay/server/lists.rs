//! The lists of queues, listeners and flags' watchers: pages of what all relays of the cluster have, without
//! what the caller may not see (C13). A relay alone asks no other.
//!
//! A page is bounded in bytes, and concurrent answers in number.

pub(super) mod pages;
pub(super) mod ranked;
pub(super) mod stored;

use std::time::Duration;

use prost::Message as _;
use tonic::{Request, Response, Status};

use self::pages::{Entry, FRAMING, Page, PageLimits, Part};
use super::{
    access::{Access, requester::Requester},
    http2::answers::LargeAnswers,
};
use crate::{
    base::task::{Work, spend_and_yield},
    coordination::flag::{Flags, WatcherView, WatchersQuery},
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        hub::{ListenerStats, QueueStats, SubscriptionId},
        runtime::{Relay, SilentRelays},
    },
    types::{FlagName, Limits, ListenerId, QueueAddress, Selector},
    wire::{
        link::{peer_reply::Answer, peer_request::Call},
        proto, selector_to_wire, span_to_wire,
    },
};

/// A request for a page of a list. Page tokens are texts: the next page begins after the entry that
/// they name.
pub(crate) trait List: Send + Sync + Sized {
    type Entry: Entry;
    type Response: prost::Message;

    fn page_size(&self) -> u32;

    fn page_token(&self) -> String;

    /// Returns where the page of a client begins.
    ///
    /// # Errors
    /// `Invalid` for a token of no page.
    fn begin(&self) -> Result<String> {
        Ok(self.page_token())
    }

    /// Returns whether the page is small, so that it needs no permit.
    fn is_small(&self) -> bool {
        false
    }

    /// Returns this relay's first entries from there on.
    ///
    /// # Errors
    /// `Invalid`, with field and rule, for a value of the request.
    fn own(
        &self,
        source: ListSource<'_>,
        from: String,
        limits: PageLimits,
    ) -> impl Future<Output = Result<Part<Self::Entry>>> + Send;

    /// Returns the next place where the caller may see an entry; `None` if there is none.
    fn seek(requester: &Requester, from: String) -> Option<String>;

    fn may_see(requester: &Requester, entry: &Self::Entry) -> bool;

    /// Returns the request to another relay for the entries from there on.
    fn call(&self, from: &str, page_size: u32) -> Call;

    /// Reads the answer of another relay.
    fn read(answer: Answer) -> Option<Part<Self::Entry>>;

    fn answer(response: Self::Response) -> Answer;

    fn response(
        entries: Vec<Self::Entry>,
        next_page_token: String,
        silent: SilentRelays,
    ) -> Self::Response;
}

/// What a relay lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListSource<'a> {
    pub(crate) relay: &'a Relay,
    pub(crate) flags: &'a Flags,
}

/// The lists for clients.
#[derive(Debug, Clone)]
pub(crate) struct Lists {
    relay: Relay,
    flags: Flags,
    access: Access,
    pub(super) answers: LargeAnswers,
}

/// A list waits no longer than this for the other relays.
pub(super) const WITHIN: Duration = Duration::from_secs(1);
/// Time to find the entries of a page.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Least entries fetched at a time for a caller that may see some of them only.
const SEARCHED: usize = 256;
/// Bytes of a filter.
const MAX_FILTER: usize = 128;
/// Listeners fetched at a time: each has up to 4,096 selectors before the cut.
const BATCH: usize = 8;
/// The cost of a step that compares names with a filter, as names that are looked up.
const NAMES: usize = 256;

impl Lists {
    pub(crate) fn new(relay: Relay, flags: Flags, access: Access) -> Self {
        Self {
            relay,
            flags,
            access,
            answers: LargeAnswers::new(),
        }
    }

    /// Answers a client.
    pub(super) async fn list<L: List>(
        &self,
        request: Request<L>,
    ) -> Result<Response<L::Response>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let list = request.get_ref();
        if list.is_small() && requester.sees_all() {
            let page = in_time(self.page(list, &requester)).await?;
            return Ok(Response::new(page));
        }
        let permit = self.answers.permit(request.extensions()).await?;
        let page = in_time(self.page(list, &requester)).await?;
        Ok(permit.attach(page))
    }

    /// As [`Lists::list`], for queues: they have other orders than by name.
    pub(super) async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Result<Response<proto::ListQueuesResponse>, Status> {
        if request.get_ref().order_by == proto::QueueOrder::Unspecified as i32 {
            return self.list(request).await;
        }
        let requester = self.access.requester(request.extensions())?;
        let permit = self.answers.permit(request.extensions()).await?;
        let page = ranked::page(&self.relay, request.get_ref(), &requester);
        Ok(permit.attach(in_time(page).await?))
    }

    async fn page<L: List>(&self, list: &L, requester: &Requester) -> Result<L::Response> {
        let count = page_size(list.page_size())?;
        let mut from = list.begin()?;
        // One more than the page has shows whether there is a next one.
        let batch = if requester.sees_all() {
            count + 1
        } else {
            SEARCHED.max(count + 1)
        };
        let mut page = Page::new(PageLimits::of_client(count));
        let mut silent = SilentRelays::default();
        // The token of the next page is the last entry of this one: never an entry that the caller may
        // not see.
        let mut last = String::new();
        while let Some(start) = L::seek(requester, from) {
            let part = self.part(list, start, batch, &mut silent).await?;
            let Some(end) = part.entries.last().map(Entry::after) else {
                break;
            };
            let mut visible = part.entries.into_iter();
            while let Some(entry) = visible.find(|entry| L::may_see(requester, entry)) {
                let token = entry.token();
                if !page.push(entry) {
                    return Ok(L::response(page.into_entries(), last, silent));
                }
                last = token;
            }
            if !part.more {
                break;
            }
            from = end;
        }
        let entries = page.into_entries();
        Ok(L::response(entries, String::new(), silent))
    }

    /// Returns the first entries of all relays from there on.
    async fn part<L: List>(
        &self,
        list: &L,
        from: String,
        count: usize,
        silent: &mut SilentRelays,
    ) -> Result<Part<L::Entry>> {
        let call = list.call(&from, size(count));
        let source = ListSource {
            relay: &self.relay,
            flags: &self.flags,
        };
        let mut parts = vec![list.own(source, from, PageLimits::of_client(count)).await?];
        let others = ask(&self.relay, call, silent, L::read).await;
        parts.extend(others.into_iter().map(|(_, part)| part));
        Ok(Part::merge(parts))
    }
}

impl ListSource<'_> {
    /// Answers another relay, with the entries of this one.
    pub(super) async fn answer<L: List>(self, list: &L) -> Result<Answer> {
        let limits = PageLimits::of_relay(page_size(list.page_size())?);
        let part = list.own(self, list.page_token(), limits).await?;
        // Only whether there is more: the asking relay knows the last entry.
        let next = if part.more { "more" } else { "" };
        let response = L::response(part.entries, next.to_owned(), SilentRelays::default());
        Ok(L::answer(response))
    }
}

/// The parts of [`List`] that follow from the names of the messages.
macro_rules! messages {
    ($call:ident, $entry:ident, $response:ident { $entries:ident }) => {
        type Entry = proto::$entry;
        type Response = proto::$response;

        fn page_size(&self) -> u32 {
            self.page_size
        }

        fn page_token(&self) -> String {
            self.page_token.clone()
        }

        fn call(&self, from: &str, page_size: u32) -> Call {
            Call::$call(Self {
                page_size,
                page_token: from.to_owned(),
                ..self.clone()
            })
        }

        fn read(answer: Answer) -> Option<Part<Self::Entry>> {
            match answer {
                Answer::$call(page) => Some(Part {
                    more: !page.next_page_token.is_empty() && !page.$entries.is_empty(),
                    entries: page.$entries,
                }),
                _ => None,
            }
        }

        fn answer(response: Self::Response) -> Answer {
            Answer::$call(response)
        }

        fn response(
            $entries: Vec<Self::Entry>,
            next_page_token: String,
            silent: SilentRelays,
        ) -> Self::Response {
            proto::$response {
                $entries,
                next_page_token,
                unanswered_relays: silent.ids.into_iter().collect(),
            }
        }
    };
}

/// By `account/queue`. A token of another relay is the first address that it may list.
impl List for proto::ListQueuesRequest {
    messages!(Queues, Queue, ListQueuesResponse { queues });

    fn begin(&self) -> Result<String> {
        if self.page_token.is_empty() {
            return Ok(String::new());
        }
        let last: QueueAddress = self.page_token.parse().map_err(|_| bad_token())?;
        Ok(after(&last.to_string()))
    }

    /// Clients ask for one entry to learn whether the relay answers.
    fn is_small(&self) -> bool {
        self.page_size == 1
    }

    async fn own(
        &self,
        source: ListSource<'_>,
        mut from: String,
        limits: PageLimits,
    ) -> Result<Part<proto::Queue>> {
        check_filter(&self.filter)?;
        let mut page = Page::new(limits);
        loop {
            let count = limits.count + 1;
            let (views, last) = source.relay.find_queues(&from, &self.filter, count);
            if !views.iter().all(|view| page.push(queue(view))) {
                return Ok(page.into_part(true));
            }
            spend_and_yield(Work::Names(NAMES.max(views.len()))).await;
            match last {
                Some(last) => from = after(&last.to_string()),
                None => return Ok(page.into_part(false)),
            }
        }
    }

    fn seek(requester: &Requester, from: String) -> Option<String> {
        requester.seek_queue(&from)
    }

    fn may_see(requester: &Requester, entry: &proto::Queue) -> bool {
        QueueAddress::new(&entry.storage_account, &entry.queue_name)
            .is_ok_and(|queue| requester.may_see(&queue))
    }
}

/// By the id of the stream.
impl List for proto::ListListenersRequest {
    messages!(Listeners, Listener, ListListenersResponse { listeners });

    async fn own(
        &self,
        source: ListSource<'_>,
        from: String,
        limits: PageLimits,
    ) -> Result<Part<proto::Listener>> {
        check_filter(&self.filter)?;
        let mut after = stream_id(&from)?;
        let mut page = Page::new(limits);
        let relay = source.relay;
        loop {
            let mut views = relay.listeners(after, BATCH);
            if self.lost {
                views.extend(relay.lost_listeners(after, BATCH));
                views.sort_by_key(|view| view.subscription);
                views.truncate(BATCH);
            }
            for view in &views {
                let entry = || listener(relay.relay_id(), view, limits.selector_bytes);
                if matches(view, &self.filter) && !page.push(entry()) {
                    return Ok(page.into_part(true));
                }
                after = Some(view.subscription);
            }
            let names = views.iter().map(|view| view.selectors.len()).sum();
            spend_and_yield(Work::Names(names)).await;
            if views.len() < BATCH {
                return Ok(page.into_part(false));
            }
        }
    }

    fn seek(requester: &Requester, from: String) -> Option<String> {
        let may_see_any = Requester::OF_QUEUES
            .iter()
            .chain(&[Action::Admin])
            .any(|action| requester.may_some(*action));
        may_see_any.then_some(from)
    }

    /// The caller may subscribe to all queues of the listener.
    fn may_see(requester: &Requester, entry: &proto::Listener) -> bool {
        let allows = |selector: &proto::Selector| {
            Selector::new(&selector.storage_account, &selector.queue_name).is_ok_and(|selector| {
                requester.allows(Action::Subscribe, Target::Selector(&selector))
            })
        };
        requester.sees_all() || !entry.selectors_omitted && entry.selectors.iter().all(allows)
    }
}

/// By flag and listener.
impl List for proto::ListFlagWatchersRequest {
    messages!(
        FlagWatchers,
        FlagWatcher,
        ListFlagWatchersResponse { watchers }
    );

    async fn own(
        &self,
        source: ListSource<'_>,
        from: String,
        limits: PageLimits,
    ) -> Result<Part<proto::FlagWatcher>> {
        let flag = Some(&*self.flag).filter(|flag| !flag.is_empty());
        let views = source.flags.list_watchers(&WatchersQuery {
            flag: flag.map(FlagName::new).transpose()?,
            after: watcher_token(&from)?,
            count: limits.count,
        });
        let mut page = Page::new(limits);
        let all = views.iter().all(|view| page.push(watcher(view)));
        spend_and_yield(Work::Names(views.len())).await;
        Ok(page.into_part(!all || views.len() >= limits.count))
    }

    fn seek(requester: &Requester, from: String) -> Option<String> {
        requester.may_some(Action::Watch).then_some(from)
    }

    fn may_see(requester: &Requester, entry: &proto::FlagWatcher) -> bool {
        FlagName::new(&entry.flag)
            .is_ok_and(|flag| requester.allows(Action::Watch, Target::Flag(&flag)))
    }
}

/// Asks the other relays. One that does not answer, or not with what `read` expects, is added to the silent
/// ones. Returns the ids of the others with what was read.
pub(super) async fn ask<T>(
    relay: &Relay,
    call: Call,
    silent: &mut SilentRelays,
    read: impl Fn(Answer) -> Option<T>,
) -> Vec<(String, T)> {
    let mut answers = Vec::new();
    for (peer, answer) in relay.ask_all(call, WITHIN, silent).await {
        let id = peer.status.relay_id.to_string();
        match read(answer) {
            Some(read) => answers.push((id, read)),
            None => _ = silent.ids.insert(id),
        }
    }
    answers
}

async fn in_time<T>(search: impl Future<Output = Result<T>>) -> Result<T> {
    let found = tokio::time::timeout(TIMEOUT, search).await;
    found.unwrap_or_else(|_| {
        let message = "the list took too long; try again, or state a smaller page_size";
        Err(Error::new(ErrorKind::Unavailable, message))
    })
}

/// Reads the size of a page.
///
/// # Errors
/// `Invalid` where it is too large.
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

/// Returns the size of a page that another relay accepts.
fn size(count: usize) -> u32 {
    u32::try_from(count.min(Limits::PAGE_MAX)).unwrap_or(u32::MAX)
}

/// Returns the least text after an address.
fn after(address: &str) -> String {
    format!("{address}\0")
}

fn check_filter(filter: &str) -> Result<()> {
    if filter.len() <= MAX_FILTER {
        return Ok(());
    }
    let rule = format_args!("must have at most {MAX_FILTER} bytes");
    Err(Error::invalid("filter", rule))
}

fn stream_id(token: &str) -> Result<Option<SubscriptionId>> {
    if token.is_empty() {
        return Ok(None);
    }
    let id = u128::from_str_radix(token, 16).map_err(|_| bad_token())?;
    Ok(Some(SubscriptionId(id)))
}

/// Reads `FLAG/LISTENER`.
pub(crate) fn watcher_token(token: &str) -> Result<Option<(FlagName, ListenerId)>> {
    if token.is_empty() {
        return Ok(None);
    }
    let (flag, listener) = token.split_once('/').ok_or_else(bad_token)?;
    match (FlagName::new(flag), ListenerId::new(listener)) {
        (Ok(flag), Ok(listener)) => Ok(Some((flag, listener))),
        _ => Err(bad_token()),
    }
}

fn bad_token() -> Error {
    Error::invalid("page_token", "must come from the previous page")
}

/// Returns whether the id, the group or a selector contains the filter.
fn matches(view: &ListenerStats, filter: &str) -> bool {
    let group = view.group.as_ref().map_or("", |group| group.as_str());
    let mut selectors = view.selectors.iter();
    view.listener_id.as_str().contains(filter)
        || group.contains(filter)
        || selectors.any(|selector| selector.as_str().contains(filter))
}

fn watcher(view: &WatcherView) -> proto::FlagWatcher {
    proto::FlagWatcher {
        flag: view.flag.to_string(),
        listener_id: view.listener.to_string(),
        streams: view.streams,
        since: Some(span_to_wire(view.since)),
        acknowledged: view.acknowledged,
    }
}

fn listener(relay_id: &str, view: &ListenerStats, selector_bytes: usize) -> proto::Listener {
    let mut left = selector_bytes;
    let selectors: Vec<_> = view
        .selectors
        .iter()
        .map(selector_to_wire)
        .map_while(|selector| {
            left = left.checked_sub(selector.encoded_len() + FRAMING)?;
            Some(selector)
        })
        .collect();
    let group = view.group.as_ref().map(ToString::to_string);
    proto::Listener {
        selectors_omitted: view.selectors_omitted || selectors.len() < view.selectors.len(),
        listener_id: view.listener_id.to_string(),
        subscription_id: format!("{relay_id}/{:032x}", view.subscription.0),
        selectors,
        capacity: view.capacity,
        visibility_timeout: Some(span_to_wire(view.visibility_timeout)),
        connected_for: Some(span_to_wire(view.connected_for)),
        queues: count(view.queues),
        busy: count(view.busy),
        owed: count(view.behind),
        active_dequeue_tasks: view.active_dequeue_tasks,
        total_dequeue_tasks: view.total_dequeue_tasks,
        group: group.unwrap_or_default(),
        polling: view.polling,
        silent_for: view.silent_for.map(span_to_wire),
        busy_for: view.busy_for.map(span_to_wire),
        lost_for: view.lost_for.map(span_to_wire),
        agent: view.agent,
    }
}

pub(super) fn queue(view: &QueueStats) -> proto::Queue {
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
        backlog: view.backlog,
        in_doubt: view.in_doubt,
        busy: view.busy,
    }
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
