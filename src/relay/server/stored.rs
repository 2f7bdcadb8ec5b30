//! What others keep in the relay's store: leases and sweep jobs.

use futures_util::{StreamExt, TryStreamExt, stream};

#[cfg(feature = "sweep")]
use super::own_lists::count;
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
/// Bytes that are read of a lease, whose holder has a name of at most 128 bytes.
const LEASE_BYTES: usize = 4096;
/// Bytes that are read of a job's document: that of a thousand containers is smaller.
#[cfg(feature = "sweep")]
const SWEEP_BYTES: usize = 512 * 1024;

/// Reads the leases and the sweep jobs of a store.
///
/// # Errors
/// Any error of the store. A blob that is no lease or no job is listed with its problem.
pub(super) async fn stored(store: &dyn BlobStore) -> Result<proto::GetStoreResponse> {
    let (leases, has_more_leases) = folder(store, lease::FOLDER, LEASE_BYTES, stored_lease).await?;
    #[cfg(feature = "sweep")]
    let (sweeps, has_more_sweeps) = folder(store, sweep::FOLDER, SWEEP_BYTES, stored_sweep).await?;
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

/// Reads the first blobs of a folder, by name. Returns whether there are more.
async fn folder<T>(
    store: &dyn BlobStore,
    folder: &str,
    max: usize,
    of: fn(String, &Blob) -> T,
) -> Result<(Vec<T>, bool)> {
    let options = PageOptions {
        size: MOST,
        token: None,
    };
    let page = store.list(folder, &options).await?;
    let read = async |entry: BlobEntry| {
        let name = entry.name.as_str()[folder.len()..].to_owned();
        let read = store.get_start(&entry.name, max).await;
        read.map(|blob| blob.map(|blob| of(name, &blob)))
    };
    let read = stream::iter(page.entries).map(read).buffered(AT_ONCE);
    let read: Vec<Option<T>> = read.try_collect().await?;
    Ok((read.into_iter().flatten().collect(), page.next.is_some()))
}

fn stored_lease(name: String, blob: &Blob) -> proto::StoredLease {
    match Record::read(&blob.content.bytes) {
        Ok(record) => proto::StoredLease {
            name,
            token: record.token,
            held: !record.released,
            duration: Some(span_to_wire(record.duration())),
            holder: record.holder,
            written_at: time_to_wire(Some(blob.last_modified)),
            problem: String::new(),
        },
        Err(unreadable) => proto::StoredLease {
            name,
            problem: format!("is no lease, but begins with {unreadable}"),
            ..proto::StoredLease::default()
        },
    }
}

#[cfg(feature = "sweep")]
fn stored_sweep(name: String, blob: &Blob) -> proto::StoredSweep {
    let document = match Document::parse(&blob.content.bytes, &format!("`{name}`")) {
        Ok(document) => document,
        Err(error) => {
            return proto::StoredSweep {
                name,
                problem: error.to_string(),
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
        rounds: document.serial,
        running: !document.is_finished(),
        started_at: time(&document.started),
        finished_at: time(&document.finished),
        containers: count(document.containers.len()),
        containers_done: count(done.count()),
        round: Some(by_outcome(&document.counts)),
        total: Some(by_outcome(&document.total)),
        problem: String::new(),
        name,
    }
}
