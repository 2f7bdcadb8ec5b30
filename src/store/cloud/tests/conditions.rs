//! Services with S3's protocol that ignore conditions: moto behind a proxy that removes them.

use std::sync::Arc;

use super::{name, opened};
use crate::{
    coordination::{
        flag::StoreFlags,
        lease::{Lease, LeaseConfig},
        unique_id::{BlobSyncStore, IdConfig, UniqueIdGenerator},
    },
    error::ErrorKind,
    moto::{Moto, moto},
    proxy::Proxy,
    store::{BlobContent, BlobStore, container},
    types::{FlagName, UnleashOptions},
};

/// A bucket through a proxy that removes these headers from these methods, and without the proxy.
async fn without(
    bucket: &str,
    stripped: &[(&'static str, &'static str)],
) -> (Proxy, Arc<dyn BlobStore>, Arc<dyn BlobStore>) {
    moto().create_bucket(bucket);
    let proxy = Proxy::start(moto().port(), 7);
    for (method, header) in stripped {
        proxy.strip(method, header);
    }
    let variables = Moto::environment_through(proxy.port());
    let variables = variables.into_iter().collect();
    let url = format!("s3://{bucket}");
    let through = opened(&url, &variables).await;
    let straight = opened(&url, &super::s3()).await;
    (proxy, through, straight)
}

#[tokio::test]
async fn a_service_that_ignores_conditions_is_refused_before_anything_is_written() {
    for (bucket, header, named) in [
        ("ignores-create", "if-none-match", "If-None-Match"),
        ("ignores-update", "if-match", "If-Match"),
    ] {
        let (_proxy, store, straight) = without(bucket, &[("PUT", header)]).await;
        let orders = BlobSyncStore::new(Arc::clone(&store), name("ids/orders"));
        let ids = UniqueIdGenerator::new(orders, IdConfig::default()).expect("a generator");
        let lease = Lease::new(Arc::clone(&store), "billing", LeaseConfig::default());
        let lease = lease.expect("a lease");
        let go = FlagName::new("go").expect("a name");
        let flags = StoreFlags::new(Arc::clone(&store));
        let refusals = [
            ids.next_id().await.expect_err("an id"),
            lease.acquire().await.expect_err("a lease"),
            flags
                .unleash(&go, &UnleashOptions::default())
                .await
                .expect_err("a flag"),
        ];
        for error in refusals {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains(named), "{error}");
            assert!(error.message().contains(bucket), "{error}");
        }
        let listed = straight.list("", &Default::default()).await.expect("list");
        let names: Vec<_> = listed.entries.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["probes/conditions"], "only the probe's blob");
    }
}

#[tokio::test]
async fn a_service_that_supports_conditions_is_probed_once() {
    let (proxy, store, _) = without("keeps", &[]).await;
    for blob in ["a", "b", "c"] {
        store.create(&name(blob), "x".into()).await.expect("made");
    }
    let probes = || {
        let seen = proxy.seen();
        let probes = seen.iter().filter(|seen| seen.request.contains("probes/"));
        probes.count()
    };
    assert_eq!(probes(), 3, "{:?}", proxy.seen());
    let variables = Moto::environment_through(proxy.port());
    let again = opened("s3://keeps", &variables.into_iter().collect()).await;
    again.create(&name("d"), "x".into()).await.expect("made");
    assert_eq!(probes(), 5, "the blob is there already: {:?}", proxy.seen());
}

#[tokio::test]
async fn a_blob_written_after_the_read_is_not_swept_from_s3() {
    moto().create_bucket("swept-late");
    let variables = super::s3();
    let container = container::connect("s3://swept-late", &variables).await;
    let container = container.expect("a container");
    let store = opened("s3://swept-late", &variables).await;
    let blob = name("session");
    store.create(&blob, "old".into()).await.expect("made");
    let seen = container.head(&blob).await.expect("head").expect("there");
    // A write between the read and the deletion, which are one call.
    let proxy = Proxy::start(moto().port(), 7);
    let through: super::Variables = Moto::environment_through(proxy.port())
        .into_iter()
        .collect();
    let slow = container::connect("s3://swept-late", &through).await;
    let slow = slow.expect("a container");
    proxy.plan(
        "DELETE",
        "session",
        crate::proxy::Fault::Delay(std::time::Duration::from_millis(500)),
    );
    let rewriting = async {
        while !proxy
            .seen()
            .iter()
            .any(|seen| seen.request.starts_with("DELETE"))
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let content = BlobContent::from("new");
        store
            .update(&blob, content, &seen.etag)
            .await
            .expect("written");
    };
    let (deleted, ()) = tokio::join!(slow.delete_unchanged(&seen), rewriting);
    assert_eq!(deleted.expect_err("changed").kind(), ErrorKind::Conflict);
    let left = store.get(&blob).await.expect("get").expect("it stays");
    assert_eq!(&left.content.bytes[..], b"new");
}
