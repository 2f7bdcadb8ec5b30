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

use super::{
    good::{GoodPair, Latencies},
    target::{Certificates, Scheme, Target},
};
use crate::{
    binary::{Binary, processor_of, processor_of_all},
    support::PATIENCE,
};

/// A relay in a separate process, and its good pair.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) relay: Binary,
    certificates: Option<Certificates>,
    /// Shown by regular clients.
    credential: Credential,
    good: GoodPair,
    /// A relay without an attack, and its pair: their latencies at the same time are those of the
    /// machine, which has other work than the test's.
    control: GoodPair,
    control_relay: Binary,
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
    during: Compared,
    after: Compared,
    /// Maximum growth of the relay's resident memory, in KiB.
    pub(super) growth: u64,
    /// Growth that is left after the attack, in KiB.
    pub(super) kept: u64,
    attack: Usage,
    /// In the pair's measurement after the attack.
    calm: Usage,
    /// After it, when nobody uses the relay.
    rest: Usage,
}

/// The latencies of the good pair and of the control in the same period.
#[derive(Debug)]
struct Compared {
    good: Latencies,
    control: Latencies,
}

/// Processor times in a period.
#[derive(Debug, Clone, Copy)]
struct Usage {
    took: Duration,
    /// The relay's.
    processor: Duration,
    /// That of programs which are not part of the trial.
    others: Duration,
}

/// The begin of a period.
struct Begun {
    at: Instant,
    processor: Duration,
    others: Duration,
}

/// Minimum of the pair's wake-ups during an attack, and after it.
const LEAST: usize = 100;
/// Interval of reading the relay's memory.
const LOOK: Duration = Duration::from_millis(5);
/// Limit of a good pair's 99th percentile: five times the one of the control, but at least this.
/// Mostly this applies (they are 2 to 8 ms in a test build on two cores).
const LATE: Duration = Duration::from_millis(50);
/// The part of the machine that other programs use where it counts as busy, and what the limit is there
/// at least: the scheduler prefers the control, which mostly sleeps, to the relay under attack.
const BUSY_PERCENT: u128 = 20;
const LATE_WHEN_BUSY: Duration = Duration::from_millis(200);
/// Limit of any wake-up: five times the control's, but at least this.
const WORST: Duration = Duration::from_secs(1);
/// Limit of a late subscriber's catch-ups of 500 queues. A request that is refused once and
/// repeated takes longer.
const LATE_SUBSCRIBER: Duration = Duration::from_secs(2);
/// Limit of the relay's processor time after an attack, as a part of one processor: nobody uses it then.
const RESTING_PERCENT: u128 = 20;
/// The period that it is measured in.
const RESTING: Duration = Duration::from_millis(300);

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
        let certificates = (scheme == Scheme::Tls).then(Certificates::new);
        let tls = certificates.as_ref().map(Certificates::arguments);
        let tls = tls.as_ref().map_or(&[][..], |tls| &tls[..]);
        let ip = setup.listen.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let arguments = [setup.arguments, tls].concat();
        let relay = Binary::serve_on(ip, &arguments);
        let (relay, control) = tokio::join!(relay, Binary::serve_with(tls, &[]));
        Self::of(relay, control, certificates, setup.credential).await
    }

    /// Starts a relay whose log is not read, with this filter.
    pub(super) async fn with_stalled_log(filter: &str) -> Self {
        let variables = [("RUST_LOG".to_owned(), filter.to_owned())];
        let relay = Binary::serve_with_stalled_log(&variables).await;
        let control = Binary::serve().await;
        Self::of(relay, control, None, Credential::default()).await
    }

    async fn of(
        relay: Binary,
        control_relay: Binary,
        certificates: Option<Certificates>,
        credential: Credential,
    ) -> Self {
        let target = Target::new(&relay, certificates.as_ref());
        let good = GoodPair::start(target.with_credential(credential.clone())).await;
        let control = Target::new(&control_relay, certificates.as_ref());
        let control = GoodPair::start(control).await;
        Self {
            relay,
            certificates,
            credential,
            good,
            control,
            control_relay,
        }
    }

    pub(super) fn target(&self) -> Target {
        let target = Target::new(&self.relay, self.certificates.as_ref());
        target.with_credential(self.credential.clone())
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
        let begun = self.begin();
        let over = Arc::new(AtomicBool::new(false));
        let during = self.measure(Arc::clone(&over)).await;
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
        let during = tokio::time::timeout(2 * PATIENCE, during).await;
        let during = during.expect("in time");
        let attack = self.usage_since(&begun);
        most = most.max(self.relay.resident());
        let (after, calm, rest) = self.rest().await;
        let damage = Damage {
            during,
            after,
            growth: most - before,
            kept: self.relay.resident().saturating_sub(before),
            attack,
            calm,
            rest,
        };
        println!("{damage}");
        (attacked, damage)
    }

    fn begin(&self) -> Begun {
        Begun {
            at: Instant::now(),
            processor: self.relay.processor(),
            others: self.others(),
        }
    }

    fn usage_since(&self, begun: &Begun) -> Usage {
        Usage {
            took: begun.at.elapsed(),
            processor: self.relay.processor() - begun.processor,
            others: self.others().saturating_sub(begun.others),
        }
    }

    /// Returns the processor time that all programs have used but those of the trial.
    fn others(&self) -> Duration {
        let own = self.relay.processor() + self.control_relay.processor();
        processor_of_all().saturating_sub(own + processor_of("self"))
    }

    /// Begins to measure both pairs until `over` is set.
    async fn measure(&self, over: Arc<AtomicBool>) -> impl Future<Output = Compared> + use<> {
        let good = self.good.measure(Arc::clone(&over), LEAST).await;
        let control = self.control.measure(over, LEAST).await;
        async {
            Compared {
                good: good.await.expect("the pair lives"),
                control: control.await.expect("the control lives"),
            }
        }
    }

    /// Measures the good pair after an attack, then the relay's processor time, until the relay rests.
    /// Some work of an attack may be left: streams that end, and bytes that were sent before.
    async fn rest(&self) -> (Compared, Usage, Usage) {
        let end = Instant::now() + PATIENCE;
        loop {
            let begun = self.begin();
            let over = Arc::new(AtomicBool::new(true));
            let after = self.measure(over).await.await;
            let calm = self.usage_since(&begun);
            let begun = self.begin();
            tokio::time::sleep(RESTING).await;
            let rest = self.usage_since(&begun);
            if rest.percent() <= RESTING_PERCENT || Instant::now() > end {
                return (after, calm, rest);
            }
        }
    }
}

