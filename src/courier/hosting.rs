//! Opening a file as its host: the lock, the check for damage, and the compaction of old files.
//!
//! One process hosts a file: it notifies after crashes, maintains the file and hands messages over.
//! Other processes open the same file with [`QueueManager::open`].

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use rusqlite::Connection;

use super::{
    config::QueueManagerConfig,
    host_lock::HostLock,
    manager::{QueueManager, target_of},
};
use crate::{
    backend::sqlite::{check_file, damaged::set_aside},
    base::clock::{micros, wall},
    error::Result,
    queue::sqlite::schema::SCHEMA,
};

impl QueueManager {
    /// Opens the file as its host, and creates it if it is missing. After a crash the whole file is
    /// checked for damage, which takes about a second per GiB; after a clean end, a quick check runs.
    ///
    /// # Errors
    /// As [`QueueManager::open`]; [`ErrorKind::Busy`](crate::ErrorKind::Busy) if another process
    /// hosts the file; [`ErrorKind::Internal`](crate::ErrorKind::Internal) if it is damaged: then
    /// it was renamed to `NAME.damaged-TIME` with its log, and the message says what to do.
    pub async fn host(path: impl Into<PathBuf>, config: QueueManagerConfig) -> Result<Self> {
        let path = target_of(path.into());
        let lock = HostLock::acquire(&path)?;
        if path.is_file()
            && let Some(problem) = check_file(&path, !lock.was_clean).await?
            && (lock.was_hosted || has_our_header(&path))
        {
            return Err(set_aside(&path, &problem, &utc(micros(wall()) / 1_000_000)));
        }
        let manager = Self::open(path, config).await?;
        // A write first, so that the log of an earlier process is written back.
        manager.database().write(|_| Ok(())).await?;
        if let Err(error) = manager.database().run(compact_old_file).await {
            // The file is complete; it only keeps its size.
            let path = manager.path().display();
            tracing::warn!(%path, %error, "the queue file could not be made smaller");
        }
        manager.shared.hosted_with(lock);
        Ok(manager)
    }
}

/// Returns whether a damaged file was a queue file: a wrong path must not rename another program's
/// file.
fn has_our_header(path: &Path) -> bool {
    let mut header = [0; 72];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    let id = SCHEMA.application_id.to_be_bytes();
    read.is_ok() && header.starts_with(b"SQLite format 3\0") && header[68..] == id
}

/// Rewrites a file of an older version that is more than half free, so that it can be made smaller
/// in small steps from then on.
fn compact_old_file(connection: &mut Connection) -> rusqlite::Result<()> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let is_old = number("auto_vacuum")? == 0;
    if is_old && number("freelist_count")? * 2 > number("page_count")? {
        // The copy that VACUUM makes may be larger than the memory.
        connection.execute_batch(
            "PRAGMA temp_store = FILE; PRAGMA auto_vacuum = INCREMENTAL; VACUUM;
             PRAGMA temp_store = MEMORY",
        )?;
    }
    Ok(())
}

/// Formats seconds since 1970 as `20261231T235959Z`.
fn utc(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // The civil calendar in eras of 400 years that begin in March (Hinnant, "chrono-compatible
    // low-level date algorithms").
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_798_761_599, "20261231T235959Z"),
            (1_798_761_600, "20270101T000000Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
