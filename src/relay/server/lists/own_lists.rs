//! What this relay itself has: its queues, its listeners, and its watchers of flags.

use prost::Message as _;

use super::pages::{FRAMING, Page, PageLimits, Part};
use crate::{
    base::task::{Work, spend_and_yield},
    coordination::flag::{Flags, WatcherView, WatchersQuery},
    relay::{
        hub::{ListenerStats, QueueOrder, QueueStats, SubscriptionId},
        runtime::Relay,
    },
    types::QueueAddress,
    wire::{proto, selector_to_wire, span_to_wire},
};

/// Listeners fetched at a time: each has up to 4,096 selectors before the cut.
const BATCH: usize = 8;
/// The cost of a step that compares names with a filter, as names that are looked up.
const NAMES: usize = 256;

/// Returns the first queues whose addresses are not before `from`, and contain `filter`.
pub(crate) async fn own_queues(
    relay: &Relay,
    from: &str,
    filter: &str,
    limits: PageLimits,
) -> Part<proto::Queue> {
    let mut page = Page::new(limits);
    let mut from = from.to_owned();
    loop {
        let (views, last) = relay.find_queues(&from, filter, limits.count + 1);
        if !views.iter().all(|view| page.push(queue(view))) {
            return page.into_part(true);
        }
        spend_and_yield(Work::Names(NAMES.max(views.len()))).await;
        match last {
            Some(last) => from = after(&last.to_string()),
            None => return page.into_part(false),
        }
    }
}

/// Returns the first `count` queues in an order, among those that contain the filter and that
/// `is_visible`; each with its rate.
pub(crate) async fn own_ranked(
    relay: &Relay,
    order: QueueOrder,
    (filter, count): (&str, usize),
    is_visible: impl Fn(&QueueAddress) -> bool + Send + Sync,
) -> Vec<(proto::Queue, u64)> {
    let mut ranking = relay.rank_queues(order, filter, count);
    loop {
        let visited = relay.rank_some(&mut ranking, &is_visible);
        if visited == 0 {
            break;
        }
        spend_and_yield(Work::Names(visited)).await;
    }
    let ranked = relay.ranked(ranking);
    ranked
        .iter()
        .map(|(view, rate)| (queue(view), *rate))
        .collect()
}

/// Returns those of the queues that this relay knows.
pub(crate) fn own_named(relay: &Relay, names: &[QueueAddress]) -> Vec<proto::Queue> {
    relay.named_queues(names).iter().map(queue).collect()
}

/// Returns the least text after an address.
pub(crate) fn after(address: &str) -> String {
    format!("{address}\0")
}

/// Returns the first listeners after the stream with this id.
pub(crate) async fn own_listeners(
    relay: &Relay,
    mut after: Option<SubscriptionId>,
    (lost, filter): (bool, &str),
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
            let entry = || listener(relay.relay_id(), view, limits.selector_bytes);
            if matches(view, filter) && !page.push(entry()) {
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
pub(crate) async fn own_watchers(
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
        agent: view.agent,
    }
}

/// Returns whether the id, the group or a selector contains the filter.
fn matches(view: &ListenerStats, filter: &str) -> bool {
    let group = view.group.as_ref().map_or("", |group| group.as_str());
    let mut selectors = view.selectors.iter();
    view.listener_id.as_str().contains(filter)
        || group.contains(filter)
        || selectors.any(|selector| selector.as_str().contains(filter))
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

pub(crate) fn queue(view: &QueueStats) -> proto::Queue {
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

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
