//! Kills relays and the broker under load, one at a time, and checks that no wake-up is lost.
//!
//! The processes are three relays and nats-server. The clients are in this process: a publisher at
//! each relay, and two subscribers for each relay to all queues. Each notification is for the next of
//! so many queues that a queue is notified again only after the longest bound. A kill waits until the
//! last one is over: docs/cluster.md names the limits of two faults at one time.

mod clients;
mod ledger;

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use tokio::time::{Instant, sleep};

use self::{
    clients::{Clients, SharedLedger},
    ledger::{Fault, Totals},
};
use super::{
    super::{
        args::ClusterKillsArgs,
        directory::Directory,
        progress::Progress,
        report::{Figures, Unit},
        wall_nanos::nanos,
    },
    RELAYS,
    deployment::Options,
    processes::Processes,
};

/// A queue is notified again after this time, which is longer than each bound.
const PERIOD: u64 = 20;
/// After the last kill each notification is told within this time, and the slack.
const LONGEST_BOUND: Duration = Duration::from_secs(6);
/// Load without a fault before the first kill.
const QUIET: Duration = Duration::from_secs(1);

/// Runs the benchmark once.
pub(super) async fn once(
    args: &ClusterKillsArgs,
    options: &Options,
    progress: &Progress,
) -> Result<Figures> {
    ensure!(
        LONGEST_BOUND + args.slack < Duration::from_secs(PERIOD),
        "--slack: a queue is notified again after {PERIOD} s, so it must be shorter than {} s",
        PERIOD - LONGEST_BOUND.as_secs()
    );
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    progress.step(&format!("starting the servers, seed {seed}"));
    let directory = Directory::new()?;
    let store = directory.path().join("flags.db");
    let mut processes = Processes::start(&options.nats, &store, &[]).await?;
    let relays = processes.urls();
    let queues = usize::try_from(args.rate * PERIOD)?;
    let ledger = SharedLedger::new(queues, &relays, args.slack);
    let mut clients = Clients::start(&ledger, &relays, args.rate).await?;
    sleep(QUIET).await;
    let faults = shuffled(args, seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    for (number, fault) in faults.iter().enumerate() {
        progress.step(&format!("kill {} of {}", number + 1, faults.len()));
        kill(*fault, &mut processes, &ledger, &mut rng).await?;
        clients.check()?;
        // The next kill could wake a subscriber that this one has left untold.
        if !all_told(&ledger, args.slack).await {
            break;
        }
    }
    progress.step("waiting for the last wake-ups");
    clients.stop_publishers().await?;
    let ended = Instant::now();
    while !ledger.lock().is_settled() && ended.elapsed() < LONGEST_BOUND + args.slack {
        sleep(Duration::from_millis(50)).await;
    }
    drop(clients);
    processes.stop().await;
    let mut ledger = ledger.lock();
    ledger.finish();
    for failure in &ledger.failures {
        eprintln!("{failure}");
    }
    let totals = &ledger.totals;
    if totals.lost + totals.late > 0 {
        let Totals { lost, late, .. } = totals;
        let text = format!("seed {seed}: {lost} wake-ups are lost, and {late} are late");
        anyhow::bail!(text);
    }
    ensure!(totals.acknowledged > 0, "no notification was acknowledged");
    Ok(figures(args, totals))
}

/// Returns the faults in a random order.
fn shuffled(args: &ClusterKillsArgs, seed: u64) -> Vec<Fault> {
    let relays = std::iter::repeat_n(Fault::Relay, args.relay_kills as usize);
    let brokers = std::iter::repeat_n(Fault::Broker, args.broker_kills as usize);
    let mut faults: Vec<_> = relays.chain(brokers).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut faults);
    faults
}

/// Kills one process, starts it again, and waits until that is over.
async fn kill(
    fault: Fault,
    processes: &mut Processes<'_>,
    ledger: &SharedLedger,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let relay = rng.usize(0..RELAYS);
    let name = match fault {
        Fault::Relay => format!("relay-{}", relay + 1),
        Fault::Broker => "nats-server".to_owned(),
    };
    let down = sleep(Duration::from_millis(rng.u64(0..800)));
    let now = || nanos(SystemTime::now());
    ledger.lock().fault_begins(fault, &name, now());
    match fault {
        Fault::Relay => processes.kill_relay(relay, down).await?,
        Fault::Broker => processes.kill_broker(down).await?,
    }
    ledger.lock().fault_ends(&name, now());
    // A relay that lost the broker connects again within 0.5 s, and each relay sends a heartbeat within
    // 1.1 s. Until then a further fault may be one of the limits.
    let pause = match fault {
        Fault::Relay => rng.u64(1_500..2_500),
        Fault::Broker => rng.u64(2_000..3_000),
    };
    sleep(Duration::from_millis(pause)).await;
    processes.found_each_other().await
}

/// Waits until the subscribers are told of all notifications that are acknowledged. Returns false if
/// that takes longer than each bound.
async fn all_told(ledger: &SharedLedger, slack: Duration) -> bool {
    let (began, before) = (Instant::now(), nanos(SystemTime::now()));
    while !ledger.lock().is_told(before) {
        if began.elapsed() > LONGEST_BOUND + slack {
            return false;
        }
        sleep(Duration::from_millis(50)).await;
    }
    true
}

fn figures(args: &ClusterKillsArgs, totals: &Totals) -> Figures {
    let mut figures = Figures::of_counts(&[
        ("relay kills", args.relay_kills.into()),
        ("broker kills", args.broker_kills.into()),
        ("acknowledged", totals.acknowledged),
        ("unanswered", totals.unanswered),
        ("told by catch-up", totals.by_catch_up),
        ("lost", totals.lost),
        ("late", totals.late),
    ]);
    if args.relay_kills == 0 {
        let checks = totals.other_checks as f64;
        figures.add("checks of other queues", Unit::Count, checks);
    }
    for (name, part) in [("delay p50", 0.5), ("delay p99", 0.99)] {
        let micros = totals.delays.value_at_quantile(part) as f64 / 1e3;
        figures.add(name, Unit::Micros, micros);
    }
    for (name, nanos) in [
        ("longest delay, no fault", totals.quiet),
        ("longest delay, relay killed", totals.after_relay),
        ("longest delay, broker killed", totals.after_broker),
    ] {
        figures.add(name, Unit::Seconds, nanos as f64 / 1e9);
    }
    figures
}
