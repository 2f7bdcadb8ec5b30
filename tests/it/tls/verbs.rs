//! Every verb that connects, over TLS, with settings from arguments, variables and the file.

use super::{Authority, Files};
use crate::{
    binary::{Binary, stderr, stdout},
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

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_speaks_tls() {
    let (relay, home, _) = relay().await;
    assert!(relay.url().starts_with("https://"), "{}", relay.url());
    let queue = format!("sqlite:{}?queue=jobs", home.path().join("q.db").display());
    for verb in [
        &["ready"][..],
        &["health"],
        &["notify", "acct/orders"],
        &["subscribe", "acct/orders", "--count", "1"],
        &["queues"],
        &["listeners"],
        &["queue", "put", &queue, "hello", "--create", "--notify"],
        &["unleash", "go-live"],
        &["wait", "go-live"],
        &["flag", "get", "go-live"],
        &["flag", "list"],
        &["leash", "go-live"],
    ] {
        let output = relay.run(verb).await;
        let shown = format!("{verb:?}: {}{}", stdout(&output), stderr(&output));
        assert!(output.status.success(), "{shown}");
    }
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
        "relay = \"{}\"\n[tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
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
    let mut command = tokio::process::Command::new(python());
    command
        .args(["tests/python/wake.py", relay.address()])
        .arg(&worker.ca)
        .arg(&worker.certificate)
        .arg(&worker.key)
        .env("PYTHONPATH", stubs().await)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    run(&mut command, "wake.py").await;
}
