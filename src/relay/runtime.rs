//! Runs the hub on tokio: timers, fan-out, forgetting, and the subscribers' streams.
//!
//! Also the in-process relay: a publisher and a subscription on the hub itself, without a network.
//! Knows neither gRPC nor stores.

mod cluster;
mod drain;
mod figures;
mod local;
mod message_stream;
mod peer_calls;
#[cfg(feature = "keda")]
mod scaled;
mod tasks;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

pub use self::cluster::ClusterAck;
pub(crate) use self::cluster::{CONFIRMED_WITHIN, ClusterRunner, Confirmations};
use self::cluster::{ClusterHandle, REPORTED_WITHIN};
use self::drain::DrainState;
pub(crate) use self::figures::RelaySurvey;
use self::figures::{History, SurveyCache};
pub use self::local::{LocalPublisher, LocalSubscription};
pub(crate) use self::message_stream::{MessageStream, poll_stream};
pub(crate) use self::peer_calls::{PeerService, PeerTransport, SilentRelays};
#[cfg(feature = "keda")]
pub(crate) use self::scaled::ScaledQueue;
#[cfg(feature = "keda")]
use self::scaled::ScaledQueues;
use crate::{
    base::{
        clock::{Clock, Tick, Timer},
        histogram::Histogram,
        log_limiter::LimitedCounts,
        random::random,
        sync::Mutex,
        task::Scope,
        text::opaque_debug,
    },
    error::{Error, ErrorKind, Result},
    relay::hub::{
        CursorPool, Epoch, Hub, HubConfig, HubStats, StreamConfig, SubscriberStream, SubscriptionId,
    },
    relay::{cluster::ClusterNode, link::LinkConfig},
    types::{Accepted, GroupName, Notification, Report, SubscribeOptions, check_name, check_text},
};

/// Settings of a relay.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The relay's name, which distinguishes its subscriptions from those of another relay. The
    /// names' rule.
    pub relay_id: String,
    /// A queue without subscribers and notifications for this long is forgotten; in a cluster at least
    /// 60 s.
    pub forget_after: Duration,
    /// The most queues in memory; at about 500 bytes each, a million of them is half a gigabyte.
    pub max_queues: usize,
    /// The most queues that all subscriptions together are attached to, at 370 bytes each at worst.
    /// Patterns may use three quarters of them; wake-ups for further queues go under the pattern's
    /// own name. A subscription that names more queues than are left is refused.
    pub max_cursors: usize,
    /// The same for one subscription.
    pub max_cursors_per_stream: usize,
    /// The most delayed wake-ups of publishers, at about 150 bytes each; further ones are refused.
    /// Listeners may report as many again.
    pub max_timers: usize,
    /// The most groups of all queues, at 2 KiB each at worst. The members of a further one are told as if
    /// outside of groups. Half of them may be without members.
    pub max_groups: usize,
    /// One listener checks a queue without reports for this long, give or take a tenth. It finds
    /// messages of a publisher that died between put and notify. Zero: never.
    pub sentinel_interval: Duration,
    /// A wake-up to one listener only, by a group or the sentinel, goes to another one after this
    /// time without a report of it; at least 10 ms.
    pub claim_timeout: Duration,
    /// A group member that reported BUSY counts as busy for this long after each report; at least
    /// 10 ms.
    pub busy_lease: Duration,
    /// A group is remembered for this long after its last member left.
    pub group_keep: Duration,
    /// A stream ends by itself at this age, give or take a tenth, so that streams spread over
    /// relays again after one was away.
    pub stream_max_age: Duration,
    /// When the relay drains, its streams end one after another within this span, so that clients
    /// move to other relays spread over it. Zero: at once.
    pub drain: Duration,
    /// How often a listener that polls would read each of its queues, to compute the reads that sleeping
    /// listeners save; at least 1 ms.
    pub assumed_poll: Duration,
    /// The price of a million reads, in [`currency`](Self::currency), for the figures of an operator.
    pub price_per_million: f64,
    /// The currency of the price; at most 16 bytes.
    pub currency: String,
}

/// A shorter time would be over before a report can arrive.
const SHORTEST_CLAIM: Duration = Duration::from_millis(10);
/// No listener polls faster.
const SHORTEST_POLL: Duration = Duration::from_millis(1);
/// In a cluster a queue must be known until a relay that served its group is found to be missing: that is
/// 35 s after its end at the latest (C7), and its members may have had the work for a while before.
const SHORTEST_MEMORY: Duration = Duration::from_secs(60);

