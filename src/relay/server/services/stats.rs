//! The figures of the relays of a cluster, and the streams of `WatchStats`.
//!
//! A relay without watchers computes nothing.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_core::future::BoxFuture;
use tokio::{sync::Mutex, time::Instant};
use tonic::Status;

use super::findings::of_all;
use crate::{
    base::{
        clock::{Tick, wall},
        task::{Work, spend},
        text::opaque_debug,
    },
    coordination::flag::Flags,
    error::{Error, ErrorKind, Result},
    relay::{
        runtime::{Relay, SilentRelays},
        server::{access::requester::StreamGuard, http2::all_connections::Connections, lists::ask},
    },
    store::{BlobName, BlobStore},
    wire::{
        checked_span,
        link::{StatsRequest, peer_reply::Answer, peer_request::Call},
        proto, span_to_wire,
    },
};

/// The figures of a relay node, and of the other relays of its cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct StatsSource {
    pub(super) relay: Relay,
    pub(super) flags: Flags,
    /// The services exist before the connections.
    pub(super) connections: Arc<OnceLock<Arc<Connections>>>,
    store: Arc<dyn BlobStore>,
    /// When the store is read next, and why the newest read has failed.
    store_state: Arc<Mutex<(Tick, Option<String>)>>,
}

/// The stream of one watcher.
pub(crate) struct StatsWatch {
    source: StatsSource,
    interval: Duration,
    guard: Option<Box<StreamGuard>>,
    is_first: bool,
    draining: BoxFuture<'static, ()>,
    ends_at: Instant,
}

/// The interval of responses without a stated one, and its limits.
const INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(60);

/// Time limit of a read of the store, for figures for which other relays wait a second.
const STORE_WITHIN: Duration = Duration::from_millis(500);
/// Each read is a request to the store.
const STORE_READ_EVERY: Duration = Duration::from_secs(10);

/// Returns why the store of the flags cannot be read; `None` if it can.
pub(crate) async fn unreadable_store(store: &dyn BlobStore, within: Duration) -> Option<String> {
    let read = async { store.get(&BlobName::new("flags/ready")?).await };
    let slow = |_| {
        let message = format!("store {store} does not answer");
        Err(Error::new(ErrorKind::Timeout, message))
    };
    let read = tokio::time::timeout(within, read).await;
    let failed = read.unwrap_or_else(slow).err();
    failed.map(|error| error.to_string())
}

/// Reads the interval of a request, within its limits.
///
/// # Errors
/// `Invalid` where it is no duration.
pub(super) fn checked_interval(request: &proto::WatchStatsRequest) -> Result<Duration> {
    let stated = checked_span("interval", request.interval)?.filter(|stated| !stated.is_zero());
    Ok(stated.map_or(INTERVAL, |stated| stated.clamp(SHORTEST, LONGEST)))
}

impl StatsSource {
    pub(crate) fn new(relay: Relay, flags: Flags, store: Arc<dyn BlobStore>) -> Self {
        Self {
            relay,
            flags,
            connections: Arc::default(),
            store,
            store_state: Arc::default(),
        }
    }

    /// Sets the server's connections, which begin after the services are made.
    pub(crate) fn set_connections(&self, connections: Arc<Connections>) {
        // Set once, by the node's start.
        _ = self.connections.set(connections);
    }

    /// Returns why the store cannot be read, by a read of the last ten seconds.
    async fn unreadable_store(&self) -> Option<String> {
        let mut state = self.store_state.lock().await;
        let now = self.relay.now();
        if now >= state.0 {
            *state = (
                now + STORE_READ_EVERY,
                unreadable_store(&*self.store, STORE_WITHIN).await,
            );
        }
        state.1.clone()
    }

    /// Returns the figures of this relay.
    pub(crate) async fn own(&self) -> proto::RelayStats {
        let findings = self.findings(self.unreadable_store().await).await;
        let (relay, figures) = (&self.relay, self.relay.figures());
        let connections = self.connections.get().map_or(0, |all| all.open());
        let levels = proto::Levels {
            connections: connections as u64,
            flag_watchers: self.flags.watchers(),
            ..figures.levels
        };
        let config = relay.config();
        proto::RelayStats {
            relay_id: relay.relay_id().to_owned(),
            epoch: relay.epoch().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: Some(span_to_wire(figures.uptime)),
            draining: relay.is_draining(),
            degraded: relay.cluster_state().is_some_and(|state| state.degraded),
            totals: Some(figures.totals),
            levels: Some(levels),
            savings: Some(proto::Savings {
                polls_avoided: figures.polls_avoided,
                assumed_poll: Some(span_to_wire(config.assumed_poll)),
                price_per_million: config.price_per_million,
                currency: config.currency.clone(),
            }),
            findings,
        }
    }

