//! Opening a database file: its mode, pragmas and tables.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, config::DbConfig};

use super::{
    DAMAGED, Missing, Schema, directory_of,
    error::{self, failed, is_busy},
    registry::FileId,
};
use crate::error::{ErrorKind, Result};

/// The maximum wait for another process's lock.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two attempts to take a lock. SQLite's own busy handler waits longer and longer,
/// so that new waiters overtake old ones.
const LOCK_POLL: Duration = Duration::from_millis(1);
/// A log that was written back is cut to this size: many times what it grows to between two
/// write-backs.
const LOG_BYTES: i64 = 64 << 20;
/// Statements that stay prepared: more than any program here uses.
const STATEMENTS: usize = 128;

/// An open file.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) file: FileId,
    /// The log has no commit that may be in the system's cache only.
    pub(super) log_is_durable: bool,
}

/// Opens the file. Creates the tables of an empty one. Does not write to any other.
pub(super) fn open(path: &Path, schema: Schema, missing: Missing) -> Result<Opened> {
    let sql = |source| error::sql(path, source);
    find_or_create(path, missing)?;
    check_place(path)?;
    let file = FileId::of(path).map_err(|source| error::not_found_out(path, source))?;
    let mut connection = connect(path).map_err(sql)?;
    let is_new = is_empty(&connection, path, schema)?;
    if is_new {
        // Only a file made so can be made smaller in small steps.
        connection
            .pragma_update(None, "auto_vacuum", "INCREMENTAL")
            .map_err(sql)?;
    }
    write_ahead(&connection, path)?;
    set_pragmas(&connection).map_err(sql)?;
    create_tables(&mut connection, schema).map_err(sql)?;
    let (_, frames) = checkpoint(&connection, "NOOP").map_err(sql)?;
    Ok(Opened {
        connection,
        file,
        log_is_durable: is_new || frames <= 0,
    })
}

/// As [`open`], for a caller that may write at once.
pub(crate) fn open_to_write(path: &Path, schema: Schema) -> Result<Connection> {
    let Opened { mut connection, .. } = open(path, schema, Missing::Refuse)?;
    write_log_back(&mut connection).map_err(|source| error::sql(path, source))?;
    keep_log(&connection, false);
    Ok(connection)
}

/// Connects to a file that exists. The connection leaves the log when it is closed. Also a connection that only reads needs write access: SQLite
/// replays the log, and has an index of it.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // No URI flag, so that a path may contain a `?`.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(wait_for_lock))?;
    keep_log(&connection, true);
    Ok(connection)
}

/// SQLite calls this when a lock is held: waits, and returns whether to try again.
fn wait_for_lock(attempts: i32) -> bool {
    // Jitter, because waiters that began together would try together.
    thread::sleep(LOCK_POLL.mul_f64(0.5 + fastrand::f64()));
    LOCK_POLL * attempts.unsigned_abs() < LOCK_TIMEOUT
}

/// Sets whether the last connection leaves the log when it is closed: neither a log that may not be
/// durable nor that of another file may be written back and deleted.
pub(super) fn keep_log(connection: &Connection, keep: bool) {
    let option = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    // An error leaves the log, which is complete.
    let _ = connection.set_db_config(option, keep);
}

/// Makes sure that the file is there. Only its owner can read a new file; SQLite gives its log the
/// same mode.
fn find_or_create(path: &Path, missing: Missing) -> Result<()> {
    if !matches!(path.try_exists(), Ok(false)) {
        return Ok(());
    }
    if missing != Missing::CreateAnyway
        && let Some(aside) = set_aside(path)
    {
        let what = format!(
            "is missing: it was damaged and set aside as `{}`: restore a copy, or allow a new file \
             with --allow-new-file",
            aside.display()
        );
        return Err(failed(ErrorKind::Conflict, path, &what));
    }
    if missing == Missing::Refuse {
        return Err(failed(ErrorKind::NotFound, path, "does not exist"));
    }
    if !directory_of(path).exists() {
        let what = "cannot be made: its directory does not exist";
        return Err(failed(ErrorKind::NotFound, path, what));
    }
    create_file(path)
}

