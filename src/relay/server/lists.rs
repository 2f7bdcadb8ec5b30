//! The lists of queues, listeners and flags' watchers: pages of what all relays of the cluster have, without
//! what the caller may not see (C13). A relay alone asks no other.
//!
//! A page has at most 56 KiB, so that it fits a message between relays and the window of a stream.

pub(super) mod pages;
pub(super) mod ranked;

use std::time::Duration;

use tonic::{Request, Response, Status};

use self::pages::{Entry, Page, Part, listener, queue, watcher};
use super::{access::requester::Requester, services::Services};
use crate::{
    base::task::{Work, spend_and_yield},
    coordination::flag::{Flags, WatchersQuery},
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        hub::{ListenerStats, SubscriptionId},
        runtime::{Relay, SilentRelays},
    },
    types::{FlagName, Limits, ListenerId, QueueAddress, Selector},
    wire::{
        link::{peer_reply::Answer, peer_request::Call},
        proto,
    },
};

/// A request for a page of a list. A page token is the key of the last entry of the page before.
pub(crate) trait List: Send + Sync + Sized {
    type Entry: Entry;
    type Response: prost::Message;

    /// Returns this relay's first entries from [`List::page_token`] on.
    ///
    /// # Errors
    /// `Invalid`, with field and rule, for a value of the request.
    fn own(
        &self,
        relay: &Relay,
        flags: &Flags,
    ) -> impl Future<Output = Result<Part<Self::Entry>>> + Send;

    /// Returns the next place where the caller may see an entry; `None` if there is none.
    fn seek(_: &Requester, from: String) -> Option<String> {
        Some(from)
    }

    fn may_see(requester: &Requester, entry: &Self::Entry) -> bool;

    fn page_size(&self) -> u32;

    fn page_token(&self) -> &str;

    /// Returns this request for other entries.
    fn with_page(&self, page_size: u32, page_token: String) -> Self;

    /// Returns the request to another relay.
    fn call(self) -> Call;

    /// Reads the answer of another relay.
    fn read(answer: Answer) -> Option<Part<Self::Entry>>;

    fn response(
        entries: Vec<Self::Entry>,
        next_page_token: String,
        silent: SilentRelays,
    ) -> Self::Response;
}

/// A list waits no longer than this for the other relays.
pub(super) const WITHIN: Duration = Duration::from_secs(1);
/// Time to find the entries of a page, with the wait for a permit.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Only operators request lists, mostly one at a time.
pub(crate) const LISTS_AT_ONCE: usize = 8;
/// Least entries fetched at a time: a caller may see some of them only.
const FETCHED: usize = 256;
/// Bytes of a filter.
const MAX_FILTER: usize = 128;
/// Listeners fetched at a time: each has up to 4,096 selectors before the cut.
const BATCH: usize = 8;
/// The cost of a step that compares names with a filter, as names that are looked up.
const NAMES: usize = 256;

