//! Marks a blob with its time to live.

use std::{collections::BTreeMap, time::SystemTime};

use super::judge::{DEAD_BLOB_CONTAINER, TIME_TO_LIVE, is_protected, stamp};
use crate::{
    error::{Error, ErrorKind, Result},
    store::container,
};

/// How often somebody else may be faster.
const TRIES: usize = 5;

/// Writes into a blob's metadata from when on nobody needs it, and where it goes then; without a
/// time, takes both off. What stands there besides stays. Returns the time as it was written.
///
/// `url` names the blob: `az://CONTAINER/BLOB`, `s3://BUCKET/BLOB`, `gs://BUCKET/BLOB`, or
/// `sqlite:PATH#BLOB`.
///
/// # Errors
/// [`ErrorKind::NotFound`] where there is no such blob; [`ErrorKind::Invalid`] for a URL that names
/// none, and for a flag, a lease, an id's counter or a sweep's job; [`ErrorKind::Conflict`] where it is written all the time.
pub async fn mark(
    url: &str,
    end: Option<SystemTime>,
    dead_container: Option<&str>,
    environment: &BTreeMap<String, String>,
) -> Result<Option<String>> {
    let (container, name) = container::open_blob(url, environment).await?;
    if end.is_some() && is_protected(&name) {
        let rule = format_args!(
            "`{name}` is a flag, a lease, an id's counter or a sweep's job, and is never swept"
        );
        return Err(Error::invalid("blob", rule));
    }
    let mut outcome = Err(Error::new(ErrorKind::Internal, "never tried"));
    for _ in 0..TRIES {
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
