//! The contract of blob stores: a suite of checks that each of them passes.
//!
//! Each check uses its own names, so that all can run on one store.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use bytes::Bytes;

use super::{Blob, BlobContent, BlobName, BlobStore, ETag, PageOptions};
use crate::error::{ErrorKind, Result};

/// Runs all checks that need one handle.
pub(crate) async fn check(store: &dyn BlobStore) {
    a_written_blob_is_read(store).await;
    creating_what_exists_is_a_conflict(store).await;
    updating_needs_the_newest_etag(store).await;
    deleting_keeps_its_condition(store).await;
    etags_are_never_used_twice(store).await;
    lists_come_in_pages_and_in_order(store).await;
    bad_requests_are_refused(store).await;
}

/// Runs all checks that need several handles on one store. They may be clones.
pub(crate) async fn check_races(stores: &[Arc<dyn BlobStore>]) {
    only_one_of_many_creates_a_blob(stores).await;
    no_conditional_update_is_lost(stores).await;
}

fn name(name: &str) -> BlobName {
    BlobName::new(name).expect("a name")
}

fn bytes(bytes: &'static [u8]) -> BlobContent {
    Bytes::from_static(bytes).into()
}

async fn read(store: &dyn BlobStore, blob: &str) -> Option<Blob> {
    store.get(&name(blob)).await.expect("get")
}

#[track_caller]
fn assert_conflict<T: std::fmt::Debug>(outcome: Result<T>, blob: &str) {
    let error = outcome.expect_err("a conflict");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.message().contains(blob), "{error}");
}

async fn a_written_blob_is_read(store: &dyn BlobStore) {
    assert_eq!(read(store, "read/none").await, None);
    let everything: Vec<u8> = (0..=255).collect();
    let mut content = BlobContent::from(Bytes::from(everything));
    let value = || "Thu, 01 Jan 2099 00:00:00 GMT".to_owned();
    content.metadata.insert("TimeToLive".to_owned(), value());
    let etag = store.create(&name("read/a b/ä"), content.clone()).await;
    let blob = read(store, "read/a b/ä").await.expect("a blob");
    content.metadata = [("timetolive".to_owned(), value())].into();
    assert_eq!(blob.content, content, "names of metadata are in lower case");
    assert_eq!(blob.etag, etag.expect("create"));

    let empty = BlobContent::default();
    store
        .create(&name("read/empty"), empty.clone())
        .await
        .expect("create");
    assert_eq!(
        read(store, "read/empty").await.expect("a blob").content,
        empty
    );
}

async fn creating_what_exists_is_a_conflict(store: &dyn BlobStore) {
    let blob = name("create/one");
    let etag = store.create(&blob, bytes(b"first")).await.expect("create");
    assert_conflict(store.create(&blob, bytes(b"second")).await, "create/one");
    let found = read(store, "create/one").await.expect("a blob");
    assert_eq!(
        (&found.content.bytes[..], found.etag),
        (&b"first"[..], etag)
    );
}

async fn updating_needs_the_newest_etag(store: &dyn BlobStore) {
    let blob = name("update/one");
    let foreign = ETag::new("\"no-such-etag\"");
    assert_conflict(
        store.update(&blob, bytes(b"x"), &foreign).await,
        "update/one",
    );
    assert_eq!(
        read(store, "update/one").await,
        None,
        "an update creates no blob"
    );

    let first = store.create(&blob, bytes(b"1")).await.expect("create");
    let before = read(store, "update/one").await.expect("a blob");
    let second = store
        .update(&blob, bytes(b"2"), &first)
        .await
        .expect("update");
    assert_ne!(first, second);
    assert_conflict(store.update(&blob, bytes(b"3"), &first).await, "update/one");
    let after = read(store, "update/one").await.expect("a blob");
    assert_eq!(
        (&after.content.bytes[..], &after.etag),
        (&b"2"[..], &second)
    );
    assert!(after.last_modified >= before.last_modified);
    assert_eq!(after.content.metadata, BTreeMap::new());

    assert!(store.delete(&blob, None).await.expect("delete"));
    assert_conflict(
        store.update(&blob, bytes(b"4"), &second).await,
        "update/one",
    );
}

async fn deleting_keeps_its_condition(store: &dyn BlobStore) {
    let blob = name("delete/one");
    assert!(!store.delete(&blob, None).await.expect("nothing to delete"));
    let first = store.create(&blob, bytes(b"1")).await.expect("create");
    let second = store
        .update(&blob, bytes(b"2"), &first)
        .await
        .expect("update");
    if !store.conditional_delete() {
        let error = store
            .delete(&blob, Some(&second))
            .await
            .expect_err("no conditions");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(store.delete(&blob, None).await.expect("delete"));
        return;
    }
    assert_conflict(store.delete(&blob, Some(&first)).await, "delete/one");
    assert!(read(store, "delete/one").await.is_some());
    assert!(store.delete(&blob, Some(&second)).await.expect("delete"));
    assert!(read(store, "delete/one").await.is_none());
    assert!(
        !store
            .delete(&blob, Some(&second))
            .await
            .expect("gone already")
    );
}

