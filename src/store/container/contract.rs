//! The contract of containers: a suite of checks that each of them passes.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::TryStreamExt;

use super::{BlobEntry, Container, Content};
use crate::{
    error::ErrorKind,
    store::{BlobName, ETag, PageOptions},
};

/// Runs all checks.
pub(crate) async fn check(container: &dyn Container) {
    a_written_blob_is_listed_and_read(container).await;
    a_changed_blob_is_neither_read_nor_marked_nor_deleted(container).await;
    a_large_blob_is_read_in_pieces(container).await;
    pages_continue_after_deletions(container).await;
}

fn name(name: &str) -> BlobName {
    BlobName::new(name).expect("a name")
}

fn metadata(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
    pairs.collect()
}

async fn put(container: &dyn Container, blob: &str, bytes: &'static [u8]) -> BlobEntry {
    let content = || Content::whole(Bytes::from_static(bytes));
    let marked = metadata(&[("timetolive", "2026-11-20T12:00:00Z")]);
    let over = head(container, blob).await.map(|head| head.etag);
    if over.is_some() {
        let onto = container
            .write(&name(blob), content(), marked.clone(), None)
            .await;
        let error = onto.expect_err("there is another one");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    let written = container
        .write(&name(blob), content(), marked, over.as_ref())
        .await;
    written.expect("written");
    head(container, blob).await.expect("it is there")
}

async fn head(container: &dyn Container, blob: &str) -> Option<BlobEntry> {
    container.head(&name(blob)).await.expect("an answer")
}

async fn whole(container: &dyn Container, blob: &str, etag: &ETag) -> Vec<u8> {
    let content = container.read(&name(blob), etag).await.expect("content");
    let pieces: Vec<Bytes> = content.pieces.try_collect().await.expect("pieces");
    assert_eq!(
        content.size,
        pieces.iter().map(|p| p.len() as u64).sum::<u64>()
    );
    pieces.concat()
}

async fn a_written_blob_is_listed_and_read(container: &dyn Container) {
    assert_eq!(head(container, "c/none").await, None);
    let found = put(container, "c/a ä", b"first").await;
    assert_eq!(found.name.as_str(), "c/a ä");
    let marked = metadata(&[("timetolive", "2026-11-20T12:00:00Z")]);
    assert_eq!(found.metadata, Some(marked.clone()));
    assert_eq!(whole(container, "c/a ä", &found.etag).await, b"first");

    let again = put(container, "c/a ä", b"second").await;
    assert_ne!(again.etag, found.etag, "written over");
    let page = PageOptions::default();
    let listed = container.list("c/a", &page).await.expect("a list");
    let [entry] = &listed.entries[..] else {
        panic!("{listed:?}");
    };
    assert_eq!((&entry.name, &entry.etag), (&again.name, &again.etag));
    assert!(entry.metadata.as_ref().is_none_or(|known| *known == marked));
}

async fn a_changed_blob_is_neither_read_nor_marked_nor_deleted(container: &dyn Container) {
    let old = put(container, "d/changed", b"old").await;
    let marks = metadata(&[("other", "x")]);
    let set = container.set_metadata(&old.name, marks.clone(), &old.etag);
    set.await.expect("it is unchanged");
    let new = head(container, "d/changed").await.expect("it is there");
    assert_eq!(new.metadata, Some(marks.clone()));
    let error = container.delete_unchanged(&old).await.expect_err("marked");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    // An ETag may be the content's hash, so the content is overwritten now.
    put(container, "d/changed", b"new").await;
    let new = head(container, "d/changed").await.expect("it is there");
    let conflicts = [
        container.read(&old.name, &old.etag).await.map(drop),
        container.set_metadata(&old.name, marks, &old.etag).await,
        container.delete_unchanged(&old).await.map(drop),
    ];
    for conflict in conflicts {
        let error = conflict.expect_err("it was changed");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    assert!(container.delete_unchanged(&new).await.expect("deleted"));
    let again = container.delete_unchanged(&new).await;
    assert!(!again.expect("gone already"));
    assert_eq!(head(container, "d/changed").await, None);
}

async fn a_large_blob_is_read_in_pieces(container: &dyn Container) {
    const PIECE: usize = 1 << 20;
    let piece = |number: u8| Ok(Bytes::from(vec![number; PIECE]));
    let content = Content {
        size: 20 * PIECE as u64,
        headers: metadata(&[("content-type", "application/x-large")]),
        pieces: Box::pin(futures_util::stream::iter((0..20).map(piece))),
    };
    let marks = metadata(&[("sweptfrom", "elsewhere")]);
    let written = container
        .write(&name("large"), content, marks.clone(), None)
        .await;
    written.expect("written");
    let found = head(container, "large").await.expect("it is there");
    assert_eq!(found.metadata, Some(marks));
    let read = whole(container, "large", &found.etag).await;
    assert_eq!(read.len(), 20 * PIECE);
    let mut pieces = read.chunks(PIECE).zip(0..20);
    let same = |(piece, number): (&[u8], u8)| piece.iter().all(|byte| *byte == number);
    assert!(pieces.all(same), "in their order");
}

async fn pages_continue_after_deletions(container: &dyn Container) {
    let mut heads = Vec::new();
    for number in 0..7 {
        heads.push(put(container, &format!("p/{number}"), b"x").await);
    }
    let mut page = PageOptions {
        size: 3,
        token: None,
    };
    let mut seen = Vec::new();
    loop {
        let listed = container.list("p/", &page).await.expect("a list");
        for found in &listed.entries {
            seen.push(found.name.to_string());
            let deleted = container.delete_unchanged(found).await;
            assert!(deleted.expect("deleted"));
        }
        page.token = listed.next;
        if page.token.is_none() {
            break;
        }
    }
    let names: Vec<_> = heads.iter().map(|head| head.name.to_string()).collect();
    assert_eq!(seen, names);
}