    pub(crate) fn watch(
        &self,
        interval: Duration,
        max_age: Duration,
        guard: Option<Box<StreamGuard>>,
    ) -> StatsWatch {
        let relay = self.relay.clone();
        StatsWatch {
            source: self.clone(),
            interval,
            guard,
            is_first: true,
            draining: Box::pin(async move { relay.drain_began().await }),
            ends_at: Instant::now() + max_age,
        }
    }

    /// Returns the figures of all relays.
    async fn response(&self) -> proto::WatchStatsResponse {
        let at = wall();
        let (mut relays, mut silent) = (vec![self.own().await], SilentRelays::default());
        let call = Call::Stats(StatsRequest {});
        let others = ask(&self.relay, call, &mut silent, |answer| match answer {
            Answer::Stats(stats) => Some(stats),
            _ => None,
        });
        relays.extend(others.await.into_iter().map(|(_, stats)| stats));
        relays[1..].sort_by(|one, two| one.relay_id.cmp(&two.relay_id));
        let unanswered_relays: Vec<_> = silent.ids.into_iter().collect();
        let sum = Sum::of(&relays);
        proto::WatchStatsResponse {
            at: Some(at.into()),
            totals: Some(sum.totals),
            levels: Some(sum.levels),
            savings: Some(sum.savings),
            findings: of_all(&relays, &unanswered_relays),
            relays,
            unanswered_relays,
        }
    }
}

impl StatsWatch {
    /// Returns the next response and the rest of the stream.
    pub(crate) async fn next(
        watch: Option<Self>,
    ) -> Option<(Result<proto::WatchStatsResponse, Status>, Option<Self>)> {
        let mut watch = watch?;
        let is_last = !std::mem::take(&mut watch.is_first) && watch.turn().await?;
        let response = watch.source.response().await;
        spend(Work::Message(0));
        Some((Ok(response), (!is_last).then_some(watch)))
    }

    /// Waits until the next response is due, or the stream must end. Returns whether it is the last one, because the drain has begun; `None` where
    /// the stream must end without one.
    async fn turn(&mut self) -> Option<bool> {
        tokio::select! {
            biased;
            () = StreamGuard::revoked(&mut self.guard) => None,
            () = &mut self.draining => Some(true),
            () = tokio::time::sleep_until(self.ends_at) => None,
            () = tokio::time::sleep(self.interval) => Some(false),
        }
    }
}

opaque_debug!(StatsSource: relay);

/// The figures of several relays, added up.
#[derive(Debug, Default)]
struct Sum {
    totals: proto::Totals,
    levels: proto::Levels,
    savings: proto::Savings,
}

/// Adds these fields.
macro_rules! add {
    ($sum:expr, $other:expr; $($field:ident)+) => {
        $($sum.$field = $sum.$field.saturating_add($other.$field);)+
    };
}

impl Sum {
    fn of(relays: &[proto::RelayStats]) -> Self {
        let mut sum = Self::default();
        for relay in relays {
            if let Some(totals) = &relay.totals {
                sum.add_totals(totals);
            }
            if let Some(levels) = &relay.levels {
                sum.add_levels(levels);
            }
        }
        // The settings are those of the relay that answers.
        let mut all = relays.iter().filter_map(|relay| relay.savings.as_ref());
        sum.savings = all.next().cloned().unwrap_or_default();
        sum.savings.polls_avoided += all.map(|savings| savings.polls_avoided).sum::<u64>();
        sum
    }

    fn add_totals(&mut self, other: &proto::Totals) {
        add! {
            self.totals, other;
            notifications messages wakes wake_entries timed heartbeats
            catch_ups sentinels reassigned refused
        }
        add_buckets(&mut self.totals.wake_latency, other.wake_latency.as_ref());
        add_buckets(
            &mut self.totals.handler_latency,
            other.handler_latency.as_ref(),
        );
    }

    fn add_levels(&mut self, other: &proto::Levels) {
        // A cluster's queues are known to each of its relays.
        self.levels.queues = self.levels.queues.max(other.queues);
        add! {
            self.levels, other;
            subscriptions asleep awake polling active_dequeue_tasks
            connections flag_watchers timers unassigned
        }
    }
}

/// Adds a histogram. One with other bounds, of another version, is left out.
fn add_buckets(sum: &mut Option<proto::LatencyBuckets>, other: Option<&proto::LatencyBuckets>) {
    let Some(other) = other else { return };
    let Some(sum) = sum else {
        *sum = Some(other.clone());
        return;
    };
    if sum.bounds_us == other.bounds_us && sum.counts.len() == other.counts.len() {
        let counts = sum.counts.iter_mut().zip(&other.counts);
        counts.for_each(|(sum, other)| *sum += other);
    }
}