/// A relay in this process. Cheap to clone; it ends with [`Relay::shutdown`], or with its last
/// handle.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// use reveille::{ListenerId, Notification, Notifier, QueueAddress, Relay, RelayConfig, SubscribeOptions, WakeStream};
///
/// let relay = Relay::start(RelayConfig::default())?;
/// let orders: QueueAddress = "acct/orders".parse()?;
/// let mut wakes = relay.subscribe(SubscribeOptions::new(ListenerId::new("worker-1")?, [orders.clone()]))?;
/// relay.publisher("billing").notify(vec![Notification::new(orders)]).await?;
/// let work = wakes.next().await.expect("the relay is alive")?;
/// assert_eq!(work.notifications, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Relay {
    shared: Arc<RelayInner>,
    scope: Arc<Scope>,
}

struct RelayInner {
    hub: Arc<Hub>,
    clock: Clock,
    stream_config: StreamConfig,
    drain: DrainState,
    survey: SurveyCache,
    counters: RelayMetrics,
    history: Mutex<History>,
    config: RelayConfig,
    #[cfg(feature = "keda")]
    scaled: Arc<ScaledQueues>,
    /// `None` where the relay is alone.
    cluster: Option<ClusterHandle>,
}

/// Totals of sent messages and refused requests.
#[derive(Debug, Default)]
pub(crate) struct RelayMetrics {
    pub(crate) wakes: AtomicU64,
    pub(crate) entries: AtomicU64,
    pub(crate) notifications: AtomicU64,
    pub(crate) heartbeats: AtomicU64,
    /// By [`Refused`].
    pub(crate) refusals: LimitedCounts<3>,
    /// From acceptance to sending: for each time that a stream takes its marks, the duration of the
    /// oldest notification.
    pub(crate) wake_latency: Histogram,
    /// From the publisher to the handler: the means that listeners report.
    pub(crate) handler_latency: Histogram,
}

/// A request that can be refused at a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Notify,
    Subscribe,
    Report,
}

impl Refused {
    fn text(self) -> &'static str {
        match self {
            Self::Notify => "refused notifications for want of room; their publisher repeats them",
            Self::Subscribe => "refused a subscription for want of room; its listener tries again",
            Self::Report => "refused a report for want of room; its listener repeats it",
        }
    }
}

impl Default for RelayConfig {
    fn default() -> Self {
        let hub = HubConfig::default();
        Self {
            relay_id: "relay".to_owned(),
            forget_after: hub.forget_after,
            max_queues: hub.max_queues,
            max_cursors: hub.max_cursors,
            max_cursors_per_stream: hub.max_cursors_per_stream,
            max_timers: hub.max_timers,
            max_groups: hub.max_groups,
            sentinel_interval: Duration::from_secs(60),
            claim_timeout: hub.claim_timeout,
            busy_lease: hub.busy_lease,
            group_keep: hub.group_keep,
            stream_max_age: Duration::from_secs(30 * 60),
            drain: Duration::ZERO,
            assumed_poll: hub.assumed_poll,
            // Azure's price of a queue's operations.
            price_per_million: 0.04,
            currency: "USD".to_owned(),
        }
    }
}

impl Relay {
    /// Starts a relay on the present tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the relay's id breaks the names' rule, or `claim_timeout` or
    /// `busy_lease` is below 10 ms;
    /// [`ErrorKind::Unavailable`] where the operating system gives no random numbers.
    pub fn start(config: RelayConfig) -> Result<Self> {
        Self::start_with(config, None)
    }

