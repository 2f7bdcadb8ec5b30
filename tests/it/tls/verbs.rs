//! Every verb that connects, over TLS, with settings from arguments, variables and the file.

use std::{collections::BTreeSet, process::Stdio};

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{Authority, Files};
use crate::{
    binary::{Binary, reveille, stderr, stdout},
    python::{python, run, stubs},
    sources::root,
    support::{until, within},
};

/// A relay with mutual TLS, as operators start it, and the variables of its clients.
async fn relay() -> (Binary, tempfile::TempDir, Files) {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("everyone");
    let files = authority.write(home.path(), "relay", authority.server());
    let worker = authority.write(home.path(), "worker", authority.issue(&["worker"]));
    let text = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let variables = [
        ("REVEILLE_TLS_CERT", &files.certificate),
        ("REVEILLE_TLS_KEY", &files.key),
        ("REVEILLE_TLS_CLIENT_CA", &files.ca),
        ("REVEILLE_CA", &files.ca),
        ("REVEILLE_CERT", &worker.certificate),
        ("REVEILLE_KEY", &worker.key),
    ];
    let variables = variables.map(|(name, path)| (name.to_owned(), text(path)));
    (Binary::serve_with(&[], &variables).await, home, worker)
}

/// Verbs that do not end by themselves: each has a test of its own below.
const ENDLESS: [&str; 4] = ["flag watch", "listen", "courier serve", "scale"];

/// Returns the verbs that connect to a relay, by the help texts of the command.
fn client_verbs(verb: &str) -> BoxFuture<'_, BTreeSet<String>> {
    let collected = async move {
        let home = tempfile::tempdir().expect("a directory");
        let arguments: Vec<_> = verb.split_whitespace().chain(["--help-all"]).collect();
        let help = reveille(&home, &arguments).output().await;
        let help = stdout(&help.expect("it starts"));
        // The verbs of the program stand in groups.
        let list = if verb.is_empty() { "Work" } else { "Commands" };
        let Some((_, below)) = help.split_once(&format!("\n{list}:\n")) else {
            let connects = help.contains("  --relay <URL>");
            return connects.then(|| verb.to_owned()).into_iter().collect();
        };
        let mut found = BTreeSet::new();
        // Each name is in the third column; a longer description goes on further to the right.
        let lines = below.lines().take_while(|line| !line.is_empty());
        for line in lines.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            let name = line.split_whitespace().next().expect("a name");
            if name != "help" {
                let verb = format!("{verb} {name}");
                found.extend(client_verbs(verb.trim_start()).await);
            }
        }
        found
    };
    collected.boxed()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_speaks_tls() {
    let (relay, home, _) = relay().await;
    assert!(relay.url().starts_with("https://"), "{}", relay.url());
    let file = home.path().join("q.db").display().to_string();
    let jobs = format!("sqlite:{file}?queue=jobs");
    let poison = format!("sqlite:{file}?queue=jobs-poison");
    let place = home.path().display().to_string();
    let url = relay.url();
    let rows: [(&str, &[&str]); 20] = [
        ("health", &["--wait=10s"]),
        ("health", &[]),
        ("console", &[]),
        ("top", &["--once", "--interval", "250ms"]),
        ("why", &["acct/orders"]),
        ("notify", &["acct/orders"]),
        ("subscribe", &["acct/orders", "--count", "1"]),
        ("queues", &[]),
        ("listeners", &[]),
        ("relays", &[]),
        ("queue put", &[&jobs, "hello", "--create", "--notify"]),
        ("queue put", &[&poison, "hello", "--create", "--notify"]),
        ("queue move", &[&poison, &jobs, "--notify"]),
        (
            "courier send",
            &[&place, "orders", "hello", "--create", "--relay", &url],
        ),
        ("unleash", &["go-live"]),
        ("wait", &["go-live"]),
        ("flag get", &["go-live"]),
        ("flag list", &[]),
        ("leash", &["go-live"]),
        ("drain", &[]),
    ];
    for (verb, arguments) in rows {
        let typed: Vec<_> = verb.split(' ').chain(arguments.iter().copied()).collect();
        let output = relay.run(&typed).await;
        let shown = format!("{verb}: {}{}", stdout(&output), stderr(&output));
        assert!(output.status.success(), "{shown}");
    }
    let tested = rows.iter().map(|(verb, _)| *verb).chain(ENDLESS);
    let tested: BTreeSet<_> = tested.map(str::to_owned).collect();
    assert_eq!(tested, client_verbs("").await, "verbs with a row here");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flag_is_watched_over_tls() {
    let (relay, _home, _) = relay().await;
    let mut watch = relay.verb(&["flag", "watch", "go-live"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    for expected in ["go-live is not set", "go-live is set"] {
        let line = within("the flag's state", lines.next_line()).await;
        let line = line.expect("text").expect("a line");
        assert!(line.contains(expected), "{line}");
        let unleashed = relay.run(&["unleash", "go-live"]).await;
        assert!(unleashed.status.success(), "{}", stderr(&unleashed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_queues_notifies_its_relay_over_tls() {
    let (relay, home, _) = relay().await;
    let place = home.path().display().to_string();
    let send = async |body| {
        let mut send = relay.verb(&["courier", "send", &place, "orders", body, "--create"]);
        let sent = send.env_remove("REVEILLE_RELAY").output();
        let sent = within("its end", sent).await.expect("it starts");
        assert!(sent.status.success(), "{}", stderr(&sent));
    };
    // It creates the queue.
    send("first").await;
    let mut host = relay.verb(&["courier", "serve", &place, "--listen", "127.0.0.1:0"]);
    let _host = host.spawn().expect("it starts");
    send("second").await;
    until("the relay knows the queue", async || {
        stdout(&relay.run(&["queues"]).await).contains("orders")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_is_woken_over_tls() {
    let (relay, home, _) = relay().await;
    let queue = format!("sqlite:{}?queue=jobs", home.path().join("q.db").display());
    let done = home.path().join("done");
    let command = format!("cat > {}", done.display());
    let listen = [
        "listen", &queue, "--create", "--poll", "1h", "--", "sh", "-c", &command,
    ];
    let _listener = relay.verb(&listen).spawn().expect("it starts");
    until("the listener sleeps", async || {
        let output = relay.run(&["listeners", "-o", "json"]).await;
        stdout(&output).contains("\"polling\": false")
    })
    .await;
    let put = relay
        .run(&["queue", "put", &queue, "hello", "--notify"])
        .await;
    assert!(put.status.success(), "{}", stderr(&put));
    until("its command has run", async || {
        std::fs::read_to_string(&done).is_ok_and(|text| text == "hello")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_file_has_the_files_of_tls() {
    let (relay, home, worker) = relay().await;
    let file = home.path().join("reveille.toml");
    let text = format!(
        "relay = \"{}\"\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
        relay.url(),
        worker.ca,
        worker.certificate,
        worker.key
    );
    std::fs::write(&file, text).expect("written");
    let mut command = relay.verb(&["notify", "acct/orders", "--config"]);
    for name in ["RELAY", "CA", "CERT", "KEY"] {
        command.env_remove(format!("REVEILLE_{name}"));
    }
    let output = within("its end", command.arg(&file).output()).await;
    let output = output.expect("it starts");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_client_speaks_tls() {
    let (relay, _home, worker) = relay().await;
    let stubs = stubs().await;
    let mut command = tokio::process::Command::new(python());
    command
        .args(["tests/python/wake.py", relay.address()])
        .arg(&worker.ca)
        .arg(&worker.certificate)
        .arg(&worker.key)
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    run(&mut command, "wake.py").await;
}
