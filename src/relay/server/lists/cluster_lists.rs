//! The lists of all relays of the cluster (C13). A relay alone asks no other.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    time::Duration,
};

use super::{
    own_lists::{own_listeners, own_named, own_queues, own_ranked, own_watchers},
    pages::{Entry as _, PageLimits, Part},
};
use crate::{
    base::clock::nanos,
    coordination::flag::{Flags, WatchersQuery},
    error::{Error, Result},
    relay::{
        hub::{QueueOrder, SubscriptionId},
        link::{MISSING_AFTER, PeerStats},
        runtime::{Relay, SilentRelays},
    },
    types::{Limits, QueueAddress},
    wire::{
        link::{NamedQueuesRequest, peer_reply::Answer, peer_request::Call},
        proto, span_from_wire, span_to_wire,
    },
};

/// A list waits no longer than this for the other relays.
pub(crate) const WITHIN: Duration = Duration::from_secs(1);

/// Bytes of a filter.
const MAX_FILTER: usize = 128;
/// Queues of one request by name: their entries have at most 56 KiB.
pub(crate) const MAX_NAMED: usize = 64;

/// Returns the first queues whose addresses are not before `from`, and contain `filter`. The relays that do not answer are
/// added to the silent ones.
pub(crate) async fn all_queues(
    relay: &Relay,
    from: &str,
    filter: &str,
    count: usize,
    silent: &mut SilentRelays,
) -> Part<proto::Queue> {
    let own = own_queues(relay, from, filter, PageLimits::of_client(count)).await;
    let call = Call::Queues(proto::ListQueuesRequest {
        page_size: size(count),
        page_token: from.to_owned(),
        filter: filter.to_owned(),
        order_by: proto::QueueOrder::Unspecified.into(),
    });
    let mut part = merged(relay, call, own, silent, |answer| match answer {
        Answer::Queues(page) => Some((page.queues, page.next_page_token)),
        _ => None,
    })
    .await;
    // A relay of the version before does not know the filter.
    part.entries.retain(|entry| entry.key().contains(filter));
    part
}

/// Returns the first `count` queues in an order, of those that contain the filter and that `is_visible`.
/// A relay's order is that of its own figures. So all relays are asked for their first queues, and then
/// for what they know of all of these.
pub(crate) async fn ranked_queues(
    relay: &Relay,
    order: QueueOrder,
    (filter, count): (&str, usize),
    is_visible: impl Fn(&QueueAddress) -> bool + Send + Sync,
    silent: &mut SilentRelays,
) -> Vec<proto::Queue> {
    let own = own_ranked(relay, order, (filter, count), &is_visible).await;
    if relay.cluster_state().is_none() {
        return own.into_iter().map(|(entry, _)| entry).collect();
    }
    let call = Call::Queues(proto::ListQueuesRequest {
        page_size: size(count),
        page_token: String::new(),
        filter: filter.to_owned(),
        order_by: order_to_wire(order).into(),
    });
    let address = |entry: &proto::Queue| {
        let address = QueueAddress::new(&entry.storage_account, &entry.queue_name);
        address.ok().filter(&is_visible)
    };
    let mut names: BTreeSet<_> = own.iter().filter_map(|(entry, _)| address(entry)).collect();
    for (peer, answer) in relay.ask_all(call, WITHIN, silent).await {
        match answer {
            Answer::Queues(page) => names.extend(page.queues.iter().filter_map(address)),
            _ => _ = silent.ids.insert(peer.status.relay_id.to_string()),
        }
    }
    // Each relay counts the notifications of all, so the own rates are those of all.
    let rates: BTreeMap<_, _> = own
        .iter()
        .map(|(entry, rate)| (entry.key(), *rate))
        .collect();
    let merged = named_queues(relay, names, silent).await;
    let is_wanted = |entry: &proto::Queue| entry.key().contains(filter);
    let mut all: Vec<_> = merged.into_values().filter(is_wanted).collect();
    all.sort_by_cached_key(|entry| {
        let rate = || rates.get(&entry.key()).copied().unwrap_or_default();
        (rank(order, entry, rate), entry.key())
    });
    all.truncate(count);
    all
}

