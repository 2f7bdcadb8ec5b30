//! A store in one SQLite file: the embedded default. Several processes of one machine may share it.

use std::{
    fmt,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use rusqlite::{OptionalExtension, Row, Transaction, params, types::Type};

use super::{
    Blob, BlobContent, BlobEntry, BlobName, BlobStore, ETag, Page, PageOptions, changed, exists,
};
use crate::{
    backend::sqlite::{Database, Missing, Schema},
    base::{
        clock::{micros, wall},
        random::random,
    },
    error::Result,
};

/// Blobs in a SQLite file. A write that has returned is on the disk.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    database: Database,
}

const SCHEMA: Schema = Schema {
    // "revB"
    application_id: 0x7265_7642,
    version: 1,
    tables: "CREATE TABLE blobs (
            name TEXT NOT NULL PRIMARY KEY,
            bytes BLOB NOT NULL,
            metadata TEXT NOT NULL,
            etag TEXT NOT NULL,
            modified INTEGER NOT NULL -- microseconds since 1970
        ) STRICT",
};

impl SqliteStore {
    /// Opens the file, and creates it if it is missing. Its directory must exist.
    ///
    /// # Errors
    /// One line with the file and the reason.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let database = Database::open(path, SCHEMA, Missing::Create).await?;
        Ok(Self { database })
    }

    /// Opens the file.
    ///
    /// # Errors
    /// As [`SqliteStore::open`]; `NotFound` if the file is missing.
    pub async fn open_existing(path: impl Into<PathBuf>) -> Result<Self> {
        let database = Database::open(path, SCHEMA, Missing::Refuse).await?;
        Ok(Self { database })
    }

    /// Writes a new blob, or over the one with the ETag `before`; `None` if another one is there, or
    /// none.
    async fn write(
        &self,
        name: &BlobName,
        content: BlobContent,
        before: Option<&ETag>,
    ) -> Result<Option<ETag>> {
        let content = content.checked()?;
        let metadata = serde_json::to_string(&content.metadata).expect("texts are written as JSON");
        let random = u64::from_le_bytes(random()?);
        let modified = i64::try_from(micros(wall())).unwrap_or(i64::MAX);
        // The time and a random number: a counter would repeat ETags after an older copy of the
        // file is restored.
        let etag = ETag::new(&format!("{modified:x}-{random:016x}"));
        let (name, new, before) = (name.clone(), etag.clone(), before.cloned());
        let written = self.database.write(move |transaction| {
            let (name, bytes, new) = (name.as_str(), &content.bytes[..], new.as_str());
            let Some(before) = &before else {
                let insert = "INSERT INTO blobs (name, bytes, metadata, etag, modified)
                     VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
                let values = params![name, bytes, metadata, new, modified];
                return transaction.prepare_cached(insert)?.execute(values);
            };
            let update = "UPDATE blobs SET bytes = ?2, metadata = ?3, etag = ?4, modified = ?5
                 WHERE name = ?1 AND etag = ?6";
            let values = params![name, bytes, metadata, new, modified, before.as_str()];
            transaction.prepare_cached(update)?.execute(values)
        });
        Ok((written.await? > 0).then_some(etag))
    }
}

#[async_trait]
impl BlobStore for SqliteStore {
    async fn get(&self, name: &BlobName) -> Result<Option<Blob>> {
        let name = name.clone();
        let read = self.database.run(move |connection| {
            let sql = "SELECT bytes, metadata, etag, modified FROM blobs WHERE name = ?1";
            let mut select = connection.prepare_cached(sql)?;
            select.query_row([name.as_str()], read_blob).optional()
        });
        read.await
    }

    async fn create(&self, name: &BlobName, content: BlobContent) -> Result<ETag> {
        let made = self.write(name, content, None).await?;
        made.ok_or_else(|| exists(self, name))
    }

    async fn update(&self, name: &BlobName, content: BlobContent, etag: &ETag) -> Result<ETag> {
        let written = self.write(name, content, Some(etag)).await?;
        written.ok_or_else(|| changed(self, name))
    }