/// Creates an empty file that only its owner can read.
pub(super) fn create_file(path: &Path) -> Result<()> {
    let create = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    Connection::open_with_flags(path, create).map_err(|source| error::sql(path, source))?;
    // By its path: closing a descriptor of the file would drop all locks of this process on it,
    // including SQLite's.
    #[cfg(unix)]
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .map_err(|source| error::not_made(path, source))?;
    Ok(())
}

/// Returns a damaged file that was set aside from this path.
fn set_aside(path: &Path) -> Option<PathBuf> {
    let prefix = format!("{}{DAMAGED}", path.file_name()?.to_string_lossy());
    let entries = fs::read_dir(directory_of(path)).ok()?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&prefix)
    })
}

/// Refuses a file whose log would not lie where all others look for it: SQLite finds the log by the
/// file's path. See <https://www.sqlite.org/howtocorrupt.html>, section 2.
fn check_place(path: &Path) -> Result<()> {
    #[cfg(unix)]
    if fs::metadata(path).is_ok_and(|metadata| {
        metadata.is_file() && std::os::unix::fs::MetadataExt::nlink(&metadata) > 1
    }) {
        let what = "has several hard links: each name would have a log of its own, and one would \
                    lack the other's commits: keep one name";
        return Err(failed(ErrorKind::Invalid, path, what));
    }
    if is_mount_point(path) {
        let what =
            "is mounted alone: its log would stay behind in the container: mount its directory";
        return Err(failed(ErrorKind::Invalid, path, what));
    }
    Ok(())
}

/// Returns whether the file itself, and not a directory above it, is mounted here. Known on Linux
/// only.
fn is_mount_point(path: &Path) -> bool {
    let (Ok(path), Ok(mounts)) = (
        path.canonicalize(),
        fs::read_to_string("/proc/self/mountinfo"),
    ) else {
        return false;
    };
    // The kernel escapes these; the fifth field is the mount point (proc_pid_mountinfo(5)).
    let path = path.to_string_lossy();
    let path = path.replace('\\', "\\134").replace(' ', "\\040");
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.any(|point| point == path)
}

/// Refuses a file of another program before anything in it is changed. Returns whether the file is
/// empty.
fn is_empty(connection: &Connection, path: &Path, schema: Schema) -> Result<bool> {
    let sql = |source| error::sql(path, source);
    // Reads the tables before the kind: another process that creates them at the same time has set
    // the kind by then.
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(sql)?;
    let kind: i32 = number(connection, "application_id").map_err(sql)?;
    let version: i32 = number(connection, "user_version").map_err(sql)?;
    if kind == 0 && tables == 0 {
        return Ok(true);
    }
    if kind != schema.application_id {
        let what = "is a database of another kind or program: name another file";
        return Err(failed(ErrorKind::Invalid, path, what));
    }
    if version == schema.version {
        return Ok(false);
    }
    let what = format!(
        "has version {version}, but this program knows only {}",
        schema.version
    );
    Err(failed(ErrorKind::Invalid, path, &what))
}

/// Enables the write-ahead log. The change needs exclusive access and does not always respect the
/// busy handler, so it is retried while another process makes the same change.
fn write_ahead(connection: &Connection, path: &Path) -> Result<()> {
    let mut attempts = 0;
    loop {
        match enable_write_ahead_log(connection) {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                let what = format!(
                    "cannot keep a write-ahead log (journal mode `{mode}`): it must lie on a local \
                     disk, in a writable directory"
                );
                return Err(failed(ErrorKind::Invalid, path, &what));
            }
            Err(error) if is_busy(&error) && wait_for_lock(attempts) => attempts += 1,
            Err(source) => return Err(error::sql(path, source)),
        }
    }
}

