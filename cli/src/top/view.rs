//! What `top` shows: the newest figures, and rates from them and those before. Pure.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use ratatui::crossterm::event::KeyCode;
use reveille::{LatencyBuckets, ListenerInfo, QueueInfo, QueueOrder, Stats};
use serde_json::{Value, json};

use crate::{output::time, why::finding_json};

/// The state of the screen.
#[derive(Debug)]
pub(super) struct View {
    /// The newest figures.
    pub(super) stats: Stats,
    pub(super) rates: Rates,
    /// Notifications per second, oldest first.
    pub(super) notified: VecDeque<u64>,
    pub(super) queues: Vec<QueueRow>,
    pub(super) listeners: Vec<ListenerInfo>,
    pub(super) lists_listeners: bool,
    /// A key asks for a list that was not read.
    pub(super) is_other_list: bool,
    /// Why there are no newer figures.
    pub(super) lost: Option<String>,
    order: usize,
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
            queues: Vec::new(),
            listeners: Vec::new(),
            lists_listeners: false,
            is_other_list: false,
            lost: None,
            order: 0,
            sequences: HashMap::new(),
        }
    }

    pub(super) fn take(&mut self, stats: Stats) {
        self.lost = None;
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
        self.queues = rows.collect();
        self.sequences = sequences;
    }

    /// The order of the queues, and its name.
    pub(super) fn order(&self) -> (QueueOrder, &'static str) {
        ORDERS[self.order]
    }

    pub(super) fn obey(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char('o') => self.order = (self.order + 1) % ORDERS.len(),
            KeyCode::Char('l') => self.lists_listeners = !self.lists_listeners,
            _ => return,
        }
        self.is_other_list = true;
    }

    /// Returns the figures for programs; counts are those of `/metrics`, which has more.
    pub(super) fn figures(&self) -> Value {
        let (now, rates) = (&self.stats, &self.rates);
        let (totals, levels) = (&now.totals, &now.levels);
        let micros = |percent| {
            let bound = rates.wake.percentile(percent)?;
            u64::try_from(bound.as_micros()).ok()
        };
        json!({
            "at": time(now.at),
            "findings": now.findings.iter().map(finding_json).collect::<Vec<_>>(),
            "notifications_per_second": rates.notified,
            "wake_entries_per_second": rates.woken,
            "wake_p50_us": micros(50),
            "wake_p99_us": micros(99),
            "totals": {
                "notifications": totals.notifications,
                "messages": totals.messages,
                "wakes": totals.wakes,
                "wake_entries": totals.wake_entries,
            },
            "levels": {
                "queues": levels.queues,
                "subscriptions": levels.subscriptions,
                "asleep": levels.asleep,
                "awake": levels.awake,
                "polling": levels.polling,
                "active_dequeue_tasks": levels.active_dequeue_tasks,
            },
            "savings": {
                "polls_avoided": now.savings.polls_avoided,
                "price": now.savings.price(),
                "currency": now.savings.currency,
            },
            "unanswered_relays": now.unanswered,
        })
    }
}
