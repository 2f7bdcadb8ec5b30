//! Queues in another order than by name, and by their names.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, btree_map},
};

use super::{
    ask, check_filter, page_size,
    pages::{Entry as _, Page, PageLimits},
    queue,
};
use crate::{
    base::{
        clock::nanos,
        task::{Work, spend_and_yield},
    },
    error::{Error, Result},
    relay::{
        hub::QueueOrder,
        runtime::{Relay, SilentRelays},
        server::access::requester::Requester,
    },
    types::QueueAddress,
    wire::{
        link::{NamedQueuesRequest, peer_reply::Answer, peer_request::Call},
        proto, span_from_wire,
    },
};

/// Queues of one request by name: their entries have at most 56 KiB.
const MAX_NAMED: usize = 64;

/// A search for the first queues in an order.
struct Search<'a> {
    order: QueueOrder,
    filter: &'a str,
    count: usize,
}

impl<'a> Search<'a> {
    fn of(request: &'a proto::ListQueuesRequest) -> Result<Self> {
        check_filter(&request.filter)?;
        Ok(Self {
            order: match request.order_by() {
                proto::QueueOrder::Rate => QueueOrder::Rate,
                proto::QueueOrder::Backlog => QueueOrder::Backlog,
                proto::QueueOrder::Idle => QueueOrder::Idle,
                proto::QueueOrder::Listeners => QueueOrder::Listeners,
                proto::QueueOrder::Unspecified => {
                    return Err(Error::invalid("order_by", "is unknown"));
                }
            },
            filter: &request.filter,
            count: page_size(request.page_size)?,
        })
    }

    /// Returns this relay's first queues, each with its rate.
    async fn own(
        &self,
        relay: &Relay,
        is_visible: impl Fn(&QueueAddress) -> bool + Send + Sync,
    ) -> Vec<(proto::Queue, u64)> {
        let mut ranking = relay.rank_queues(self.order, self.filter, self.count);
        loop {
            let visited = relay.rank_some(&mut ranking, &is_visible);
            if visited == 0 {
                break;
            }
            spend_and_yield(Work::Names(visited)).await;
        }
        let ranked = relay.ranked(ranking).into_iter();
        ranked.map(|(view, rate)| (queue(&view), rate)).collect()
    }

    /// Returns a queue's place in the order.
    fn rank(&self, entry: &proto::Queue, rate: u64) -> Reverse<u64> {
        Reverse(match self.order {
            QueueOrder::Rate => rate,
            QueueOrder::Backlog => entry.backlog,
            QueueOrder::Idle => entry
                .idle_for
                .map_or(u64::MAX, |idle| nanos(span_from_wire(Some(idle)))),
            QueueOrder::Listeners => u64::MAX - u64::from(entry.listeners),
        })
    }
}

/// Lists the first queues in another order than by name. A relay's order is that of its own figures. So
/// all relays are asked for their first queues, and then for what they know of all of these.
pub(super) async fn page(
    relay: &Relay,
    request: &proto::ListQueuesRequest,
    requester: &Requester,
) -> Result<proto::ListQueuesResponse> {
    let search = Search::of(request)?;
    if !request.page_token.is_empty() {
        let rule = "must be empty: only a list by name has further pages";
        return Err(Error::invalid("page_token", rule));
    }
    let sees_all = requester.sees_all();
    let is_visible = |queue: &QueueAddress| sees_all || requester.may_see(queue);
    let mut silent = SilentRelays::default();
    let own = search.own(relay, is_visible).await;
    let others = ask(relay, Call::Queues(request.clone()), &mut silent, queues_of).await;
    let names = own
        .iter()
        .map(|(entry, _)| entry)
        .chain(others.iter().flat_map(|(_, queues)| queues))
        .filter_map(|entry| QueueAddress::new(&entry.storage_account, &entry.queue_name).ok())
        .filter(is_visible)
        .collect();
    // Each relay counts the notifications of all, so the own rates are those of all.
    let rates: BTreeMap<_, _> = own
        .iter()
        .map(|(entry, rate)| (entry.key(), *rate))
        .collect();
    let all = named_queues(relay, names, &mut silent).await;
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_cached_key(|entry| {
        let key = entry.key();
        let rate = rates.get(&key).copied().unwrap_or_default();
        (search.rank(entry, rate), key)
    });
    all.truncate(search.count);
    let mut page = Page::new(PageLimits::of_client(search.count));
    // A page has room for a thousand entries with names of usual lengths.
    _ = all.into_iter().all(|entry| page.push(entry));
    Ok(proto::ListQueuesResponse {
        queues: page.into_entries(),
        next_page_token: String::new(),
        unanswered_relays: silent.ids.into_iter().collect(),
    })
}

/// Answers another relay, with the first queues in this relay's order.
pub(in super::super) async fn own_page(
    relay: &Relay,
    request: &proto::ListQueuesRequest,
) -> Result<Answer> {
    let search = Search::of(request)?;
    let mut page = Page::new(PageLimits::of_relay(search.count));
    // Those without room are the last ones of the order.
    _ = search
        .own(relay, |_| true)
        .await
        .into_iter()
        .all(|(entry, _)| page.push(entry));
    Ok(Answer::Queues(proto::ListQueuesResponse {
        queues: page.into_entries(),
        ..Default::default()
    }))
}

/// Returns what the relays know of these queues, by address.
pub(in super::super) async fn named_queues(
    relay: &Relay,
    names: BTreeSet<QueueAddress>,
    silent: &mut SilentRelays,
) -> BTreeMap<String, proto::Queue> {
    let names: Vec<_> = names.into_iter().collect();
    let own = own_named(relay, &names).into_iter();
    let mut all: BTreeMap<_, _> = own.map(|entry| (entry.key(), entry)).collect();
    for names in names.chunks(MAX_NAMED) {
        let call = Call::NamedQueues(NamedQueuesRequest {
            queues: names.iter().map(ToString::to_string).collect(),
        });
        for (_, queues) in ask(relay, call, silent, queues_of).await {
            for entry in queues {
                match all.entry(entry.key()) {
                    btree_map::Entry::Occupied(mut known) => known.get_mut().add(entry),
                    btree_map::Entry::Vacant(place) => _ = place.insert(entry),
                }
            }
        }
    }
    all
}

/// Answers another relay, with those of the queues that this relay knows.
pub(in super::super) fn own_named_page(
    relay: &Relay,
    request: &NamedQueuesRequest,
) -> Result<Answer> {
    if request.queues.len() > MAX_NAMED {
        return Err(Error::invalid("queues", "are too many"));
    }
    let names = request.queues.iter().map(|name| name.parse());
    let names = names.collect::<Result<Vec<_>>>()?;
    Ok(Answer::Queues(proto::ListQueuesResponse {
        queues: own_named(relay, &names),
        ..Default::default()
    }))
}

/// Returns those of the queues that this relay knows.
pub(in super::super) fn own_named(relay: &Relay, names: &[QueueAddress]) -> Vec<proto::Queue> {
    relay.named_queues(names).iter().map(queue).collect()
}

fn queues_of(answer: Answer) -> Option<Vec<proto::Queue>> {
    match answer {
        Answer::Queues(page) => Some(page.queues),
        _ => None,
    }
}
