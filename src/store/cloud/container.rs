//! A cloud's container, for sweeping.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::BytesMut;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{
    Attribute, AttributeValue, Attributes, GetOptions, MultipartUpload, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, path::Path,
};

use super::{
    CloudStore, Service,
    error::is_absent,
    metadata::{attributes, metadata, seconds},
    probe::is_not_implemented,
};
use crate::{
    base::request_error::RequestError,
    error::{Error, ErrorKind, Result},
    store::{
        BlobName, BlobStore, ETag, PageOptions,
        container::{self, Container, Content, Head, HeadPage, changed},
    },
};

/// Longer content is written in parts of this size, which all services accept.
const PART: usize = 8 << 20;
/// Largest blob that is held whole, where a change of metadata writes the blob again.
const HELD: u64 = 64 << 20;

/// Headers that belong to a blob.
const HEADERS: [(Attribute, &str); 5] = [
    (Attribute::ContentType, "content-type"),
    (Attribute::ContentEncoding, "content-encoding"),
    (Attribute::ContentLanguage, "content-language"),
    (Attribute::ContentDisposition, "content-disposition"),
    (Attribute::CacheControl, "cache-control"),
];

#[async_trait]
impl Container for CloudStore {
    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<HeadPage> {
        let Some(azure_rest) = &self.azure_rest else {
            let listed = BlobStore::list(self, prefix, page).await?;
            let heads = listed.entries.into_iter().map(|entry| Head {
                name: entry.name,
                etag: entry.etag,
                last_modified: entry.last_modified,
                metadata: None,
            });
            return Ok(HeadPage {
                heads: heads.collect(),
                unnameable: 0,
                next: listed.next,
            });
        };
        let prefix = format!("{}{prefix}", self.prefix);
        let listing = azure_rest.list(&prefix, page).await;
        let listing = listing.map_err(|error| self.not_listed(error))?;
        let mut page = HeadPage {
            next: listing.next,
            unnameable: listing.unnameable,
            ..HeadPage::default()
        };
        for blob in listing.blobs {
            match self.own_name(&blob.name) {
                Some(name) => page.heads.push(Head {
                    name,
                    etag: blob.etag,
                    last_modified: blob.last_modified,
                    metadata: Some(blob.metadata),
                }),
                None => page.unnameable += 1,
            }
        }
        Ok(page)
    }

