//! The lists of all relays of the cluster (C13). A relay alone asks no other.

use std::time::Duration;

use super::{
    own_lists::{own_listeners, own_queues, own_watchers},
    pages::{PageLimits, Part},
};
use crate::{
    coordination::flag::{Flags, WatchersQuery},
    relay::{
        hub::SubscriptionId,
        link::{MISSING_AFTER, PeerStats},
        runtime::{Relay, SilentRelays},
    },
    types::Limits,
    wire::{
        link::{peer_reply::Answer, peer_request::Call},
        proto, span_to_wire,
    },
};

/// A list waits no longer than this for the other relays.
const WITHIN: Duration = Duration::from_secs(1);

/// Returns the first queues whose addresses are not before `from`. The relays that do not answer are
/// added to the silent ones.
pub(super) async fn all_queues(
    relay: &Relay,
    from: &str,
    count: usize,
    silent: &mut SilentRelays,
) -> Part<proto::Queue> {
    let own = own_queues(relay, from, PageLimits::of_client(count)).await;
    let call = Call::Queues(proto::ListQueuesRequest {
        page_size: size(count),
        page_token: from.to_owned(),
    });
    merged(relay, call, own, silent, |answer| match answer {
        Answer::Queues(page) => Some((page.queues, page.next_page_token)),
        _ => None,
    })
    .await
}

/// Returns the first listeners after the stream with this id.
pub(super) async fn all_listeners(
    relay: &Relay,
    after: Option<SubscriptionId>,
    lost: bool,
    count: usize,
    silent: &mut SilentRelays,
) -> Part<proto::Listener> {
    let own = own_listeners(relay, after, lost, PageLimits::of_client(count)).await;
    let call = Call::Listeners(proto::ListListenersRequest {
        page_size: size(count),
        page_token: after.map(stream_token).unwrap_or_default(),
        lost,
    });
    merged(relay, call, own, silent, |answer| match answer {
        Answer::Listeners(page) => Some((page.listeners, page.next_page_token)),
        _ => None,
    })
    .await
}

/// Returns the first watchers of flags.
pub(super) async fn all_watchers(
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
pub(super) fn relays(relay: &Relay) -> proto::ListRelaysResponse {
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
pub(super) fn stream_id(token: &str) -> Option<SubscriptionId> {
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
