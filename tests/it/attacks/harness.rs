//! A relay under attack, and a good publisher and subscriber that measure what it costs them.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use reveille::{Client, Notification, Publisher, Subscription};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    binary::Binary,
    support::{listening, queue, woken},
};

/// A relay in a process of its own, a good pair on it, and the pair's figures while all is quiet.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) relay: Binary,
    good: GoodPair,
    quiet: Latencies,
    _turn: MutexGuard<'static, ()>,
}

/// What an attack cost.
#[derive(Debug)]
pub(super) struct Damage {
    quiet: Latencies,
    during: Latencies,
    /// KiB by which the relay's resident memory grew at most.
    pub(super) growth: u64,
}

/// A publisher and a subscriber of one queue.
#[derive(Debug)]
struct GoodPair {
    publisher: Publisher,
    wakes: Subscription,
}

/// The spans from notification to wake-up, sorted.
#[derive(Debug, Clone)]
struct Latencies(Vec<Duration>);

/// One attack at a time: they measure latencies, and two would measure each other.
static TURN: Mutex<()> = Mutex::const_new(());

/// The pair's wake-ups before the attack.
const QUIET: usize = 200;
/// The pair's wake-ups during the shortest attack.
const LEAST: usize = 100;
/// Between two wake-ups of the pair.
const PAUSE: Duration = Duration::from_millis(5);
/// A good pair's 99th percentile under attack, on two cores. Ten times the quiet figure, of about
/// 2 ms in a test build, is less: on a machine that does other things as well it would measure those.
const LATE: Duration = Duration::from_millis(50);

impl Trial {
    /// Starts a relay with these arguments.
    pub(super) async fn start(arguments: &[&str]) -> Self {
        let turn = TURN.lock().await;
        Self::of(Binary::serve_with(arguments, &[]).await, turn).await
    }

    /// Starts a relay whose log nobody reads, with this filter.
    pub(super) async fn with_stalled_log(filter: &str) -> Self {
        let turn = TURN.lock().await;
        let variables = [("RUST_LOG".to_owned(), filter.to_owned())];
        Self::of(Binary::serve_with_stalled_log(&variables).await, turn).await
    }

    async fn of(relay: Binary, turn: MutexGuard<'static, ()>) -> Self {
        let mut good = GoodPair::start(&relay.url()).await;
        let mut quiet = Vec::new();
        for _ in 0..QUIET {
            quiet.push(good.wake().await);
        }
        Self {
            relay,
            good,
            quiet: Latencies::new(quiet),
            _turn: turn,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.relay.address().parse().expect("an address")
    }

    pub(super) fn admin(&self) -> SocketAddr {
        self.relay.admin()
    }

    /// Runs an attack in a task of its own, and the good pair beside it until it has ended.
    pub(super) async fn under<T: Send + 'static>(
        &mut self,
        attack: impl Future<Output = T> + Send + 'static,
    ) -> (T, Damage) {
        let before = self.relay.resident();
        let mut most = before;
        let mut during = Vec::new();
        let attack = tokio::spawn(attack);
        while !attack.is_finished() || during.len() < LEAST {
            during.push(self.good.wake().await);
            most = most.max(self.relay.resident());
        }
        let damage = Damage {
            quiet: self.quiet.clone(),
            during: Latencies::new(during),
            growth: most - before,
        };
        println!("{damage}");
        (attack.await.expect("no panic"), damage)
    }
}

impl Damage {
    /// Checks that the good pair did not notice, and that the relay grew by no more than this.
    pub(super) fn is_within(&self, kib: u64) {
        assert!(self.growth <= kib, "more than {kib} KiB: {self}");
        assert!(self.during.p99() <= LATE, "later than {LATE:?}: {self}");
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (quiet, during) = (self.quiet.p99(), self.during.p99());
        let (wakes, growth) = (self.during.0.len(), self.growth);
        let worst = self.during.0.last().copied().unwrap_or_default();
        write!(
            f,
            "p99 {during:?} of {wakes} wake-ups (worst {worst:?}), quiet {quiet:?}; grew by {growth} KiB"
        )
    }
}

impl GoodPair {
    async fn start(url: &str) -> Self {
        let client = Client::new(url).expect("a client");
        let mut wakes = client
            .subscribe(listening("good", &["good/pair"]))
            .expect("options");
        woken(&mut wakes).await;
        let publisher = client.publisher("good");
        Self { publisher, wakes }
    }

    /// Notifies, and returns how long the wake-up took. One that is lost ends the test.
    async fn wake(&mut self) -> Duration {
        tokio::time::sleep(PAUSE).await;
        let start = Instant::now();
        let notify = self.publisher.notify(Notification::new(queue("good/pair")));
        let (notified, _) = tokio::join!(notify, woken(&mut self.wakes));
        notified.expect("counted");
        start.elapsed()
    }
}

impl Latencies {
    fn new(mut spans: Vec<Duration>) -> Self {
        spans.sort_unstable();
        Self(spans)
    }

    fn p99(&self) -> Duration {
        self.0[(self.0.len() - 1) * 99 / 100]
    }
}