/// Returns the new journal mode. SQLite returns the mode first and commits the change then, so the
/// statement runs to its end: an error of the commit leaves the old mode.
fn enable_write_ahead_log(connection: &Connection) -> rusqlite::Result<String> {
    let mut statement = connection.prepare("PRAGMA journal_mode = wal")?;
    let modes = statement.query_map((), |row| row.get(0))?;
    let modes: Vec<String> = modes.collect::<rusqlite::Result<_>>()?;
    Ok(modes.into_iter().next().unwrap_or_default())
}

/// Writes the log that an earlier connection left back into the file, and begins it again.
///
/// After a failed fsync the log may hold a commit that is only in the system's cache. The next fsync
/// succeeds without it, and a loss of power would take all later commits with it. So no commit is
/// appended to a log that this connection has not begun.
pub(super) fn write_log_back(connection: &mut Connection) -> rusqlite::Result<()> {
    let is_harmless = |error: &rusqlite::Error| {
        // Another process uses the log, so it was not read from the disk now. And a full disk can
        // still be read, and messages can be deleted.
        is_busy(error) || error.sqlite_error_code() == Some(ErrorCode::DiskFull)
    };
    let (_, frames) = match checkpoint(connection, "PASSIVE") {
        Err(error) if is_harmless(&error) => return Ok(()),
        checked => checked?,
    };
    if frames <= 0 {
        return Ok(());
    }
    // This waits for all readers, and no other process can write meanwhile.
    connection.busy_timeout(Duration::from_millis(50))?;
    let truncated = checkpoint(connection, "TRUNCATE");
    connection.busy_handler(Some(wait_for_lock))?;
    match truncated {
        Ok((true, _)) => return Ok(()),
        Err(error) if is_harmless(&error) => return Ok(()),
        truncated => truncated?,
    };
    // The first commit of the new log makes the end of the old one durable.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: i64 = number(&transaction, "user_version")?;
    transaction.pragma_update(None, "user_version", version)?;
    transaction.commit()
}

/// Writes the log back. Returns whether another process prevented it, and the number of frames that
/// were in the log; -1 without a log.
fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<(bool, i64)> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    connection.query_row(&sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
}

fn set_pragmas(connection: &Connection) -> rusqlite::Result<()> {
    // A commit that has returned survives a power loss.
    connection.pragma_update(None, "synchronous", "FULL")?;
    if cfg!(target_os = "macos") {
        // On macOS, a plain fsync leaves the data in the drive's cache.
        connection.pragma_update(None, "fullfsync", true)?;
        connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    }
    // After a large commit the log does not keep its size.
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "foreign_keys", true)?;
    // A manipulated file must not run functions or crash the process with bad cells.
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // An I/O error in a mapped page kills the process with a signal; in a read it is an error.
    connection.pragma_update(None, "mmap_size", 0)?;
    // Each of several writes that share a transaction is a savepoint, whose journal would become a
    // file at 64 KiB.
    connection.pragma_update(None, "temp_store", "MEMORY")
}

/// Creates the tables of an empty file.
fn create_tables(connection: &mut Connection, schema: Schema) -> rusqlite::Result<()> {
    if number::<i32>(connection, "user_version")? == schema.version {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read again under the write lock, because another process may have made the tables.
    if number::<i32>(&transaction, "user_version")? != schema.version {
        transaction.execute_batch(schema.tables)?;
        transaction.pragma_update(None, "application_id", schema.application_id)?;
        transaction.pragma_update(None, "user_version", schema.version)?;
    }
    transaction.commit()
}

pub(super) fn number<T: rusqlite::types::FromSql>(
    connection: &Connection,
    pragma: &str,
) -> rusqlite::Result<T> {
    connection.pragma_query_value(None, pragma, |row| row.get(0))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_found_by_its_path() {
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/proc/self")));
    }
}
