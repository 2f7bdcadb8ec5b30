//! Each kind of credential, accepted and refused, with one line that says why.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rcgen::SanType;
use reveille::{Client, Credential, ErrorKind, FlagName, NodeConfig, Notification};

use super::{GuardedRelay, client};
use crate::{
    attacks::{
        peer::{Peer, Unfinished, status},
        target::Target,
    },
    binary::Binary,
    support::{PATIENCE, queue, ready, within},
    tls::Authority,
};

/// A token in its right form that the relay does not know.
const WRONG: &str = "rvl_aaaaaaaaaa_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// Returns the error of a client that asks the relay for an answer.
async fn refused(client: &Client) -> String {
    let error = within("an answer", ready(client, Duration::ZERO)).await;
    let error = error.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    error.to_string()
}

async fn admitted(client: &Client) {
    let ready = within("an answer", ready(client, PATIENCE)).await;
    ready.expect("admitted");
}

#[tokio::test]
async fn a_token_is_accepted_until_it_is_revoked() {
    let relay = GuardedRelay::start().await;
    let token = relay.token("owner").await;
    let client = relay.client(Credential::text(token.reveal()));
    admitted(&client).await;
    relay.tokens().revoke(token.id()).expect("revoked");
    relay.reload().await;
    let error = refused(&client).await;
    assert!(error.contains("unknown or was revoked"), "{error}");
    let error = refused(&relay.client(Credential::default())).await;
    assert!(error.contains("a credential is required"), "{error}");
    // Health is for balancers, which have no credential.
    let health = relay.client(Credential::default());
    let reason = within("an answer", health.not_ready()).await;
    assert_eq!(reason.expect("an answer"), None);
}

#[tokio::test]
async fn requests_of_one_connection_may_have_several_callers() {
    let relay = GuardedRelay::start().await;
    let (owner, other) = (relay.token("owner").await, relay.token("other").await);
    let shown = Arc::new(Mutex::new(String::new()));
    let credential = Arc::clone(&shown);
    let client = relay.client(Credential::callback(move || {
        let text = credential.lock().expect("no panic").clone();
        async move { Ok(text) }
    }));
    let flag = FlagName::new("go").expect("a name");
    for (token, why) in [
        (owner.reveal(), None),
        (owner.reveal(), None),
        (other.reveal(), Some("may not")),
        (WRONG, Some("unknown or was revoked")),
        (owner.reveal(), None),
    ] {
        token.clone_into(&mut shown.lock().expect("no panic"));
        let answer = within("an answer", client.flags().get(&flag)).await;
        let error = answer.err().map(|error| error.to_string());
        match (&error, why) {
            (None, None) => {}
            (Some(error), Some(why)) if error.contains(why) => {}
            _ => panic!("{error:?} instead of {why:?}"),
        }
    }
}

