//! The life of one connection: what its parts share, and when it ends.
//!
//! All parts of a connection run in one task (see `task::TaskGroup`), so relaxed atomics suffice.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{all_connections::Connections, incidents::Incident, tls::Peer};
use crate::{
    base::{
        backoff::about,
        clock::{Clock, Tick, wall},
        eviction::PoolPlace,
        sync::lock,
        task::TaskGroup,
    },
    error::Result,
    relay::auth::Share,
};

/// State that the parts of one connection share.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(super) peer: Arc<Peer>,
    clock: Clock,
    shared: Arc<Connections>,
    /// Cancelled when the connection takes no more streams.
    ending_soon: CancellationToken,
    /// The peer did not answer in time, and the connection has ended.
    is_lost: AtomicBool,
    /// Counts the connection for the first principal that uses it.
    principal_share: OnceLock<Share>,
    /// Runs the connection and its streams.
    bundle: TaskGroup,
    /// The end of the peer's certificate: the connection ends gracefully then, and [`DRAIN_TIMEOUT`] later
    /// with its streams. The peer connects again, with its renewed one.
    certified_until: Option<Tick>,
    /// A request was admitted: of a known caller, or on a relay without access control.
    is_admitted: AtomicBool,
    /// Held until then: newer connections of the address may displace this one.
    unproven: Mutex<Option<PoolPlace>>,
    displaced: Option<CancellationToken>,
    /// A request that needs no caller was answered.
    is_probed: AtomicBool,
    /// Its streams that need no caller.
    open_to_all: Arc<Semaphore>,
    /// Its large answers that are not sent completely.
    pub(super) answers: Arc<Semaphore>,
    /// Its calls of the store.
    pub(super) store_calls: Semaphore,
    /// The connection must end, because it is over a limit.
    is_unwanted: Notify,
    /// The stream being polled has returned the answer to a unary request.
    unary_answer: AtomicBool,
    /// Bytes read since the connection was last polled.
    slice_read: AtomicUsize,
    ending: AtomicU8,
}

