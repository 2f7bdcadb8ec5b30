//! A relay under attack, and a good publisher and subscriber that measure the effect.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use reveille::Credential;
use tokio::sync::{Mutex, MutexGuard};

use super::{
    good::{GoodPair, Latencies},
    target::{Certificates, Scheme, Target},
};
use crate::{binary::Binary, support::PATIENCE};

/// A relay in a separate process, its good pair, and the pair's latencies without an attack.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) relay: Binary,
    certificates: Option<Certificates>,
    /// Shown by regular clients.
    credential: Credential,
    good: GoodPair,
    /// A relay without an attack, and its pair: their latencies during the attack are those of the
    /// machine, which has other work than the test's.
    control: GoodPair,
    _control_relay: Binary,
    quiet: Latencies,
    _turn: MutexGuard<'static, ()>,
}

/// The relay of a trial.
#[derive(Debug, Default)]
pub(super) struct Setup<'a> {
    pub(super) arguments: &'a [&'a str],
    /// Shown by regular clients.
    pub(super) credential: Credential,
    /// Default: loopback.
    pub(super) listen: Option<IpAddr>,
}

/// The damage of an attack.
#[derive(Debug)]
pub(super) struct Damage {
    quiet: Latencies,
    during: Latencies,
    /// The latencies of the control during the attack.
    control: Latencies,
    after: Latencies,
    /// Maximum growth of the relay's resident memory, in KiB.
    pub(super) growth: u64,
    /// Growth that is left after the attack, in KiB.
    pub(super) kept: u64,
    attack: Usage,
    rest: Usage,
}

/// The relay's processor time in a period.
#[derive(Debug, Clone, Copy)]
struct Usage {
    took: Duration,
    processor: Duration,
}

/// One attack at a time: concurrent ones would disturb each other's latencies.
static TURN: Mutex<()> = Mutex::const_new(());

/// Number of the pair's wake-ups before the attack.
const QUIET: usize = 100;
/// Minimum of the pair's wake-ups during an attack, and after it.
const LEAST: usize = 100;
/// Interval of reading the relay's memory.
const LOOK: Duration = Duration::from_millis(5);
/// Limit of a good pair's 99th percentile under attack: five times the one of the control, or of the
/// pair before the attack, but at least this. Mostly this applies (they are 2 to 8 ms in a test build
/// on two cores).
const LATE: Duration = Duration::from_millis(50);
/// Limit of any wake-up.
const WORST: Duration = Duration::from_secs(1);
/// Limit of a late subscriber's catch-ups of 500 queues. A request that is refused once and
/// repeated takes longer.
const LATE_SUBSCRIBER: Duration = Duration::from_secs(2);
/// Limit of the relay's processor time after an attack, as a part of one processor. The good pair
/// alone needs a fifth of it.
const RESTING_PERCENT: u128 = 50;

impl Trial {
    /// Starts a relay with these arguments, in plain text or with TLS.
    pub(super) async fn start(scheme: Scheme, arguments: &[&str]) -> Self {
        let setup = Setup {
            arguments,
            ..Setup::default()
        };
        Self::with(scheme, setup).await
    }

    /// Starts a relay of this setup, in plain text or with TLS.
    pub(super) async fn with(scheme: Scheme, setup: Setup<'_>) -> Self {
        let turn = TURN.lock().await;
        let certificates = (scheme == Scheme::Tls).then(Certificates::new);
        let tls = certificates.as_ref().map(Certificates::arguments);
        let tls = tls.as_ref().map_or(&[][..], |tls| &tls[..]);
        let ip = setup.listen.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let relay = Binary::serve_on(ip, &[setup.arguments, tls].concat()).await;
        let control = Binary::serve_with(tls, &[]).await;
        Self::of(relay, control, certificates, setup.credential, turn).await
    }

    /// Starts a relay whose log is not read, with this filter.
    pub(super) async fn with_stalled_log(filter: &str) -> Self {
        let turn = TURN.lock().await;
        let variables = [("RUST_LOG".to_owned(), filter.to_owned())];
        let relay = Binary::serve_with_stalled_log(&variables).await;
        let control = Binary::serve().await;
        Self::of(relay, control, None, Credential::default(), turn).await
    }

