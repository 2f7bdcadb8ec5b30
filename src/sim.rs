//! The deterministic simulation: a whole fleet of production state machines, stepped by seed.
//!
//! A relay (the hub and its feeds) with restarts, listeners and publishers (the sessions) and
//! model queues exchange messages over a model network on virtual time. Each seed chooses a shape,
//! a workload and a random half of the faults. Invariants are checked during the run, and at the
//! end every message must have been handled. No socket, no thread, no clock: the same seed gives
//! the same run. `docs/internal/evidence.md` has the assertions, and how to replay a seed.

mod agents;
mod attempts;
mod central;
mod check;
#[cfg(feature = "nats")]
mod cluster;
mod courier;
mod faults;
mod flags;
mod fleets;
mod groups;
mod leases;
mod limits;
mod listener;
mod log;
mod many;
mod net;
mod oracle;
mod plan;
mod publisher;
mod queue;
mod regressions;
mod relay;
mod reports;
mod resume;
mod scaled;
mod schedule;
mod shared;
mod table;
mod workload;
mod world;

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use self::world::{Outcome, World};
use crate::base::fault::Fault;

const SEEDS: Seeds = Seeds::new("no_wake_up_is_lost", [1_000, 2_000]);
/// Each kind of event happens at least so often in them.
const OFTEN: [u64; 2] = [500, 1_000];

/// Runs one seed to its end, or to the first violation.
fn run(seed: u64, fault: Fault, print: bool) -> Outcome {
    World::new(seed, fault, print).run()
}

/// Runs `work` for each number below `count` on two threads, until it returns a value; returns the
/// value of the least number.
fn first<T: Send>(count: u64, work: impl Fn(u64) -> Option<T> + Sync) -> Option<(u64, T)> {
    let (next, limit) = (AtomicU64::new(0), AtomicU64::new(count));
    let found: Mutex<Option<(u64, T)>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= limit.load(Ordering::Relaxed) {
                        break;
                    }
                    let Some(result) = work(number) else { continue };
                    limit.fetch_min(number, Ordering::Relaxed);
                    let mut found = found.lock().expect("no thread panics with it");
                    if found.as_ref().is_none_or(|(least, _)| number < *least) {
                        *found = Some((number, result));
                    }
                }
            });
        }
    });
    found.into_inner().expect("no thread panics with it")
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("the variable holds a number"))
}

/// The seeds of a simulation's test.
struct Seeds {
    /// The test's name, or its beginning.
    test: &'static str,
    /// Seeds of a quick run, and of a full one.
    count: [u64; 2],
    /// One seed takes as long as so many of the others.
    cost: u64,
}

impl Seeds {
    const fn new(test: &'static str, count: [u64; 2]) -> Self {
        Self {
            test,
            count,
            cost: 1,
        }
    }

    /// Runs `REVEILLE_SEEDS` seeds, or those of a quick or of a full run; with `REVEILLE_SEED` that one
    /// only, printed and with the fault of `REVEILLE_FAULT`. `run` returns the violation. Returns
    /// whether at least the seeds of a quick or of a full run were run.
    fn run(&self, run: impl Fn(u64, Fault, bool) -> Option<String> + Sync) -> bool {
        if let Some(seed) = number_from_env("REVEILLE_SEED") {
            let violation = run(seed, table::fault_from_env(), true);
            assert_eq!(violation, None, "seed {seed}");
            return false;
        }
        let regular = quick_or_full(self.count);
        let seeds = number_from_env("REVEILLE_SEEDS");
        let seeds = seeds.map_or(regular, |seeds| seeds.div_ceil(self.cost));
        let test = self.test;
        if let Some((seed, violation)) = first(seeds, |seed| run(seed, Fault::None, false)) {
            panic!(
                "seed {seed}: {violation}\nreplay it: REVEILLE_SEED={seed} cargo test --lib --all-features {test} -- --nocapture"
            );
        }
        println!("{seeds} seeds");
        seeds >= regular
    }
}

/// Returns the first number in a quick run, and the second one with `REVEILLE_FULL=1`.
pub(crate) fn quick_or_full<T>([quick, full]: [T; 2]) -> T {
    match std::env::var_os("REVEILLE_FULL").is_some_and(|set| set == "1") {
        true => full,
        false => quick,
    }
}

/// Every seed keeps the promises; one in a hundred is run twice and must be the same (I23).
#[test]
fn no_wake_up_is_lost() {
    let totals = Mutex::new(world::Totals::default());
    let all = SEEDS.run(|seed, fault, print| {
        let outcome = run(seed, fault, print);
        totals
            .lock()
            .expect("no thread panics with it")
            .add(&outcome.totals);
        if outcome.violation.is_none() && seed % 100 == 0 {
            let again = run(seed, fault, false);
            if again.hash != outcome.hash {
                return Some("I23: two runs of it differ".to_owned());
            }
        }
        outcome.violation
    });
    let totals = totals.into_inner().expect("no thread panics with it");
    println!("{totals:?}");
    // What never happens is not tested (I24).
    let rarest = totals.rarest();
    assert!(
        !all || rarest >= quick_or_full(OFTEN),
        "only {rarest}: {totals:?}"
    );
}
