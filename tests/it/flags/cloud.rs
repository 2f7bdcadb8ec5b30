//! A relay that keeps its flags in a cloud's blob storage: Azurite, and moto's S3.

use std::time::Duration;

use reveille::{Client, FlagName, ListenerId};

use super::{Place, azure, ended, parked, released, s3, spawned, state, watch};
use crate::{
    binary::{stderr, stdout},
    support::{azurite::azurite, moto::moto, until, within},
};

/// Parks and releases a fleet with a late node.
async fn parks_and_releases(place: &Place) {
    let relay = place.relay("10s").await;
    let early = spawned(relay.verb(&["wait", "go-live", "--", "echo", "early"]));
    parked(&relay, 1).await;
    let unleashed = relay.run(&["unleash", "go-live", "--reason", "ready", "--expect", "1"]);
    let unleashed = unleashed.await;
    ended(&unleashed, 0);
    let row = stdout(&unleashed);
    let counts: Vec<_> = row
        .lines()
        .nth(1)
        .expect("a row")
        .split_whitespace()
        .collect();
    assert_eq!(counts[1..3], ["1", "1"], "acknowledged and expected: {row}");
    assert_eq!(stdout(&released(early).await), "early\n");
    let late = relay.run(&["wait", "go-live", "--", "echo", "late"]).await;
    assert_eq!(stdout(&late), "late\n", "{}", stderr(&late));

    let listed = stdout(&relay.run(&["flag", "list"]).await);
    assert!(
        listed.contains("go-live") && listed.contains("ready"),
        "{listed}"
    );
    ended(&relay.run(&["flag", "get", "go-live", "--check"]).await, 0);
    ended(&relay.run(&["leash", "go-live"]).await, 0);
    ended(&relay.run(&["flag", "get", "go-live", "--check"]).await, 5);
    let listed = stdout(&relay.run(&["flag", "list", "-o", "json"]).await);
    assert_eq!(listed.trim(), "[]");
}

#[tokio::test]
async fn a_fleet_is_parked_and_released_on_azure() {
    parks_and_releases(&azure("flags-fleet")).await;
}

#[tokio::test]
async fn a_fleet_is_parked_and_released_on_s3() {
    parks_and_releases(&s3("flags-fleet")).await;
}

/// Sets and clears a flag by hand, without a tool of this crate.
async fn assert_changes_by_hand_are_found(place: &Place, by_hand: impl Fn(&str, &str) -> u16) {
    let relay = place.relay("200ms").await;
    for body in ["", "true", "\u{1}{\"generation\":"] {
        let mut watch = watch(&relay, "by-hand", "node");
        assert!(!state(&mut watch).await.set);
        let status = by_hand("PUT", body);
        assert!((200..300).contains(&status), "{status}");
        let set = state(&mut watch).await;
        assert!(set.set && set.generation > 0, "{body:?}: {set:?}");
        ended(&relay.run(&["wait", "by-hand", "--timeout", "5s"]).await, 0);
        let status = by_hand("DELETE", "");
        assert!((200..300).contains(&status), "{status}");
        assert!(!state(&mut watch).await.set, "{body:?}");
    }
}

#[tokio::test]
async fn changes_by_hand_on_azure_are_found() {
    let place = azure("flags-by-hand");
    let by_hand =
        |method: &str, body: &str| azurite().by_hand(method, "flags-by-hand/flags/by-hand", body);
    assert_changes_by_hand_are_found(&place, by_hand).await;
}

#[tokio::test]
async fn changes_by_hand_on_s3_are_found() {
    let place = s3("flags-by-hand");
    let by_hand =
        |method: &str, body: &str| moto().by_hand(method, "flags-by-hand/flags/by-hand", body);
    assert_changes_by_hand_are_found(&place, by_hand).await;
}

/// Returns the number of Azurite's requests for a blob.
fn requests(path: &str) -> Vec<String> {
    let path = format!("/devstoreaccount1/{path}");
    let all = azurite().requests().into_iter();
    all.filter(|request| request.contains(&path)).collect()
}

