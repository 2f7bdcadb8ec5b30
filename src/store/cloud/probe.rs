//! Checks that a service supports conditional requests, before any caller relies on them.
//!
//! Some services with S3's protocol ignore `If-None-Match` and `If-Match` and answer every write
//! with success. Then two nodes receive one id, and two processes hold one lease. So an S3 store is
//! probed before its first conditional write, once for each opened store.

use std::time::Duration;

use http::{HeaderMap, Method, header::IF_MATCH};
use object_store::{PutMode, UpdateVersion, aws::AmazonS3, path::Path, signer::Signer};

use super::{
    CloudStore, Service,
    azure_rest::{execute, existed, request, value},
};
use crate::{
    base::request_error::RequestError,
    error::{Error, ErrorKind, Result},
    store::{BlobName, ETag},
};

/// The blob of the probe of writes. It stays: if one probe deleted it, the second creation of
/// another probe could succeed.
const WRITES: &str = "probes/conditions";
/// No known content has this hash.
const STALE: &str = "\"00000000000000000000000000000000\"";
/// Validity of a signed deletion, which is used at once.
const SIGNED_FOR: Duration = Duration::from_secs(60);

impl CloudStore {
    /// Refuses a service that ignores conditions of writes. Sends two requests if the probe's blob
    /// exists and three if it does not; none after the first success.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if a condition was ignored or is not implemented; any other error
    /// of the service, after which the next write probes again.
    pub(super) async fn check_conditions(&self) -> Result<()> {
        if !matches!(self.service, Service::S3(_)) {
            // Azure and Google always support conditions.
            return Ok(());
        }
        let probe = self.conditions.get_or_try_init(|| self.probe_writes());
        probe.await.map(drop)
    }

    async fn probe_writes(&self) -> Result<()> {
        let name = BlobName::new(WRITES)?;
        let stale = || {
            PutMode::Update(UpdateVersion {
                e_tag: Some(STALE.to_owned()),
                version: None,
            })
        };
        // A conflict shows that the condition works: the blob is from an earlier probe.
        let is_new = !self.refuses_write(&name, PutMode::Create).await?;
        if is_new && !self.refuses_write(&name, PutMode::Create).await? {
            return Err(self.ignores("If-None-Match"));
        }
        if !self.refuses_write(&name, stale()).await? {
            return Err(self.ignores("If-Match"));
        }
        Ok(())
    }

    /// Writes the probe's blob. Returns whether the condition made the service refuse it.
    async fn refuses_write(&self, name: &BlobName, mode: PutMode) -> Result<bool> {
        let content = "Written to find out whether this service keeps the conditions of writes.\n";
        match self.put(name, content.into(), mode).await {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(true),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                Err(self.ignores("If-None-Match or If-Match").with_source(error))
            }
            Err(error) => {
                let message = format!(
                    "{self} could not be asked whether it keeps the conditions of writes: {}",
                    error.message()
                );
                Err(Error::new(error.kind(), message).with_source(error))
            }
        }
    }

    fn ignores(&self, header: &str) -> Error {
        let message = format!(
            "{self} ignores the condition {header} of writes, so two nodes would be given one id \
             and two processes would hold one lease: use a service that keeps it, as Amazon S3 does"
        );
        Error::new(ErrorKind::Unsupported, message)
    }

    /// Deletes an object of S3 that has this ETag, with a request that the client does not support.
    /// Returns whether it existed.
    pub(super) async fn delete_if(
        &self,
        client: &AmazonS3,
        path: &Path,
        etag: &ETag,
    ) -> std::result::Result<bool, RequestError> {
        let url = client.signed_url(Method::DELETE, path, SIGNED_FOR).await?;
        let headers = HeaderMap::from_iter([(IF_MATCH, value(etag.as_str())?)]);
        let request = request(Method::DELETE, &url, headers)?;
        existed(execute(&self.http, request).await)
    }
}

/// Returns whether the service refused the request because it does not implement the condition.
pub(super) fn is_not_implemented(error: &RequestError) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid)
}
