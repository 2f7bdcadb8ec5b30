//! What others keep in the relay's store: leases and sweep jobs.

use futures_util::{StreamExt, TryStreamExt, stream};

#[cfg(feature = "sweep")]
use super::pages::count;
#[cfg(feature = "sweep")]
use crate::coordination::sweep::{self, Counts, document::Document, judge};
use crate::{
    coordination::lease::{self, machine::Record},
    error::Result,
    store::{Blob, BlobEntry, BlobStore, PageOptions},
    wire::{proto, span_to_wire, time_to_wire},
};

/// Blobs of a folder in an answer.
const MOST: usize = 100;
/// Blobs that are read at one time.
const AT_ONCE: usize = 16;

/// Reads the leases and the sweep jobs of a store.
///
/// # Errors
/// Any error of the store. A blob that is no lease or no job is listed with its problem.
pub(crate) async fn stored(store: &dyn BlobStore) -> Result<proto::GetStoreResponse> {
    let (leases, has_more_leases) = folder(store, lease::FOLDER, stored_lease).await?;
    #[cfg(feature = "sweep")]
    let (sweeps, has_more_sweeps) = folder(store, sweep::FOLDER, stored_sweep).await?;
    #[cfg(not(feature = "sweep"))]
    let (sweeps, has_more_sweeps) = (Vec::new(), false);
    Ok(proto::GetStoreResponse {
        store: store.to_string(),
        leases,
        has_more_leases,
        sweeps,
        has_more_sweeps,
    })
}

/// A blob, or why it cannot be read.
type Found<'a> = std::result::Result<&'a Blob, String>;

/// Reads the first blobs of a folder, by name. Returns whether there are more.
async fn folder<T>(
    store: &dyn BlobStore,
    folder: &str,
    of: fn(String, Found<'_>) -> T,
) -> Result<(Vec<T>, bool)> {
    let options = PageOptions {
        size: MOST,
        token: None,
    };
    let page = store.list(folder, &options).await?;
    let read = async |entry: BlobEntry| {
        let name = entry.name.as_str()[folder.len()..].to_owned();
        match store.get(&entry.name).await {
            Ok(blob) => Ok(blob.map(|blob| of(name, Ok(&blob)))),
            Err(error) if error.is_retryable() => Err(error),
            // Of this blob alone: the others are listed.
            Err(error) => Ok(Some(of(name, Err(error.to_string())))),
        }
    };
    let read = stream::iter(page.entries).map(read).buffered(AT_ONCE);
    let read: Vec<Option<T>> = read.try_collect().await?;
    Ok((read.into_iter().flatten().collect(), page.next.is_some()))
}

fn stored_lease(name: String, found: Found<'_>) -> proto::StoredLease {
    let record = found.and_then(|blob| {
        let read = Record::read(&blob.content.bytes).map(|record| (record, blob.last_modified));
        read.map_err(|start| format!("is no lease, but begins with {start:?}"))
    });
    match record {
        Ok((record, written_at)) => proto::StoredLease {
            name,
            token: record.token,
            held: !record.released,
            duration: Some(span_to_wire(record.duration())),
            holder: record.holder,
            written_at: time_to_wire(Some(written_at)),
            problem: String::new(),
        },
        Err(problem) => proto::StoredLease {
            name,
            problem,
            ..proto::StoredLease::default()
        },
    }
}

#[cfg(feature = "sweep")]
fn stored_sweep(name: String, found: Found<'_>) -> proto::StoredSweep {
    let document = found.and_then(|blob| {
        let read = Document::parse(&blob.content.bytes, &format!("`{name}`"));
        read.map_err(|error| error.to_string())
    });
    let document = match document {
        Ok(document) => document,
        Err(problem) => {
            return proto::StoredSweep {
                name,
                problem,
                ..proto::StoredSweep::default()
            };
        }
    };
    let time = |text: &Option<String>| time_to_wire(text.as_deref().and_then(judge::time));
    let by_outcome = |counts: &Counts| proto::SweepCounts {
        seen: counts.seen,
        deleted: counts.deleted,
        moved: counts.moved,
        left: counts.left,
        failed: counts.failed,
    };
    let done = document.containers.iter().filter(|one| one.is_done());
    proto::StoredSweep {
        rounds: document.round,
        running: !document.is_finished(),
        started_at: time(&document.started),
        finished_at: time(&document.finished),
        containers: count(document.containers.len()),
        containers_done: count(done.count()),
        round: Some(by_outcome(&document.counts)),
        problem: String::new(),
        name,
    }
}
