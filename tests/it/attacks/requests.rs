//! Requests that the relay refuses.

use prost::Message as _;

use super::{
    peer::{Peer, Unfinished, ended, status},
    target::Target,
};
use crate::{
    binary::Binary,
    support::{listening, within, woken},
};

const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const WINDOW: u32 = 64 * 1024;
/// What the relay reads of a request before it refuses it is at most the limit of its service.
#[tokio::test]
async fn requests_beyond_their_limits_are_refused() {
    let relay = Binary::serve().await;
    let peer = Peer::connect(&Target::plain(&relay), WINDOW).await;
    for (path, limit) in [
        ("/reveille.v1.Relay/Report", 64 * 1024),
        ("/reveille.v1.Relay/Notify", 1024 * 1024),
        ("/reveille.v1.Relay/NotifyStream", 1024 * 1024),
        (SUBSCRIBE, 1024 * 1024),
        ("/reveille.v1.Flags/GetFlag", 64 * 1024),
    ] {
        for bytes in [limit + 1, 2 * 1024 * 1024] {
            let answers = peer
                .call_often(20, path, || Unfinished::whole(&vec![0; bytes]))
                .await;
            for answer in answers {
                let answer = answer.expect("a status, not a broken connection");
                let (code, message) = within("an end", ended(answer)).await;
                assert_eq!(code, "8", "{path}: {message}");
                assert!(message.contains("limit is"), "{path} {code}: {message}");
            }
        }
    }
}

/// The first field of a `ReportRequest`, and the queue's name.
#[derive(Clone, PartialEq, prost::Message)]
struct Report {
    #[prost(string, tag = "1")]
    subscription_id: String,
    #[prost(string, tag = "2")]
    storage_account: String,
    #[prost(string, tag = "3")]
    queue_name: String,
    #[prost(int32, tag = "4")]
    state: i32,
}

#[tokio::test]
async fn an_unknown_subscription_id_is_not_repeated_in_the_answer() {
    let relay = Binary::serve().await;
    let peer = Peer::connect(&Target::plain(&relay), WINDOW).await;
    let report = Report {
        subscription_id: "s".repeat(60_000),
        storage_account: "acct".to_owned(),
        queue_name: "orders".to_owned(),
        state: 1,
    };
    let body = Unfinished::whole(&report.encode_to_vec());
    let answer = peer.call("/reveille.v1.Relay/Report", body).await;
    let (code, message) = ended(answer.expect("answered")).await;
    assert!(
        matches!(code.as_str(), "3" | "5" | "14"),
        "{code} {message}"
    );
    assert!(message.contains("subscription_id"), "{message}");
    assert!(message.len() < 500, "{message}");
}

#[tokio::test]
async fn reflection_that_is_switched_off_is_not_served() {
    const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    for (switch, status) in [("off", Some("12")), ("on", None)] {
        let relay = Binary::serve_with(&["--reflection", switch], &[]).await;
        let peer = Peer::connect(&Target::plain(&relay), 64 * 1024).await;
        let list_services = Unfinished::whole(b"\x3a\x00");
        let answer = peer
            .call(REFLECTION, list_services)
            .await
            .expect("answered");
        let stated = answer.headers().get("grpc-status");
        let stated = stated.map(|status| status.to_str().expect("a number"));
        assert_eq!(stated, status, "reflection {switch}");
    }
}

/// Watches of the health need no credential, so they must not take the streams of others.
#[tokio::test]
async fn watches_of_the_health_leave_the_streams_of_others() {
    const WATCH: &str = "/grpc.health.v1.Health/Watch";
    let relay = Binary::serve_with(&["--max-streams", "3"], &[]).await;
    let target = Target::plain(&relay);
    let (mut open, mut refused) = (Vec::new(), 0);
    // 64 of a connection, and a thousand of all.
    for _ in 0..17 {
        let peer = Peer::connect(&target, WINDOW).await;
        for answer in peer.call_often(70, WATCH, || Unfinished::whole(b"")).await {
            let answer = answer.expect("answered");
            match status(&answer) {
                None => open.push(answer),
                Some(code) => {
                    assert_eq!(code, "8");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!((open.len(), refused), (1000, 190));
    let client = reveille::Client::new(&relay.url()).expect("a client");
    let mut wakes = client
        .subscribe(listening("good", &["good/pair"]))
        .expect("options");
    woken(&mut wakes).await;
}