impl Services {
    /// Answers a client.
    pub(super) async fn list<L: List>(
        &self,
        request: Request<L>,
    ) -> Result<Response<L::Response>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let page = self.page(request.get_ref(), &requester);
        Ok(Response::new(self.in_time(page).await?))
    }

    /// Waits a limited time for a permit and for the answer.
    pub(super) async fn in_time<T>(&self, search: impl Future<Output = Result<T>>) -> Result<T> {
        let search = async {
            let _permit = self.lists.acquire().await.expect("never closed");
            search.await
        };
        let found = tokio::time::timeout(TIMEOUT, search).await;
        found.unwrap_or_else(|_| {
            let message = "the list took too long; try again, or state a smaller page_size";
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    async fn page<L: List>(&self, list: &L, requester: &Requester) -> Result<L::Response> {
        let mut page = Page::new(page_size(list.page_size())?);
        // One more than the page has shows whether there is a next one.
        let batch = (page.count() + 1).clamp(FETCHED, Limits::PAGE_MAX);
        let batch = u32::try_from(batch).expect("it is small");
        let mut silent = SilentRelays::default();
        let mut from = match list.page_token() {
            "" => String::new(),
            last => after(last),
        };
        // The token of the next page: never an entry that the caller may not see.
        let mut last = String::new();
        while let Some(start) = L::seek(requester, from) {
            let part = self
                .part(&list.with_page(batch, start), &mut silent)
                .await?;
            let Some(end) = part.entries.last().map(Entry::key) else {
                break;
            };
            from = after(&end);
            for entry in part.entries {
                if !L::may_see(requester, &entry) {
                    continue;
                }
                let key = entry.key();
                if !page.push(entry) {
                    return Ok(L::response(page.into_entries(), last, silent));
                }
                last = key;
            }
            if !part.more {
                break;
            }
        }
        Ok(L::response(page.into_entries(), String::new(), silent))
    }

    /// Returns the first entries of all relays.
    async fn part<L: List>(&self, list: &L, silent: &mut SilentRelays) -> Result<Part<L::Entry>> {
        let mut parts = vec![list.own(&self.relay, &self.flags).await?];
        let call = list
            .with_page(list.page_size(), list.page_token().to_owned())
            .call();
        let others = ask(&self.relay, call, silent, L::read).await;
        parts.extend(others.into_iter().map(|(_, part)| part));
        Ok(Part::merge(parts))
    }
}

/// Answers another relay, with the entries of this one.
pub(super) async fn own_page<L: List>(
    list: &L,
    relay: &Relay,
    flags: &Flags,
) -> Result<L::Response> {
    let part = list.own(relay, flags).await?;
    // Only whether there is more: the asking relay knows the last entry.
    let next = if part.more { "more" } else { "" };
    Ok(L::response(
        part.entries,
        next.to_owned(),
        SilentRelays::default(),
    ))
}

/// The parts of [`List`] that follow from the names of the messages.
macro_rules! messages {
    ($call:ident, $entry:ident, $response:ident { $entries:ident }) => {
        type Entry = proto::$entry;
        type Response = proto::$response;

        fn page_size(&self) -> u32 {
            self.page_size
        }

        fn page_token(&self) -> &str {
            &self.page_token
        }

        fn with_page(&self, page_size: u32, page_token: String) -> Self {
            Self {
                page_size,
                page_token,
                ..self.clone()
            }
        }

        fn call(self) -> Call {
            Call::$call(self)
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

/// By `account/queue`.
impl List for proto::ListQueuesRequest {
    messages!(Queues, Queue, ListQueuesResponse { queues });

    async fn own(&self, relay: &Relay, _: &Flags) -> Result<Part<proto::Queue>> {
        check_filter(&self.filter)?;
        let mut page = Page::new(page_size(self.page_size)?);
        let mut from = self.page_token.clone();
        loop {
            let count = page.count() + 1;
            let (views, last) = relay
                .hub()
                .find_queues(&from, &self.filter, count, relay.now());
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

    async fn own(&self, relay: &Relay, _: &Flags) -> Result<Part<proto::Listener>> {
        check_filter(&self.filter)?;
        let mut page = Page::new(page_size(self.page_size)?);
        let mut after = match last_key(&self.page_token) {
            "" => None,
            key => Some(SubscriptionId(
                u128::from_str_radix(key, 16).map_err(|_| bad_token())?,
            )),
        };
        loop {
            let now = relay.now();
            let mut views = relay.hub().listeners(after, BATCH, now);
            if self.lost {
                views.extend(relay.hub().lost_listeners(after, BATCH, now));
                views.sort_by_key(|view| view.subscription);
                views.truncate(BATCH);
            }
            for view in &views {
                if matches(view, &self.filter) && !page.push(listener(relay.relay_id(), view)) {
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

    async fn own(&self, _: &Relay, flags: &Flags) -> Result<Part<proto::FlagWatcher>> {
        let mut page = Page::new(page_size(self.page_size)?);
        let flag = Some(&*self.flag).filter(|flag| !flag.is_empty());
        let after = match last_key(&self.page_token) {
            "" => None,
            key => {
                let (flag, listener) = key.split_once(' ').ok_or_else(bad_token)?;
                Some((FlagName::new(flag)?, ListenerId::new(listener)?))
            }
        };
        let views = flags.list_watchers(&WatchersQuery {
            flag: flag.map(FlagName::new).transpose()?,
            after,
            count: page.count() + 1,
        });
        let all = views.iter().all(|view| page.push(watcher(view)));
        spend_and_yield(Work::Names(views.len())).await;
        Ok(page.into_part(!all))
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
        let id = peer.info.relay_id;
        match read(answer) {
            Some(read) => answers.push((id, read)),
            None => _ = silent.ids.insert(id),
        }
    }
    answers
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

/// Returns the least text after a key.
fn after(key: &str) -> String {
    format!("{key}\0")
}

/// The reverse of [`after`].
fn last_key(from: &str) -> &str {
    from.strip_suffix('\0').unwrap_or(from)
}

fn check_filter(filter: &str) -> Result<()> {
    if filter.len() <= MAX_FILTER {
        return Ok(());
    }
    let rule = format_args!("must have at most {MAX_FILTER} bytes");
    Err(Error::invalid("filter", rule))
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