#[tokio::test]
async fn one_list_an_interval_for_any_number_of_waiting_nodes() {
    const BLOB: &str = "flags-polls/flags/go ";
    let place = azure("flags-polls");
    let relay = place.relay("500ms").await;
    let client = Client::new(&relay.url()).expect("a URL");
    let flag = FlagName::new("go").expect("a name");
    let mut nodes = tokio::task::JoinSet::new();
    for node in 0..50 {
        let id = ListenerId::new(&format!("node-{node}")).expect("an id");
        let watch = client.watch_flag(flag.clone(), id);
        nodes.spawn(async move { reveille::release::Release::new(watch).wait().await });
    }
    parked(&relay, 50).await;
    // Two reads synchronize all watchers that register at once, 50 or 50,000. On a slow machine
    // they register one after another, which takes a few more reads. The last ones may be under way.
    let mut settling = 0;
    until("the first reads have ended", async || {
        let before = std::mem::replace(&mut settling, requests(BLOB).len());
        tokio::time::sleep(Duration::from_secs(1)).await;
        before == settling
    })
    .await;
    assert!(settling < 25, "{settling} reads for 50 nodes");
    let lists = || requests("flags-polls?").len();
    let (before, read) = (lists(), requests(BLOB).len());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let polls = lists() - before;
    assert!((4..=11).contains(&polls), "{polls} lists in ten intervals");
    let reads = requests(BLOB).len() - read;
    assert_eq!(reads, 0, "reads, although nothing has changed");

    assert_eq!(azurite().by_hand("PUT", "flags-polls/flags/go", "go"), 201);
    while let Some(node) = within("a release", nodes.join_next()).await {
        assert!(node.expect("it waits").expect("released").set);
    }
}

#[tokio::test]
async fn an_expired_flag_is_removed_with_a_condition() {
    for (place, is_azure) in [(azure("flags-over"), true), (s3("flags-over"), false)] {
        let relay = place.relay("200ms").await;
        let mut watch = watch(&relay, "brief", "node");
        assert!(!state(&mut watch).await.set);
        let unleashed = relay.run(&["unleash", "brief", "--ttl", "1s"]).await;
        ended(&unleashed, 0);
        let set = state(&mut watch).await;
        assert!(set.set && set.expires_at.is_some());
        assert!(!state(&mut watch).await.set, "it has expired");
        ended(&relay.run(&["flag", "get", "brief", "--check"]).await, 5);
        assert_eq!(
            stdout(&relay.run(&["flag", "list", "-o", "json"]).await).trim(),
            "[]"
        );
        // S3 gets no conditional delete: the blob stays, and reads as not set.
        if is_azure {
            let there = || azurite().by_hand("GET", "flags-over/flags/brief", "") == 200;
            until("it is removed", async || !there()).await;
            let deleted = "DELETE /devstoreaccount1/flags-over/flags/brief 202";
            let requests = azurite().requests();
            assert!(requests.iter().any(|request| request == deleted));
        }
        // It can be set again.
        ended(&relay.run(&["unleash", "brief"]).await, 0);
        let anew = state(&mut watch).await;
        assert!(anew.set && anew.generation != set.generation);
    }
}

#[tokio::test]
async fn relays_on_one_container_share_flags_and_prefixes_separate_them() {
    let place = azure("flags-shared");
    let (one, two) = (place.relay("200ms").await, place.relay("200ms").await);
    let url = format!("{}/another", place.url);
    let apart = Place {
        url,
        ..azure("flags-shared")
    };
    let apart = apart.relay("200ms").await;
    let [mut near, mut far, mut stranger] =
        [&one, &two, &apart].map(|relay| watch(relay, "go", "node"));
    for watch in [&mut near, &mut far, &mut stranger] {
        assert!(!state(watch).await.set);
    }
    ended(
        &one.run(&["unleash", "go", "--reason", "together"]).await,
        0,
    );
    let (here, there) = (state(&mut near).await, state(&mut far).await);
    assert_eq!(
        here, there,
        "the same generation, expiry, author and reason"
    );
    // A concurrent set and clear lead to the same state on both relays.
    let (unleashed, leashed) = tokio::join!(
        one.run(&["unleash", "go", "--reason", "again"]),
        two.run(&["leash", "go"])
    );
    ended(&unleashed, 0);
    ended(&leashed, 0);
    until("they agree", async || {
        let list = ["flag", "list", "-o", "json"];
        let (here, there) = tokio::join!(one.run(&list), two.run(&list));
        stdout(&here) == stdout(&there)
    })
    .await;
    ended(&apart.run(&["flag", "get", "go", "--check"]).await, 5);
}
