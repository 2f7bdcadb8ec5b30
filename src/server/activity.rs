//! One connection's streams, and when the connection ends for want of them.
//!
//! All parts of a connection run in one task (see `task::TaskGroup`), so its figures need no order
//! among each other.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    budget::RequestBudget,
    incidents::{Incident, Incidents},
};
use crate::{
    clock::{Clock, Tick},
    task::TaskGroup,
};

/// What one connection does, and what its parts share.
#[derive(Debug)]
pub(super) struct Activity {
    peer: SocketAddr,
    clock: Clock,
    incidents: Arc<Incidents>,
    draining: CancellationToken,
    budget: RequestBudget,
    /// Runs the connection and its streams.
    bundle: TaskGroup,
    /// Without streams for this long, it ends.
    idle: Duration,
    /// Streams that are open.
    open: AtomicUsize,
    /// Whether any stream was opened.
    opened: AtomicBool,
    /// When the last stream ended, in nanoseconds of the clock.
    idle_since: AtomicU64,
    /// The stream that is being polled has made the answer to a unary request.
    unary_answer: AtomicBool,
    ending: AtomicU8,
}

/// Counts a stream while it is open.
#[derive(Debug)]
pub(super) struct OpenStream(Arc<Activity>);

/// How a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Ending {
    /// Not yet.
    None = 0,
    /// No further streams; it ends when the open ones have.
    Graceful = 1,
    /// At once.
    Closed = 2,
}

/// A client connects because it has a request.
const FIRST_STREAM: Duration = Duration::from_secs(10);
/// Below what a client that is used every few minutes would notice; it connects again by itself.
pub(crate) const IDLE: Duration = Duration::from_secs(5 * 60);
/// For a peer that was told to go: it reads the answers that are on their way, and closes.
const LINGER: Duration = Duration::from_secs(2);
/// For what is on its way when the server drains. All calls come to their end by themselves then,
/// the slowest, which asks the store, within 4 s; what is left is not read by its peer.
const DRAINED_WITHIN: Duration = Duration::from_secs(5);

impl Activity {
    pub(super) fn new(
        peer: SocketAddr,
        incidents: Arc<Incidents>,
        budget: RequestBudget,
        draining: CancellationToken,
        idle: Duration,
    ) -> Self {
        Self {
            peer,
            clock: Clock::new(),
            incidents,
            draining,
            budget,
            bundle: TaskGroup::default(),
            idle,
            open: AtomicUsize::new(0),
            opened: AtomicBool::new(false),
            idle_since: AtomicU64::new(0),
            unary_answer: AtomicBool::new(false),
            ending: AtomicU8::new(Ending::None as u8),
        }
    }

    pub(super) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(super) fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    pub(super) fn budget(&self) -> &RequestBudget {
        &self.budget
    }

    pub(super) fn bundle(&self) -> &TaskGroup {
        &self.bundle
    }

    /// Counts and logs what the peer did.
    pub(super) fn note(&self, incident: Incident) {
        self.incidents.note(incident, self.peer);
    }

    pub(super) fn open_stream(self: &Arc<Self>) -> OpenStream {
        self.open.fetch_add(1, Relaxed);
        self.opened.store(true, Relaxed);
        OpenStream(Arc::clone(self))
    }

    /// The stream that is being polled has made the answer to a unary request.
    pub(super) fn note_unary_answer(&self) {
        self.unary_answer.store(true, Relaxed);
    }

    /// Returns whether that happened since the last call.
    pub(super) fn take_unary_answer(&self) -> bool {
        // Read first: mostly it has not, and a read is cheaper than an exchange.
        self.unary_answer.load(Relaxed) && self.unary_answer.swap(false, Relaxed)
    }

    /// Returns how the connection is to end; each kind of end once.
    pub(super) fn take_ending(&self) -> Ending {
        match self.ending.load(Relaxed) {
            0 => return Ending::None,
            1 => self.ending.store(Ending::None as u8, Relaxed),
            _ => return Ending::Closed,
        }
        Ending::Graceful
    }

    /// Has the connection end when the server drains or when it has no streams for too long: no
    /// further streams at first, then at once, [`LINGER`] after the last stream's end, or
    /// [`DRAINED_WITHIN`] after the drain's begin. A part of the connection's bundle, which polls
    /// the connection after it.
    pub(super) async fn end_in_time(self: Arc<Self>) {
        tokio::select! {
            () = self.draining.cancelled() => {}
            () = self.unused() => {}
        }
        self.ending.store(Ending::Graceful as u8, Relaxed);
        tokio::select! {
            () = self.left() => {}
            () = self.drained() => {}
        }
        self.ending.store(Ending::Closed as u8, Relaxed);
    }

