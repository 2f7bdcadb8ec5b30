//! Queues in another order than by name, and by their names.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    ask, check_filter, page_size,
    pages::{Entry as _, Page, add_all, queue},
};
use crate::{
    base::{
        clock::nanos,
        task::{Work, spend_and_yield},
    },
    error::{Error, Result},
    relay::{
        hub::{QueueOrder, Ranking},
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
/// Rates are those of so long a time.
const RATE_SPAN: Duration = Duration::from_millis(500);

fn order_of(request: &proto::ListQueuesRequest) -> Result<QueueOrder> {
    match request.order_by() {
        proto::QueueOrder::Rate => Ok(QueueOrder::Rate),
        proto::QueueOrder::Backlog => Ok(QueueOrder::Backlog),
        proto::QueueOrder::Idle => Ok(QueueOrder::Idle),
        proto::QueueOrder::Listeners => Ok(QueueOrder::Listeners),
        proto::QueueOrder::Unspecified => Err(Error::invalid("order_by", "is unknown")),
    }
}

/// Returns this relay's first queues in the order of a request, each with its rank there.
async fn own(
    relay: &Relay,
    request: &proto::ListQueuesRequest,
    is_visible: impl Fn(&QueueAddress) -> bool + Send + Sync,
) -> Result<Vec<(proto::Queue, u64)>> {
    check_filter(&request.filter)?;
    let (order, count) = (order_of(request)?, page_size(request.page_size)?);
    let mut ranking = Ranking::new(order, &request.filter, count);
    rank_all(relay, &mut ranking, &is_visible).await;
    if order == QueueOrder::Rate {
        tokio::time::sleep(RATE_SPAN).await;
        ranking.restart();
        rank_all(relay, &mut ranking, &is_visible).await;
    }
    let ranked = ranking.into_stats(relay.now()).into_iter();
    Ok(ranked.map(|(view, rate)| (queue(&view), rate)).collect())
}

/// Visits all queues.
async fn rank_all(
    relay: &Relay,
    ranking: &mut Ranking,
    is_visible: &(impl Fn(&QueueAddress) -> bool + Send + Sync),
) {
    loop {
        let visited = relay.hub().rank_some(ranking, is_visible, relay.now());
        if visited == 0 {
            break;
        }
        spend_and_yield(Work::Names(visited)).await;
    }
}

/// Returns a queue's place in an order.
fn rank(order: QueueOrder, entry: &proto::Queue, rate: u64) -> Reverse<u64> {
    Reverse(match order {
        QueueOrder::Rate => rate,
        QueueOrder::Backlog => entry.backlog,
        QueueOrder::Idle => entry
            .idle_for
            .map_or(u64::MAX, |idle| nanos(span_from_wire(Some(idle)))),
        QueueOrder::Listeners => u64::MAX - u64::from(entry.listeners),
    })
}

/// Returns as many as fit a page.
fn answer_of(
    count: usize,
    queues: impl IntoIterator<Item = proto::Queue>,
) -> proto::ListQueuesResponse {
    let mut page = Page::new(count);
    // Those without room are the last ones of the order.
    _ = queues.into_iter().all(|entry| page.push(entry));
    proto::ListQueuesResponse {
        queues: page.into_entries(),
        ..Default::default()
    }
}

/// Lists the first queues in another order than by name. A relay's order is that of its own figures. So
/// all relays are asked for their first queues, and then for what they know of all of these.
pub(in super::super) async fn page(
    relay: &Relay,
    request: &proto::ListQueuesRequest,
    requester: &Requester,
) -> Result<proto::ListQueuesResponse> {
    if !request.page_token.is_empty() {
        let rule = "must be empty: only a list by name has further pages";
        return Err(Error::invalid("page_token", rule));
    }
    let order = order_of(request)?;
    let sees_all = requester.sees_all();
    let is_visible = |queue: &QueueAddress| sees_all || requester.may_see(queue);
    let mut silent = SilentRelays::default();
    let own = own(relay, request, is_visible).await?;
    // Each relay counts the notifications of all, so the own rates are those of all.
    let others = match order {
        QueueOrder::Rate => Vec::new(),
        _ => ask(relay, Call::Queues(request.clone()), &mut silent, queues_of).await,
    };
    let names = own
        .iter()
        .map(|(entry, _)| entry)
        .chain(others.iter().flat_map(|(_, queues)| queues))
        .filter_map(|entry| QueueAddress::new(&entry.storage_account, &entry.queue_name).ok())
        .filter(is_visible)
        .collect();
    let rates: BTreeMap<_, _> = own
        .iter()
        .map(|(entry, rate)| (entry.key(), *rate))
        .collect();
    let all = named_queues(relay, names, &mut silent).await;
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_cached_key(|(key, entry)| {
        let rate = rates.get(key).copied().unwrap_or_default();
        (rank(order, entry, rate), key.clone())
    });
    let all = all.into_iter().map(|(_, entry)| entry);
    Ok(proto::ListQueuesResponse {
        unanswered_relays: silent.ids.into_iter().collect(),
        ..answer_of(page_size(request.page_size)?, all)
    })
}

/// Answers another relay, with the first queues in this relay's order.
pub(in super::super) async fn own_page(
    relay: &Relay,
    request: &proto::ListQueuesRequest,
) -> Result<Answer> {
    let own = own(relay, request, |_| true).await?;
    let count = own.len();
    let queues = own.into_iter().map(|(entry, _)| entry);
    Ok(Answer::Queues(answer_of(count, queues)))
}

/// Returns what the relays know of these queues, by address.
pub(in super::super) async fn named_queues(
    relay: &Relay,
    names: BTreeSet<QueueAddress>,
    silent: &mut SilentRelays,
) -> BTreeMap<String, proto::Queue> {
    let names: Vec<_> = names.into_iter().collect();
    let mut all = BTreeMap::new();
    let known = relay.hub().named_queues(&names, relay.now());
    add_all(&mut all, known.iter().map(queue));
    for names in names.chunks(MAX_NAMED) {
        let call = Call::NamedQueues(NamedQueuesRequest {
            queues: names.iter().map(ToString::to_string).collect(),
        });
        for (_, queues) in ask(relay, call, silent, queues_of).await {
            add_all(&mut all, queues);
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
    let known = relay.hub().named_queues(&names, relay.now());
    Ok(Answer::Queues(proto::ListQueuesResponse {
        queues: known.iter().map(queue).collect(),
        ..Default::default()
    }))
}

fn queues_of(answer: Answer) -> Option<Vec<proto::Queue>> {
    match answer {
        Answer::Queues(page) => Some(page.queues),
        _ => None,
    }
}
