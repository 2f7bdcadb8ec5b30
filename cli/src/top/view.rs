//! What `top` shows: the newest figures, and rates from them and those before. Pure.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use reveille::{History, LatencyBuckets, ListenerInfo, QueueInfo, QueueOrder, Stats};

use super::ORDERS;

/// The state of the screen.
#[derive(Debug)]
pub(super) struct View {
    pub(super) relay: String,
    /// The newest figures.
    pub(super) stats: Option<Stats>,
    pub(super) rates: Rates,
    /// Notifications and wake-ups per second, oldest first.
    pub(super) notified: VecDeque<u64>,
    pub(super) queues: Vec<QueueRow>,
    pub(super) listeners: Vec<ListenerInfo>,
    /// Why there are no newer figures, and since when.
    pub(super) lost: Option<(String, Instant)>,
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

/// Seconds of the line of notifications.
const LINE: usize = 600;

impl Rates {
    pub(super) fn between(before: &Stats, now: &Stats) -> Self {
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
    match span.is_zero() {
        true => 0.0,
        false => count as f64 / span.as_secs_f64(),
    }
}

impl View {
    pub(super) fn new(relay: &str) -> Self {
        Self {
            relay: relay.to_owned(),
            stats: None,
            rates: Rates::default(),
            notified: VecDeque::new(),
            queues: Vec::new(),
            listeners: Vec::new(),
            lost: None,
            order: 0,
            lists_listeners: false,
            stopped: false,
            sequences: HashMap::new(),
        }
    }

    /// Returns the view of one interval.
    pub(super) fn of(before: &Stats, now: Stats) -> Self {
        let mut view = Self::new("");
        view.take(before.clone());
        view.take(now);
        view
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
        if let Some(before) = &self.stats {
            // After a restart the counts begin again.
            let epochs = |stats: &Stats| stats.relays.first().map(|relay| relay.epoch.clone());
            self.rates = match epochs(before) == epochs(&stats) {
                true => Rates::between(before, &stats),
                false => Rates::default(),
            };
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a line of a few rows"
            )]
            self.notified.push_back(self.rates.notified.round() as u64);
            let old = self.notified.len().saturating_sub(LINE);
            self.notified.drain(..old);
        }
        self.stats = Some(stats);
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
        self.queues = rows.collect();
        self.sequences = sequences;
    }

    pub(super) fn lose(&mut self, why: &str) {
        self.lost = Some((why.to_owned(), Instant::now()));
    }

    pub(super) fn lost_for(&self) -> Duration {
        let since = self.lost.as_ref().map(|(_, since)| since.elapsed());
        since.unwrap_or_default()
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
        self.listeners = listeners;
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
