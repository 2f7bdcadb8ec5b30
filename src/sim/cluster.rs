//! The cluster's part of the simulation: two to four relays over a model broker.
//!
//! Each relay is a production hub with the production machine of a cluster and production streams,
//! on a separate clock that runs up to a hundredth too fast or too slow. Listeners run the
//! production session; publishers put a message, notify any relay and repeat until they get an OK.
//! The broker loses, delays and copies messages, servers restart and are parted, and relays crash,
//! pause and are restored. docs/internal/evidence.md has the invariants J1 to J11.

mod broker;
mod check;
mod clients;
mod composites;
mod departure;
mod drain;
mod flags;
mod groups;
mod hand_over;
mod hidden;
mod link;
mod listener;
mod oracle;
mod plan;
mod publisher;
mod quiet;
mod relay;
mod rest;
mod streams;
mod totals;
mod troubles;
mod world;

use std::sync::Mutex;

use self::{
    totals::Totals,
    world::{Outcome, World},
};
use super::{Seeds, quick_or_full};
use crate::base::fault::Fault;

const SEEDS: Seeds = Seeds::new("a_cluster_loses_no", [500, 1_000]);
/// Each kind of event happens at least so often in them.
const OFTEN: [u64; 2] = [400, 1_000];

fn run_whole(seed: u64, fault: Fault, print: bool) -> Outcome {
    World::new(seed, fault, print).run()
}

/// Runs a seed with a planted fault, and returns the violation.
pub(super) fn run(seed: u64, fault: Fault) -> Option<String> {
    run_whole(seed, fault, false).violation
}

/// Every seed keeps the promises; one in a hundred is run twice and must be the same (J10).
#[test]
fn a_cluster_loses_no_wake_up() {
    let totals = Mutex::new(Totals::default());
    let all = SEEDS.run(|seed, fault, print| {
        let outcome = run_whole(seed, fault, print);
        let mut sum = totals.lock().expect("no thread panics with it");
        sum.add(&outcome.totals);
        drop(sum);
        if outcome.violation.is_none() && seed.is_multiple_of(100) {
            let again = run_whole(seed, fault, false);
            if again.hash != outcome.hash {
                return Some("J10: two runs of it differ".to_owned());
            }
        }
        outcome.violation
    });
    let totals = totals.into_inner().expect("no thread panics with it");
    println!("{totals:?}");
    // What never happens is not tested.
    let rare: Vec<_> = totals.below(quick_or_full(OFTEN)).collect();
    assert!(!all || rare.is_empty(), "rare: {rare:?}");
}
