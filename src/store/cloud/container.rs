//! A cloud's container, for sweeping.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{
    Attribute, AttributeValue, Attributes, GetOptions, ObjectStore, PutMode, PutMultipartOptions,
    WriteMultipart, list::PaginatedListOptions,
};

use super::{
    CloudStore, Service, attributes, error::is_absent, metadata, probe::is_not_implemented, seconds,
};
use crate::{
    base::request_error::RequestError,
    error::{Error, ErrorKind, Result},
    store::{
        BlobEntry, BlobName, BlobStore, ETag, Page, PageOptions,
        container::{self, Container, Content, changed},
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
    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        if let Service::Azure(azure_rest) = &self.service {
            let listed = azure_rest.list(&self.prefix, prefix, page).await;
            return listed.map_err(|error| self.not_listed(error));
        }
        let prefix = format!("{}{prefix}", self.prefix);
        let mut heads = Page::default();
        let options = PaginatedListOptions {
            max_keys: Some(page.size.max(1)),
            page_token: page.token.clone(),
            ..PaginatedListOptions::default()
        };
        let wanted = (!prefix.is_empty()).then_some(prefix.as_str());
        let listed = self.reads.list_paginated(wanted, options).await;
        let listed = listed.map_err(|error| self.not_listed(error.into()))?;
        heads.next = listed.page_token.filter(|token| !token.is_empty());
        for meta in listed.result.objects {
            match self.own_name(meta.location.as_ref()) {
                Some(name) => heads.entries.push(BlobEntry {
                    etag: self.etag(meta.e_tag, &name)?,
                    last_modified: seconds(meta.last_modified.timestamp()),
                    metadata: None,
                    name,
                }),
                None => heads.unnameable += 1,
            }
        }
        Ok(heads)
    }

    async fn head(&self, name: &BlobName) -> Result<Option<BlobEntry>> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = match self.reads.get_opts(&self.path(name)?, options).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.failed(error, name)),
        };
        Ok(Some(BlobEntry {
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
        let found = self.reads.get_opts(&self.path(name)?, options).await;
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
        let attributes = self.attributes(metadata, &content.headers);
        if content.size <= PART as u64 {
            let mode = match over {
                Some(etag) => PutMode::Update(self.version(name, etag).await?),
                None => PutMode::Create,
            };
            let bytes = content.into_bytes().await?;
            return self
                .put_whole(name, bytes, mode, attributes)
                .await
                .map(drop);
        }
        // Parts are combined without a condition, so the blob is read before.
        let found = self.head(name).await?;
        if found.map(|head| head.etag).as_ref() != over {
            return Err(changed(self, name));
        }
        self.write_parts(name, content, attributes).await
    }

    async fn set_metadata(
        &self,
        name: &BlobName,
        metadata: BTreeMap<String, String>,
        etag: &ETag,
    ) -> Result<()> {
        if let Service::Azure(azure_rest) = &self.service {
            let path = self.path(name)?;
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
        let mode = PutMode::Update(self.version(name, etag).await?);
        let attributes = self.attributes(metadata, &content.headers);
        let bytes = content.into_bytes().await?;
        self.put_whole(name, bytes, mode, attributes)
            .await
            .map(drop)
    }

    async fn delete_unchanged(&self, seen: &BlobEntry) -> Result<bool> {
        if matches!(self.service, Service::Azure(_)) {
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

    async fn ensure(&self) -> Result<()> {
        if let Service::Azure(azure_rest) = &self.service {
            return match azure_rest.create_container().await {
                // A credential that may write need not be allowed to create containers. The
                // container may exist.
                Err(error) if error.kind() == ErrorKind::Denied => Ok(()),
                made => {
                    made.map_err(|error| error.about(format_args!("container `{}`", self.bucket)))
                }
            };
        }
        self.check().await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let message = format!("{self}: an operator must create its bucket");
                Error::new(ErrorKind::Unsupported, message).with_source(error)
            }
            _ => error,
        })
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
            Service::Azure(_) => container::identifiers(metadata),
            Service::S3(_) | Service::Gcs => metadata,
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
    async fn delete_with_etag(&self, seen: &BlobEntry) -> Result<bool> {
        let path = self.path(&seen.name)?;
        let Service::S3(client) = &self.service else {
            return self.delete_path(&path, &seen.name).await;
        };
        match self.delete_if(client, &path, &seen.etag).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Err(changed(self, &seen.name)),
            Err(error) if is_not_implemented(&error) => self.delete_path(&path, &seen.name).await,
            deleted => deleted.map_err(|e| e.about(format_args!("blob `{}` of {self}", seen.name))),
        }
    }

    /// Writes in parts. Unfinished parts are not visible. Those on S3 that cannot be removed after a
    /// failure are removed by the bucket's rule for incomplete uploads.
    async fn write_parts(
        &self,
        name: &BlobName,
        mut content: Content,
        attributes: Attributes,
    ) -> Result<()> {
        let failed = |error| self.failed(error, name);
        let options = PutMultipartOptions {
            attributes,
            ..PutMultipartOptions::default()
        };
        let path = self.path(name)?;
        let upload = self.reads.put_multipart_opts(&path, options).await;
        // S3 accepts ten thousand parts at most.
        let size = PART.max(usize::try_from(content.size / 9_000).unwrap_or(PART));
        let mut upload = WriteMultipart::new_with_chunk_size(upload.map_err(failed)?, size);
        let sent = async {
            let mut passed = 0;
            while let Some(piece) = content.pieces.try_next().await? {
                passed += piece.len() as u64;
                upload.wait_for_capacity(1).await.map_err(failed)?;
                upload.put(piece);
            }
            container::check_size(passed, content.size)
        };
        match sent.await {
            Ok(()) => upload.finish().await.map(drop).map_err(failed),
            Err(error) => {
                let _ = upload.abort().await;
                Err(error)
            }
        }
    }
}