#[tokio::test]
async fn a_client_certificate_names_its_principal() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("everyone");
    let files = authority.write(home.path(), "relay", authority.server());
    let rules = format!(
        "{}\n[certificates]\n\"spiffe://example.com/billing\" = \"owner\"\n\"ops.example.com\" = \"other\"\n",
        super::RULES
    );
    let relay = GuardedRelay::with(&rules, |config| NodeConfig {
        tls: Some(files.server(Some(&files))),
        ..config
    })
    .await;
    let with = |names: &[&str], name: &str| {
        let issued = authority.write(home.path(), name, authority.issue(names));
        let config = reveille::ClientConfig {
            tls: files.client(Some(&issued)),
            ..reveille::ClientConfig::default()
        };
        Client::with_config(&relay.relay.url(), config).expect("a client")
    };
    let owner = with(
        &["spiffe://example.com/billing", "unused.example.com"],
        "owner",
    );
    admitted(&owner).await;
    let notified = owner.publisher("test");
    let notified = notified.notify(Notification::new(queue("acct/orders")));
    within("an answer", notified).await.expect("allowed");
    let other = with(&["OPS.example.com"], "other");
    admitted(&other).await;
    let denied = other.publisher("test");
    let denied = denied.notify(Notification::new(queue("acct/orders")));
    let error = within("an answer", denied).await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let error = error.to_string();
    assert!(
        error.contains("`other` may not notify acct/orders"),
        "{error}"
    );
    let stranger = with(&["stranger.example.com"], "stranger");
    let error = refused(&stranger).await;
    assert!(
        error.contains("no name of the client certificate"),
        "{error}"
    );
    // A name of one kind does not pass for the other: an authority's constraints on DNS names do not
    // bind its URIs.
    let text = |text: &str| text.try_into().expect("ASCII");
    for (file, name) in [
        ("uri", SanType::URI(text("ops.example.com"))),
        (
            "dns",
            SanType::DnsName(text("spiffe://example.com/billing")),
        ),
    ] {
        let issued = authority.write(home.path(), file, authority.issue_as(name));
        let config = reveille::ClientConfig {
            tls: files.client(Some(&issued)),
            ..reveille::ClientConfig::default()
        };
        let client = Client::with_config(&relay.relay.url(), config).expect("a client");
        let error = refused(&client).await;
        // Without a name of use there is no credential.
        assert!(
            error.contains("a credential is required"),
            "{file}: {error}"
        );
    }
    // A bad token is refused although the certificate would do.
    let both = reveille::ClientConfig {
        tls: files.client(Some(&authority.write(
            home.path(),
            "both",
            authority.issue(&["spiffe://example.com/billing"]),
        ))),
        credential: Credential::text(WRONG),
        ..reveille::ClientConfig::default()
    };
    let both = Client::with_config(&relay.relay.url(), both).expect("a client");
    let error = refused(&both).await;
    assert!(error.contains("unknown or was revoked"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_has_ended_has_no_rights_on_its_connection() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("everyone");
    let files = authority.write(home.path(), "relay", authority.server());
    let rules = format!(
        "{}\n[certificates]\n\"billing\" = \"owner\"\n",
        super::RULES
    );
    let relay = GuardedRelay::with(&rules, |config| NodeConfig {
        tls: Some(files.server(Some(&files))),
        ..config
    })
    .await;
    let issued = authority.issue_for(&["billing"], Duration::from_secs(4));
    let issued = authority.write(home.path(), "billing", issued);
    let config = reveille::ClientConfig {
        tls: files.client(Some(&issued)),
        ..reveille::ClientConfig::default()
    };
    let client = Client::with_config(&relay.relay.url(), config).expect("a client");
    admitted(&client).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let error = within("an answer", ready(&client, Duration::ZERO)).await;
    let error = error.expect_err("refused").to_string();
    // By the relay on the old connection, or in the handshake of the next one.
    assert!(error.to_lowercase().contains("expired"), "{error}");
}

#[tokio::test]
async fn an_address_with_failures_is_slowed_and_its_known_neighbours_are_not() {
    let relay = GuardedRelay::start().await;
    let owner = relay.client(Credential::text(relay.token("owner").await.reveal()));
    admitted(&owner).await;
    let mut errors = Vec::new();
    for number in 0..15 {
        let guess = relay.client(Credential::text(&format!("rvl_guess{number}")));
        let error = within("an answer", ready(&guess, Duration::ZERO)).await;
        errors.push(error.expect_err("refused"));
    }
    let slowed = errors.iter().map(ToString::to_string);
    let slowed = slowed.filter(|text| text.contains("too many failed attempts from this address"));
    // One attempt comes back every six seconds.
    assert!((3..=5).contains(&slowed.count()), "{errors:?}");
    admitted(&owner).await;
    // A credential that the relay has not seen yet is accepted as well.
    let fresh = relay.token("owner").await;
    admitted(&relay.client(Credential::text(fresh.reveal()))).await;
}

#[tokio::test]
async fn a_credential_goes_over_plain_text_to_this_machine_only() {
    let config = |insecure| reveille::ClientConfig {
        credential: Credential::text("planted"),
        insecure,
        ..reveille::ClientConfig::default()
    };
    let error = Client::with_config("http://relay.example.com:7600", config(false));
    let error = error.expect_err("refused").to_string();
    assert!(
        error.contains("write https://") && !error.contains("planted"),
        "{error}"
    );
    Client::with_config("http://relay.example.com:7600", config(true)).expect("permitted");
    for near in ["http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1"] {
        drop(client(near, Credential::text("planted")));
    }
}

#[tokio::test]
async fn two_authorization_headers_are_refused() {
    let relay = GuardedRelay::start().await;
    let token = relay.token("owner").await;
    let good = format!("Bearer {}", token.reveal());
    let address = relay.relay.admin_address().expect("a port");
    let alone = super::admin_port::answer(address, "/metrics", Some(&good)).await;
    assert!(alone.starts_with("HTTP/1.1 200"), "{alone}");
    for two in [
        format!("{good}\r\nauthorization: Bearer {WRONG}"),
        format!("Bearer {WRONG}\r\nauthorization: {good}"),
        format!("{good}\r\nauthorization: {good}"),
    ] {
        let answer = super::admin_port::answer(address, "/metrics", Some(&two)).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        assert!(answer.contains("more than one `authorization`"), "{answer}");
    }
    // Also on a connection whose last caller was known.
    let rules = relay.path("auth.toml");
    let rules = rules.to_str().expect("UTF-8");
    let binary = Binary::serve_with(&["--auth", rules], &[]).await;
    let peer = Peer::connect(&Target::plain(&binary), 64 * 1024).await;
    let call = async |headers: &[&str]| {
        let mut request = http::Request::post("http://relay/reveille.v1.Relay/Notify")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for value in headers {
            request = request.header("authorization", *value);
        }
        let request = request.body(Unfinished::whole(&[])).expect("a request");
        let answer = within("an answer", peer.send(request)).await;
        let answer = answer.expect("the connection is kept");
        status(&answer).map(str::to_owned)
    };
    for (headers, expected) in [
        (&[&*good][..], None),
        (&[&good, &good], Some("16")),
        (&[&good], None),
    ] {
        // A refusal as UNAUTHENTICATED is in the header; another answer has trailers, or another code.
        let found = call(headers).await.filter(|code| code == "16");
        assert_eq!(found.as_deref(), expected, "{headers:?}");
    }
}
