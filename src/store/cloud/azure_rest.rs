//! Requests to Azure that the client does not support: conditional deletion, lists by any prefix
//! and with metadata, creation of a container.
//!
//! They are signed with the client's credential.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{CONTENT_LENGTH, IF_MATCH},
};
use object_store::{
    azure::{AzureAuthorizer, MicrosoftAzure},
    client::{HttpClient, HttpRequest, HttpRequestBody},
    path::Path,
};
use reqwest::Url;

use super::{
    super::{ETag, PageOptions},
    environment::{READS, RETRY_AFTER},
    error::{answered, is_absent},
    listing::{self, Listing},
};
use crate::base::request_error::RequestError;

/// A client for requests to one container of Azure.
pub(super) struct AzureRest {
    pub(super) http: HttpClient,
    /// The client that provides the credential.
    pub(super) client: Arc<MicrosoftAzure>,
    pub(super) account: String,
    /// The container's URL.
    pub(super) url: Url,
}

type Result<T> = std::result::Result<T, RequestError>;

impl AzureRest {
    /// Deletes a blob; with an ETag, only if the blob still has it. Returns whether the blob
    /// existed.
    pub(super) async fn delete(&self, path: &Path, etag: Option<&ETag>) -> Result<bool> {
        let mut headers = HeaderMap::new();
        if let Some(etag) = etag {
            headers.insert(IF_MATCH, value(etag.as_str())?);
        }
        match self.send(Method::DELETE, &self.blob(path), headers).await {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Replaces the metadata of a blob if it still has this ETag.
    pub(super) async fn set_metadata(
        &self,
        path: &Path,
        metadata: &BTreeMap<String, String>,
        etag: &ETag,
    ) -> Result<()> {
        let mut url = self.blob(path);
        url.query_pairs_mut().append_pair("comp", "metadata");
        let mut headers = HeaderMap::from_iter([(IF_MATCH, value(etag.as_str())?)]);
        for (name, text) in metadata {
            let name = HeaderName::from_bytes(format!("x-ms-meta-{name}").as_bytes());
            headers.insert(name.map_err(|_| RequestError::Unreadable)?, value(text)?);
        }
        self.send(Method::PUT, &url, headers).await.map(drop)
    }

    /// Creates the container unless it exists.
    pub(super) async fn create_container(&self) -> Result<()> {
        let mut url = self.url.clone();
        url.query_pairs_mut().append_pair("restype", "container");
        match self.send(Method::PUT, &url, HeaderMap::new()).await {
            Err(RequestError::Answered { code, .. }) if code == "ContainerAlreadyExists" => Ok(()),
            answer => answer.map(drop),
        }
    }

    fn blob(&self, path: &Path) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path.parts().map(|part| part.as_ref().to_owned()));
        }
        url
    }

    /// Reads a page of the list of blobs whose names begin with `prefix`, with their metadata.
    pub(super) async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Listing> {
        let mut url = self.url.clone();
        let size = page.size.max(1).to_string();
        url.query_pairs_mut()
            .append_pair("restype", "container")
            .append_pair("comp", "list")
            .append_pair("include", "metadata")
            .append_pair("maxresults", &size);
        if !prefix.is_empty() {
            url.query_pairs_mut().append_pair("prefix", prefix);
        }
        if let Some(marker) = &page.token {
            url.query_pairs_mut().append_pair("marker", marker);
        }
        let answer = self.read(&url).await?;
        listing::parse(&answer).ok_or(RequestError::Unreadable)
    }

    /// Reads, and retries transient errors.
    async fn read(&self, url: &Url) -> Result<Bytes> {
        let mut wait = RETRY_AFTER;
        for _ in 0..READS {
            match self.send(Method::GET, url, HeaderMap::new()).await {
                Err(error) if error.kind().is_retryable() => tokio::time::sleep(wait).await,
                answer => return answer,
            }
            wait *= 2;
        }
        self.send(Method::GET, url, HeaderMap::new()).await
    }

    async fn send(&self, method: Method, url: &Url, headers: HeaderMap) -> Result<Bytes> {
        let request = http::Request::builder().method(method).uri(url.as_str());
        let request = request.body(HttpRequestBody::empty());
        let mut request: HttpRequest = request.map_err(|_| RequestError::Unreadable)?;
        request.headers_mut().extend(headers);
        if request.method() == Method::PUT {
            let length = HeaderValue::from_static("0");
            request.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let credential = self.client.credentials().get_credential().await?;
        AzureAuthorizer::new(&credential, &self.account).try_authorize(&mut request)?;
        let answer = self.http.execute(request).await;
        let answer = answer.map_err(|error| RequestError::from(&error))?;
        let status = answer.status();
        let body = answer.into_body().bytes().await;
        let body = body.map_err(|error| RequestError::from(&error))?;
        if status.is_success() {
            return Ok(body);
        }
        let body = String::from_utf8_lossy(&body);
        Err(answered(status.as_u16(), &body))
    }
}

fn value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|_| RequestError::Unreadable)
}

impl fmt::Debug for AzureRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureRest")
            .field("account", &self.account)
            .finish()
    }
}
