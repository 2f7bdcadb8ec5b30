//! `serve --cluster` with settings and brokers that do not fit: one line, the exit code, no secret.

use std::process::Output;

use tempfile::TempDir;

use crate::{
    binary::{reveille, stderr, stdout},
    support::{nats::NatsServer, until, within},
};

/// Runs `serve` with these arguments until it ends.
async fn serve(home: &TempDir, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut typed = vec!["serve", "--listen", "127.0.0.1:0", "--admin-listen", "off"];
    typed.extend(arguments);
    let mut command = reveille(home, &typed);
    command.envs(variables.iter().copied());
    within("its end", command.output())
        .await
        .expect("it starts")
}

fn home() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

#[tokio::test]
async fn a_denied_login_and_a_bad_broker_have_their_exit_codes_and_show_no_secret() {
    let home = home();
    let password = home.path().join("password");
    std::fs::write(&password, "hunter3\n").expect("written");
    let password = password.to_str().expect("UTF-8");
    let login = "authorization { user: relay, password: hunter2 }";
    let server = NatsServer::with_config(login);
    let small = NatsServer::with_config("max_payload: 1024");
    let user = [
        "--cluster-user",
        "relay",
        "--cluster-password-file",
        password,
    ];
    for (url, login, code, words) in [
        (server.url(), &user[..], 4, "authorization violation"),
        (server.url(), &[], 4, "authorization violation"),
        (
            small.url(),
            &[],
            2,
            "max_payload of the NATS server must be at least 65536",
        ),
        (server.tls_url(), &user, 2, "InvalidContentType"),
    ] {
        let mut arguments = vec!["--cluster", &url];
        arguments.extend(login);
        let output = serve(&home, &arguments, &[("RUST_LOG", "debug,async_nats=trace")]).await;
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{words}: {complaint}");
        let errors: Vec<_> = complaint
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        assert!(
            errors.len() == 1 && errors[0].contains(words),
            "{words}: {complaint}"
        );
        assert!(errors[0].starts_with("error: cluster: "), "{complaint}");
        assert!(!complaint.contains("hunter"), "{complaint}");
    }
}

#[tokio::test]
async fn settings_of_a_cluster_that_break_a_rule_are_refused_before_a_connection() {
    let home = home();
    let server = "nats://127.0.0.1:1";
    for (arguments, words) in [
        (
            &["--cluster", server, "--store", "memory:"][..],
            "store: must be shared",
        ),
        (
            &["--cluster", "broker:4222"],
            "cluster: server 1 must be nats://HOST:PORT",
        ),
        (
            &["--cluster", server, "--cluster-name", "a.b"],
            "cluster_name: must be 1 to 128",
        ),
        (
            &["--cluster", server, "--cluster-cert", "c.pem"],
            "cluster_key: must be set",
        ),
        (
            &["--cluster", server, "--cluster-creds", "/nonexistent"],
            "cluster_creds: `/nonexistent`",
        ),
        (&["--cluster-name", "prod"], "--cluster: must be set"),
        (
            &["--cluster", server, "--cluster-ack", "maybe"],
            "--cluster-ack",
        ),
    ] {
        let output = serve(&home, arguments, &[]).await;
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
}

#[tokio::test]
async fn a_url_with_a_password_is_shown_nowhere() {
    let home = home();
    let url = "nats://relay:hunter2@127.0.0.1:1";
    let file = home.path().join("reveille.toml");
    std::fs::write(&file, format!("[serve]\ncluster = \"{url}\"\n")).expect("written");
    let config = ["--config", file.to_str().expect("UTF-8")];
    let variable = [("REVEILLE_CLUSTER", url)];
    for (arguments, variables, code) in [
        (&["--cluster", url][..], &[][..], 2),
        (&[], &variable, 2),
        (&config, &[], 2),
        (&["--help"], &variable, 0),
        (&["-h"], &variable, 0),
        // Another argument is wrong.
        (&["--cluster", url, "--grace", "soon"], &[], 2),
        (&["--cluster", url, "--cluster", url, "stray"], &[], 2),
    ] {
        let output = serve(&home, arguments, variables).await;
        let shown = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {shown}");
        assert!(!shown.contains("hunter2"), "{arguments:?}: {shown}");
    }
}

#[tokio::test]
async fn a_store_on_one_machine_and_a_missing_sentinel_are_warned_of() {
    let home = home();
    let server = NatsServer::start();
    let log = home.path().join("log");
    let typed = ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "off"];
    let url = server.url();
    let cluster = ["--cluster", &url, "--sentinel", "0"];
    let mut command = reveille(&home, &[&typed[..], &cluster].concat());
    command.stderr(std::fs::File::create(&log).expect("created"));
    let mut relay = command.kill_on_drop(true).spawn().expect("it starts");
    let shown = || std::fs::read_to_string(&log).expect("text");
    until("the relay serves", async || {
        shown().contains("reveille serves")
    })
    .await;
    relay.kill().await.expect("it runs");
    for words in [
        "all relays of a cluster must share one store",
        "a cluster without the sentinel",
    ] {
        assert_eq!(shown().matches(words).count(), 1, "{words}: {}", shown());
    }
}
