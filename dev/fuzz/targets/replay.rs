//! Runs each target over its seeds and over mutations of them.

use std::{fs, path::PathBuf};

use super::{TARGETS, mutate::mutate};

/// Mutations of a target's seeds: together they take a second or two.
const MUTATIONS: usize = 1_000;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "dev", "fuzz", "seeds"]
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
