//! A relay under attack, and a good publisher and subscriber that measure the effect.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Mutex, MutexGuard};

use super::good::{GoodPair, Latencies};
use crate::{binary::Binary, support::PATIENCE};

/// A relay in a separate process, its good pair, and the pair's latencies without an attack.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) relay: Binary,
    good: GoodPair,
    quiet: Latencies,
    _turn: MutexGuard<'static, ()>,
}

/// The damage of an attack.
#[derive(Debug)]
pub(super) struct Damage {
    quiet: Latencies,
    during: Latencies,
    /// Maximum growth of the relay's resident memory, in KiB.
    pub(super) growth: u64,
}

/// One attack at a time: concurrent ones would disturb each other's latencies.
static TURN: Mutex<()> = Mutex::const_new(());

/// Number of the pair's wake-ups before the attack.
const QUIET: usize = 200;
/// Minimum of the pair's wake-ups during an attack.
const LEAST: usize = 100;
/// Interval of reading the relay's memory.
const LOOK: Duration = Duration::from_millis(5);
/// Limit of a good pair's 99th percentile under attack: ten times the quiet one, but at least this.
/// Mostly this applies (the quiet one is 2 ms in a test build on two cores).
const LATE: Duration = Duration::from_millis(50);
/// Limit of any wake-up.
const WORST: Duration = Duration::from_secs(1);
/// Limit of a late subscriber's catch-ups of 500 queues. A request that is refused once and
/// repeated takes longer.
const LATE_SUBSCRIBER: Duration = Duration::from_secs(2);

impl Trial {
    /// Starts a relay with these arguments.
    pub(super) async fn start(arguments: &[&str]) -> Self {
        let turn = TURN.lock().await;
        Self::of(Binary::serve_with(arguments, &[]).await, turn).await
    }

    /// Starts a relay whose log is not read, with this filter.
    pub(super) async fn with_stalled_log(filter: &str) -> Self {
        let turn = TURN.lock().await;
        let variables = [("RUST_LOG".to_owned(), filter.to_owned())];
        Self::of(Binary::serve_with_stalled_log(&variables).await, turn).await
    }

    async fn of(relay: Binary, turn: MutexGuard<'static, ()>) -> Self {
        let good = GoodPair::start(relay.url()).await;
        let over = Arc::new(AtomicBool::new(true));
        let quiet = good.measure(over, QUIET).await;
        Self {
            relay,
            quiet: quiet.await.expect("the pair lives"),
            good,
            _turn: turn,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.relay.address().parse().expect("an address")
    }

    pub(super) fn admin(&self) -> SocketAddr {
        self.relay.admin()
    }

    /// Runs an attack in a separate task, and the good pair concurrently until the attack ends.
    pub(super) async fn under<T: Send + 'static>(
        &mut self,
        attack: impl Future<Output = T> + Send + 'static,
    ) -> (T, Damage) {
        let before = self.relay.resident();
        let mut most = before;
        let over = Arc::new(AtomicBool::new(false));
        let mut during = self.good.measure(Arc::clone(&over), LEAST).await;
        let mut attack = tokio::spawn(attack);
        let attacked = loop {
            let look = tokio::time::timeout(LOOK, &mut attack).await;
            most = most.max(self.relay.resident());
            if let Ok(attacked) = look {
                break attacked.expect("no panic");
            }
        };
        over.store(true, Ordering::Relaxed);
        let during = tokio::time::timeout(PATIENCE, &mut during).await;
        let damage = Damage {
            quiet: self.quiet.clone(),
            during: during.expect("in time").expect("the pair lives"),
            growth: most.max(self.relay.resident()) - before,
        };
        println!("{damage}");
        (attacked, damage)
    }
}

impl Damage {
    /// Checks that the good pair was not disturbed, and that the relay grew by no more than this.
    pub(super) fn is_within(&self, kib: u64) {
        self.is_within_late(kib, LATE);
    }

    /// The same with another limit of the good pair's latency.
    pub(super) fn is_within_late(&self, kib: u64, late: Duration) {
        assert!(self.growth <= kib, "more than {kib} KiB: {self}");
        let late = late.max(10 * self.quiet.p99());
        assert!(self.during.p99() <= late, "later than {late:?}: {self}");
        assert!(self.during.worst() <= WORST, "later than {WORST:?}: {self}");
        let subscribers = LATE_SUBSCRIBER;
        assert!(self.during.late <= subscribers, "a late subscriber: {self}");
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (quiet, during) = (self.quiet.p99(), self.during.p99());
        let (wakes, worst) = (self.during.count(), self.during.worst());
        let (late, growth) = (self.during.late, self.growth);
        write!(
            f,
            "p99 {during:?} of {wakes} wake-ups (worst {worst:?}), quiet {quiet:?}; late \
             subscribers {late:?}; grew by {growth} KiB"
        )
    }
}
