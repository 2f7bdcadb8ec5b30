//! The figures of the relays of a cluster, and the streams of `WatchStats`.
//!
//! A relay without watchers computes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
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
        hub::{ActiveQueue, ActivityWatch},
        runtime::{Relay, SilentRelays},
        server::{
            access::{Access, requester::StreamGuard},
            http2::all_connections::Connections,
            lists::{ask, ranked::named_queues},
        },
    },
    store::{BlobName, BlobStore},
    types::QueueAddress,
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
    flags: Flags,
    pub(super) access: Access,
    /// The services exist before the connections.
    pub(super) connections: Arc<OnceLock<Arc<Connections>>>,
    store: Arc<dyn BlobStore>,
    /// When the store is read next, and why the newest read has failed.
    store_state: Arc<Mutex<(Tick, Option<String>)>>,
}

/// The figures of all relays at one moment.
struct Snapshot {
    at: SystemTime,
    relays: Vec<proto::RelayStats>,
    unanswered: Vec<String>,
    /// The table of active queues, by their entries' numbers.
    active: BTreeMap<u64, ActiveQueue>,
    /// In a cluster: what all relays know of the busiest queues.
    merged: BTreeMap<String, proto::Queue>,
}

/// The stream of one watcher.
pub(crate) struct StatsWatch {
    source: StatsSource,
    interval: Duration,
    guard: Option<Box<StreamGuard>>,
    _activity: ActivityWatch,
    previous: Option<Snapshot>,
    draining: BoxFuture<'static, ()>,
    ends_at: Instant,
}

/// The interval of responses without a stated one, and its limits.
const INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(60);
/// Queues of a response.
const BUSIEST: usize = 50;

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
    pub(crate) fn new(
        relay: Relay,
        flags: Flags,
        access: Access,
        store: Arc<dyn BlobStore>,
    ) -> Self {
        Self {
            relay,
            flags,
            access,
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
            _activity: self.relay.hub().watch_activity(self.relay.now()),
            previous: None,
            draining: Box::pin(async move { relay.drain_began().await }),
            ends_at: Instant::now() + max_age,
        }
    }

    async fn compute(&self, previous: Option<&Snapshot>) -> Snapshot {
        let active = self.relay.hub().active_queues();
        spend(Work::Names(active.len()));
        let mut snapshot = Snapshot {
            at: wall(),
            relays: vec![self.own().await],
            unanswered: Vec::new(),
            active: active.into_iter().map(|one| (one.number, one)).collect(),
            merged: BTreeMap::new(),
        };
        if self.relay.cluster_state().is_none() {
            return snapshot;
        }
        let mut silent = SilentRelays::default();
        let call = Call::Stats(StatsRequest {});
        let others = ask(&self.relay, call, &mut silent, |answer| match answer {
            Answer::Stats(stats) => Some(stats),
            _ => None,
        })
        .await;
        snapshot
            .relays
            .extend(others.into_iter().map(|(_, stats)| stats));
        snapshot.relays[1..].sort_by(|one, two| one.relay_id.cmp(&two.relay_id));
        let busiest = snapshot.busiest_since(previous);
        let names: BTreeSet<QueueAddress> =
            busiest.iter().map(|(one, _)| one.address.clone()).collect();
        snapshot.merged = named_queues(&self.relay, names, &mut silent).await;
        snapshot.unanswered = silent.ids.into_iter().collect();
        snapshot
    }
}

impl Snapshot {
    /// Returns the queues with the most notifications since an earlier moment, each with its
    /// notifications and messages.
    fn busiest_since(&self, previous: Option<&Self>) -> Vec<(&ActiveQueue, (u64, u64))> {
        let saturate = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        let since = |one: &ActiveQueue| {
            let known = previous.and_then(|previous| previous.active.get(&one.number));
            let before = known.map_or(one.since, |known| known.totals);
            (
                saturate(one.totals.0.saturating_sub(before.0)),
                saturate(one.totals.1.saturating_sub(before.1)),
            )
        };
        let all = self.active.values().map(|one| (one, since(one)));
        let mut all: Vec<_> = all.filter(|(_, (count, _))| *count > 0).collect();
        all.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        all.truncate(BUSIEST);
        all
    }

    fn response(&self, previous: Option<&Self>) -> proto::WatchStatsResponse {
        // Without an earlier response there is no span of which to state notifications.
        let busiest = previous.map(|_| self.busiest_since(previous));
        let busy = |(one, (notifications, messages)): (&ActiveQueue, (u64, u64))| {
            let mut queue = proto::BusyQueue {
                storage_account: one.address.storage_account().to_owned(),
                queue_name: one.address.queue_name().to_owned(),
                notifications,
                messages,
                backlog: one.backlog,
                listeners: u32::try_from(one.listeners).unwrap_or(u32::MAX),
            };
            if let Some(merged) = self.merged.get(&one.address.to_string()) {
                (queue.backlog, queue.listeners) = (merged.backlog, merged.listeners);
            }
            queue
        };
        let sum = Sum::of(&self.relays);
        proto::WatchStatsResponse {
            at: Some(self.at.into()),
            relays: self.relays.clone(),
            unanswered_relays: self.unanswered.clone(),
            totals: Some(sum.totals),
            levels: Some(sum.levels),
            savings: Some(sum.savings),
            busiest: busiest.into_iter().flatten().map(busy).collect(),
            findings: of_all(&self.relays, &self.unanswered),
        }
    }
}

impl StatsWatch {
    /// Returns the next response and the rest of the stream.
    pub(crate) async fn next(
        watch: Option<Self>,
    ) -> Option<(Result<proto::WatchStatsResponse, Status>, Option<Self>)> {
        let mut watch = watch?;
        let is_last = match watch.previous {
            None => false,
            Some(_) => watch.turn().await?,
        };
        let previous = watch.previous.as_ref();
        let snapshot = watch.source.compute(previous).await;
        spend(Work::Message(0));
        let response = snapshot.response(previous);
        watch.previous = Some(snapshot);
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
    ($sum:expr, $other:expr, [$($field:ident),+]) => {
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
        add!(
            self.totals,
            other,
            [
                notifications,
                messages,
                wakes,
                wake_entries,
                timed,
                heartbeats
            ]
        );
        add!(
            self.totals,
            other,
            [catch_ups, sentinels, reassigned, refused]
        );
        add_buckets(&mut self.totals.wake_latency, other.wake_latency.as_ref());
        add_buckets(
            &mut self.totals.handler_latency,
            other.handler_latency.as_ref(),
        );
    }

    fn add_levels(&mut self, other: &proto::Levels) {
        // A cluster's queues are known to each of its relays.
        self.levels.queues = self.levels.queues.max(other.queues);
        add!(self.levels, other, [subscriptions, asleep, awake, polling]);
        add!(
            self.levels,
            other,
            [
                active_dequeue_tasks,
                connections,
                flag_watchers,
                timers,
                unassigned
            ]
        );
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