/// Returns a queue's place in an order, the least one first.
fn rank(order: QueueOrder, entry: &proto::Queue, rate: impl Fn() -> u64) -> u64 {
    match order {
        QueueOrder::Rate => u64::MAX - rate(),
        QueueOrder::Backlog => u64::MAX - entry.backlog,
        QueueOrder::Idle => match entry.idle_for {
            Some(idle) => u64::MAX - nanos(span_from_wire(Some(idle))),
            None => 0,
        },
        QueueOrder::Listeners => entry.listeners.into(),
    }
}

/// Returns what the relays know of these queues, by address.
pub(crate) async fn named_queues(
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
        for (peer, answer) in relay.ask_all(call, WITHIN, silent).await {
            let Answer::Queues(page) = answer else {
                silent.ids.insert(peer.status.relay_id.to_string());
                continue;
            };
            for entry in page.queues {
                match all.entry(entry.key()) {
                    btree_map::Entry::Occupied(mut known) => known.get_mut().add(entry),
                    btree_map::Entry::Vacant(place) => _ = place.insert(entry),
                }
            }
        }
    }
    all
}

/// Reads the order of a list; `None` is by name.
///
/// # Errors
/// `Invalid` for an order that this version does not know.
pub(crate) fn order_from_wire(order: i32) -> Result<Option<QueueOrder>> {
    let unknown = || Error::invalid("order_by", "is unknown");
    Ok(match proto::QueueOrder::try_from(order) {
        Ok(proto::QueueOrder::Unspecified) => None,
        Ok(proto::QueueOrder::Rate) => Some(QueueOrder::Rate),
        Ok(proto::QueueOrder::Backlog) => Some(QueueOrder::Backlog),
        Ok(proto::QueueOrder::Idle) => Some(QueueOrder::Idle),
        Ok(proto::QueueOrder::Listeners) => Some(QueueOrder::Listeners),
        Err(_) => return Err(unknown()),
    })
}

fn order_to_wire(order: QueueOrder) -> proto::QueueOrder {
    match order {
        QueueOrder::Rate => proto::QueueOrder::Rate,
        QueueOrder::Backlog => proto::QueueOrder::Backlog,
        QueueOrder::Idle => proto::QueueOrder::Idle,
        QueueOrder::Listeners => proto::QueueOrder::Listeners,
    }
}

/// Checks the filter of a list.
///
/// # Errors
/// `Invalid` where it is too long.
pub(crate) fn check_filter(filter: &str) -> Result<()> {
    match filter.len() <= MAX_FILTER {
        true => Ok(()),
        false => {
            let rule = format_args!("must have at most {MAX_FILTER} bytes");
            Err(Error::invalid("filter", rule))
        }
    }
}

/// Returns the first listeners after the stream with this id.
pub(crate) async fn all_listeners(
    relay: &Relay,
    after: Option<SubscriptionId>,
    (lost, filter): (bool, &str),
    count: usize,
    silent: &mut SilentRelays,
) -> Part<proto::Listener> {
    let own = own_listeners(relay, after, (lost, filter), PageLimits::of_client(count)).await;
    let call = Call::Listeners(proto::ListListenersRequest {
        page_size: size(count),
        page_token: after.map(stream_token).unwrap_or_default(),
        lost,
        filter: filter.to_owned(),
    });
    merged(relay, call, own, silent, |answer| match answer {
        Answer::Listeners(page) => Some((page.listeners, page.next_page_token)),
        _ => None,
    })
    .await
}