    async fn head(&self, name: &BlobName) -> Result<Option<Head>> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = match self.reads.get_opts(&self.path(name)?, options).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.failed(error, name)),
        };
        Ok(Some(Head {
            name: name.clone(),
            etag: self.etag(found.meta.e_tag, name)?,
            last_modified: seconds(found.meta.last_modified.timestamp()),
            metadata: Some(metadata(&found.attributes)),
        }))
    }

    async fn read(&self, name: &BlobName, etag: &ETag) -> Result<Content> {
        let options = GetOptions {
            if_match: Some(etag.as_str().to_owned()),
            ..GetOptions::default()
        };
        let found = self.contents.get_opts(&self.path(name)?, options).await;
        let found = found.map_err(|error| match error {
            object_store::Error::NotFound { .. } => changed(self, name),
            error => self.failed(error, name),
        })?;
        let headers = HEADERS.iter().filter_map(|(attribute, header)| {
            let value = found.attributes.get(attribute)?;
            Some(((*header).to_owned(), value.to_string()))
        });
        let subject = format!("blob `{name}` of {self}");
        Ok(Content {
            size: found.meta.size,
            headers: headers.collect(),
            pieces: found
                .into_stream()
                .map_err(move |error| RequestError::from(error).about(&subject))
                .boxed(),
        })
    }

    async fn write(
        &self,
        name: &BlobName,
        content: Content,
        metadata: BTreeMap<String, String>,
        over: Option<&ETag>,
    ) -> Result<()> {
        let path = self.path(name)?;
        let attributes = self.attributes(metadata, &content.headers);
        if content.size <= PART as u64 {
            let mode = match over {
                Some(etag) => PutMode::Update(self.version(name, etag).await?),
                None => PutMode::Create,
            };
            let options = PutOptions {
                mode,
                attributes,
                ..PutOptions::default()
            };
            let whole = content.into_bytes().await?;
            let put = self.writes.put_opts(&path, whole.into(), options).await;
            return put.map(drop).map_err(|error| self.failed(error, name));
        }
        // Parts are combined without a condition, so the blob is read before.
        let found = self.head(name).await?;
        if found.map(|head| head.etag).as_ref() != over {
            return Err(changed(self, name));
        }
        self.write_parts(&path, name, content, attributes).await
    }

    async fn set_metadata(
        &self,
        name: &BlobName,
        metadata: BTreeMap<String, String>,
        etag: &ETag,
    ) -> Result<()> {
        let path = self.path(name)?;
        if let Some(azure_rest) = &self.azure_rest {
            let set = azure_rest.set_metadata(&path, &metadata, etag).await;
            return set.map_err(|error| match is_absent(&error) {
                true => changed(self, name),
                false => error.about(format_args!("blob `{name}` of {self}")),
            });
        }
        let content = self.read(name, etag).await?;
        if content.size > HELD {
            let message = format!(
                "{self} writes a blob again to mark it, which is done up to {HELD} bytes; \
                 `{name}` has {}",
                content.size
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let options = PutOptions {
            mode: PutMode::Update(self.version(name, etag).await?),
            attributes: self.attributes(metadata, &content.headers),
            ..PutOptions::default()
        };
        let whole = content.into_bytes().await?;
        let put = self.writes.put_opts(&path, whole.into(), options).await;
        put.map(drop).map_err(|error| self.failed(error, name))
    }

    async fn delete_unchanged(&self, seen: &Head) -> Result<bool> {
        if self.azure_rest.is_some() {
            return self.delete(&seen.name, Some(&seen.etag)).await;
        }
        match self.head(&seen.name).await? {
            None => Ok(false),
            Some(head) if head.differs_from(seen) => Err(changed(self, &seen.name)),
            Some(_) => self.delete_with_etag(seen).await,
        }
    }

    fn address(&self) -> String {
        let prefix = self.prefix.trim_end_matches('/');
        let slash = if prefix.is_empty() { "" } else { "/" };
        format!("{}{slash}{prefix}", self.url)
    }

    fn deletes_under_condition(&self) -> bool {
        self.azure_rest.is_some()
    }

    async fn ensure(&self) -> Result<()> {
        match (&self.azure_rest, self.service) {
            (Some(azure_rest), _) => {
                match azure_rest.create_container().await {
                    // A credential that may write need not be allowed to create containers. The
                    // container may exist.
                    Err(error) if error.kind() == ErrorKind::Denied => Ok(()),
                    made => made
                        .map_err(|error| error.about(format_args!("container `{}`", self.bucket))),
                }
            }
            (None, Service::S3 | Service::Gcs | Service::Azure) => {
                self.check().await.map_err(|error| match error.kind() {
                    ErrorKind::NotFound => {
                        let message = format!("{self}: an operator must create its bucket");
                        Error::new(ErrorKind::Unsupported, message).with_source(error)
                    }
                    _ => error,
                })
            }
        }
    }
}

impl CloudStore {
    /// Metadata of other programs is not held to this crate's rule. It is passed on as far as the
    /// service accepts it.
    fn attributes(
        &self,
        metadata: BTreeMap<String, String>,
        headers: &BTreeMap<String, String>,
    ) -> Attributes {
        let metadata = match self.service {
            Service::Azure => container::identifiers(metadata),
            Service::S3 | Service::Gcs => metadata,
        };
        let mut attributes = attributes(metadata);
        for (attribute, header) in HEADERS {
            if let Some(value) = headers.get(header) {
                attributes.insert(attribute, AttributeValue::from(value.clone()));
            }
        }
        attributes
    }

    /// Deletes a blob that was read just before. S3 also receives its ETag: if the service supports
    /// that condition, content that was written since the read stays. Other metadata on the same
    /// bytes has the same ETag and is deleted.
    async fn delete_with_etag(&self, seen: &Head) -> Result<bool> {
        let path = self.path(&seen.name)?;
        let Some(client) = self.s3() else {
            return self.delete_path(&path, &seen.name).await;
        };
        match self.delete_if(client, &path, &seen.etag).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Err(changed(self, &seen.name)),
            Err(error) if is_not_implemented(&error) => self.delete_path(&path, &seen.name).await,
            deleted => deleted.map_err(|e| e.about(format_args!("blob `{}` of {self}", seen.name))),
        }
    }

    /// Writes in parts. Unfinished parts are not visible.
    async fn write_parts(
        &self,
        path: &Path,
        name: &BlobName,
        mut content: Content,
        attributes: Attributes,
    ) -> Result<()> {
        let options = PutMultipartOptions {
            attributes,
            ..PutMultipartOptions::default()
        };
        let upload = self.contents.put_multipart_opts(path, options).await;
        let mut upload = upload.map_err(|error| self.failed(error, name))?;
        let outcome = send_parts(&mut *upload, &mut content).await;
        let outcome = match outcome {
            Ok(()) => upload
                .complete()
                .await
                .map(drop)
                .map_err(UploadError::Client),
            Err(fault) => Err(fault),
        };
        let Err(fault) = outcome else {
            return Ok(());
        };
        // Unfinished parts on S3 are removed by the bucket's rule for incomplete uploads.
        let _ = upload.abort().await;
        Err(match fault {
            UploadError::Source(error) => error,
            UploadError::Client(error) => self.failed(error, name),
        })
    }
}

enum UploadError {
    Source(Error),
    Client(object_store::Error),
}

async fn send_parts(
    upload: &mut dyn MultipartUpload,
    content: &mut Content,
) -> std::result::Result<(), UploadError> {
    let (mut part, mut passed) = (BytesMut::with_capacity(PART), 0);
    // S3 accepts ten thousand parts at most.
    let size = PART.max(usize::try_from(content.size / 9_000).unwrap_or(PART));
    while let Some(piece) = content.pieces.next().await {
        let mut piece = piece.map_err(UploadError::Source)?;
        passed += piece.len() as u64;
        while !piece.is_empty() {
            let room = size - part.len();
            part.extend_from_slice(&piece.split_to(piece.len().min(room)));
            if part.len() == size {
                let full = std::mem::replace(&mut part, BytesMut::with_capacity(PART));
                let sent = upload.put_part(full.freeze().into());
                sent.await.map_err(UploadError::Client)?;
            }
        }
    }
    if !part.is_empty() {
        let sent = upload.put_part(part.freeze().into());
        sent.await.map_err(UploadError::Client)?;
    }
    container::check_size(passed, content.size).map_err(UploadError::Source)
}
