//! The life of one connection: what its parts share, and when it ends.
//!
//! All parts of a connection run in one task (see `task::TaskGroup`), so relaxed atomics suffice.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use http::Extensions;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{all_connections::Connections, incidents::Incident, tls::Peer};
use crate::{
    base::{backoff::about, clock::wall, task::TaskGroup},
    error::Result,
    relay::{
        auth::{Resource, Share},
        runtime::Relay,
        server::access::requester::Requester,
    },
};

/// State that the parts of one connection share. An extension of each request, for its service.
#[derive(Debug)]
pub(crate) struct Activity {
    pub(in super::super) peer: Arc<Peer>,
    began: Instant,
    pub(super) shared: Arc<Connections>,
    /// Cancelled when the connection takes no more streams: those without an age must end then.
    pub(in super::super) ending_soon: CancellationToken,
    /// The peer did not answer in time, and the connection has ended.
    pub(in super::super) is_lost: AtomicBool,
    /// Of its newest request.
    pub(super) last_caller: Mutex<Option<Requester>>,
    /// Counts the connection for the first principal that uses it.
    principal_share: OnceLock<Share>,
    /// Runs the connection and its streams.
    pub(super) bundle: TaskGroup,
    /// A request was admitted: of a known caller, or on a relay without access control.
    is_admitted: AtomicBool,
    /// The connection must end, because it is over a limit.
    is_unwanted: Notify,
    /// Bytes read since the connection was last polled.
    pub(super) slice_read: AtomicUsize,
    /// It takes no new streams, and ends with the last open one.
    pub(super) is_going_away: AtomicBool,
    /// It ends at once.
    pub(super) is_closed: AtomicBool,
}

/// A stream counts for the relay, and for its principal, until its answer has ended.
pub(crate) type StreamShares = (OwnedSemaphorePermit, Option<Share>);