/// How a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
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
/// Large answers of one connection. An operator's command requests one page after another.
pub(crate) const MAX_ANSWERS: usize = 2;
/// Calls of the store for one connection; further ones are refused.
pub(crate) const MAX_STORE_CALLS: usize = 64;
/// Interval between two checks of a connection whose only streams need no caller.
const NOT_ADMITTED: Duration = Duration::from_secs(1);
/// Time after GOAWAY in which a peer without an admitted request reads its answers and closes.
const LINGER: Duration = Duration::from_secs(2);
/// Time for open calls when the server drains. All calls end by themselves; the slowest, a call of
/// the store, within 4 s. Later only answers are left that their peer does not read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Activity {
    /// The connection may take this place among those of its address.
    pub(crate) fn new(peer: Arc<Peer>, shared: Arc<Connections>, place: Option<PoolPlace>) -> Self {
        let clock = Clock::new();
        let certified_for = peer.certificate.left(wall());
        Self {
            peer,
            clock,
            ending_soon: shared.draining.child_token(),
            shared,
            is_lost: AtomicBool::new(false),
            principal_share: OnceLock::new(),
            bundle: TaskGroup::default(),
            certified_until: certified_for.map(|left| clock.now() + left),
            is_admitted: AtomicBool::new(false),
            displaced: place.as_ref().map(PoolPlace::token),
            unproven: Mutex::new(place),
            is_probed: AtomicBool::new(false),
            open_to_all: Arc::new(Semaphore::new(OPEN_TO_ALL)),
            answers: Arc::new(Semaphore::new(MAX_ANSWERS)),
            store_calls: Semaphore::new(MAX_STORE_CALLS),
            is_unwanted: Notify::new(),
            unary_answer: AtomicBool::new(false),
            slice_read: AtomicUsize::new(0),
            ending: AtomicU8::new(Ending::None as u8),
        }
    }

    /// Returns a connection's activity with default limits.
    #[cfg(test)]
    pub(in super::super) fn for_test(
        incidents: Arc<super::incidents::Incidents>,
        draining: CancellationToken,
    ) -> Arc<Self> {
        use super::tls::PeerCertificate;
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), PeerCertificate::default());
        let shared = Connections::for_test(incidents, draining);
        Arc::new(Self::new(Arc::new(peer), shared, None))
    }

    /// Returns the connection's age.
    pub(crate) fn age(&self) -> Duration {
        self.now().since(Tick::default())
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(super) fn shared(&self) -> &Connections {
        &self.shared
    }

    pub(crate) fn draining(&self) -> &CancellationToken {
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
    /// stream, at the latest after the time of an old one.
    pub(crate) fn end_soon(&self) {
        self.is_unwanted.notify_one();
    }

    /// The peer did not answer in time: the connection ends, and then its streams.
    pub(super) fn set_lost(&self) {
        self.is_lost.store(true, Relaxed);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    pub(super) fn bundle(&self) -> &TaskGroup {
        &self.bundle
    }

    /// Counts and logs an incident of the peer.
    pub(crate) fn note(&self, incident: Incident) {
        self.shared.incidents.note(incident, self.peer.address);
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

    /// Ends the connection, when it must: first gracefully, so that it closes with its last stream, and
    /// then at once. Runs as a part of the connection's bundle, which polls the connection after it.
    pub(super) async fn end_in_time(self: Arc<Self>) {
        let outlived = async {
            let left = self.takes_no_more().await;
            self.ending.store(Ending::Graceful as u8, Relaxed);
            self.ending_soon.cancel();
            let open = async {
                tokio::time::sleep(left).await;
                // A request that was admitted until the peer had read the GOAWAY.
                if left == LINGER && self.is_admitted.load(Relaxed) {
                    tokio::time::sleep(self.shared.grace).await;
                }
            };
            tokio::select! {
                () = open => {}
                () = self.must_drain() => tokio::time::sleep(DRAIN_TIMEOUT).await,
            }
        };
        tokio::select! {
            () = self.displaced() => self.note(Incident::AddressFull),
            () = outlived => {}
        }
        self.ending.store(Ending::Closed as u8, Relaxed);
    }

    /// Waits until the connection must take no more streams. Returns how long the open ones may last.
    async fn takes_no_more(&self) -> Duration {
        let age = about(self.shared.max_age, &mut fastrand::Rng::new());
        tokio::select! {
            () = self.must_drain() => DRAIN_TIMEOUT,
            () = self.is_not_admitted() => LINGER,
            () = self.is_unwanted.notified() => match self.is_admitted.load(Relaxed) {
                true => self.shared.grace,
                false => LINGER,
            },
            () = tokio::time::sleep(age) => self.shared.grace,
        }
    }

    /// Waits for a drain of the server, and for the end of the peer's certificate.
    async fn must_drain(&self) {
        let certificate_ends = async {
            match self.certified_until {
                Some(end) => tokio::time::sleep_until(self.clock.instant(end)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shared.draining.cancelled() => {}
            () = certificate_ends => {}
        }
    }

    /// Waits until the connection has had no admitted request for too long. Requests that are refused,
    /// and single probes of the health, do not keep it.
    async fn is_not_admitted(&self) {
        tokio::time::sleep(FIRST_STREAM).await;
        while !self.is_admitted.load(Relaxed) {
            if self.open_to_all.available_permits() == OPEN_TO_ALL {
                if !self.is_probed.load(Relaxed) {
                    self.note(Incident::Unused);
                }
                return;
            }
            tokio::time::sleep(NOT_ADMITTED).await;
        }
        std::future::pending::<()>().await;
    }

    async fn displaced(&self) {
        match &self.displaced {
            Some(displaced) => displaced.cancelled().await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::relay::server::http2::incidents::Incidents;

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
        // A stream that needs no caller may end first.
        let watching = activity(&CancellationToken::new());
        let streams = async {
            let permit = Arc::clone(watching.open_to_all()).try_acquire_owned();
            tokio::time::sleep(Duration::from_millis(29_500)).await;
            drop(permit.expect("a permit"));
        };
        let ended = ends(&watching, streams).await;
        assert!(alike(ended, [30, 32]), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unwanted_connection_lasts_only_with_an_admitted_request() {
        let refused = activity(&CancellationToken::new());
        refused.end_soon();
        let ended = ends(&refused, async {}).await;
        assert!(alike(ended, [0, 2]), "{ended:?}");
        // One caller of the connection was over a limit, another one is not.
        let admitted = activity(&CancellationToken::new());
        admitted.note_admitted();
        admitted.end_soon();
        let ended = ends(&admitted, async {}).await;
        assert!(alike(ended, [0, 60]), "{ended:?}");
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
    async fn an_old_connection_takes_no_more_streams_and_ends_later() {
        let activity = activity(&CancellationToken::new());
        activity.note_admitted();
        let [graceful, closed] = ends(&activity, async {}).await;
        let age = Duration::from_secs(3600);
        assert!(graceful.abs_diff(age) <= age / 10 + Duration::from_secs(1));
        assert!(alike([closed - graceful; 2], [60, 60]), "{closed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_and_the_end_of_a_certificate_leave_5_seconds() {
        let draining = CancellationToken::new();
        let drained = activity(&draining);
        drained.note_admitted();
        let drain = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            draining.cancel();
        };
        let ended = ends(&drained, drain).await;
        assert!(alike(ended, [20, 25]), "{ended:?}");
        let certified = activity(&CancellationToken::new());
        let certified = Arc::into_inner(certified).expect("no other");
        let certified = Arc::new(Activity {
            certified_until: Some(certified.now() + Duration::from_secs(30)),
            ..certified
        });
        certified.note_admitted();
        let ended = ends(&certified, async {}).await;
        assert!(alike(ended, [30, 35]), "{ended:?}");
    }
}