    /// Waits until the last stream has ended [`LINGER`] ago, and this was called as long ago.
    async fn left(&self) {
        let told = self.now();
        loop {
            let since = self.idle_since().max(told);
            let left = LINGER.saturating_sub(self.now().since(since));
            if self.is_idle() && left.is_zero() {
                return;
            }
            tokio::time::sleep(if self.is_idle() { left } else { LINGER }).await;
        }
    }

    async fn drained(&self) {
        self.draining.cancelled().await;
        tokio::time::sleep(DRAINED_WITHIN).await;
    }

    /// Waits until the connection has opened no stream for too long. Looks now and then, so that
    /// streams that come and go cost no timer.
    async fn unused(&self) {
        tokio::time::sleep(FIRST_STREAM.min(self.idle)).await;
        if !self.opened.load(Relaxed) {
            self.note(Incident::Unused);
            return;
        }
        loop {
            let idle = match self.is_idle() {
                true => self.now().since(self.idle_since()),
                false => Duration::ZERO,
            };
            if idle >= self.idle {
                return;
            }
            tokio::time::sleep(self.idle - idle).await;
        }
    }

    fn is_idle(&self) -> bool {
        self.open.load(Relaxed) == 0
    }

    fn idle_since(&self) -> Tick {
        Tick::from_nanos(self.idle_since.load(Relaxed))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let activity = &self.0;
        if activity.open.fetch_sub(1, Relaxed) == 1 {
            let now = activity.now().as_nanos();
            activity.idle_since.store(now, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(draining: &CancellationToken) -> Arc<Activity> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let (incidents, budget) = (Arc::new(Incidents::new()), RequestBudget::new());
        let activity = Activity::new(peer, incidents, budget, draining.clone(), IDLE);
        Arc::new(activity)
    }

    /// Runs the connection's end beside `streams`; returns when it became graceful and when closed.
    async fn ends(activity: &Arc<Activity>, streams: impl Future<Output = ()>) -> [Duration; 2] {
        let mut ended = [Duration::ZERO; 2];
        let poll = async {
            loop {
                match activity.take_ending() {
                    Ending::None => {}
                    Ending::Graceful => ended[0] = activity.now().since(Tick::default()),
                    Ending::Closed => break,
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            ended[1] = activity.now().since(Tick::default());
        };
        tokio::join!(poll, Arc::clone(activity).end_in_time(), streams);
        ended
    }

    /// Whether two spans are the same but for the milliseconds of their polling.
    fn alike(ended: [Duration; 2], seconds: [u64; 2]) -> bool {
        let difference = |(one, other): (Duration, u64)| one.abs_diff(Duration::from_secs(other));
        let mut differences = ended.into_iter().zip(seconds).map(difference);
        differences.all(|difference| difference < Duration::from_millis(10))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_stream_ends_after_10_seconds() {
        let activity = activity(&CancellationToken::new());
        let ended = ends(&activity, async {}).await;
        assert!(alike(ended, [10, 12]), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_5_minutes_after_its_last_stream() {
        let activity = activity(&CancellationToken::new());
        let streams = async {
            let long = activity.open_stream();
            tokio::time::sleep(Duration::from_secs(400)).await;
            drop(long);
            tokio::time::sleep(Duration::from_secs(200)).await;
            drop(activity.open_stream());
        };
        let ended = ends(&activity, streams).await;
        assert!(alike(ended, [900, 902]), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_streams_a_while_and_not_for_silence() {
        let draining = CancellationToken::new();
        let activity = activity(&draining);
        let streams = async {
            let stream = activity.open_stream();
            tokio::time::sleep(Duration::from_secs(20)).await;
            draining.cancel();
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(stream);
        };
        let ended = ends(&activity, streams).await;
        assert_eq!(ended[0].as_secs(), 20);
        assert!((23..=24).contains(&ended[1].as_secs()), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_does_not_wait_for_a_stream_that_is_not_read() {
        let draining = CancellationToken::new();
        let activity = activity(&draining);
        let unread = activity.open_stream();
        let streams = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            draining.cancel();
        };
        let ended = ends(&activity, streams).await;
        assert!(alike(ended, [20, 25]), "{ended:?}");
        drop(unread);
    }
}