    async fn of(
        relay: Binary,
        control_relay: Binary,
        certificates: Option<Certificates>,
        credential: Credential,
        turn: MutexGuard<'static, ()>,
    ) -> Self {
        let target = Target::new(&relay, certificates.as_ref());
        let good = GoodPair::start(target.with_credential(credential.clone())).await;
        let control = Target::new(&control_relay, certificates.as_ref());
        let control = GoodPair::start(control).await;
        let over = Arc::new(AtomicBool::new(true));
        let quiet = good.measure(over, QUIET).await;
        Self {
            relay,
            certificates,
            credential,
            quiet: quiet.await.expect("the pair lives"),
            good,
            control,
            _control_relay: control_relay,
            _turn: turn,
        }
    }

    pub(super) fn target(&self) -> Target {
        let target = Target::new(&self.relay, self.certificates.as_ref());
        target.with_credential(self.credential.clone())
    }

    pub(super) fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a relay with TLS")
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
        let (start, processor) = (Instant::now(), self.relay.processor());
        let over = Arc::new(AtomicBool::new(false));
        let during = self.good.measure(Arc::clone(&over), LEAST).await;
        let control = self.control.measure(Arc::clone(&over), LEAST).await;
        let mut attack = tokio::spawn(attack);
        let attacked = loop {
            let look = tokio::time::timeout(LOOK, &mut attack).await;
            most = most.max(self.relay.resident());
            if let Ok(attacked) = look {
                break attacked.expect("no panic");
            }
        };
        over.store(true, Ordering::Relaxed);
        // The pair itself gives a wake-up up after `PATIENCE`.
        let both = async { (during.await, control.await) };
        let both = tokio::time::timeout(2 * PATIENCE, both).await;
        let (during, control) = both.expect("in time");
        let attack = Usage {
            took: start.elapsed(),
            processor: self.relay.processor() - processor,
        };
        most = most.max(self.relay.resident());
        let (after, rest) = self.rest().await;
        let damage = Damage {
            quiet: self.quiet.clone(),
            during: during.expect("the pair lives"),
            control: control.expect("the control lives"),
            after,
            growth: most - before,
            kept: self.relay.resident().saturating_sub(before),
            attack,
            rest,
        };
        println!("{damage}");
        (attacked, damage)
    }

    /// Measures the good pair and the relay's processor time after an attack, until the relay rests.
    /// Some work of an attack may be left: streams that end, and bytes that were sent before.
    async fn rest(&self) -> (Latencies, Usage) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (start, processor) = (Instant::now(), self.relay.processor());
            let over = Arc::new(AtomicBool::new(true));
            let after = self.good.measure(over, LEAST).await;
            let after = after.await.expect("the pair lives");
            let rest = Usage {
                took: start.elapsed(),
                processor: self.relay.processor() - processor,
            };
            if rest.percent() <= RESTING_PERCENT || Instant::now() > end {
                return (after, rest);
            }
        }
    }
}

impl Usage {
    /// Returns the part of one processor.
    fn percent(self) -> u128 {
        100 * self.processor.as_micros() / self.took.as_micros().max(1)
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
        let quiet = self.quiet.p99().max(self.control.p99());
        let (late, worst) = (late.max(5 * quiet), WORST.max(5 * self.control.worst()));
        for measured in [&self.during, &self.after] {
            assert_eq!(measured.lost, 0, "lost notifications: {self}");
            assert!(measured.p99() <= late, "later than {late:?}: {self}");
            assert!(measured.worst() <= worst, "later than {worst:?}: {self}");
        }
        let subscribers = LATE_SUBSCRIBER.max(5 * self.control.late);
        assert!(self.during.late <= subscribers, "a late subscriber: {self}");
        let resting = self.rest.percent() <= RESTING_PERCENT;
        assert!(resting, "the relay goes on after the attack: {self}");
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [quiet, during, control, after] =
            [&self.quiet, &self.during, &self.control, &self.after].map(Latencies::p99);
        let (wakes, worst, lost) = (
            self.during.count(),
            self.during.worst(),
            self.during.lost + self.after.lost,
        );
        let (late, growth, kept) = (self.during.late, self.growth, self.kept);
        let Usage { took, processor } = self.attack;
        let (busy, resting) = (self.attack.percent(), self.rest.percent());
        write!(
            f,
            "p99 {during:.1?} of {wakes} wake-ups (worst {worst:.1?}), quiet {quiet:.1?}, control \
             {control:.1?}, after {after:.1?}; {lost} lost; late subscribers {late:.0?}; grew by {growth} KiB, kept \
             {kept} KiB; processor {processor:?} of {took:.1?} ({busy} %), after {resting} %"
        )
    }
}
