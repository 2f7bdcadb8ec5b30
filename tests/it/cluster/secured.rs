//! A broker with TLS, whose login of the relays may use the subjects of their cluster only.

use super::settings::{each_serves_all, see_each_other};
use crate::{
    binary::{Binary, stderr, stdout},
    support::nats::NatsServer,
    tls::Authority,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_with_the_least_permissions_and_tls_serve_as_one() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("brokers");
    let files = authority.write(home.path(), "broker", authority.issue(&["127.0.0.1"]));
    let [ca, cert, key] = [&files.ca, &files.certificate, &files.key]
        .map(|path| path.to_str().expect("UTF-8").to_owned());
    let broker = NatsServer::with_config(&format!(
        r#"tls {{ cert_file: "{cert}", key_file: "{key}" }}
        authorization {{ users = [{{
            user: relay, password: hunter2,
            permissions: {{ publish: "reveille1.prod.>", subscribe: "reveille1.prod.>" }}
        }}] }}"#
    ));
    let password = home.path().join("password");
    std::fs::write(&password, "hunter2\n").expect("written");
    let store = format!("sqlite:{}", home.path().join("flags.db").display());
    let mut relays = Vec::new();
    for number in 0..3 {
        let (url, id) = (broker.tls_url(), format!("relay-{number}"));
        let arguments = [
            ["--store", &store],
            ["--relay-id", &id],
            ["--cluster", &url],
            ["--cluster-name", "prod"],
            ["--cluster-ca", &ca],
            ["--cluster-user", "relay"],
            ["--cluster-password-file", password.to_str().expect("UTF-8")],
        ]
        .concat();
        relays.push(Binary::serve_with(&arguments, &[]).await);
    }
    see_each_other(&relays).await;
    let _subscribers = each_serves_all(&relays).await;
    // Requests from relay to relay, and their replies, are permitted as well.
    let listed = relays[0].run(&["listeners"]).await;
    assert!(listed.status.success(), "{}", stderr(&listed));
    let listed = stdout(&listed);
    for number in 0..3 {
        let listener = format!("worker-{number}");
        assert!(listed.contains(&listener), "no {listener} in {listed}");
    }
    let log = broker.log();
    assert!(!log.contains("Permissions Violation"), "{log}");
    for relay in &relays {
        assert!(!relay.log().contains("hunter2"), "{}", relay.log());
    }
}
