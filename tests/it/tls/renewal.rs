//! Renewed certificates and authorities, on both sides, without a restart or a broken stream.

use std::time::Duration;

use reveille::{Notification, WakeStream};

use super::{Authority, SecureRelay};
use crate::{
    binary::Binary,
    support::{PATIENCE, figure, listening, queue, ready, until, within, woken},
};

/// Checks that a notification reaches the stream.
async fn is_woken(publisher: &reveille::Publisher, wakes: &mut impl WakeStream) {
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    within("an answer", notified).await.expect("counted");
    woken(wakes).await;
}

#[tokio::test]
async fn renewed_files_of_the_relay_drop_no_stream() {
    are_renewed(Duration::ZERO).await;
}

mod full {
    use super::*;

    #[tokio::test]
    async fn files_that_do_not_fit_are_not_used_in_the_middle_of_a_renewal() {
        // The relay reads its files every 10 s.
        are_renewed(Duration::from_secs(12)).await;
    }
}

/// Renews the relay's key, and after this time the certificate and the authority.
async fn are_renewed(between: Duration) {
    let clients = Authority::new("clients");
    let relay = SecureRelay::with_clients(Some(&clients)).await;
    let worker = clients.write(relay.home(), "worker", clients.issue(&["worker"]));
    let old = relay.client(Some(&worker));
    let mut wakes = old
        .subscribe(listening("old", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = old.publisher("old");
    is_woken(&publisher, &mut wakes).await;
    let subscription = wakes
        .welcome()
        .expect("a stream")
        .subscription_id
        .to_string();

    // In the middle of a renewal the key does not fit: the former files stay in use.
    let renewed = Authority::new("renewed");
    let (certificate, key) = renewed.server();
    std::fs::write(&relay.files.key, &key).expect("written");
    tokio::time::sleep(between).await;
    let again = relay.client(Some(&worker));
    within("an answer", ready(&again, PATIENCE))
        .await
        .expect("admitted");
    // Then all is renewed: the certificate, and the authority of the clients.
    std::fs::write(&relay.files.certificate, &certificate).expect("written");
    let other_clients = Authority::new("other clients");
    other_clients.write(relay.home(), "clients", other_clients.issue(&["any"]));
    let files = renewed.write(relay.home(), "new", (certificate, key));
    let other = other_clients.write(relay.home(), "other", other_clients.issue(&["other"]));
    let url = relay.relay.url();
    until("new connections use the renewed files", async || {
        let new = super::client(&url, files.client(Some(&other)));
        ready(&new, Duration::ZERO).await.is_ok()
    })
    .await;
    // A client of the former authority is refused, and the open stream goes on.
    let former = super::client(&url, files.client(Some(&worker)));
    assert!(ready(&former, Duration::ZERO).await.is_err());
    is_woken(&publisher, &mut wakes).await;
    let welcome = wakes.welcome().expect("a stream");
    assert_eq!(*welcome.subscription_id, *subscription, "the same stream");
}

#[tokio::test]
async fn a_client_uses_its_renewed_certificate_for_the_next_connection() {
    let clients = Authority::new("clients");
    let mut relay = SecureRelay::with_clients(Some(&clients)).await;
    // The client begins with a certificate that the relay refuses.
    let foreign = Authority::new("foreign");
    let worker = foreign.write(relay.home(), "worker", foreign.issue(&["worker"]));
    let client = relay.client(Some(&worker));
    assert!(ready(&client, Duration::ZERO).await.is_err());
    clients.write(relay.home(), "worker", clients.issue(&["worker"]));
    within("an answer", ready(&client, PATIENCE))
        .await
        .expect("admitted");
    // The same for the authority that it trusts: the relay returns with a certificate of another.
    let renewed = Authority::new("renewed");
    renewed.write(relay.home(), "relay", renewed.server());
    relay.relay.restart().await.expect("restarted");
    within("an answer", ready(&client, PATIENCE))
        .await
        .expect("trusted");
}

#[tokio::test]
async fn a_connection_ends_with_its_certificate_and_returns_with_the_renewed_one() {
    let clients = Authority::new("clients");
    let relay = SecureRelay::with_clients(Some(&clients)).await;
    let life = Duration::from_secs(6);
    let worker = clients.write(relay.home(), "worker", clients.issue_for(&["worker"], life));
    let client = relay.client(Some(&worker));
    let mut wakes = client
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let publisher = client.publisher("worker");
    is_woken(&publisher, &mut wakes).await;
    let first = wakes
        .welcome()
        .expect("a stream")
        .subscription_id
        .to_string();
    // Renewed in time, on the same connections.
    clients.write(relay.home(), "worker", clients.issue(&["worker"]));
    until("the stream moves to another connection", async || {
        let publish = publisher.notify(Notification::new(queue("acct/orders")));
        within("an answer", publish).await.expect("counted");
        woken(&mut wakes).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        wakes
            .welcome()
            .is_some_and(|welcome| *welcome.subscription_id != *first)
    })
    .await;
    is_woken(&publisher, &mut wakes).await;
}

#[tokio::test]
async fn the_end_of_the_certificate_is_a_metric() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("relays");
    let names = ["localhost", "127.0.0.1"];
    let issue = |life| authority.write(home.path(), "relay", authority.issue_for(&names, life));
    let life = Duration::from_secs(3600);
    let files = issue(life);
    let now = || {
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .expect("after 1970")
    };
    let end = (now() + life).as_secs();
    let text = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let (certificate, key) = (text(&files.certificate), text(&files.key));
    let arguments = ["--tls-cert", &certificate, "--tls-key", &key];
    let relay = Binary::serve_with(&arguments, &[]).await;
    let metric = "reveille_tls_certificate_end_timestamp_seconds";
    let stated = figure(relay.admin(), metric).await;
    assert!(stated.abs_diff(end) < 60, "{stated} {end}");
    assert_eq!(figure(relay.admin(), "reveille_tls_files_stale").await, 0);
}
