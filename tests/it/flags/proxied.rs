//! A relay whose requests to its store are cut, repeated, delayed or refused.

use std::time::Duration;

use super::{Place, connected, ended, parked, released, spawned};
use crate::{
    binary::{Binary, stdout},
    support::{
        azurite::azurite,
        proxy::{Fault, Proxy},
        until,
    },
};

/// A relay without a refresh, which learns only of its own writes, and the proxy of its requests.
async fn behind(container: &str, refresh: &str) -> (Proxy, Place, Binary) {
    azurite().create_container(container);
    let proxy = Proxy::start(azurite().blob_port(), 7);
    let text = azurite().connection_string_through(proxy.port());
    let place = connected(container, &text);
    let relay = place.relay(refresh).await;
    (proxy, place, relay)
}

#[tokio::test]
async fn an_unleash_whose_answer_is_lost_is_reported_as_unknown_and_found_later() {
    let (proxy, _, relay) = behind("proxied-lost", "500ms").await;
    let node = spawned(relay.verb(&["wait", "go"]));
    parked(&relay, 1).await;
    proxy.plan("PUT", "flags/go", Fault::CutAfter);
    let complaint = ended(&relay.run(&["unleash", "go"]).await, 3);
    for words in [
        "may or may not be set",
        "no watcher was notified",
        "check with `flag get`",
    ] {
        assert!(complaint.contains(words), "{complaint}");
    }
    ended(&relay.run(&["flag", "get", "go", "--check"]).await, 0);
    // The relay reads the outcome of its own write.
    released(node).await;
    ended(&relay.run(&["unleash", "go", "--reason", "again"]).await, 0);

    proxy.plan("DELETE", "flags/go", Fault::CutAfter);
    let complaint = ended(&relay.run(&["leash", "go"]).await, 3);
    assert!(
        complaint.contains("may or may not be cleared"),
        "{complaint}"
    );
    ended(&relay.run(&["flag", "get", "go", "--check"]).await, 5);
}

#[tokio::test]
async fn an_unleash_that_never_arrived_is_reported_and_sets_nothing() {
    let (proxy, _, relay) = behind("proxied-never", "0").await;
    for (fault, words) in [
        (Fault::CutBefore, "may or may not be set"),
        (Fault::CutWithin, "may or may not be set"),
        (
            Fault::Answer(503),
            "was not set, and no watcher was notified",
        ),
        (Fault::Answer(429), "more often than it allows"),
        (Fault::Answer(403), "refuses the credential"),
    ] {
        proxy.plan("PUT", "flags/go", fault);
        let complaint = ended(&relay.run(&["unleash", "go"]).await, 3);
        assert!(complaint.contains(words), "{fault:?}: {complaint}");
        ended(&relay.run(&["flag", "get", "go", "--check"]).await, 5);
    }
}

#[tokio::test]
async fn an_unleash_that_the_network_repeats_is_recognised_and_sent_at_once() {
    let (proxy, _, relay) = behind("proxied-twice", "0").await;
    let node = spawned(relay.verb(&["wait", "go"]));
    parked(&relay, 1).await;
    proxy.plan("PUT", "flags/go", Fault::Repeat);
    let unleashed = relay.run(&["unleash", "go", "-o", "json"]).await;
    ended(&unleashed, 0);
    assert_eq!(proxy.count(Fault::Repeat), 1);
    // Nothing is read again without a request here: the watch released the node.
    released(node).await;
    let [told, found] = [
        unleashed,
        relay.run(&["flag", "get", "go", "-o", "json"]).await,
    ]
    .map(|output| serde_json::from_str::<serde_json::Value>(&stdout(&output)).expect("JSON"));
    assert_eq!(told["generation"], found["generation"]);

    proxy.plan("DELETE", "flags/go", Fault::Repeat);
    ended(&relay.run(&["leash", "go"]).await, 0);
    ended(&relay.run(&["flag", "get", "go", "--check"]).await, 5);
}

#[tokio::test]
async fn a_slow_store_is_waited_for_up_to_the_timeout() {
    let (proxy, _, relay) = behind("proxied-slow", "0").await;
    proxy.plan("PUT", "flags/go", Fault::Delay(Duration::from_secs(1)));
    ended(&relay.run(&["unleash", "go"]).await, 0);
    ended(&relay.run(&["leash", "go"]).await, 0);
    proxy.plan("PUT", "flags/go", Fault::Delay(Duration::from_secs(6)));
    let complaint = ended(&relay.run(&["unleash", "go"]).await, 3);
    assert!(complaint.contains("did not answer in time"), "{complaint}");
    assert!(complaint.contains("may have happened"), "{complaint}");
    // The write has happened at last.
    until("it is set", async || {
        let got = relay.run(&["flag", "get", "go", "--check"]).await;
        got.status.success()
    })
    .await;
}
