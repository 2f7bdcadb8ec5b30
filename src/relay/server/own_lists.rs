//! What this relay itself has: its queues, its listeners, and its watchers of flags.

use prost::Message as _;

use super::pages::{FRAMING, Page, PageLimits, Part};
use crate::{
    base::task::{Work, spend_and_yield},
    coordination::flag::{Flags, WatcherView, WatchersQuery},
    relay::{
        hub::{ListenerStats, QueueStats, SubscriptionId},
        runtime::Relay,
    },
    wire::{proto, selector_to_wire, span_to_wire},
};

/// Listeners fetched at a time: each has up to 4,096 selectors before the cut.
const BATCH: usize = 8;

/// Returns the first queues whose addresses are not before `from`.
pub(super) async fn own_queues(
    relay: &Relay,
    from: &str,
    limits: PageLimits,
) -> Part<proto::Queue> {
    let views = relay.queues(from, limits.count + 1);
    let mut page = Page::new(limits);
    let more = !views.iter().all(|view| page.push(queue(view)));
    spend_and_yield(Work::Names(views.len())).await;
    page.into_part(more)
}

/// Returns the first listeners after the stream with this id.
pub(super) async fn own_listeners(
    relay: &Relay,
    mut after: Option<SubscriptionId>,
    lost: bool,
    limits: PageLimits,
) -> Part<proto::Listener> {
    let mut page = Page::new(limits);
    loop {
        let mut views = relay.listeners(after, BATCH);
        if lost {
            views.extend(relay.lost_listeners(after, BATCH));
            views.sort_by_key(|view| view.subscription);
            views.truncate(BATCH);
        }
        for view in &views {
            if !page.push(listener(relay.relay_id(), view, limits.selector_bytes)) {
                return page.into_part(true);
            }
            after = Some(view.subscription);
        }
        let names = views.iter().map(|view| view.selectors.len()).sum();
        spend_and_yield(Work::Names(names)).await;
        if views.len() < BATCH {
            return page.into_part(false);
        }
    }
}

/// Returns the first watchers of a query, whose `count` is that of the limits.
pub(super) async fn own_watchers(
    flags: &Flags,
    query: &WatchersQuery,
    limits: PageLimits,
) -> Part<proto::FlagWatcher> {
    let views = flags.list_watchers(query);
    let mut page = Page::new(limits);
    let all = views.iter().all(|view| page.push(watcher(view)));
    spend_and_yield(Work::Names(views.len())).await;
    page.into_part(!all || views.len() >= limits.count)
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
    let selectors = selectors(view, selector_bytes);
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
        group: view
            .group
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        polling: view.polling,
        silent_for: view.silent_for.map(span_to_wire),
        busy_for: view.busy_for.map(span_to_wire),
        lost_for: view.lost_for.map(span_to_wire),
    }
}

/// Returns the first selectors of a listener, as many as fit into its entry.
fn selectors(view: &ListenerStats, bytes: usize) -> Vec<proto::Selector> {
    let mut left = bytes;
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
