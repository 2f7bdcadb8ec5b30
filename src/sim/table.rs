//! Planted faults: each must be found, and docs/reliability.md names the seed.

mod rows;

use std::fmt::Write as _;

use rows::{CLUSTER_FAULTS, COURIER_FAULTS, FAULTS, FLAG_FAULTS, LEASE_FAULTS, MANY_FAULTS};

use super::{FIND_WITHIN, cluster, courier, first, flags, leases, many, run};
use crate::base::fault::Fault;

/// A fault, the rule that it breaks, and its description.
type Row = (Fault, &'static str, &'static str);

/// Runs a seed with a planted fault, and returns the violation.
type Run = fn(u64, Fault) -> Option<String>;

/// The simulations, each with the faults that it has to find, in the table's order.
const TABLES: [(Run, &[Row]); 6] = [
    (|seed, fault| run(seed, fault, false).violation, FAULTS),
    (|seed, fault| flags::run(seed, fault, false), FLAG_FAULTS),
    (|seed, fault| leases::run(seed, fault, false), LEASE_FAULTS),
    (many::run, MANY_FAULTS),
    (courier::run, COURIER_FAULTS),
    (cluster::run, CLUSTER_FAULTS),
];

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reliability.md");
const BEGIN: &str = "<!-- planted faults: written by the test -->\n";
const END: &str = "<!-- end of planted faults -->\n";

/// Returns the fault that `REVEILLE_FAULT` names, for a replay.
pub(super) fn fault_from_env() -> Fault {
    let Ok(name) = std::env::var("REVEILLE_FAULT") else {
        return Fault::None;
    };
    let mut rows = TABLES.iter().flat_map(|(_, rows)| *rows);
    let named = rows.find(|(fault, ..)| format!("{fault:?}") == name);
    named.expect("a planted fault's name").0
}

/// Every planted fault is found within so many seeds, and the page says by which.
#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    let mut table = String::from("| fault | rule | first seed | what broke |\n|---|---|---|---|\n");
    let rows = TABLES
        .iter()
        .flat_map(|(run, rows)| rows.iter().map(move |row| (run, *row)));
    let within = super::number_from_env("REVEILLE_FIND_WITHIN").unwrap_or(FIND_WITHIN);
    // One fault by its name alone, to look for its seed.
    let only = std::env::var("REVEILLE_FAULT").ok();
    let rows = rows.filter(|(_, (fault, ..))| {
        only.as_ref()
            .is_none_or(|only| format!("{fault:?}") == *only)
    });
    for (run, (fault, rule, what)) in rows {
        let Some((seed, violation)) = first(within, |seed| run(seed, fault)) else {
            missed.push(fault);
            continue;
        };
        let broke = shorten(&violation);
        writeln!(table, "| `{fault:?}`: {what} | {rule} | {seed} | {broke} |").expect("a string");
    }
    println!("{table}");
    if only.is_some() {
        return assert!(missed.is_empty(), "not found: {missed:?}");
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the table has its place");
    let (_, after) = rest.split_once(END).expect("the table has its end");
    let fresh = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("REVEILLE_BLESS").is_some() {
        std::fs::write(PAGE, fresh).expect("the page can be written");
    } else {
        assert!(
            page == fresh,
            "{PAGE} is out of date: run it with REVEILLE_BLESS=1"
        );
    }
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