    async fn delete(&self, name: &BlobName, etag: Option<&ETag>) -> Result<bool> {
        let (key, expected) = (name.clone(), etag.cloned());
        let work = move |transaction: &Transaction<'_>| {
            let delete = "DELETE FROM blobs WHERE name = ?1 AND etag = coalesce(?2, etag)";
            let values = params![key.as_str(), expected.as_ref().map(ETag::as_str)];
            if transaction.prepare_cached(delete)?.execute(values)? > 0 {
                return Ok(Some(true));
            }
            let mut select = transaction.prepare_cached("SELECT 1 FROM blobs WHERE name = ?1")?;
            Ok((!select.exists([key.as_str()])?).then_some(false))
        };
        let deleted = self.database.write(work).await?;
        deleted.ok_or_else(|| changed(self, name))
    }

    async fn list(&self, prefix: &str, page: &PageOptions) -> Result<Page> {
        let size = page.size.max(1);
        let after = page.after(prefix)?.unwrap_or_default().to_owned();
        let prefix = prefix.to_owned();
        let entries = self
            .database
            .run(move |connection| {
                let mut statement = connection.prepare_cached(
                    "SELECT name, etag, modified FROM blobs WHERE name >= ?1 AND name > ?2
                     ORDER BY name",
                )?;
                let mut rows = statement.query([&prefix, &after])?;
                let mut entries = Vec::new();
                while entries.len() <= size
                    && let Some(row) = rows.next()?
                    && row.get_ref(0)?.as_str()?.starts_with(&prefix)
                {
                    entries.push(read_entry(row)?);
                }
                Ok(entries)
            })
            .await?;
        Ok(Page::truncated(entries, size))
    }
}

fn read_blob(row: &Row<'_>) -> rusqlite::Result<Blob> {
    let unreadable =
        |error| rusqlite::Error::FromSqlConversionFailure(1, Type::Text, Box::new(error));
    let metadata = serde_json::from_str(row.get_ref(1)?.as_str()?).map_err(unreadable)?;
    Ok(Blob {
        content: BlobContent {
            bytes: row.get::<_, Vec<u8>>(0)?.into(),
            metadata,
        },
        etag: ETag::new(row.get_ref(2)?.as_str()?),
        last_modified: time(row.get(3)?),
    })
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<BlobEntry> {
    let unreadable =
        |error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error));
    Ok(BlobEntry {
        name: BlobName::new(row.get_ref(0)?.as_str()?).map_err(unreadable)?,
        etag: ETag::new(row.get_ref(1)?.as_str()?),
        last_modified: time(row.get(2)?),
        metadata: None,
    })
}

fn time(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

impl fmt::Display for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.database.path().display())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::contract;

    #[tokio::test]
    async fn the_sqlite_store_keeps_the_contract() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = SqliteStore::open(directory.path().join("blobs.db")).await;
        contract::check(&store.expect("open")).await;
    }

    #[tokio::test]
    async fn two_handles_on_one_file_race_without_losing_a_write() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("blobs.db");
        let mut stores: Vec<Arc<dyn BlobStore>> = Vec::new();
        for _ in 0..3 {
            stores.push(Arc::new(SqliteStore::open(&path).await.expect("open")));
        }
        contract::check_races(&stores).await;
    }

    #[tokio::test]
    async fn blobs_outlive_the_store_that_wrote_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("blobs.db");
        let name = BlobName::new("flags/go").expect("a name");
        let store = SqliteStore::open(&path).await.expect("open");
        let etag = store.create(&name, "go".into()).await.expect("create");
        // The store is still open: another process reads the same file after a kill.
        let other = SqliteStore::open(&path).await.expect("open");
        let blob = other.get(&name).await.expect("get").expect("a blob");
        assert_eq!((&blob.content.bytes[..], &blob.etag), (&b"go"[..], &etag));
        drop(store);
        assert!(other.delete(&name, Some(&etag)).await.expect("delete"));
    }
}
