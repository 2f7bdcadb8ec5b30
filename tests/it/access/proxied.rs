//! Callers behind a proxy that sends all of their requests on one connection.

use std::time::Duration;

use reveille::{ConnectionState, Credential, ErrorKind, Notification, WakeStream};

use super::GuardedRelay;
use crate::{
    support::{listening, queue, ready, within, woken},
    tls::{ReframingProxy, SILENCE, are_served},
};

async fn started() -> (GuardedRelay, ReframingProxy) {
    let relay = GuardedRelay::start().await;
    let proxy = ReframingProxy::to(relay.relay.node().expect("it runs").address()).await;
    (relay, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_with_tokens_share_one_connection_to_the_relay() {
    share_one_connection(Duration::ZERO).await;
}

mod full {
    #[tokio::test(flavor = "multi_thread")]
    async fn callers_with_tokens_share_one_connection_after_a_silence() {
        super::share_one_connection(super::SILENCE).await;
    }
}

async fn share_one_connection(silence: Duration) {
    let (relay, proxy) = started().await;
    let (owner, other) = (relay.token("owner").await, relay.token("other").await);
    let second = relay.token("owner").await;
    let clients = [
        (Some(owner.reveal()), "acct"),
        (Some(other.reveal()), "other"),
        (Some(second.reveal()), "third"),
    ];
    are_served(&relay.relay, &proxy, &clients, silence).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_of_a_shared_connection_has_its_own_rights() {
    let (relay, proxy) = started().await;
    let (owner, other) = (relay.token("owner").await, relay.token("other").await);
    let client = |text: &str| proxy.client(Credential::text(text));
    let clients = [client(owner.reveal()), client(other.reveal())];
    let mut streams = Vec::new();
    for (client, name) in clients.iter().zip(["acct/orders", "other/orders"]) {
        let mut wakes = client
            .subscribe(listening("worker", &[name]))
            .expect("options");
        woken(&mut wakes).await;
        streams.push(wakes);
    }
    let denied = clients[1].publisher("test");
    let denied = denied.notify(Notification::new(queue("acct/orders")));
    let error = within("an answer", denied).await.expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let stranger = client("rvl_guess");
    let error = within("an answer", ready(&stranger, Duration::ZERO)).await;
    let error = error.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    // A revoked token ends the streams of its caller only.
    relay.tokens().revoke(other.id()).expect("revoked");
    relay.reload().await;
    let mut revoked = streams.pop().expect("two streams");
    let mut link = revoked.link();
    let ended = async {
        tokio::select! {
            ended = link.wait_for(|link| link.connection != ConnectionState::Connected) => {
                ended.expect("alive");
            }
            // Polled, as the state changes only then.
            work = WakeStream::next(&mut revoked) => panic!("{work:?}"),
        }
    };
    within("the end of the revoked stream", ended).await;
    let publisher = clients[0].publisher("test");
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    within("an answer", notified).await.expect("counted");
    assert_eq!(woken(&mut streams[0]).await.notifications, 1);
}
