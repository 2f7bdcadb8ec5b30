//! What both sides say of TLS that does not fit: one line each, and nothing is applied.

use reveille::{Client, ErrorKind, Node, NodeConfig, testing::TestRelay};

use super::{Authority, Files, SecureRelay, client};
use crate::{
    binary::{Binary, stderr},
    support::{figure, ready, until, within},
};

/// Returns the error of a client that asks the relay for an answer.
async fn refused(client: &Client) -> String {
    let patience = std::time::Duration::ZERO;
    let error = within("an answer", ready(client, patience)).await;
    let error = error.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    error.to_string()
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let relay = SecureRelay::start().await;
    let foreign = Authority::new("foreign");
    let foreign = foreign.write(relay.home(), "foreign", foreign.server());
    let error = refused(&client(&relay.relay.url(), foreign.client(None))).await;
    assert!(
        error.contains("the authority of the relay's certificate is not known here"),
        "{error}"
    );
    // The system's authorities do not know it either.
    let error = refused(&client(&relay.relay.url(), reveille::ClientTls::default())).await;
    assert!(error.contains("TLS: "), "{error}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let relay = SecureRelay::start().await;
    let other = relay.authority.issue(&["relay.example.com"]);
    let files = relay.authority.write(relay.home(), "other", other);
    let config = NodeConfig {
        tls: Some(files.server(None)),
        ..NodeConfig::default()
    };
    let other = TestRelay::with_config(config).await.expect("a relay");
    let error = refused(&client(&other.url(), files.client(None))).await;
    assert!(error.contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn a_client_without_the_right_certificate_is_refused() {
    let clients = Authority::new("clients");
    let relay = SecureRelay::with_clients(Some(&clients)).await;
    let error = refused(&relay.client(None)).await;
    assert!(error.contains("CertificateRequired"), "{error}");
    let foreign = Authority::new("foreign");
    let foreign = foreign.write(relay.home(), "foreign", foreign.issue(&["worker"]));
    let error = refused(&relay.client(Some(&foreign))).await;
    // A signature that does not match the authority's name is another alert.
    assert!(
        error.contains("UnknownCA") || error.contains("DecryptError"),
        "{error}"
    );
    let known = clients.write(relay.home(), "known", clients.issue(&["worker"]));
    let client = relay.client(Some(&known));
    let ready = within("an answer", ready(&client, crate::support::PATIENCE)).await;
    ready.expect("admitted");
    let admin = relay.relay.node().expect("it runs").admin_address();
    let failed = figure(
        admin.expect("a port"),
        "reveille_connections_without_tls_total",
    );
    assert!(failed.await >= 2);
}

#[tokio::test]
async fn plain_text_to_tls_and_the_reverse_are_named() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("relays");
    let files = authority.write(home.path(), "relay", authority.server());
    let path = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let (certificate, key) = (path(&files.certificate), path(&files.key));
    let secure = Binary::serve_with(&["--tls-cert", &certificate, "--tls-key", &key], &[]).await;
    let plain = format!("http://{}", secure.address());
    let output = secure
        .run(&["notify", "acct/orders", "--relay", &plain])
        .await;
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).contains("write https://"),
        "{}",
        stderr(&output)
    );
    let complaint = stderr(&output);
    let errors = complaint.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{complaint}");
    let line = "failed in its TLS handshake";
    until("the relay says so", async || secure.log().contains(line)).await;

    let relay = Binary::serve().await;
    let https = format!("https://{}", relay.address());
    let ca = path(&files.ca);
    let output = relay
        .run(&["notify", "acct/orders", "--relay", &https, "--ca", &ca])
        .await;
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).contains("write http://"),
        "{}",
        stderr(&output)
    );
    let complaint = stderr(&output);
    let errors = complaint.lines().filter(|line| line.starts_with("error: "));
    assert_eq!(errors.count(), 1, "{complaint}");
    let line = "TLS, but this port has none";
    until("the relay says so", async || relay.log().contains(line)).await;
}

#[tokio::test]
async fn files_that_do_not_fit_are_named_before_anything_is_served() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("relays");
    let one = authority.write(home.path(), "one", authority.server());
    let two = authority.write(home.path(), "two", authority.server());
    let empty = home.path().join("empty.pem");
    std::fs::write(&empty, "").expect("written");
    let missing = home.path().join("missing.pem");
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = one.clone();
        change(&mut files);
        files
    };
    for (files, field, reason) in [
        (
            with(&|files| files.certificate = missing.clone()),
            "tls_cert",
            "No such file",
        ),
        (
            with(&|files| files.certificate = empty.clone()),
            "tls_cert",
            "no certificate in PEM",
        ),
        (
            with(&|files| files.key = empty.clone()),
            "tls_key",
            "no private key in PEM",
        ),
        (
            with(&|files| files.key = two.key.clone()),
            "tls_key",
            "KeyMismatch",
        ),
        (
            with(&|files| files.ca = empty.clone()),
            "tls_client_ca",
            "no certificate in PEM",
        ),
    ] {
        let config = NodeConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            admin_listen: None,
            tls: Some(files.server(Some(&files))),
            ..NodeConfig::default()
        };
        let error = Node::start(config).await.expect_err(field);
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert!(text.contains(field), "{text}");
        assert!(
            text.to_lowercase().contains(&reason.to_lowercase()),
            "{text}"
        );
    }
    for (files, field, reason) in [
        (
            with(&|files| files.ca = missing.clone()),
            "ca",
            "No such file",
        ),
        (
            with(&|files| files.ca = empty.clone()),
            "ca",
            "no certificate in PEM",
        ),
        (
            with(&|files| files.certificate = empty.clone()),
            "cert",
            "no certificate in PEM",
        ),
        (
            with(&|files| files.key = two.key.clone()),
            "key",
            "KeyMismatch",
        ),
    ] {
        let config = reveille::ClientConfig {
            tls: files.client(Some(&files)),
            ..reveille::ClientConfig::default()
        };
        let error = Client::with_config("https://localhost:1", config).expect_err(field);
        let text = error.to_string();
        assert!(text.starts_with(&format!("{field}: ")), "{text}");
        assert!(
            text.to_lowercase().contains(&reason.to_lowercase()),
            "{text}"
        );
    }
}

#[tokio::test]
async fn an_open_address_needs_tls_or_insecure() {
    let home = tempfile::tempdir().expect("a directory");
    let serve = |arguments: &[&str]| {
        let mut typed = vec!["serve", "--listen", "0.0.0.0:0", "--admin-listen", "off"];
        typed.extend(arguments);
        crate::binary::reveille(&home, &typed).output()
    };
    let output = within("its end", serve(&[])).await.expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--tls-cert"),
        "{}",
        stderr(&output)
    );
    for (arguments, flag) in [
        (&["--tls-cert", "relay.pem"][..], "--tls-key"),
        (&["--tls-key", "relay.key"], "--tls-cert"),
        (&["--tls-client-ca", "ca.pem"], "--tls-cert"),
    ] {
        let output = within("its end", serve(arguments))
            .await
            .expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(flag), "{}", stderr(&output));
    }
}