    /// Starts a relay that is one of a cluster, where `cluster` is given.
    pub(crate) fn start_with(config: RelayConfig, cluster: Option<ClusterAck>) -> Result<Self> {
        check_name("relay_id", &config.relay_id)?;
        for (field, span) in [
            ("claim_timeout", config.claim_timeout),
            ("busy_lease", config.busy_lease),
        ] {
            // Otherwise a wake-up would go from member to member without end.
            if span < SHORTEST_CLAIM {
                let rule = format_args!("must be at least {SHORTEST_CLAIM:?}, not {span:?}");
                return Err(Error::invalid(field, rule));
            }
        }
        check_tariff(&config)?;
        if cluster.is_some() && config.forget_after < SHORTEST_MEMORY {
            let after = config.forget_after;
            let rule =
                format_args!("must be at least {SHORTEST_MEMORY:?} in a cluster, not {after:?}");
            return Err(Error::invalid("forget_after", rule));
        }
        let epoch = Epoch(u128::from_le_bytes(random()?));
        let hub = Arc::new(Hub::new(HubConfig {
            epoch,
            seed: fastrand::u64(..),
            forget_after: config.forget_after,
            max_queues: config.max_queues,
            max_cursors: config.max_cursors,
            max_cursors_per_stream: config.max_cursors_per_stream,
            max_timers: config.max_timers,
            sentinel_interval: config.sentinel_interval,
            claim_timeout: config.claim_timeout,
            busy_lease: config.busy_lease,
            group_keep: config.group_keep,
            max_groups: config.max_groups,
            assumed_poll: config.assumed_poll,
            cluster: cluster.is_some(),
            ..HubConfig::default()
        }));
        let stream_config = StreamConfig {
            relay_id: config.relay_id.as_str().into(),
            epoch: epoch.to_string().into(),
            version: env!("CARGO_PKG_VERSION").into(),
            max_age: config.stream_max_age,
            throttle_from: StreamConfig::THROTTLE_FROM,
        };
        let clock = Clock::new();
        let shared = Arc::new(RelayInner {
            cluster: cluster.map(|ack| {
                let link = LinkConfig {
                    life: epoch,
                    relay_id: Arc::clone(&stream_config.relay_id),
                    version: Arc::clone(&stream_config.version),
                };
                let node = ClusterNode::new(Arc::clone(&hub), link, clock.now());
                ClusterHandle::new(ack, node)
            }),
            hub,
            clock,
            stream_config,
            drain: DrainState::new(config.drain),
            survey: SurveyCache::default(),
            counters: RelayMetrics::default(),
            history: Mutex::default(),
            #[cfg(feature = "keda")]
            scaled: Arc::default(),
            config,
        });
        let scope = Scope::new();
        tasks::spawn(&scope, &shared);
        Ok(Self {
            shared,
            scope: Arc::new(scope),
        })
    }

    /// Returns the id of this run of the relay, 32 hexadecimal digits; each start has a new one.
    pub fn epoch(&self) -> &str {
        &self.shared.stream_config.epoch
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.shared.hub
    }

    pub(crate) fn clock(&self) -> Clock {
        self.shared.clock
    }

    pub(crate) fn now(&self) -> Tick {
        self.shared.clock.now()
    }

    /// Returns the relay's name.
    pub fn relay_id(&self) -> &str {
        &self.shared.stream_config.relay_id
    }

    /// Returns a publisher on this relay; wake-ups carry its `name`.
    pub fn publisher(&self, name: &str) -> LocalPublisher {
        LocalPublisher {
            relay: self.clone(),
            name: name.into(),
        }
    }

    /// Returns a subscription on this relay.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] or [`ErrorKind::Exhausted`] where the options break a rule,
    /// [`ErrorKind::Unavailable`] where the relay is shutting down.
    #[allow(clippy::needless_pass_by_value, reason = "as the client takes them")]
    pub fn subscribe(&self, options: SubscribeOptions) -> Result<LocalSubscription> {
        LocalSubscription::new(self, &options)
    }

    /// Ends all streams, and waits until the relay's own tasks have ended.
    pub async fn shutdown(&self) {
        self.drain_over(Some(Duration::ZERO));
        self.scope.shutdown().await;
    }

