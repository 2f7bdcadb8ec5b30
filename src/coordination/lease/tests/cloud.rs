//! On a real Azurite and moto's S3, whose ETags are the contents' hashes.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::*;
use crate::{
    azurite::azurite,
    moto::moto,
    proxy::{Faults, Proxy},
    store::open_with,
};

/// Makes a container and a bucket of this name.
async fn clouds(name: &str) -> [Arc<dyn BlobStore>; 2] {
    azurite().create_container(name);
    moto().create_bucket(name);
    let text = azurite().connection_string();
    let azure = [("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)].into();
    let s3 = moto().environment().into_iter().collect();
    [
        open_with(&format!("az://{name}"), &azure)
            .await
            .expect("azure"),
        open_with(&format!("s3://{name}/under"), &s3)
            .await
            .expect("s3"),
    ]
}

fn contender(store: &Arc<dyn BlobStore>, holder: String, duration: Duration) -> Lease {
    let config = LeaseConfig {
        duration,
        holder,
        poll: Duration::from_millis(20),
    };
    Lease::new(Arc::clone(store), "job", config).expect("a lease")
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_holder_at_a_time_and_each_has_a_greater_token() {
    for store in clouds("contended").await {
        let (busy, tokens) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Mutex::new(Vec::new())),
        );
        let nodes = (0..4).map(|number| {
            let lease = contender(&store, format!("node-{number}"), Duration::from_secs(30));
            let (busy, tokens) = (Arc::clone(&busy), Arc::clone(&tokens));
            tokio::spawn(async move {
                for _ in 0..3 {
                    let held = lease.acquire().await.expect("it is free in time");
                    assert!(!busy.swap(true, Ordering::SeqCst), "two holders at a time");
                    tokens.lock().expect("no panic").push(held.token());
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    assert!(busy.swap(false, Ordering::SeqCst));
                    held.release().await.expect("released");
                }
            })
        });
        for node in nodes.collect::<Vec<_>>() {
            node.await.expect("no panic");
        }
        let tokens = tokens.lock().expect("no panic").clone();
        assert_eq!(tokens.len(), 12);
        assert!(
            tokens.windows(2).all(|pair| pair[0] < pair[1]),
            "{tokens:?}"
        );
    }
}

#[tokio::test]
async fn a_dead_holders_lease_is_taken_after_its_duration() {
    for store in clouds("followed").await {
        let duration = Duration::from_secs(1);
        let dead = contender(&store, "dead".into(), duration);
        let held = dead.acquire().await.expect("free");
        let token = held.token();
        drop(held);
        let begun = Instant::now();
        let next = contender(&store, "next".into(), duration).acquire().await;
        let next = next.expect("free in time");
        assert!(begun.elapsed() >= duration, "{:?}", begun.elapsed());
        assert!(next.token() > token && next.is_held());
        next.release().await.expect("released");
    }
}

/// The network cuts, repeats and refuses requests. There is one holder at a time, and tokens grow.
#[tokio::test(flavor = "multi_thread")]
async fn on_an_unreliable_network_there_is_one_holder_at_a_time() {
    azurite().create_container("rough-leases");
    let proxy = Proxy::start(azurite().blob_port(), 11);
    let text = azurite().connection_string_through(proxy.port());
    let variables = [("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)].into();
    let store = open_with("az://rough-leases", &variables)
        .await
        .expect("a store");
    proxy.set(Faults {
        cut_before: 5,
        cut_within: 3,
        cut_after: 8,
        repeat: 8,
        busy: 4,
        ..Faults::default()
    });
    let (busy, tokens) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let nodes = (0..3).map(|number| {
        let lease = contender(&store, format!("node-{number}"), Duration::from_secs(2));
        let (busy, tokens) = (Arc::clone(&busy), Arc::clone(&tokens));
        tokio::spawn(async move {
            for _ in 0..4 {
                let held = lease.acquire().await.expect("it is free in time");
                // On such a network it may be lost at once; then the test does nothing.
                if held.is_held() {
                    assert!(!busy.swap(true, Ordering::SeqCst), "two holders at a time");
                    tokens.lock().expect("no panic").push(held.token());
                    assert!(busy.swap(false, Ordering::SeqCst));
                }
                // A lease that cannot be released ends by itself.
                let _ = held.release().await;
            }
        })
    });
    for node in nodes.collect::<Vec<_>>() {
        node.await.expect("no panic");
    }
    let tokens = tokens.lock().expect("no panic").clone();
    assert!(tokens.len() > 8, "{tokens:?}");
    assert!(
        tokens.windows(2).all(|pair| pair[0] < pair[1]),
        "{tokens:?}"
    );
    let faults = proxy
        .seen()
        .iter()
        .filter(|seen| seen.fault.is_some())
        .count();
    assert!(faults > 5, "{faults} of {}", proxy.seen().len());
}
