//! No relay, or an unreachable one: nodes read the flag in the store themselves.

use super::{Place, azure, ended, released, s3, spawned, sqlite};
use crate::{
    binary::{Binary, free_address, reveille, stderr, stdout},
    support::azurite::azurite,
};

/// Parks and releases a node without any relay.
async fn parks_and_releases(place: &Place) {
    let home = tempfile::tempdir().expect("a directory");
    let node = place.park(&home, &["go-live", "--", "echo", "released"]);
    let unleashed = place.run(&home, &["unleash", "go-live", "--reason", "by store"]);
    ended(&unleashed.await, 0);
    assert_eq!(stdout(&released(node).await), "released\n");

    let got = place
        .run(&home, &["flag", "get", "go-live", "--check"])
        .await;
    ended(&got, 0);
    assert!(stdout(&got).contains("by store"), "{}", stdout(&got));
    let listed = place
        .run(&home, &["flag", "list", "go-", "-o", "json"])
        .await;
    let listed: serde_json::Value = serde_json::from_str(&stdout(&listed)).expect("JSON");
    assert_eq!(listed[0]["flag"], "go-live");

    // A relay on the same store has the same flag.
    let relay = place.relay("200ms").await;
    let late = relay.run(&["wait", "go-live", "--", "echo", "late"]).await;
    assert_eq!(stdout(&late), "late\n", "{}", stderr(&late));
    ended(&place.run(&home, &["leash", "go-live"]).await, 0);
    ended(&place.run(&home, &["leash", "go-live"]).await, 0);
    ended(&relay.run(&["flag", "get", "go-live", "--check"]).await, 5);
    let waited = place
        .run(&home, &["wait", "go-live", "--timeout", "600ms"])
        .await;
    assert!(ended(&waited, 6).contains("was not set within 600ms"));
}

#[tokio::test]
async fn a_node_is_parked_and_released_by_a_file_alone() {
    let home = tempfile::tempdir().expect("a directory");
    parks_and_releases(&sqlite(&home)).await;
}

#[tokio::test]
async fn a_node_is_parked_and_released_by_azure_alone() {
    parks_and_releases(&azure("flags-alone")).await;
}

#[tokio::test]
async fn a_node_is_parked_and_released_by_s3_alone() {
    parks_and_releases(&s3("flags-alone")).await;
}

#[tokio::test]
async fn a_blob_written_by_hand_sets_a_flag() {
    let (place, home) = (
        azure("flags-plain"),
        tempfile::tempdir().expect("a directory"),
    );
    let node = place.park(&home, &["go"]);
    let path = "flags-plain/flags/go";
    assert_eq!(azurite().by_hand("PUT", path, "whatever"), 201);
    released(node).await;
    assert_eq!(azurite().by_hand("DELETE", path, ""), 202);
    ended(
        &place.run(&home, &["flag", "get", "go", "--check"]).await,
        5,
    );
}

#[tokio::test]
async fn an_unreachable_relay_does_not_stop_the_polling() {
    let (place, home) = (
        azure("flags-no-relay"),
        tempfile::tempdir().expect("a directory"),
    );
    let unreachable = format!("http://{}", free_address());
    let node = place.park(&home, &["go", "--relay", &unreachable]);
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    ended(&place.run(&home, &["unleash", "go"]).await, 0);
    let complaint = stderr(&released(node).await);
    let lines: Vec<_> = complaint
        .lines()
        .filter(|l| l.contains(&unreachable))
        .collect();
    assert_eq!(lines.len(), 1, "once, and no flood: {complaint}");
    assert!(lines[0].ends_with("still trying"), "{complaint}");
}

#[tokio::test]
async fn an_outage_of_the_store_does_not_stop_the_watch() {
    let relay = Binary::serve().await;
    let dead = azurite().connection_string_through(1);
    let missing = azure("flags-present");
    for (variables, url, words) in [
        (&dead, "az://flags-present", "retrying"),
        (
            &azurite().connection_string(),
            "az://flags-absent",
            "create it first",
        ),
    ] {
        let mut waits = relay.verb(&["wait", "go", "--store", url, "--interval", "50ms"]);
        waits.env(&missing.variables[0].0, variables);
        let node = spawned(waits);
        tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
        ended(&relay.run(&["unleash", "go", "--expect", "1"]).await, 0);
        let complaint = stderr(&released(node).await);
        let about: Vec<_> = complaint.lines().filter(|l| l.contains("az://")).collect();
        // The client of a store repeats its requests for some seconds before it fails.
        assert!(about.len() <= 1, "once, and no flood: {complaint}");
        let logs_it = about.iter().all(|line| line.contains(words));
        assert!(logs_it, "{complaint}");
        ended(&relay.run(&["leash", "go"]).await, 0);
    }
}

#[tokio::test]
async fn a_missing_container_is_reported_at_once() {
    let home = tempfile::tempdir().expect("a directory");
    let place = azure("flags-refused");
    let absent = "az://flags-nowhere";
    for (arguments, code, words) in [
        (&["wait", "go", "--store", absent][..], 5, "create it first"),
        (&["unleash", "go", "--store", absent], 5, "create it first"),
        (&["serve", "--store", absent], 1, "create it first"),
        (
            &["wait", "go", "--store", "memory:"],
            2,
            "a store in memory",
        ),
        (
            &["unleash", "go", "--store", "memory:"],
            2,
            "a store in memory",
        ),
        (
            &["flag", "list", "--store", "redis:x"],
            2,
            "names no store that is supported",
        ),
        (
            &["wait", "go", "--store", absent, "--interval", "1ms"],
            2,
            "at least 10ms",
        ),
        (&["wait", "go", "--interval", "1s"], 2, "--store"),
        (
            &["unleash", "go", "--store", absent, "--expect", "1"],
            2,
            "--expect",
        ),
    ] {
        let mut command = reveille(&home, arguments);
        command.envs(place.variables.iter().cloned());
        let output = crate::support::within("the end", command.output()).await;
        let complaint = ended(&output.expect("it starts"), code);
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
    let denied = azurite().connection_string().replace("Eby8", "Eby9");
    let mut command = reveille(&home, &["wait", "go", "--store", &place.url]);
    command.env(&place.variables[0].0, denied);
    let output = crate::support::within("the end", command.output()).await;
    let complaint = ended(&output.expect("it starts"), 4);
    assert!(complaint.contains("refuses the credential"), "{complaint}");
}