    /// Counts notifications and wakes their subscribers.
    pub(crate) fn notify(
        &self,
        publisher: &Arc<str>,
        notifications: &[Notification],
    ) -> Vec<Result<Accepted>> {
        let now = self.shared.clock.now();
        let results = self.shared.hub.notify(publisher, notifications, now);
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.refused(Refused::Notify, error, now);
        }
        results
    }

    /// Returns the confirmations of causes, or `None` where publishers do not wait for them.
    pub(crate) fn confirmations(&self) -> Option<Confirmations> {
        self.shared.cluster.as_ref()?.confirmations()
    }

    /// Returns the position in the hub's list behind all causes that this relay has counted so far.
    pub(crate) fn counted_position(&self) -> u64 {
        let cluster = self.shared.cluster.as_ref();
        cluster.map_or(0, |_| self.shared.hub.increments.appended())
    }

    /// Waits until the causes that this relay has counted so far are confirmed.
    ///
    /// # Errors
    /// `Unavailable` where they are not, within a second.
    pub(crate) async fn confirm(&self) -> Result<()> {
        let confirmed = self.settled(CONFIRMED_WITHIN).await?;
        confirmed.then_some(()).ok_or_else(Confirmations::isolated)
    }

    /// Returns whether these causes are confirmed; not where the relay is cut off.
    async fn settled(&self, within: Duration) -> Result<bool> {
        match self.confirmations() {
            Some(confirmations) => confirmations.wait(self.counted_position(), within).await,
            None => Ok(true),
        }
    }

    /// Opens a stream of messages. Its cursors count in the pool as well.
    pub(crate) fn open_stream<S>(
        &self,
        pool: Option<Arc<CursorPool>>,
        options: &SubscribeOptions,
        max_age: Duration,
        sink: S,
    ) -> Result<MessageStream<S>> {
        self.check_accepts_streams()?;
        let config = StreamConfig {
            max_age,
            ..self.shared.stream_config.clone()
        };
        let (hub, now) = (&self.shared.hub, self.shared.clock.now());
        let mut rng = fastrand::Rng::new();
        let id = SubscriptionId(u128::from_le_bytes(random()?));
        let listener = &options.listener_id;
        let relay = self.relay_id();
        let subscription = format_args!("{relay}/{:032x}", id.0);
        let span = tracing::debug_span!("stream", %listener, %subscription);
        let subscription = hub.subscribe_in(pool, id, options, now);
        let subscription =
            subscription.inspect_err(|error| self.refused(Refused::Subscribe, error, now))?;
        span.in_scope(|| {
            let queues = options.selectors.len();
            tracing::debug!(
                queues,
                group = options.group.as_ref().map(GroupName::as_str),
                "a stream is opened"
            );
        });
        let stream = SubscriberStream::new(
            Arc::clone(hub),
            subscription,
            options,
            &config,
            now,
            &mut rng,
        );
        Ok(MessageStream {
            stream,
            shared: Arc::clone(&self.shared),
            timer: Timer::new(self.shared.clock),
            sink,
            span,
        })
    }

    /// Takes a report for the subscription with this id from a Welcome. Of one that counts a cause, waits
    /// until that is confirmed, or the relay is cut off: its own listeners poll then, and its next frame
    /// tells the others.
    ///
    /// # Errors
    /// Also `Unavailable` where neither happens soon.
    pub(crate) async fn report(&self, subscription_id: &str, report: &Report) -> Result<()> {
        let id = self.subscription_id(subscription_id)?;
        let now = self.shared.clock.now();
        let (queue, state) = (&report.queue, report.state);
        tracing::debug!(subscription = subscription_id, %queue, ?state, "a report");
        let taken = self.shared.hub.report(id, report, now);
        if taken.is_ok() && !report.mean_wake_latency.is_zero() {
            let counters = &self.shared.counters;
            counters.handler_latency.observe(report.mean_wake_latency);
        }
        taken.inspect_err(|error| self.refused(Refused::Report, error, now))?;
        if report.counts_a_cause() {
            self.settled(REPORTED_WITHIN).await?;
        }
        Ok(())
    }

    /// Counts a refusal at a limit, and no other error.
    #[cold]
    fn refused(&self, request: Refused, error: &Error, now: Tick) {
        if error.kind() == ErrorKind::Exhausted
            && let Some(suppressed) = self.shared.counters.refusals.note(request as usize, now)
        {
            tracing::warn!(%error, suppressed, "{}", request.text());
        }
    }

    /// Reads a subscription id: one of another relay is `Unavailable`, never `NotFound`.
    fn subscription_id(&self, text: &str) -> Result<SubscriptionId> {
        let unknown = || {
            Error::new(
                ErrorKind::NotFound,
                // The id is not repeated in the message: it may be as long as a request.
                "subscription_id: it is not known here",
            )
        };
        let (relay, id) = text.rsplit_once('/').ok_or_else(unknown)?;
        if *relay != *self.shared.stream_config.relay_id {
            let message = "subscription_id: it belongs to another relay";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        u128::from_str_radix(id, 16)
            .map(SubscriptionId)
            .map_err(|_| unknown())
    }

    pub(crate) fn stats(&self) -> (HubStats, &RelayMetrics) {
        (self.shared.hub.stats(), &self.shared.counters)
    }
}

/// Checks the settings of what polling would cost.
fn check_tariff(config: &RelayConfig) -> Result<()> {
    if config.assumed_poll < SHORTEST_POLL {
        let rule = format_args!(
            "must be at least {SHORTEST_POLL:?}, not {:?}",
            config.assumed_poll
        );
        return Err(Error::invalid("assumed_poll", rule));
    }
    if !config.price_per_million.is_finite() || config.price_per_million < 0.0 {
        return Err(Error::invalid("price_per_million", "must be 0 or more"));
    }
    check_text("currency", &config.currency, 16)
}

opaque_debug!(Relay: relay_id(), epoch());