/// Returns the first watchers of flags.
pub(crate) async fn all_watchers(
    relay: &Relay,
    flags: &Flags,
    query: &WatchersQuery,
    silent: &mut SilentRelays,
) -> Part<proto::FlagWatcher> {
    let own = own_watchers(flags, query, PageLimits::of_client(query.count)).await;
    let token = |(flag, listener): &(_, _)| format!("{flag}/{listener}");
    let call = Call::FlagWatchers(proto::ListFlagWatchersRequest {
        flag: query
            .flag
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        away: query.away,
        page_size: size(query.count),
        page_token: query.after.as_ref().map(token).unwrap_or_default(),
    });
    merged(relay, call, own, silent, |answer| match answer {
        Answer::FlagWatchers(page) => Some((page.watchers, page.next_page_token)),
        _ => None,
    })
    .await
}

/// Returns the relays of the cluster by their heartbeats; no request is needed.
pub(crate) fn relays(relay: &Relay) -> proto::ListRelaysResponse {
    let own = relay.own_status();
    let own = proto::RelayInfo {
        relay_id: own.relay_id.to_string(),
        epoch: relay.epoch().to_owned(),
        version: own.version.to_string(),
        state: proto::RelayState::Self_.into(),
        streams: own.streams,
        queues: own.queues,
        degraded: own.degraded,
        silent_for: None,
        resyncs: 0,
    };
    let peers = relay.cluster_stats().map(|(_, peers)| peers);
    // One whose first heartbeat has not come is known by its frames only.
    let is_heard_of = |peer: &&PeerStats| !peer.status.relay_id.is_empty();
    let peers = peers.unwrap_or_default();
    let mut peers: Vec<_> = peers.iter().filter(is_heard_of).map(peer_info).collect();
    peers.sort_by(|one, two| one.relay_id.cmp(&two.relay_id));
    proto::ListRelaysResponse {
        relays: std::iter::once(own).chain(peers).collect(),
    }
}

/// Reads the id of a stream: the token of a page.
pub(crate) fn stream_id(token: &str) -> Option<SubscriptionId> {
    u128::from_str_radix(token, 16).ok().map(SubscriptionId)
}

/// Writes the token of a page.
pub(super) fn stream_token(id: SubscriptionId) -> String {
    format!("{:032x}", id.0)
}

fn peer_info(peer: &PeerStats) -> proto::RelayInfo {
    // A relay that is cut off takes no silence for an end (C7), but says what it does not hear.
    let missing = peer.missing || peer.silent_for >= MISSING_AFTER;
    let state = match (peer.left, missing) {
        (true, _) => proto::RelayState::Left,
        (false, true) => proto::RelayState::Missing,
        (false, false) => proto::RelayState::Present,
    };
    proto::RelayInfo {
        relay_id: peer.status.relay_id.to_string(),
        epoch: peer.life.to_string(),
        version: peer.status.version.to_string(),
        state: state.into(),
        streams: peer.status.streams,
        queues: peer.status.queues,
        degraded: peer.status.degraded,
        silent_for: Some(span_to_wire(peer.silent_for)),
        resyncs: peer.resyncs,
    }
}

/// Asks the other relays for the same part, and merges all.
async fn merged<T: super::pages::Entry>(
    relay: &Relay,
    call: Call,
    own: Part<T>,
    silent: &mut SilentRelays,
    read: impl Fn(Answer) -> Option<(Vec<T>, String)>,
) -> Part<T> {
    let others = relay.ask_all(call, WITHIN, silent).await;
    let mut parts = vec![own];
    for (peer, answer) in others {
        match read(answer) {
            Some((entries, next)) => parts.push(Part {
                more: !next.is_empty() && !entries.is_empty(),
                entries,
            }),
            None => _ = silent.ids.insert(peer.status.relay_id.to_string()),
        }
    }
    Part::merge(parts)
}

/// Returns the size of a page that another relay accepts.
fn size(count: usize) -> u32 {
    u32::try_from(count.min(Limits::PAGE_MAX)).unwrap_or(u32::MAX)
}
