//! The runtime's part in a cluster: the machine on tokio's clock, and publishers that wait until
//! their causes are confirmed (C8).
//!
//! Knows no broker: `relay/nats` passes the messages on.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, OnceLock},
    task::Poll,
    time::Duration,
};

use tokio::sync::watch;

use super::{Relay, RelayInner, peer_calls::PeerTransport};
use crate::{
    base::{
        clock::Tick,
        histogram::{Histogram, HistogramSnapshot},
        log_limiter::LimitedCounts,
        sync::lock,
    },
    error::{Error, ErrorKind, Result},
    relay::{
        cluster::{ClusterNode, ClusterStats, HandedOver, TimerHandOver, TimersReply},
        link::PeerStats,
    },
    types::cluster::{HandedTimer, LifeId},
    wire::link::{peer_reply::Answer, peer_request::Call},
};

/// When publishers are answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClusterAck {
    /// When the broker has delivered the notification to all relays. A relay that dies afterwards
    /// loses nothing.
    #[default]
    Broker,
    /// When this relay has counted it. If the relay dies within milliseconds, the other relays'
    /// listeners find the work by the sentinel's next check.
    Local,
}

/// What a relay knows of its cluster.
#[derive(Debug)]
pub(super) struct ClusterHandle {
    ack: ClusterAck,
    state: watch::Sender<ClusterState>,
    node: Mutex<ClusterNode>,
    /// The times that frames took until they were confirmed.
    confirmations: Histogram,
    bad_replies: LimitedCounts<1>,
    /// C13: the way of requests to other relays.
    pub(super) transport: OnceLock<Arc<dyn PeerTransport>>,
}

/// What publishers, streams and readiness wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClusterState {
    /// All causes up to this position in the hub's list are confirmed.
    pub(crate) confirmed: u64,
    /// C8, C9: no publisher can be answered, and listeners poll.
    pub(crate) degraded: bool,
    /// C9: the relay may serve.
    pub(crate) ready: bool,
}

/// The machine of a relay, for the task that has the broker's client.
pub(crate) struct ClusterRunner {
    shared: Arc<RelayInner>,
}

/// Shows which causes are confirmed.
#[derive(Debug)]
pub(crate) struct Confirmations {
    state: watch::Receiver<ClusterState>,
}

/// A publisher waits no longer than this for its confirmation.
pub(crate) const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
/// A report waits no longer than this: a relay whose frame does not return is cut off after 3.5 s.
pub(super) const REPORTED_WITHIN: Duration = Duration::from_secs(4);
/// The wait for the reply to a request that hands timers over.
const HANDED_WITHIN: Duration = Duration::from_secs(1);
/// The pause after a request without a reply, which may come at once without the broker.
const PAUSE: Duration = Duration::from_millis(50);

impl ClusterHandle {
    pub(super) fn new(ack: ClusterAck, node: ClusterNode) -> Self {
        Self {
            ack,
            state: watch::Sender::new(ClusterState::default()),
            node: Mutex::new(node),
            confirmations: Histogram::default(),
            bad_replies: LimitedCounts::new(Duration::from_secs(60)),
            transport: OnceLock::new(),
        }
    }

    /// Returns the confirmations of causes, or `None` where publishers do not wait for them.
    pub(super) fn confirmations(&self) -> Option<Confirmations> {
        let state = (self.ack == ClusterAck::Broker).then(|| self.state.subscribe())?;
        Some(Confirmations { state })
    }

    #[cold]
    pub(super) fn refuse_reply(&self, life: LifeId, error: &Error, now: Tick) {
        lock(&self.node).count_refused();
        if let Some(suppressed) = self.bad_replies.note(0, now) {
            tracing::warn!(%life, %error, suppressed, "a reply of another relay is dropped");
        }
    }

    fn update(&self, node: &ClusterNode, now: Tick) {
        let state = ClusterState {
            confirmed: node.confirmed_position(),
            degraded: node.link().is_degraded(now),
            ready: node.is_ready(now),
        };
        self.state
            .send_if_modified(|known| std::mem::replace(known, state) != state);
    }
}

impl Relay {
    /// Returns the machine's driver, where the relay is one of a cluster.
    pub(crate) fn cluster_runner(&self) -> Option<ClusterRunner> {
        self.shared.cluster.as_ref().map(|_| ClusterRunner {
            shared: Arc::clone(&self.shared),
        })
    }

    /// Returns the state of the cluster, or `None` where the relay is alone.
    pub(crate) fn cluster_state(&self) -> Option<ClusterState> {
        let cluster = self.shared.cluster.as_ref()?;
        let state = *cluster.state.borrow();
        Some(state)
    }

    /// Returns the times that frames took until they were confirmed, or `None` where the relay is
    /// alone.
    pub(crate) fn cluster_confirmations(&self) -> Option<HistogramSnapshot> {
        let cluster = self.shared.cluster.as_ref()?;
        Some(cluster.confirmations.snapshot())
    }

