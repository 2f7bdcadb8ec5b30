//! Counts one connection's streams, and ends an idle connection.
//!
//! All parts of a connection run in one task (see `task::TaskGroup`), so relaxed atomics suffice.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{budget::RequestBudget, incidents::Incident, memory::Holder, shared::Shared};
use crate::{
    base::{
        backoff::about,
        clock::{Clock, Tick},
        eviction::PoolPlace,
        sync::lock,
        task::TaskGroup,
    },
    error::Result,
    relay::auth::Share,
};

/// State that the parts of one connection share.
#[derive(Debug)]
pub(super) struct Activity {
    peer: SocketAddr,
    clock: Clock,
    shared: Arc<Shared>,
    /// Cancelled when the connection takes no more streams.
    ending_soon: CancellationToken,
    /// The process is short of memory, and this connection holds much of it.
    must_close: Notify,
    budget: RequestBudget,
    /// Payload of DATA frames that was received and is not read by a service yet, and that a service
    /// has answered and is not sent yet. A stream that is reset leaves its part, until the connection
    /// has no stream.
    unread: AtomicUsize,
    unsent: AtomicUsize,
    /// The peer did not answer in time, and the connection has ended.
    is_lost: AtomicBool,
    /// The socket took no more at the last write.
    write_waits: AtomicBool,
    /// Counts the connection for the first principal that uses it.
    principal_share: OnceLock<Share>,
    /// Runs the connection and its streams.
    bundle: TaskGroup,
    /// The end of the peer's certificate.
    certified_until: Option<Tick>,
    /// Number of open streams.
    open_streams: AtomicUsize,
    /// A request was admitted: of a known caller, or on a relay without access control.
    is_admitted: AtomicBool,
    /// Held until then: newer connections of the address may displace this one.
    unproven: Mutex<Option<PoolPlace>>,
    displaced: Option<CancellationToken>,
    /// A request that needs no caller was answered.
    is_probed: AtomicBool,
    /// Its streams that need no caller.
    open_to_all: Arc<Semaphore>,
    /// The connection must end, because it is over a limit.
    is_unwanted: Notify,
    /// End time of the last stream, in nanoseconds of the clock.
    idle_since: AtomicU64,
    /// The stream being polled has returned the answer to a unary request.
    unary_answer: AtomicBool,
    /// Bytes read since the connection was last polled.
    slice_read: AtomicUsize,
    ending: AtomicU8,
}

/// Counts a stream while it is open.
#[derive(Debug)]
pub(super) struct OpenStream(Arc<Activity>);

/// How a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Ending {
    /// It goes on.
    None = 0,
    /// No new streams; it ends with the last open one.
    Graceful = 1,
    /// It ends at once.
    Closed = 2,
}

