//! Requests to Azure that the client does not support: conditional deletion, lists by any prefix
//! and with metadata, creation of a container.
//!
//! They are signed with the client's credential.

use std::{collections::BTreeMap, sync::Arc};

use azure_core::time::parse_rfc7231;
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
use serde::Deserialize;

use super::{
    environment::{READS, RETRY_AFTER},
    error::{answered, is_absent},
};
use crate::{
    base::request_error::RequestError,
    store::{BlobEntry, BlobName, ETag, Page, PageOptions},
};

/// A client for requests to one container of Azure.
pub(super) struct AzureRest {
    pub(super) http: HttpClient,
    /// The client that provides the credential.
    pub(super) client: Arc<MicrosoftAzure>,
    pub(super) account: String,
    /// The container's URL.
    pub(super) url: Url,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListResults {
    #[serde(default)]
    blobs: ListedBlobs,
    #[serde(default)]
    next_marker: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedBlobs {
    #[serde(default)]
    blob: Vec<ListedBlob>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedBlob {
    name: Name,
    properties: Properties,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Name {
    #[serde(rename = "$text", default)]
    text: String,
    /// The encoding of a name that XML cannot contain. Such a name is not valid here.
    #[serde(rename = "@Encoded", default)]
    encoded: Option<bool>,
}

#[derive(Deserialize)]
struct Properties {
    #[serde(rename = "Last-Modified")]
    last_modified: String,
    #[serde(rename = "Etag")]
    etag: String,
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
        existed(self.send(Method::DELETE, &self.blob(path), headers).await)
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

    /// Reads a page of the list of blobs whose names begin with `store` and `prefix`, with their
    /// metadata. The names lose the first one.
    pub(super) async fn list(&self, store: &str, prefix: &str, page: &PageOptions) -> Result<Page> {
        let mut url = self.url.clone();
        let size = page.size.max(1).to_string();
        url.query_pairs_mut()
            .append_pair("restype", "container")
            .append_pair("comp", "list")
            .append_pair("include", "metadata")
            .append_pair("maxresults", &size);
        let prefix = format!("{store}{prefix}");
        if !prefix.is_empty() {
            url.query_pairs_mut().append_pair("prefix", &prefix);
        }
        if let Some(marker) = &page.token {
            url.query_pairs_mut().append_pair("marker", marker);
        }
        let answer = self.read(&url).await?;
        parse(&answer, store).ok_or(RequestError::Unreadable)
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
        let mut request = request(method, url, headers)?;
        if request.method() == Method::PUT {
            let length = HeaderValue::from_static("0");
            request.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let credential = self.client.credentials().get_credential().await?;
        AzureAuthorizer::new(&credential, &self.account).try_authorize(&mut request)?;
        execute(&self.http, request).await
    }
}

/// Makes a request without a body.
pub(super) fn request(method: Method, url: &Url, headers: HeaderMap) -> Result<HttpRequest> {
    let request = http::Request::builder().method(method).uri(url.as_str());
    let request = request.body(HttpRequestBody::empty());
    let mut request = request.map_err(|_| RequestError::Unreadable)?;
    request.headers_mut().extend(headers);
    Ok(request)
}

/// Sends a request once, and returns the body of an answer that is a success.
pub(super) async fn execute(http: &HttpClient, request: HttpRequest) -> Result<Bytes> {
    let answer = http.execute(request).await;
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

/// Returns whether the blob of a deletion existed.
pub(super) fn existed(deleted: Result<Bytes>) -> Result<bool> {
    match deleted {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn value(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|_| RequestError::Unreadable)
}

/// Parses a list of blobs, whose names lose the `prefix`; `None` for malformed XML.
pub(crate) fn parse(answer: &[u8], prefix: &str) -> Option<Page> {
    let text = std::str::from_utf8(answer).ok()?;
    let results: ListResults = quick_xml::de::from_str(text.trim_start_matches('\u{feff}')).ok()?;
    let mut page = Page {
        next: results.next_marker.filter(|marker| !marker.is_empty()),
        ..Page::default()
    };
    for blob in results.blobs.blob {
        let name = blob.name.text.strip_prefix(prefix);
        let name = name.and_then(|name| BlobName::new(name).ok());
        let Some(name) = name.filter(|_| blob.name.encoded != Some(true)) else {
            page.unnameable += 1;
            continue;
        };
        let metadata = blob.metadata.unwrap_or_default().into_iter();
        page.entries.push(BlobEntry {
            name,
            etag: ETag::new(&quoted(&blob.properties.etag)),
            last_modified: parse_rfc7231(&blob.properties.last_modified).ok()?.into(),
            metadata: metadata
                // The parser also returns attributes, such as `Encrypted`, and text.
                .filter(|(name, _)| !name.starts_with(['@', '$']))
                .map(|(name, value)| (name.to_ascii_lowercase(), value))
                .collect::<BTreeMap<_, _>>()
                .into(),
        });
    }
    Some(page)
}

/// A list has ETags without the quotes that headers have.
fn quoted(etag: &str) -> String {
    match etag.starts_with('"') {
        true => etag.to_owned(),
        false => format!("\"{etag}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the service's documentation.
    const ANSWER: &str = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?>\
        <EnumerationResults ServiceEndpoint=\"http://a/\" ContainerName=\"c\"><MaxResults>2</MaxResults>\
        <Blobs><Blob><Name>a &amp; b/ä</Name><Properties>\
        <Last-Modified>Fri, 20 Nov 2026 12:00:00 GMT</Last-Modified><Etag>0x8D</Etag>\
        <Content-Length>3</Content-Length></Properties>\
        <Metadata><TimeToLive>2026-11-20T12:00:00Z</TimeToLive><other>x</other></Metadata></Blob>\
        <Blob><Name Encoded=\"true\">%01</Name><Properties>\
        <Last-Modified>Fri, 20 Nov 2026 12:00:00 GMT</Last-Modified><Etag>0x8E</Etag></Properties>\
        <Metadata /></Blob></Blobs><NextMarker>2!8!x</NextMarker></EnumerationResults>";

    #[test]
    fn an_answer_is_read_with_its_metadata() {
        let listing = parse(ANSWER.as_bytes(), "a &").expect("an answer");
        assert_eq!(listing.next.as_deref(), Some("2!8!x"));
        let [blob] = &listing.entries[..] else {
            panic!("{listing:?}");
        };
        assert_eq!(
            (blob.name.as_str(), blob.etag.as_str()),
            (" b/ä", "\"0x8D\"")
        );
        let metadata = blob.metadata.as_ref().expect("metadata");
        assert_eq!(metadata["timetolive"], "2026-11-20T12:00:00Z");
        assert_eq!((metadata.len(), listing.unnameable), (2, 1));
    }

    #[test]
    fn an_empty_list_and_malformed_answers() {
        let encrypted = ANSWER.replace("<Metadata><", "<Metadata Encrypted=\"true\"><");
        let listing = parse(encrypted.as_bytes(), "").expect("an answer");
        let metadata = listing.entries[0].metadata.as_ref().expect("metadata");
        assert_eq!(metadata.len(), 2, "an attribute is no metadata");
        let empty = "<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>";
        let listing = parse(empty.as_bytes(), "").expect("an answer");
        assert!(listing.entries.is_empty() && listing.next.is_none());
        for other in [
            "",
            "<html>",
            "{}",
            "<EnumerationResults><Blobs><Blob/></Blobs>",
        ] {
            assert!(parse(other.as_bytes(), "").is_none(), "{other}");
        }
    }
}
