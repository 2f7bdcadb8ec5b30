//! Runs each target over its seeds and over mutations of them.

use std::{fs, path::PathBuf};

use super::TARGETS;

/// Mutations of a target's seeds: together they take a second or two.
const MUTATIONS: usize = 3_000;
/// The longest input, as in the fuzzer's runs.
const MAX_INPUT: usize = 4_096;
/// Values at which lengths and numbers overflow.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "fuzz", "seeds"]
        .iter()
        .collect()
}

/// Reads a target's seeds in the order of their names, so that a seed of the generator is repeatable.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(folder().join(target)).expect("a folder of seeds for each target");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let read = |path: &PathBuf| fs::read(path).expect("a seed");
    paths.iter().map(read).collect()
}

/// Changes an input at one to four places.
fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut fastrand::Rng) {
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(0..=input.len());
        let length = rng.usize(0..=16).min(input.len() - at);
        match rng.u8(0..7) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(0..8),
            1 if at < input.len() => input[at] = EDGES[rng.usize(0..EDGES.len())],
            2 => input.insert(at, rng.u8(..)),
            3 => drop(input.drain(at..at + length)),
            4 => {
                let copy = input[at..at + length].to_vec();
                let to = rng.usize(0..=input.len());
                drop(input.splice(to..to, copy));
            }
            5 => input.truncate(at),
            _ => {
                let other = &others[rng.usize(0..others.len())];
                let from = rng.usize(0..=other.len());
                let to = rng.usize(from..=other.len());
                drop(input.splice(at..at, other[from..to].iter().copied()));
            }
        }
    }
    input.truncate(MAX_INPUT);
}

#[test]
fn every_folder_of_seeds_belongs_to_a_target() {
    let entries = fs::read_dir(folder()).expect("a folder");
    for entry in entries {
        let name = entry.expect("an entry").file_name();
        let is_known = TARGETS.iter().any(|(target, _)| name == **target);
        assert!(is_known, "{name:?}");
    }
}

#[test]
fn each_target_holds_for_its_seeds_and_for_mutations_of_them() {
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in &seeds {
            check(name, target, seed);
        }
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..MUTATIONS {
            let mut input = seeds[rng.usize(0..seeds.len())].clone();
            mutate(&mut input, &seeds, &mut rng);
            check(name, target, &input);
        }
    }
}

/// Runs a target; a failure shows the input in a form that a test can repeat.
fn check(name: &str, target: fn(&[u8]), input: &[u8]) {
    let result = std::panic::catch_unwind(|| target(input));
    assert!(result.is_ok(), "{name}: b\"{}\"", input.escape_ascii());
}