/// Time for a new connection's first admitted request: a client connects because it has one. Requests
/// that are refused, and probes of the health, do not count.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Time after GOAWAY in which a peer without an admitted request reads its answers and closes.
const LINGER: Duration = Duration::from_secs(2);
/// Time for open calls when the server drains. All calls end by themselves; the slowest, a call of
/// the store, within 4 s. Later only answers are left that their peer does not read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Activity {
    pub(crate) fn new(peer: Arc<Peer>, shared: Arc<Connections>) -> Self {
        Self {
            peer,
            began: Instant::now(),
            ending_soon: shared.draining.child_token(),
            shared,
            is_lost: AtomicBool::new(false),
            last_caller: Mutex::default(),
            principal_share: OnceLock::new(),
            bundle: TaskGroup::default(),
            is_admitted: AtomicBool::new(false),
            is_unwanted: Notify::new(),
            slice_read: AtomicUsize::new(0),
            is_going_away: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Counts the connection for a caller, which has the right to its request; it may wait for the next
    /// one.
    ///
    /// # Errors
    /// The caller has too many connections; this one ends.
    pub(crate) fn admit(&self, requester: &Requester) -> Result<()> {
        if self.principal_share.get().is_none() {
            let share = requester.take(Resource::Connections, 1);
            // A connection over the limit must not stay.
            if let Some(share) = share.inspect_err(|_| self.end_soon())? {
                // Requests of one connection are handled one after another.
                let _ = self.principal_share.set(share);
            }
        }
        self.is_admitted.store(true, Relaxed);
        Ok(())
    }

    /// Takes a stream of the relay, and of the caller.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) with the limit.
    pub(crate) fn take_stream(&self, requester: &Requester) -> Result<StreamShares> {
        let shares = self.shared.take_stream().and_then(|of_relay| {
            let of_principal = requester.take(Resource::Streams, 1)?;
            Ok((of_relay, of_principal))
        });
        shares.inspect_err(|_| self.note(Incident::StreamRefused))
    }

    /// Ends a connection of at least this age: it takes no more streams.
    pub(crate) fn end_if_older(&self, age: Duration) {
        if self.began.elapsed() >= age {
            self.end_soon();
        }
    }

    /// Ends the connection: [`LINGER`] later if no request of it was admitted, else with its last
    /// stream, at the latest after the time of an old one.
    pub(crate) fn end_soon(&self) {
        self.is_unwanted.notify_one();
    }

    /// Counts and logs an incident of the peer.
    pub(crate) fn note(&self, incident: Incident) {
        self.shared.incidents.note(incident, self.peer.address);
    }

    /// Ends the connection, when it must: first gracefully, so that it closes with its last stream, and
    /// then at once. Runs as a part of the connection's bundle.
    pub(super) async fn end_in_time(self: Arc<Self>) {
        let age = about(self.shared.max_age, &mut fastrand::Rng::new());
        let certified = self.peer.certificate.left(wall());
        let certified = certified.and_then(|left| Instant::now().checked_add(left));
        tokio::select! {
            () = self.must_drain(certified) => {}
            () = self.is_unused() => {}
            () = self.is_unwanted.notified() => {}
            () = sleep(age) => {}
        }
        self.is_going_away.store(true, Relaxed);
        self.bundle.wake_main();
        self.ending_soon.cancel();
        let outlived = async {
            sleep(LINGER).await;
            // Also by a request that came before the peer had read the GOAWAY.
            if self.is_admitted.load(Relaxed) {
                sleep(self.shared.grace).await;
            }
        };
        let drained = async {
            self.must_drain(certified).await;
            sleep(DRAIN_TIMEOUT).await;
        };
        tokio::select! {
            () = outlived => {}
            () = drained => {}
        }
        self.is_closed.store(true, Relaxed);
        self.bundle.wake_main();
    }

    /// Waits for a drain of the server, and for the end of the peer's certificate: it connects again, with
    /// its renewed one.
    async fn must_drain(&self, certified_until: Option<Instant>) {
        let certificate_ends = async {
            match certified_until {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shared.draining.cancelled() => {}
            () = certificate_ends => {}
        }
    }

    /// Waits until the connection has had no admitted request for too long.
    async fn is_unused(&self) {
        sleep(FIRST_REQUEST).await;
        if self.is_admitted.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        self.note(Incident::Unused);
    }
}

/// Checks that the relay takes a stream. Where it drains, the connection takes no more: behind a balancer
/// the client's next one leads to another relay.
pub(crate) fn check_accepts_streams(relay: &Relay, extensions: &Extensions) -> Result<()> {
    relay.check_accepts_streams().inspect_err(|_| {
        if let Some(activity) = extensions.get::<Arc<Activity>>() {
            activity.end_soon();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::relay::server::{
        access::Access,
        http2::{accept::ServerConfig, server_limits::ServerLimits, tls::PeerCertificate},
    };

    /// Returns the activity of a connection on loopback with default limits.
    fn activity_of(certificate: PeerCertificate, draining: &CancellationToken) -> Arc<Activity> {
        let config = ServerConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            limits: ServerLimits::default(),
            stream_max_age: Duration::ZERO,
            tls: None,
            access: Access::default(),
        };
        let shared = Arc::new(Connections::new(&config, draining.clone(), None));
        let peer = Peer::new(([127, 0, 0, 1], 1).into(), certificate);
        Arc::new(Activity::new(Arc::new(peer), shared))
    }

    fn activity(draining: &CancellationToken) -> Arc<Activity> {
        activity_of(PeerCertificate::default(), draining)
    }

    /// Runs `end_in_time` and `streams`; returns the times of the graceful end and the close.
    async fn ends(activity: &Arc<Activity>, streams: impl Future<Output = ()>) -> [Duration; 2] {
        let mut ended = [Duration::ZERO; 2];
        let poll = async {
            loop {
                if ended[0].is_zero() && activity.is_going_away.load(Relaxed) {
                    ended[0] = activity.began.elapsed();
                }
                if activity.is_closed.load(Relaxed) {
                    break;
                }
                sleep(Duration::from_millis(5)).await;
            }
            ended[1] = activity.began.elapsed();
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
    }

    #[tokio::test(start_paused = true)]
    async fn an_unwanted_connection_lasts_only_with_an_admitted_request() {
        let refused = activity(&CancellationToken::new());
        refused.end_soon();
        let ended = ends(&refused, async {}).await;
        assert!(alike(ended, [0, 2]), "{ended:?}");
        // One caller of the connection was over a limit, another one is not.
        let admitted = activity(&CancellationToken::new());
        admitted.is_admitted.store(true, Relaxed);
        admitted.end_soon();
        let ended = ends(&admitted, async {}).await;
        assert!(alike(ended, [0, 62]), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_takes_no_more_streams_and_ends_later() {
        let activity = activity(&CancellationToken::new());
        activity.is_admitted.store(true, Relaxed);
        let [graceful, closed] = ends(&activity, async {}).await;
        let age = Duration::from_secs(3600);
        assert!(graceful.abs_diff(age) <= age / 10 + Duration::from_secs(1));
        assert!(alike([closed - graceful; 2], [62, 62]), "{closed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_and_the_end_of_a_certificate_leave_5_seconds() {
        let draining = CancellationToken::new();
        let drained = activity(&draining);
        drained.is_admitted.store(true, Relaxed);
        let drain = async {
            sleep(Duration::from_secs(20)).await;
            draining.cancel();
        };
        let ended = ends(&drained, drain).await;
        assert!(alike(ended, [20, 25]), "{ended:?}");
        let certificate = PeerCertificate {
            expires_at: Some(wall() + Duration::from_secs(30)),
            ..PeerCertificate::default()
        };
        let certified = activity_of(certificate, &CancellationToken::new());
        certified.is_admitted.store(true, Relaxed);
        let ended = ends(&certified, async {}).await;
        assert!(alike(ended, [30, 35]), "{ended:?}");
    }
}
