//! Checks that a service keeps the conditions of requests, before anything relies on them.
//!
//! Some services that speak S3's protocol ignore `If-None-Match` and `If-Match` and answer every
//! write with success: two nodes are given one id, and two processes hold one lease. An S3 store
//! is therefore probed before its first write under a condition, once for each store that was
//! opened. Deletions are probed separately: many services keep conditions of writes only.

use std::time::Duration;

use http::{HeaderValue, Method, header::IF_MATCH};
use object_store::{
    PutMode, UpdateVersion,
    aws::AmazonS3,
    client::{HttpRequest, HttpRequestBody},
    path::Path,
    signer::Signer,
};

use super::{CloudError, CloudStore, Holder, Service};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{BlobName, ETag},
};

/// The blob of the probe of writes. It stays: if one probe deleted it, the second creation of
/// another probe could succeed.
const WRITES: &str = "probes/conditions";
/// Blobs of the probes of deletions begin so; each is deleted by its own probe.
const DELETIONS: &str = "probes/delete-";
/// No content has this hash, as far as anybody knows.
const STALE: &str = "\"00000000000000000000000000000000\"";
/// A signature of a deletion is used at once.
const SIGNED_FOR: Duration = Duration::from_secs(60);

impl CloudStore {
    /// Refuses a service that ignores the conditions of writes. Two requests where the probe's blob
    /// exists, three where it does not; none after the first success.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where a condition was ignored or is not implemented; whatever kept
    /// the service from answering, and the next write probes again.
    pub(super) async fn check_conditions(&self) -> Result<()> {
        if self.service != Service::S3 {
            // Azure and Google always have them.
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
        // A conflict is a condition that was kept: the blob is from an earlier probe.
        let is_new = !self.refuses_write(&name, PutMode::Create).await?;
        if is_new && !self.refuses_write(&name, PutMode::Create).await? {
            return Err(self.ignores("If-None-Match"));
        }
        if !self.refuses_write(&name, stale()).await? {
            return Err(self.ignores("If-Match"));
        }
        Ok(())
    }

    /// Writes the probe's blob, and returns whether the service refused that by its condition.
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

    /// Returns whether the service deletes under the condition of an ETag. Asked once.
    ///
    /// # Errors
    /// Whatever kept the service from answering.
    pub(super) async fn keeps_conditions_of_deletes(&self, client: &AmazonS3) -> Result<bool> {
        let probe = self
            .deletions
            .get_or_try_init(|| self.probe_deletions(client));
        probe.await.copied()
    }

    async fn probe_deletions(&self, client: &AmazonS3) -> Result<bool> {
        let random = getrandom::u64().unwrap_or_else(|_| fastrand::u64(..));
        let name = BlobName::new(&format!("{DELETIONS}{random:016x}"))?;
        self.check_conditions().await?;
        self.put(&name, "".into(), PutMode::Create).await?;
        let path = self.path(&name)?;
        let deleted = self.delete_if(client, &path, &ETag::new(STALE)).await;
        if !matches!(deleted, Ok(true)) {
            // What stays behind does no harm.
            let _ = self.delete_path(&path, &name).await;
        }
        match deleted {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(true),
            Err(error) if is_not_implemented(&error) => Ok(false),
            Err(error) => Err(error.of(format_args!("blob `{name}` of {self}"))),
        }
    }

    /// Deletes an object of S3 that has this ETag: by a request that the client does not make.
    /// Returns whether it was there.
    pub(super) async fn delete_if(
        &self,
        client: &AmazonS3,
        path: &Path,
        etag: &ETag,
    ) -> std::result::Result<bool, CloudError> {
        let url = client.signed_url(Method::DELETE, path, SIGNED_FOR).await?;
        let condition = HeaderValue::from_str(etag.as_str());
        let condition = condition.map_err(|_| CloudError::Unreadable)?;
        let request = http::Request::builder()
            .method(Method::DELETE)
            .uri(url.as_str())
            .header(IF_MATCH, condition)
            .body(HttpRequestBody::empty());
        let request: HttpRequest = request.map_err(|_| CloudError::Unreadable)?;
        let answer = self.http.execute(request).await;
        let answer = answer.map_err(|error| CloudError::from(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(true);
        }
        let body = answer.into_body().bytes().await;
        let body = body.map_err(|error| CloudError::from(&error))?;
        let error = CloudError::answered(status.as_u16(), &String::from_utf8_lossy(&body));
        match error.is_absent() {
            true => Ok(false),
            false => Err(error),
        }
    }

    /// Returns the client of S3, where this is S3.
    pub(super) fn s3(&self) -> Option<&AmazonS3> {
        match &self.holder {
            Holder::S3(client) => Some(client),
            Holder::Azure(_) | Holder::Gcs(_) => None,
        }
    }
}

/// Returns whether the service refused the request because it has no such condition.
pub(super) fn is_not_implemented(error: &CloudError) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid)
}
