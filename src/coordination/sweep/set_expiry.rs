//! Sets a blob's expiry.

use std::{collections::BTreeMap, time::SystemTime};

use super::judge::{DEAD_BLOB_CONTAINER, TIME_TO_LIVE, is_protected, stamp};
use crate::{
    error::{Error, ErrorKind, Result},
    store::container,
};

/// Attempts at a write that conflicts with other writers.
const ATTEMPTS: usize = 5;

/// Writes an expiry and the destination of the expired blob into its metadata; without a time it
/// removes both. Other metadata stays. Returns the time as written.
///
/// `url` names the blob: `az://CONTAINER/BLOB`, `s3://BUCKET/BLOB`, `gs://BUCKET/BLOB`, or
/// `sqlite:PATH#BLOB`.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is no such blob; [`ErrorKind::Invalid`] for a URL of no blob,
/// and for the blob of a flag, a lease, a counter of ids or a job;
/// [`ErrorKind::Conflict`] if other writers keep changing it.
pub async fn set_expiry(
    url: &str,
    end: Option<SystemTime>,
    dead_container: Option<&str>,
    environment: &BTreeMap<String, String>,
) -> Result<Option<String>> {
    let (container, name) = container::open_blob(url, environment).await?;
    if end.is_some() && is_protected(&name) {
        let rule = format_args!(
            "`{name}` belongs to a flag, a lease, a counter of ids or a job, and is never swept"
        );
        return Err(Error::invalid("blob", rule));
    }
    let mut outcome = Err(Error::new(ErrorKind::Internal, "no attempt was made"));
    for _ in 0..ATTEMPTS {
        let head = container.head(&name).await?.ok_or_else(|| {
            let message = format!("there is no blob `{name}` in {container}");
            Error::new(ErrorKind::NotFound, message)
        })?;
        let mut metadata = head.metadata.unwrap_or_default();
        metadata.remove(TIME_TO_LIVE);
        metadata.remove(DEAD_BLOB_CONTAINER);
        let end = end.map(stamp);
        if let Some(end) = &end {
            metadata.insert(TIME_TO_LIVE.to_owned(), end.clone());
            let dead = dead_container.map(|dead| (DEAD_BLOB_CONTAINER.to_owned(), dead.to_owned()));
            metadata.extend(dead);
        }
        match container.set_metadata(&name, metadata, &head.etag).await {
            Ok(()) => return Ok(end),
            Err(error) if error.kind() == ErrorKind::Conflict => outcome = Err(error),
            Err(error) => return Err(error),
        }
    }
    outcome
}
