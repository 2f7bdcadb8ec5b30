//! What `top` shows: the newest figures, and rates from them and those before. Pure.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use reveille::{History, LatencyBuckets, ListenerInfo, QueueInfo, QueueOrder, Stats};

/// The state of the screen.
#[derive(Debug)]
pub(super) struct View {
    /// The newest figures.
    pub(super) stats: Stats,
    pub(super) rates: Rates,
    /// Notifications per second, oldest first.
    pub(super) notified: VecDeque<u64>,
    /// `None` until they are read.
    pub(super) queues: Option<Vec<QueueRow>>,
    /// `None` until they are read.
    pub(super) listeners: Option<Vec<ListenerInfo>>,
    /// Why there are no newer figures.
    pub(super) lost: Option<String>,
    order: usize,
    lists_listeners: bool,
    stopped: bool,
    sequences: HashMap<String, (u64, Instant)>,
}

/// A queue, and its notifications per second.
#[derive(Debug)]
pub(super) struct QueueRow {
    pub(super) name: String,
    pub(super) rate: f64,
    pub(super) queue: QueueInfo,
}

/// Figures of the newest interval.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Rates {
    /// Per second.
    pub(super) notified: f64,
    pub(super) woken: f64,
    pub(super) wake: LatencyBuckets,
    pub(super) handler: LatencyBuckets,
}

/// Values of the line of notifications.
const LINE: usize = 600;
/// The orders of the queues, and their names.
const ORDERS: [(QueueOrder, &str); 4] = [
    (QueueOrder::Backlog, "backlog"),
    (QueueOrder::Rate, "rate"),
    (QueueOrder::Idle, "idle"),
    (QueueOrder::Listeners, "fewest listeners"),
];

impl Rates {
    fn between(before: &Stats, now: &Stats) -> Self {
        let epoch = |stats: &Stats| stats.relays.first().map(|relay| relay.epoch.clone());
        if epoch(before) != epoch(now) {
            // After a restart the counts begin again.
            return Self::default();
        }
        let span = now.at.duration_since(before.at).unwrap_or_default();
        let rate = |now: u64, before: u64| per_second(now.saturating_sub(before), span);
        let (then, totals) = (&before.totals, &now.totals);
        Self {
            notified: rate(totals.notifications, then.notifications),
            woken: rate(totals.wake_entries, then.wake_entries),
            wake: totals.wake_latency.since(&then.wake_latency),
            handler: totals.handler_latency.since(&then.handler_latency),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, span: Duration) -> f64 {
    if span.is_zero() {
        return 0.0;
    }
    count as f64 / span.as_secs_f64()
}

impl View {
    /// Returns the view of the first figures, without rates.
    pub(super) fn new(stats: Stats) -> Self {
        Self {
            stats,
            rates: Rates::default(),
            notified: VecDeque::new(),
            queues: None,
            listeners: None,
            lost: None,
            order: 0,
            lists_listeners: false,
            stopped: false,
            sequences: HashMap::new(),
        }
    }

    pub(super) fn begin_with(&mut self, history: &History) {
        let newest = history.samples.iter().rev().take(LINE).rev();
        self.notified = newest.map(|sample| sample.notifications).collect();
    }

    pub(super) fn take(&mut self, stats: Stats) {
        self.lost = None;
        if self.stopped {
            return;
        }
        self.rates = Rates::between(&self.stats, &stats);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a line of a few rows"
        )]
        self.notified.push_back(self.rates.notified.round() as u64);
        let old = self.notified.len().saturating_sub(LINE);
        self.notified.drain(..old);
        self.stats = stats;
    }

    pub(super) fn take_queues(&mut self, queues: Vec<QueueInfo>) {
        let now = Instant::now();
        let mut sequences = HashMap::new();
        let rows = queues.into_iter().map(|queue| {
            let name = format!("{}/{}", queue.storage_account, queue.queue_name);
            let known = self.sequences.get(&name);
            let rate = known.map_or(0.0, |(notifications, at)| {
                let count = queue.notifications.saturating_sub(*notifications);
                per_second(count, now.duration_since(*at))
            });
            sequences.insert(name.clone(), (queue.notifications, now));
            QueueRow { name, rate, queue }
        });
        self.queues = Some(rows.collect());
        self.sequences = sequences;
    }

    pub(super) fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    pub(super) fn order(&self) -> QueueOrder {
        ORDERS[self.order].0
    }

    pub(super) fn order_name(&self) -> &'static str {
        ORDERS[self.order].1
    }

    pub(super) fn order_next(&mut self) {
        self.order = (self.order + 1) % ORDERS.len();
    }

    pub(super) fn take_listeners(&mut self, listeners: Vec<ListenerInfo>) {
        self.listeners = Some(listeners);
    }

    pub(super) fn lists_listeners(&self) -> bool {
        self.lists_listeners
    }

    pub(super) fn toggle_list(&mut self) {
        self.lists_listeners = !self.lists_listeners;
    }

    pub(super) fn toggle_stop(&mut self) {
        self.stopped = !self.stopped;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }
}