async fn etags_are_never_used_twice(store: &dyn BlobStore) {
    if !store.conditional_delete() {
        // There an ETag identifies the content.
        return;
    }
    let mut seen = HashSet::new();
    for blob in [name("etag/a"), name("etag/b")] {
        for _ in 0..3 {
            // The same bytes each time: an ETag identifies a write, not the content.
            let first = store.create(&blob, bytes(b"same")).await.expect("create");
            let second = store
                .update(&blob, bytes(b"same"), &first)
                .await
                .expect("update");
            assert!(seen.insert(first), "used twice");
            assert!(seen.insert(second), "used twice");
            store.delete(&blob, None).await.expect("delete");
        }
    }
}

async fn lists_come_in_pages_and_in_order(store: &dyn BlobStore) {
    let names = [
        "list/a", "list/a/b", "list/a0", "list/aB", "list/b", "list/ä",
    ];
    for blob in names.iter().rev().chain(&["lisu", "lis"]) {
        store.create(&name(blob), bytes(b"")).await.expect("create");
    }
    for size in 1..=7 {
        assert_eq!(list(store, "list/", size).await, names, "pages of {size}");
    }
    assert_eq!(list(store, "list/a", 2).await, names[..4]);
    assert_eq!(list(store, "list/a/", 2).await, ["list/a/b"]);
    assert_eq!(list(store, "nothing", 2).await, [""; 0]);

    let options = PageOptions {
        size: 1,
        token: None,
    };
    let page = store.list("list/b", &options).await.expect("list");
    let blob = read(store, "list/b").await.expect("a blob");
    assert_eq!(page.entries[0].etag, blob.etag);
    assert_eq!(page.entries[0].last_modified, blob.last_modified);
    assert_eq!(page.next, None, "the only page is the last one");

    // A page continues after the last name, also after deletions.
    let page = store
        .list(
            "list/",
            &PageOptions {
                size: 2,
                token: None,
            },
        )
        .await
        .expect("list");
    store.delete(&name("list/a/b"), None).await.expect("delete");
    let options = PageOptions {
        size: 2,
        token: page.next,
    };
    let page = store.list("list/", &options).await.expect("list");
    assert_eq!(page.entries[0].name, name("list/a0"));
}

/// Reads a list to its end, page by page.
async fn list(store: &dyn BlobStore, prefix: &str, size: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut options = PageOptions { size, token: None };
    loop {
        let page = store.list(prefix, &options).await.expect("list");
        assert!(page.entries.len() <= size);
        found.extend(page.entries.into_iter().map(|entry| entry.name.to_string()));
        options.token = page.next;
        if options.token.is_none() {
            return found;
        }
    }
}

async fn bad_requests_are_refused(store: &dyn BlobStore) {
    for (key, value) in [
        ("a-b", "x"),
        ("", "x"),
        ("1a", "x"),
        ("a", "ä"),
        ("a", "x\ny"),
        ("a", " x"),
    ] {
        let mut content = bytes(b"");
        content.metadata.insert(key.to_owned(), value.to_owned());
        let error = store.create(&name("bad"), content).await.expect_err(key);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(read(store, "bad").await, None);
}

async fn only_one_of_many_creates_a_blob(stores: &[Arc<dyn BlobStore>]) {
    for round in 0..10 {
        let blob = name(&format!("race/create-{round}"));
        let tasks = stores.iter().cloned().cycle().take(8).map(|store| {
            let blob = blob.clone();
            tokio::spawn(async move { store.create(&blob, bytes(b"mine")).await })
        });
        let mut made = 0;
        for task in tasks.collect::<Vec<_>>() {
            match task.await.expect("no panic") {
                Ok(_) => made += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
            }
        }
        assert_eq!(made, 1);
    }
}

async fn no_conditional_update_is_lost(stores: &[Arc<dyn BlobStore>]) {
    const EACH: u64 = 20;
    let blob = name("race/counter");
    stores[0].create(&blob, bytes(b"0")).await.expect("create");
    let tasks = stores.iter().cloned().cycle().take(6).map(|store| {
        let blob = blob.clone();
        tokio::spawn(async move {
            for _ in 0..EACH {
                increment(store.as_ref(), &blob).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    assert_eq!(
        number(&read(&*stores[0], "race/counter").await.expect("a blob")),
        6 * EACH
    );
}

async fn increment(store: &dyn BlobStore, name: &BlobName) {
    loop {
        let blob = store.get(name).await.expect("get").expect("a blob");
        let next = Bytes::from((number(&blob) + 1).to_string());
        match store.update(name, next.into(), &blob.etag).await {
            Ok(_) => return,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict, "{error}"),
        }
    }
}

fn number(blob: &Blob) -> u64 {
    let text = std::str::from_utf8(&blob.content.bytes).expect("a text");
    text.parse().expect("a number")
}
