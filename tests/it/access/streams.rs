//! Streams end with their credential, and go on with a renewed one: no wake-up is lost.

use std::time::{Duration, SystemTime};

use reveille::{
    ConnectionState, Credential, FlagName, ListenerId, NodeConfig, Notification, QueuesConfig,
    WakeReason,
};
use tokio::process::Command;

use super::{GuardedRelay, RULES, token};
use crate::{
    python::{python, run, stubs},
    sources::root,
    support::{listening, queue, ready, told, within, woken},
};

/// Longer than a stream may outlive its credential.
const REVOKED_WITHIN: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_revoked_token_ends_its_streams_and_a_renewed_one_opens_them_again() {
    let relay = GuardedRelay::start().await;
    let first = relay.token("owner").await;
    let file = relay.path("worker.token");
    std::fs::write(&file, first.reveal()).expect("written");
    let worker = relay.client(Credential::file(&file));
    let mut wakes = worker
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let flag = FlagName::new("go-live").expect("a name");
    let mut watch = worker.watch_flag(flag, ListenerId::new("worker").expect("a name"));
    within("the flag's state", watch.next_event())
        .await
        .expect("alive")
        .expect("allowed");
    let publisher = relay.client(Credential::text(relay.token("owner").await.reveal()));
    let publisher = publisher.publisher("test");

    // Not applied at once: the relay finds the change by itself.
    relay.tokens().revoke(first.id()).expect("revoked");
    let revoked = async {
        while watch.link().borrow().connection == ConnectionState::Connected {
            let event = tokio::time::timeout(STEP, watch.next_event()).await;
            assert!(!matches!(event, Ok(None | Some(Err(_)))), "{event:?}");
        }
    };
    tokio::time::timeout(REVOKED_WITHIN, revoked)
        .await
        .expect("within 60 s");
    let mut link = wakes.link();
    let ended = async {
        tokio::select! {
            ended = link.wait_for(|link| link.connection != ConnectionState::Connected) => {
                ended.expect("alive");
            }
            work = reveille::WakeStream::next(&mut wakes) => panic!("{work:?}"),
        }
    };
    tokio::time::timeout(REVOKED_WITHIN, ended)
        .await
        .expect("within 60 s");
    // Work arrives while the listener has no valid token.
    let notified = publisher.notify(Notification::new(queue("acct/orders")));
    within("an answer", notified).await.expect("counted");
    let second = relay.token("owner").await;
    std::fs::write(&file, second.reveal()).expect("written");
    assert_eq!(woken(&mut wakes).await.reason, WakeReason::CatchUp);
}

#[tokio::test]
async fn an_expired_token_ends_its_stream() {
    let relay = GuardedRelay::start().await;
    let end = SystemTime::now() + Duration::from_secs(4);
    let short = token(relay.home.path(), "owner", Some(end));
    relay.reload().await;
    let client = relay.client(Credential::text(short.reveal()));
    let mut wakes = client
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let mut link = wakes.link();
    let ended = async {
        tokio::select! {
            ended = link.wait_for(|link| link.connection != ConnectionState::Connected) => {
                ended.expect("alive");
            }
            work = reveille::WakeStream::next(&mut wakes) => panic!("{work:?}"),
        }
    };
    tokio::time::timeout(Duration::from_secs(12), ended)
        .await
        .expect("soon after its end");
    let error = within("an answer", ready(&client, Duration::ZERO)).await;
    let error = error.expect_err("expired").to_string();
    assert!(error.contains("the token expired"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_client_is_told_that_its_token_ended() {
    let (relay, stubs) = (GuardedRelay::start().await, stubs().await);
    // Time for the start of Python on a busy machine.
    let end = SystemTime::now() + Duration::from_secs(8);
    let short = token(relay.home.path(), "owner", Some(end));
    relay.reload().await;
    let address = relay.relay.node().expect("it runs").address();
    let mut command = Command::new(python());
    command
        .args(["tests/python/revoked.py", &address.to_string()])
        .arg(short.reveal())
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    run(&mut command, "revoked.py").await;
}

/// Publishers' streams and hand-overs have no Goodbye.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_the_streams_of_a_stock_publisher_and_of_a_hand_over() {
    let queues = tempfile::tempdir().expect("a directory");
    let path = queues.path().join("queues.db");
    let relay = GuardedRelay::with(RULES, |config| NodeConfig {
        queues: Some(QueuesConfig {
            path,
            ..QueuesConfig::default()
        }),
        ..config
    })
    .await;
    let (revoked, stays) = (relay.token("owner").await, relay.token("owner").await);
    let listener = relay.client(Credential::text(stays.reveal()));
    let mut wakes = listener
        .subscribe(listening("worker", &["acct/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let address = relay.relay.node().expect("it runs").address();
    let stubs = stubs().await;
    let mut command = Command::new(python());
    command
        .args(["tests/python/revoked_requests.py", &address.to_string()])
        .args([revoked.reveal(), stays.reveal()])
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    let revoke = async {
        told(&mut wakes, 2).await;
        relay.tokens().revoke(revoked.id()).expect("revoked");
        relay.reload().await;
    };
    tokio::join!(run(&mut command, "revoked_requests.py"), revoke);
}

#[tokio::test]
async fn a_narrower_rule_ends_the_streams_that_it_no_longer_covers() {
    let relay = GuardedRelay::start().await;
    let other = relay.token("other").await;
    let client = relay.client(Credential::text(other.reveal()));
    let mut kept = client
        .subscribe(listening("kept", &["other/kept"]))
        .expect("options");
    let mut lost = client
        .subscribe(listening("lost", &["other/lost"]))
        .expect("options");
    woken(&mut kept).await;
    woken(&mut lost).await;
    let rules = RULES.replace("other/*", "other/kept");
    std::fs::write(relay.path("auth.toml"), rules).expect("written");
    relay.reload().await;
    let mut link = lost.link();
    let ended = async {
        tokio::select! {
            ended = link.wait_for(|link| link.connection != ConnectionState::Connected) => {
                ended.expect("alive");
            }
            work = reveille::WakeStream::next(&mut lost) => panic!("{work:?}"),
        }
    };
    tokio::time::timeout(REVOKED_WITHIN, ended)
        .await
        .expect("within 60 s");
    let owner = relay.client(Credential::text(relay.token("owner").await.reveal()));
    let publisher = owner.publisher("test");
    let notified = publisher.notify(Notification::new(queue("other/kept")));
    within("an answer", notified).await.expect("counted");
    assert_eq!(woken(&mut kept).await.notifications, 1);
    assert_eq!(kept.link().borrow().connection, ConnectionState::Connected);
}

mod full {
    use super::*;

    #[tokio::test]
    async fn a_publisher_goes_on_with_a_renewed_token() {
        let relay = GuardedRelay::start().await;
        let first = relay.token("owner").await;
        let file = relay.path("publisher.token");
        std::fs::write(&file, first.reveal()).expect("written");
        let publisher = relay.client(Credential::file(&file)).publisher("test");
        let notify = async || {
            let notified = publisher.notify(Notification::new(queue("acct/orders")));
            within("an answer", notified).await
        };
        notify().await.expect("counted");
        let second = relay.token("owner").await;
        std::fs::write(&file, second.reveal()).expect("written");
        relay.tokens().revoke(first.id()).expect("revoked");
        relay.reload().await;
        // For as long as the relay may take to end the stream of the first token.
        let end = tokio::time::Instant::now() + Duration::from_secs(20);
        while tokio::time::Instant::now() < end {
            notify().await.expect("counted");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
