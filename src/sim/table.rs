//! Planted faults: each row of `rows` states a seed that finds its fault.
//!
//! A test runs the stated seeds only. A seed that finds its fault no longer is stale: the test then
//! searches for another one from 0 on, and fails with the line that takes the row's place. Each test
//! writes `target/planted-faults/NAME.md`: a table of the faults and of what breaks with each.

mod rows;

use std::{fmt::Write as _, fs, path::PathBuf};

#[cfg(feature = "nats")]
use rows::CLUSTER_FAULTS;
use rows::{
    AGENT_FAULTS, CENTRAL_FAULTS, COURIER_FAULTS, FAULTS, FLAG_FAULTS, LEASE_FAULTS, MANY_FAULTS,
};

#[cfg(feature = "nats")]
use super::cluster;
use super::{agents, central, courier, first, flags, leases, many, run};
use crate::base::fault::Fault;

/// Seeds within which every planted fault must be found.
const FIND_WITHIN: u64 = 4_000;

/// A fault, a seed that finds it, the rule that it breaks, and its description.
struct Row {
    fault: Fault,
    seed: u64,
    rule: &'static str,
    what: &'static str,
}

/// A simulation, and the faults that it has to find.
struct Table {
    name: &'static str,
    rows: &'static [Row],
    /// Runs a seed with a planted fault, and returns the violation.
    run: fn(u64, Fault) -> Option<String>,
}

const WAKE_UPS: Table = Table {
    name: "wake-ups",
    rows: FAULTS,
    run: |seed, fault| run(seed, fault, false).violation,
};
const FLAGS: Table = Table {
    name: "flags",
    rows: FLAG_FAULTS,
    run: |seed, fault| flags::run(seed, fault, false),
};
const LEASES: Table = Table {
    name: "leases",
    rows: LEASE_FAULTS,
    run: |seed, fault| leases::run(seed, fault, false),
};
const AGENTS: Table = Table {
    name: "agents",
    rows: AGENT_FAULTS,
    run: agents::run,
};
const CENTRAL: Table = Table {
    name: "central-agent",
    rows: CENTRAL_FAULTS,
    run: central::run,
};
const MANY: Table = Table {
    name: "many-queues",
    rows: MANY_FAULTS,
    run: many::run,
};
const COURIER: Table = Table {
    name: "hand-over",
    rows: COURIER_FAULTS,
    run: courier::run,
};
#[cfg(feature = "nats")]
const CLUSTER: Table = Table {
    name: "cluster",
    rows: CLUSTER_FAULTS,
    run: cluster::run,
};

/// Returns the fault that `REVEILLE_FAULT` names, for a replay.
pub(super) fn fault_from_env() -> Fault {
    let Ok(name) = std::env::var("REVEILLE_FAULT") else {
        return Fault::None;
    };
    let tables = [
        WAKE_UPS,
        FLAGS,
        LEASES,
        AGENTS,
        CENTRAL,
        MANY,
        COURIER,
        #[cfg(feature = "nats")]
        CLUSTER,
    ];
    let mut rows = tables.iter().flat_map(|table| table.rows);
    let named = rows.find(|row| format!("{:?}", row.fault) == name);
    named.expect("a planted fault's name").fault
}

impl Table {
    /// Asserts that each row's seed finds its fault.
    fn check(&self) {
        let mut text = String::from("| fault | rule | seed | what broke |\n|---|---|---|---|\n");
        let (mut stale, mut missed) = (String::new(), Vec::new());
        for Row {
            fault,
            seed,
            rule,
            what,
        } in self.rows
        {
            let found = (self.run)(*seed, *fault).map(|violation| (*seed, violation));
            let search = || first(FIND_WITHIN, |seed| (self.run)(seed, *fault));
            let Some((new, violation)) = found.or_else(search) else {
                missed.push(fault);
                continue;
            };
            if new != *seed {
                writeln!(stale, "    {fault:?}, {new}, {rule:?}, {what:?};").expect("a string");
            }
            let broke = shorten(&violation);
            writeln!(text, "| `{fault:?}`: {what} | {rule} | {new} | {broke} |").expect("a string");
        }
        let file = directory().join(self.name).with_extension("md");
        fs::write(&file, text).expect("the table can be written");
        println!("{}", file.display());
        assert!(
            stale.is_empty() && missed.is_empty(),
            "not found within {FIND_WITHIN} seeds: {missed:?}\n\
             stale seeds; the new rows for src/sim/table/rows.rs:\n{stale}"
        );
    }
}

/// Returns `planted-faults` beside the directory of the profile: `target/debug/deps/` has the test.
fn directory() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let target = test.ancestors().nth(3).expect("cargo's directories");
    let directory = target.join("planted-faults");
    fs::create_dir_all(&directory).expect("the directory can be made");
    directory
}

/// Returns a violation without its details, fit for a table.
fn shorten(violation: &str) -> String {
    let text = violation
        .split_once(" s: ")
        .map_or(violation, |(_, text)| text);
    let end = text.find(['{', '[', ',']).unwrap_or(text.len());
    let text: String = text[..end].chars().take(70).collect();
    text.replace('|', "/")
        .trim_end_matches([' ', ':', '('])
        .to_owned()
}

#[test]
fn every_planted_fault_of_wake_ups_is_found() {
    WAKE_UPS.check();
}

#[test]
fn every_planted_fault_of_flags_is_found() {
    FLAGS.check();
}

#[test]
fn every_planted_fault_of_leases_is_found() {
    LEASES.check();
}

#[test]
fn every_planted_fault_of_agents_is_found() {
    AGENTS.check();
}

#[test]
fn every_planted_fault_of_the_central_agent_is_found() {
    CENTRAL.check();
}

#[test]
fn every_planted_fault_of_many_queues_is_found() {
    MANY.check();
}

#[test]
fn every_planted_fault_of_the_hand_over_is_found() {
    COURIER.check();
}

#[cfg(feature = "nats")]
#[test]
fn every_planted_fault_of_a_cluster_is_found() {
    CLUSTER.check();
}