impl Usage {
    /// Returns the part of one processor.
    fn percent(self) -> u128 {
        100 * self.processor.as_micros() / self.took.as_micros().max(1)
    }

    /// Returns the part of the machine that other programs used.
    fn others_percent(self) -> u128 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let all = self.took.as_micros().max(1) * cores as u128;
        100 * self.others.as_micros() / all
    }
}

impl Damage {
    /// Checks that the good pair was not disturbed, and that the relay grew by no more than this.
    pub(super) fn is_within(&self, kib: u64) {
        assert!(self.growth <= kib, "more than {kib} KiB: {self}");
        for (Compared { good, control }, usage) in
            [(&self.during, self.attack), (&self.after, self.calm)]
        {
            let least = match usage.others_percent() > BUSY_PERCENT {
                true => LATE_WHEN_BUSY,
                false => LATE,
            };
            let (late, worst) = (
                least.max(10 * control.p99()),
                WORST.max(10 * control.worst()),
            );
            assert_eq!(good.lost, 0, "lost notifications: {self}");
            assert!(good.p99() <= late, "later than {late:?}: {self}");
            assert!(good.worst() <= worst, "later than {worst:?}: {self}");
            let subscribers = LATE_SUBSCRIBER.max(10 * control.late);
            assert!(good.late <= subscribers, "a late subscriber: {self}");
        }
        let resting = self.rest.percent() <= RESTING_PERCENT;
        assert!(resting, "the relay goes on after the attack: {self}");
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, compared) in [("during", &self.during), ("after", &self.after)] {
            let Compared { good, control } = compared;
            let (wakes, lost) = (good.count(), good.lost);
            let [p99, control_p99] = [good, control].map(Latencies::p99);
            let [worst, control_worst] = [good, control].map(Latencies::worst);
            let [late, control_late] = [good.late, control.late];
            write!(
                f,
                "{name}: p99 {p99:.1?} of {wakes} wake-ups (control {control_p99:.1?}), worst {worst:.1?} \
                 ({control_worst:.1?}), late subscribers {late:.0?} ({control_late:.0?}), {lost} lost; "
            )?;
        }
        let (growth, kept) = (self.growth, self.kept);
        let Usage {
            took, processor, ..
        } = self.attack;
        let (busy, resting) = (self.attack.percent(), self.rest.percent());
        let others = [self.attack, self.calm].map(Usage::others_percent);
        write!(
            f,
            "grew by {growth} KiB, kept {kept} KiB; processor {processor:?} of {took:.1?} ({busy} %), \
             after {resting} %; other programs {} and {} % of the machine",
            others[0], others[1]
        )
    }
}