    /// Returns the other relays and the totals, or `None` where the relay is alone.
    pub(crate) fn cluster_stats(&self) -> Option<(ClusterStats, Vec<PeerStats>)> {
        let cluster = self.shared.cluster.as_ref()?;
        let node = lock(&cluster.node);
        let peers = node.link().peers(self.now()).collect();
        Some((node.stats(), peers))
    }

    /// Hands all timers over, and returns when they are acknowledged, or no other relay takes them:
    /// after 5 s without a reply, or 20 s in all.
    ///
    /// # Cancel safety
    /// The timers of a dropped call that were acknowledged are at the other relays.
    pub(crate) async fn hand_over_timers(&self) -> HandedOver {
        self.settle().await;
        let lives = match &self.shared.cluster {
            Some(cluster) => lock(&cluster.node).present_lives(self.now()),
            None => VecDeque::new(),
        };
        let mut hand_over = TimerHandOver::new(&self.shared.hub, lives, self.now());
        while let Some((life, request)) = hand_over.next_request(self.now()) {
            let reply = match self.ask(life, Call::Timers(request), HANDED_WITHIN).await {
                Some(Answer::Done(_)) => TimersReply::Taken,
                Some(answer) => {
                    tracing::debug!(%life, ?answer, "timers are refused");
                    TimersReply::Refused
                }
                None => {
                    tokio::time::sleep(PAUSE).await;
                    TimersReply::Missing
                }
            };
            hand_over.replied(reply, self.now());
        }
        hand_over.handed_over()
    }

    /// Takes over the timers of another relay.
    ///
    /// # Errors
    /// `Unavailable` while this relay is shutting down; `Exhausted` where there is no room.
    pub(crate) fn take_over_timers(&self, timers: &[HandedTimer]) -> Result<()> {
        if self.is_draining() {
            let message = "timers: the relay is shutting down";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let now = self.shared.clock.now();
        self.shared.hub.take_over_timers(timers, now)
    }

    /// Waits until the subscriptions of ended streams are detached: the end of a busy listener sets a
    /// timer.
    async fn settle(&self) {
        let settled = async {
            while self.shared.hub.has_deferred_work() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Otherwise the timers of the rest are lost.
        let _ = tokio::time::timeout(HANDED_WITHIN, settled).await;
    }
}

impl ClusterRunner {
    /// Waits until [`ClusterNode::on_tick`] has something to do. Cancel safe.
    pub(crate) async fn due(&self) {
        let increments = &self.shared.hub.increments;
        let is_empty = increments.is_empty();
        let deadline = lock(&self.cluster().node).deadline();
        let sleep = tokio::time::sleep_until(self.shared.clock.instant(deadline));
        tokio::pin!(sleep);
        poll_fn(|cx| {
            if is_empty {
                increments.waker.register(cx.waker());
                // Read again after the waker is registered.
                if !increments.is_empty() {
                    return Poll::Ready(());
                }
            }
            sleep.as_mut().poll(cx)
        })
        .await;
    }

    /// Calls the machine, and takes over its state.
    pub(crate) fn run<T>(
        &self,
        call: impl FnOnce(&mut ClusterNode, Tick, &mut fastrand::Rng) -> T,
    ) -> T {
        let cluster = self.cluster();
        let mut node = lock(&cluster.node);
        let now = self.shared.clock.now();
        let result = call(&mut node, now, &mut fastrand::Rng::new());
        if let Some(after) = node.take_confirmed_after() {
            cluster.confirmations.observe(after);
        }
        cluster.update(&node, now);
        result
    }

    fn cluster(&self) -> &ClusterHandle {
        let cluster = self.shared.cluster.as_ref();
        cluster.expect("a runner has a cluster")
    }
}

impl Confirmations {
    /// Returns whether the causes up to a position are confirmed.
    ///
    /// # Errors
    /// `Unavailable` while this relay is isolated.
    pub(crate) fn check(&self, position: u64) -> Option<Result<()>> {
        let state = *self.state.borrow();
        match () {
            () if state.confirmed >= position => Some(Ok(())),
            () if state.degraded => Some(Err(Self::isolated())),
            () => None,
        }
    }

    /// Waits for the next change of the state after this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut state = self.state.clone();
        state.borrow_and_update();
        async move {
            // The sender lives as long as the relay.
            let _ = state.changed().await;
        }
    }

    /// Returns whether the causes up to a position are confirmed; not while this relay is isolated.
    ///
    /// # Errors
    /// `Unavailable` after this time.
    pub(super) async fn wait(mut self, position: u64, within: Duration) -> Result<bool> {
        let settled = self
            .state
            .wait_for(|state| state.confirmed >= position || state.degraded);
        match tokio::time::timeout(within, settled).await {
            Ok(state) => Ok(state.is_ok_and(|state| state.confirmed >= position)),
            Err(_) => Err(Self::late()),
        }
    }

    /// The causes are counted here, and are told to the other relays later.
    pub(crate) fn late() -> Error {
        let message = "cluster: counted here, but not confirmed by the broker in time; repeat it";
        Error::new(ErrorKind::Unavailable, message)
    }

    pub(super) fn isolated() -> Error {
        let message = "cluster: counted here, but this relay is cut off from the others; repeat it";
        Error::new(ErrorKind::Unavailable, message)
    }
}
