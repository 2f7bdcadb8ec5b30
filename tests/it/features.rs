//! What the library's users compile: the crates that each choice of features brings.

use std::{collections::BTreeSet, process::Command};

use crate::sources::root;

/// Returns the crates that are linked, without those that only run in the compiler.
fn linked(features: &str) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--locked", "--package", "reveille"])
        .args(["--edges", "normal,no-proc-macro"])
        .args([
            "--prefix",
            "none",
            "--no-default-features",
            "--features",
            features,
        ])
        .output()
        .expect("cargo");
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let tree = String::from_utf8(tree.stdout).expect("names");
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Returns the features with which a crate is compiled.
fn features_of(name: &str, features: &str) -> String {
    let tree = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["tree", "--locked", "--package", "reveille"])
        .args(["--edges", "normal", "--prefix", "none"])
        .args([
            "--format",
            "{p} [{f}]",
            "--no-default-features",
            "--features",
            features,
        ])
        .output()
        .expect("cargo");
    let tree = String::from_utf8(tree.stdout).expect("names");
    let line = tree
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    let line = line.unwrap_or_else(|| panic!("{name} is not linked"));
    line.split('[').nth(1).expect("features").to_owned()
}

#[test]
fn a_client_links_few_crates() {
    let crates = linked("client");
    assert!(crates.contains("tonic"), "{crates:?}");
    assert!(!crates.contains("async-nats"), "the broker is the relay's");
    assert!(crates.len() <= 60, "{} crates: {crates:?}", crates.len());
}

#[test]
fn a_worker_links_no_server_and_no_database() {
    let crates = linked("listener,azure");
    assert!(crates.contains("azure_storage_queue"), "{crates:?}");
    for server in [
        "axum",
        "tonic-health",
        "tonic-reflection",
        "rusqlite",
        "dashmap",
        "clap",
        "async-nats",
    ] {
        assert!(!crates.contains(server), "{server}");
    }
    let tonic = features_of("tonic", "listener,azure");
    assert!(
        tonic.contains("channel") && !tonic.contains("server"),
        "{tonic}"
    );
    let relay = linked("relay");
    assert!(relay.contains("axum"), "the names are those of today");
    assert!(!relay.contains("async-nats"), "a single relay needs none");
}

#[test]
fn a_back_end_brings_no_wing() {
    for (back_end, brought) in [
        ("sqlite", "rusqlite"),
        ("azure", "azure_core"),
        ("cloud", "object_store"),
        ("nats", "async-nats"),
    ] {
        let crates = linked(back_end);
        assert!(crates.contains(brought), "{back_end}");
        assert!(
            !crates.contains("axum") && !crates.contains("flate2"),
            "{back_end}: {crates:?}"
        );
    }
}

#[test]
fn the_default_is_what_works_on_one_machine() {
    let crates = linked("default");
    assert!(
        crates.contains("rusqlite") && crates.contains("axum"),
        "{crates:?}"
    );
    for remote in ["azure_core", "object_store", "async-nats", "reqwest"] {
        assert!(!crates.contains(remote), "{remote}");
    }
}
