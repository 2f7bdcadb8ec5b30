//! Writes whose requests are cut, delayed or repeated: Azurite behind a proxy.

use std::{sync::Arc, time::Duration};

use super::{azure, name, opened};
use crate::{
    azurite::azurite,
    error::ErrorKind,
    proxy::{Fault, Faults, Proxy},
    store::{BlobContent, BlobStore, Variables, contract},
};

/// The same container, through a proxy and directly.
async fn both_ways(container: &str) -> (Proxy, Arc<dyn BlobStore>, Arc<dyn BlobStore>) {
    azurite().create_container(container);
    let proxy = Proxy::start(azurite().blob_port(), 7);
    let text = azurite().connection_string_through(proxy.port());
    let variables: Variables = [("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)].into();
    let url = format!("az://{container}");
    let (through, straight) = (opened(&url, &variables).await, opened(&url, &azure()).await);
    (proxy, through, straight)
}

async fn text(store: &dyn BlobStore, blob: &str) -> Option<String> {
    let found = store.get(&name(blob)).await.expect("get");
    found.map(|blob| String::from_utf8(blob.content.bytes.to_vec()).expect("text"))
}

#[tokio::test]
async fn through_a_transparent_proxy_the_contract_holds() {
    let (_proxy, through, straight) = both_ways("proxied-contract").await;
    contract::check(&*through).await;
    contract::check_races(&[through, straight]).await;
}

#[tokio::test]
async fn a_write_that_was_cut_is_an_error_with_unknown_outcome() {
    let (proxy, through, straight) = both_ways("proxied-cut").await;
    for (number, (fault, written)) in [
        (Fault::CutBefore, false),
        (Fault::CutWithin, false),
        (Fault::CutAfter, true),
    ]
    .into_iter()
    .enumerate()
    {
        let blob = format!("cut-{number}");
        let content = || BlobContent::from("a body that can be cut in two");
        proxy.plan("PUT", &blob, fault);
        let error = through.create(&name(&blob), content()).await;
        let error = error.expect_err("cut");
        assert!(error.is_retryable(), "{fault:?}: {error}");
        assert_ne!(error.kind(), ErrorKind::Conflict, "{fault:?}");
        assert_eq!(
            text(&*straight, &blob).await.is_some(),
            written,
            "{fault:?}"
        );
        assert_eq!(proxy.count(fault), 1, "sent once: {:?}", proxy.seen());

        // The same for a write over an existing blob.
        let base = format!("base-{number}");
        let etag = straight
            .create(&name(&base), "old".into())
            .await
            .expect("create");
        proxy.plan("PUT", &base, fault);
        let error = through.update(&name(&base), "new".into(), &etag).await;
        assert!(error.expect_err("cut").is_retryable());
        let expected = if written { "new" } else { "old" };
        assert_eq!(text(&*straight, &base).await.as_deref(), Some(expected));

        // The same for a conditional deletion.
        let seen = straight
            .get(&name(&base))
            .await
            .expect("get")
            .expect("there");
        proxy.plan("DELETE", &base, fault);
        let error = through.delete(&name(&base), Some(&seen.etag)).await;
        assert!(error.expect_err("cut").is_retryable());
        assert_eq!(
            text(&*straight, &base).await.is_none(),
            written,
            "{fault:?}"
        );
    }
}

#[tokio::test]
async fn an_overloaded_service_wrote_nothing() {
    let (proxy, through, straight) = both_ways("proxied-busy").await;
    for status in [429, 503] {
        proxy.plan("PUT", "busy", Fault::Answer(status));
        let error = through.create(&name("busy"), "x".into()).await;
        let error = error.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(
            error.message().contains("more often than it allows"),
            "{error}"
        );
        assert_eq!(text(&*straight, "busy").await, None);
        assert_eq!(proxy.count(Fault::Answer(status)), 1, "sent once");
    }
}

#[tokio::test]
async fn reads_are_retried() {
    let (proxy, through, straight) = both_ways("proxied-reads").await;
    straight
        .create(&name("there"), "x".into())
        .await
        .expect("create");
    for fault in [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::Repeat,
        Fault::Answer(503),
        Fault::Delay(Duration::from_millis(300)),
    ] {
        proxy.plan("GET", "there", fault);
        assert_eq!(
            text(&*through, "there").await.as_deref(),
            Some("x"),
            "{fault:?}"
        );
        proxy.plan("GET", "comp=list", fault);
        let listed = through.list("", &Default::default()).await.expect("list");
        assert_eq!(listed.entries.len(), 1, "{fault:?}");
        assert_eq!(proxy.count(fault), 2);
    }
}

/// If the network repeats a request, a write may conflict with itself, as the trait documents.
#[tokio::test]
async fn a_write_that_the_network_repeats_conflicts_with_itself() {
    let (proxy, through, straight) = both_ways("proxied-twice").await;
    proxy.plan("PUT", "twice", Fault::Repeat);
    let error = through.create(&name("twice"), "one".into()).await;
    assert_eq!(error.expect_err("exists").kind(), ErrorKind::Conflict);
    let made = straight
        .get(&name("twice"))
        .await
        .expect("get")
        .expect("there");

    proxy.plan("PUT", "twice", Fault::Repeat);
    let error = through
        .update(&name("twice"), "two".into(), &made.etag)
        .await;
    assert_eq!(error.expect_err("changed").kind(), ErrorKind::Conflict);
    assert_eq!(text(&*straight, "twice").await.as_deref(), Some("two"));

    let seen = straight
        .get(&name("twice"))
        .await
        .expect("get")
        .expect("there");
    proxy.plan("DELETE", "twice", Fault::Repeat);
    let deleted = through.delete(&name("twice"), Some(&seen.etag)).await;
    assert!(!deleted.expect("it is gone"), "as if it had not existed");
    assert_eq!(text(&*straight, "twice").await, None);
}

#[tokio::test]
async fn an_answered_write_is_true_under_random_faults() {
    let (proxy, through, straight) = both_ways("proxied-seeded").await;
    proxy.set(Faults {
        cut_before: 8,
        cut_within: 8,
        cut_after: 8,
        busy: 8,
        delay: Duration::from_millis(3),
        ..Faults::default()
    });
    let mut etag = None;
    let mut refused = 0;
    for number in 0..120 {
        let content = BlobContent::from(bytes::Bytes::from(number.to_string()));
        let before = text(&*straight, "seeded").await;
        let outcome = match &etag {
            None => through.create(&name("seeded"), content).await,
            Some(etag) => through.update(&name("seeded"), content, etag).await,
        };
        let after = text(&*straight, "seeded").await;
        match outcome {
            Ok(written) => {
                assert_eq!(after, Some(number.to_string()));
                etag = Some(written);
            }
            Err(error) => {
                // No request is repeated here, so such an error proves that nothing was written.
                let open = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout);
                assert!(open || after == before, "{error}: {before:?}, {after:?}");
                refused += 1;
                let there = straight.get(&name("seeded")).await.expect("get");
                etag = there.map(|blob| blob.etag);
            }
        }
    }
    assert!((10..110).contains(&refused), "{refused}");
}
