//! An outage of the store while nodes wait, and its end.

use std::time::{Duration, Instant};

use super::{connected, ended, parked, released, spawned};
use crate::{
    binary::stderr,
    support::{azurite::Azurite, get, until},
};

/// Longer than the relay's time-out for its store, shorter than a client's.
const SOON: Duration = Duration::from_secs(12);

#[tokio::test]
async fn nodes_keep_waiting_during_an_outage_and_are_released_after_it() {
    let (directory, home) = (tempfile::tempdir(), tempfile::tempdir());
    let (directory, home) = (directory.expect("a place"), home.expect("a place"));
    let mut azurite = Azurite::on_disk(directory.path());
    azurite.create_container("outage");
    let place = connected("outage", &azurite.connection_string());
    let relay = place.relay("300ms").await;
    let told = spawned(relay.verb(&["wait", "go"]));
    let reads = place.park(&home, &["go"]);
    let both = place.park(&home, &["go", "--relay", &relay.url()]);
    parked(&relay, 2).await;
    ended(&relay.run(&["health", "--wait=10s"]).await, 0);
    // The flag expires during the outage.
    ended(&relay.run(&["unleash", "brief", "--ttl", "3s"]).await, 0);
    // The nodes have read the flag once, so a later refusal is transient.
    tokio::time::sleep(Duration::from_secs(1)).await;

    azurite.kill();
    let began = Instant::now();
    let complaint = ended(&relay.run(&["unleash", "go"]).await, 3);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    // The flag must be read before the write, so the outcome is certain unless the read timed out.
    let certain = complaint.contains("`go` was not set, and no watcher was notified");
    assert!(
        certain || complaint.contains("may have happened"),
        "{complaint}"
    );
    let complaint = ended(&place.run(&home, &["unleash", "go"]).await, 3);
    assert!(complaint.contains("az://outage"), "{complaint}");
    let complaint = ended(&relay.run(&["leash", "go"]).await, 3);
    // It must be read first as well.
    let certain = complaint.contains("`go` was not cleared, and no watcher was notified");
    assert!(
        certain || complaint.contains("may have happened"),
        "{complaint}"
    );
    // Wake-ups need no store: the relay is ready for them, and says which part is not.
    ended(&relay.run(&["health", "--wait=5s"]).await, 0);
    ended(&relay.run(&["notify", "acct/orders"]).await, 0);
    assert_eq!(get(relay.admin(), "/readyz").await.0, 200);
    let (status, page) = get(relay.admin(), "/readyz/store").await;
    assert_eq!(status, 503);
    assert!(page.contains("az://outage"), "{page}");
    let (status, page) = get(relay.admin(), "/readyz?verbose").await;
    assert_eq!(status, 200);
    assert!(page.contains("[-]store failed (not required): "), "{page}");
    assert!(page.ends_with("ready\n"), "{page}");
    until("the failed expiry was logged", async || {
        relay.log().contains("expired flags could not be ended")
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(relay.log().matches("answers again").count(), 0);

    azurite.restart();
    // Log lines in its buffer were lost with the process.
    azurite.create_container("outage");
    ended(&relay.run(&["health", "--wait=20s"]).await, 0);
    until("it is unleashed", async || {
        relay.run(&["unleash", "go"]).await.status.success()
    })
    .await;
    let [told, reads, both] = [told, reads, both].map(released);
    let (told, reads, both) = tokio::join!(told, reads, both);
    assert_eq!(stderr(&told).lines().count(), 0, "{}", stderr(&told));
    for node in [reads, both] {
        let complaint = stderr(&node);
        // The client of a store repeats its requests for some seconds before it fails.
        let failed = complaint
            .matches("the flag cannot be read; retrying")
            .count();
        assert!(failed <= 1, "once, and no flood: {complaint}");
        let again = complaint.matches("can be read again").count();
        assert!(again <= failed, "{complaint}");
    }
    let log = relay.log();
    let warned = log.matches("watched flags could not be read").count();
    assert!((1..=2).contains(&warned), "{warned} times: {log}");
    assert!(
        !log.contains("object_store"),
        "each attempt is logged: {log}"
    );
    until("the store answers again", async || {
        // Reads and expiries have a line each.
        (1..=2).contains(&relay.log().matches("the store answers again").count())
    })
    .await;
}