/// Time for a new connection's first stream: a client connects because it has a request.
const FIRST_STREAM: Duration = Duration::from_secs(10);
/// Streams of one connection that need no caller: clients behind a proxy share one, and each watches
/// the health.
const OPEN_TO_ALL: usize = 64;
/// Interval between two checks of a connection whose only streams need no caller.
const NOT_ADMITTED: Duration = Duration::from_secs(1);
/// Default idle time-out. A client that is used every few minutes keeps its connection; others
/// reconnect by themselves.
pub(crate) const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Time after GOAWAY in which the peer reads the last answers and closes.
const LINGER: Duration = Duration::from_secs(2);
/// Time for open calls when the server drains. All calls end by themselves; the slowest, a call of
/// the store, within 4 s. Later only answers are left that their peer does not read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Activity {
    pub(super) fn new(peer: SocketAddr, shared: Arc<Shared>, budget: RequestBudget) -> Self {
        Self {
            peer,
            clock: Clock::new(),
            ending_soon: shared.draining.child_token(),
            shared,
            must_close: Notify::new(),
            budget,
            unread: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
            write_waits: AtomicBool::new(false),
            principal_share: OnceLock::new(),
            bundle: TaskGroup::default(),
            certified_until: None,
            open_streams: AtomicUsize::new(0),
            is_admitted: AtomicBool::new(false),
            unproven: Mutex::default(),
            displaced: None,
            is_probed: AtomicBool::new(false),
            open_to_all: Arc::new(Semaphore::new(OPEN_TO_ALL)),
            is_unwanted: Notify::new(),
            idle_since: AtomicU64::new(0),
            unary_answer: AtomicBool::new(false),
            slice_read: AtomicUsize::new(0),
            ending: AtomicU8::new(Ending::None as u8),
        }
    }

    /// Ends the connection after this time, because the peer's certificate ends then: gracefully, and
    /// [`DRAIN_TIMEOUT`] later with its streams. The peer connects again, with its renewed one.
    pub(super) fn certified_for(mut self, time: Option<Duration>) -> Self {
        self.certified_until = time.map(|time| self.now() + time);
        self
    }

    /// Ends the connection if a newer one of its address takes this place before a request is admitted.
    pub(super) fn unproven(mut self, place: Option<PoolPlace>) -> Self {
        self.displaced = place.as_ref().map(PoolPlace::token);
        self.unproven = Mutex::new(place);
        self
    }

    /// Returns a connection's activity with default limits.
    #[cfg(test)]
    pub(super) fn for_test(
        incidents: Arc<super::incidents::Incidents>,
        draining: CancellationToken,
    ) -> Arc<Self> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let budget = RequestBudget::new();
        let shared = Shared::for_test(incidents, draining);
        Arc::new(Self::new(peer, shared, budget))
    }

    /// Returns the connection's age.
    pub(super) fn age(&self) -> Duration {
        self.now().since(Tick::default())
    }

    pub(super) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(super) fn draining(&self) -> &CancellationToken {
        &self.shared.draining
    }

    /// Cancelled when the connection takes no more streams: those without an age must end then.
    pub(super) fn ending_soon(&self) -> &CancellationToken {
        &self.ending_soon
    }

    /// Counts the connection for a principal, unless it counts already; `take` takes its share.
    ///
    /// # Errors
    /// Of `take`.
    pub(super) fn count_for(&self, take: impl FnOnce() -> Result<Option<Share>>) -> Result<()> {
        if self.principal_share.get().is_none()
            && let Some(share) = take()?
        {
            // Requests of one connection are handled one after another.
            let _ = self.principal_share.set(share);
        }
        Ok(())
    }

    /// Returns the permits of the streams that need no caller.
    pub(super) fn open_to_all(&self) -> &Arc<Semaphore> {
        &self.open_to_all
    }

    /// Notes that a request was admitted, so that the connection may wait for the next one.
    pub(super) fn note_admitted(&self) {
        if !self.is_admitted.load(Relaxed) {
            self.is_admitted.store(true, Relaxed);
            drop(lock(&self.unproven).take());
        }
    }

    /// Notes a request that needs no caller. It does not keep the connection.
    pub(super) fn note_probe(&self) {
        self.is_probed.store(true, Relaxed);
    }

    /// Ends the connection: [`LINGER`] later if no request of it was admitted, else with its last
    /// stream.
    pub(super) fn end_soon(&self) {
        self.is_unwanted.notify_one();
    }

    /// The peer did not answer in time: the connection ends, and then its streams.
    pub(super) fn set_lost(&self) {
        self.is_lost.store(true, Relaxed);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    pub(super) fn note_received(&self, data: usize) {
        self.unread.fetch_add(data, Relaxed);
    }

    pub(super) fn note_read(&self, data: usize) {
        subtract(&self.unread, data);
    }

    pub(super) fn note_answered(&self, data: usize) {
        self.unsent.fetch_add(data, Relaxed);
    }

    /// Notes whether the socket takes more.
    pub(super) fn note_write(&self, waits: bool) {
        self.write_waits.store(waits, Relaxed);
    }

    pub(super) fn note_sent(&self, data: usize) {
        subtract(&self.unsent, data);
    }

    pub(super) fn budget(&self) -> &RequestBudget {
        &self.budget
    }

    pub(super) fn bundle(&self) -> &TaskGroup {
        &self.bundle
    }

    /// Counts and logs an incident of the peer.
    pub(super) fn note(&self, incident: Incident) {
        self.shared.incidents.note(incident, self.peer);
    }

    pub(super) fn open_stream(self: &Arc<Self>) -> OpenStream {
        self.open_streams.fetch_add(1, Relaxed);
        OpenStream(Arc::clone(self))
    }

    /// Notes that the stream being polled has returned the answer to a unary request.
    pub(super) fn note_unary_answer(&self) {
        self.unary_answer.store(true, Relaxed);
    }

    /// Returns whether a unary answer was noted since the last call.
    pub(super) fn take_unary_answer(&self) -> bool {
        // Mostly there is none, and a load is cheaper than a swap.
        self.unary_answer.load(Relaxed) && self.unary_answer.swap(false, Relaxed)
    }

    /// The connection is polled: it may read another slice.
    pub(super) fn begin_slice(&self) {
        self.slice_read.store(0, Relaxed);
    }

    pub(super) fn add_to_slice(&self, bytes: usize) {
        self.slice_read.fetch_add(bytes, Relaxed);
    }

    /// Returns the bytes read since the connection was last polled.
    pub(super) fn slice_read(&self) -> usize {
        self.slice_read.load(Relaxed)
    }

    /// Returns how the connection must end. `Graceful` is returned once.
    pub(super) fn take_ending(&self) -> Ending {
        match self.ending.load(Relaxed) {
            0 => return Ending::None,
            1 => self.ending.store(Ending::None as u8, Relaxed),
            _ => return Ending::Closed,
        }
        Ending::Graceful
    }

    /// Ends the connection when the server drains or when it has no streams for too long. First it
    /// ends gracefully. It is closed [`LINGER`] after the last stream's end or [`DRAIN_TIMEOUT`]
    /// after the start of the drain. Runs as a part of the connection's bundle, which polls the
    /// connection after it.
    pub(super) async fn end_in_time(self: Arc<Self>) {
        let age = about(self.shared.lifetimes.max_age, &mut fastrand::Rng::new());
        tokio::select! {
            () = self.must_close.notified() => {}
            () = self.displaced() => self.note(Incident::AddressFull),
            () = self.ends_with_time(age) => {}
        }
        self.ending.store(Ending::Closed as u8, Relaxed);
    }

    async fn ends_with_time(&self, age: Duration) {
        let aged = tokio::time::sleep(age);
        let outlived = tokio::time::sleep(age.saturating_add(self.shared.lifetimes.grace));
        let is_unwanted = tokio::select! {
            () = self.shared.draining.cancelled() => false,
            () = self.idle_too_long() => !self.is_admitted.load(Relaxed),
            () = self.certificate_ends() => false,
            () = self.is_unwanted.notified() => true,
            () = aged => false,
        };
        self.ending.store(Ending::Graceful as u8, Relaxed);
        self.ending_soon.cancel();
        tokio::select! {
            () = self.lingered() => {}
            () = self.lingered_unwanted(), if is_unwanted => {}
            () = self.drained() => {}
            () = self.uncertified() => {}
            () = outlived => {}
        }
    }

    async fn displaced(&self) {
        match &self.displaced {
            Some(displaced) => displaced.cancelled().await,
            None => std::future::pending().await,
        }
    }

    async fn uncertified(&self) {
        self.certificate_ends().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    }

    async fn certificate_ends(&self) {
        match self.certified_until {
            Some(end) => tokio::time::sleep_until(self.clock.instant(end)).await,
            None => std::future::pending().await,
        }
    }

    /// Waits for [`LINGER`] after this call and after the last stream's end.
    async fn lingered(&self) {
        let called_at = self.now();
        loop {
            let since = self.idle_since().max(called_at);
            let left = LINGER.saturating_sub(self.now().since(since));
            if self.is_idle() && left.is_zero() {
                return;
            }
            tokio::time::sleep(if self.is_idle() { left } else { LINGER }).await;
        }
    }

    /// A peer may open streams until it has answered the GOAWAY. Those that need no caller, or are
    /// refused, do not keep the connection.
    async fn lingered_unwanted(&self) {
        tokio::time::sleep(LINGER).await;
        if self.is_admitted.load(Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    async fn drained(&self) {
        self.shared.draining.cancelled().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    }

    /// Waits until the connection has had no stream for too long. Checks at intervals, so that
    /// opening and closing streams needs no timer.
    async fn idle_too_long(&self) {
        let idle_timeout = self.shared.lifetimes.idle;
        tokio::time::sleep(FIRST_STREAM.min(idle_timeout)).await;
        // Requests that are refused, and single probes of the health, do not keep a connection.
        while !self.is_admitted.load(Relaxed) {
            if self.open_to_all.available_permits() == OPEN_TO_ALL {
                if !self.is_probed.load(Relaxed) {
                    self.note(Incident::Unused);
                }
                return;
            }
            tokio::time::sleep(NOT_ADMITTED).await;
        }
        loop {
            let idle = match self.is_idle() {
                true => self.now().since(self.idle_since()),
                false => Duration::ZERO,
            };
            if idle >= idle_timeout {
                return;
            }
            tokio::time::sleep(idle_timeout - idle).await;
        }
    }

    fn is_idle(&self) -> bool {
        self.open_streams.load(Relaxed) == 0
    }

    fn idle_since(&self) -> Tick {
        Tick::from_nanos(self.idle_since.load(Relaxed))
    }
}

impl Holder for Activity {
    fn held(&self) -> usize {
        self.unread.load(Relaxed) + self.unsent.load(Relaxed) + self.budget.bytes()
    }

    fn close(&self) {
        self.note(Incident::Greedy);
        self.must_close.notify_one();
    }
}

/// Subtracts a part that may be counted already.
fn subtract(count: &AtomicUsize, part: usize) {
    let less = |count: usize| Some(count.saturating_sub(part));
    let _ = count.fetch_update(Relaxed, Relaxed, less);
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let activity = &self.0;
        if activity.open_streams.fetch_sub(1, Relaxed) == 1 {
            let now = activity.now().as_nanos();
            activity.idle_since.store(now, Relaxed);
            activity.unread.store(0, Relaxed);
            if !activity.write_waits.load(Relaxed) {
                activity.unsent.store(0, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::relay::server::incidents::Incidents;

    fn activity(draining: &CancellationToken) -> Arc<Activity> {
        Activity::for_test(Arc::new(Incidents::new()), draining.clone())
    }

    /// Runs `end_in_time` and `streams`; returns the times of the graceful end and the close.
    async fn ends(activity: &Arc<Activity>, streams: impl Future<Output = ()>) -> [Duration; 2] {
        let mut ended = [Duration::ZERO; 2];
        let poll = async {
            loop {
                match activity.take_ending() {
                    Ending::None => {}
                    Ending::Graceful => ended[0] = activity.now().since(Tick::default()),
                    Ending::Closed => break,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ended[1] = activity.now().since(Tick::default());
        };
        tokio::join!(poll, Arc::clone(activity).end_in_time(), streams);
        ended
    }

    /// Returns whether the times are equal but for the milliseconds of polling.
    fn alike(ended: [Duration; 2], seconds: [u64; 2]) -> bool {
        let difference = |(one, other): (Duration, u64)| one.abs_diff(Duration::from_secs(other));
        let mut differences = ended.into_iter().zip(seconds).map(difference);
        differences.all(|difference| difference < Duration::from_millis(10))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_an_admitted_request_ends_after_10_seconds() {
        let unused = activity(&CancellationToken::new());
        let ended = ends(&unused, async {}).await;
        assert!(alike(ended, [10, 12]), "{ended:?}");
        // Requests that are refused change nothing; a stream that needs no caller may end first.
        let refused = activity(&CancellationToken::new());
        let streams = async {
            let permit = Arc::clone(refused.open_to_all()).try_acquire_owned();
            let watch = (refused.open_stream(), permit.expect("a permit"));
            tokio::time::sleep(Duration::from_millis(29_500)).await;
            drop(watch);
            drop(refused.open_stream());
        };
        let ended = ends(&refused, streams).await;
        assert!(alike(ended, [30, 32]), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_over_a_limit_ends_with_its_last_answer() {
        let activity = activity(&CancellationToken::new());
        activity.end_soon();
        let ended = ends(&activity, async {}).await;
        assert!(alike(ended, [0, 2]), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unwanted_connection_waits_for_its_admitted_streams() {
        // One caller of the connection was over a limit, another one is not.
        let admitted = activity(&CancellationToken::new());
        let stream = admitted.open_stream();
        admitted.note_admitted();
        admitted.end_soon();
        let streams = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(stream);
        };
        let ended = ends(&admitted, streams).await;
        assert_eq!(ended[0].as_secs(), 0);
        assert!((62..=64).contains(&ended[1].as_secs()), "{ended:?}");
        let refused = activity(&CancellationToken::new());
        let _stream = refused.open_stream();
        refused.end_soon();
        let ended = ends(&refused, async {}).await;
        assert!(alike(ended, [0, 2]), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_of_the_health_is_no_incident() {
        let incidents = Arc::new(Incidents::new());
        for (is_probe, noted) in [(false, 1), (true, 1)] {
            let token = CancellationToken::new();
            let activity = Activity::for_test(Arc::clone(&incidents), token);
            if is_probe {
                activity.note_probe();
            }
            ends(&activity, async {}).await;
            assert_eq!(incidents.count(Incident::Unused), noted, "{is_probe}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_5_minutes_after_its_last_stream() {
        let activity = activity(&CancellationToken::new());
        let streams = async {
            activity.note_admitted();
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
    async fn a_drain_waits_for_streams_and_not_for_the_idle_time_out() {
        let draining = CancellationToken::new();
        let activity = activity(&draining);
        activity.note_admitted();
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
    async fn a_drain_does_not_wait_for_an_unread_stream() {
        let draining = CancellationToken::new();
        let activity = activity(&draining);
        activity.note_admitted();
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
