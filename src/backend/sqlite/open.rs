//! Opening a database file: its mode, pragmas and migrations.

use std::{fs, io, path::Path, sync::Mutex, time::Duration};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, config::DbConfig};

use super::{
    Missing, Schema,
    damaged::find_damaged,
    error::{self, failed, is_busy},
    lock_wait::{LOCK_TIMEOUT, wait_for_locks},
    place::{FileId, check_place},
};
use crate::{
    base::sync::lock,
    error::{ErrorKind, Result},
};

/// A log that was written back is cut to this size: many times what it grows to between two
/// write-backs.
const LOG_BYTES: i64 = 64 << 20;
/// Statements that stay prepared: more than any program here uses.
const STATEMENTS: usize = 128;

/// Held while a missing file is created. Closing any descriptor of a file drops all locks of the
/// process on it, including SQLite's. So no other thread may open the file between its creation and
/// the close of that descriptor.
static CREATING: Mutex<()> = Mutex::new(());

/// An open file.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) file: FileId,
    /// The log is empty, or was written back for a migration.
    pub(super) log_is_durable: bool,
}

/// Opens the file, and migrates it to the schema's version. Writes nothing else.
pub(super) fn open(path: &Path, schema: Schema, missing: Missing) -> Result<Opened> {
    find_or_create(path, missing)?;
    let file = check_place(path)?;
    let sql = |source| error::sql(path, source);
    let mut connection = connect(path).map_err(sql)?;
    if is_empty(&connection, path, schema)? {
        // Only a file made so can be made smaller in small steps. On a file that is not empty it has
        // no effect, and takes the write lock.
        connection
            .pragma_update(None, "auto_vacuum", "INCREMENTAL")
            .map_err(sql)?;
    }
    write_ahead(&connection, path)?;
    set_pragmas(&connection).map_err(sql)?;
    let migrated = migrate(&mut connection, path, schema)?;
    let (_, frames) = checkpoint(&connection, "NOOP").map_err(sql)?;
    Ok(Opened {
        connection,
        file,
        log_is_durable: migrated || frames <= 0,
    })
}

/// Connects to a file that exists. The connection waits for locks, and leaves the log when it is closed.
/// Also one that only reads needs write access: SQLite replays the log, and has an index of it.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // No URI flag, so that a path may contain a `?`.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    write_back_on_close(&connection, false)?;
    wait_for_locks(&mut connection)?;
    Ok(connection)
}

/// As [`open`], for the thread that shares transactions among writes. Each of them is a savepoint,
/// whose journal would become a file at 64 KiB.
pub(super) fn open_for_groups(path: &Path, schema: Schema, missing: Missing) -> Result<Opened> {
    let opened = open(path, schema, missing)?;
    // After the migrations: what they sort may be larger than the memory.
    let set = opened
        .connection
        .pragma_update(None, "temp_store", "MEMORY");
    set.map_err(|source| error::sql(path, source))?;
    Ok(opened)
}

/// As [`open`], for a caller that may write at once.
pub(super) fn open_for_caller(path: &Path, schema: Schema) -> Result<Connection> {
    let Opened { mut connection, .. } = open(path, schema, Missing::Refuse)?;
    let ready =
        write_log_back(&mut connection).and_then(|()| write_back_on_close(&connection, true));
    ready.map_err(|source| error::sql(path, source))?;
    Ok(connection)
}

/// Sets whether the last connection writes the log back and deletes it when it is closed. That must not
/// happen to a log that may not be durable: after a loss of power it may be there again, without its
/// end, and would undo a part of what was written back.
pub(super) fn write_back_on_close(connection: &Connection, yes: bool) -> rusqlite::Result<()> {
    let set = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !yes);
    set.map(drop)
}

/// Makes sure that the file is there: the one place where a file is created.
fn find_or_create(path: &Path, missing: Missing) -> Result<()> {
    if path.is_dir() {
        return Err(error::is_directory(path));
    }
    let is_missing = matches!(path.try_exists(), Ok(false));
    if is_missing
        && missing != Missing::CreateAnyway
        && let Some(damaged) = find_damaged(path)
    {
        let what = format!(
            "is missing, and `{}` was set aside because it is damaged: restore a copy, or allow a new \
             file to begin empty",
            damaged.display()
        );
        return Err(failed(ErrorKind::Conflict, path, &what));
    }
    match missing {
        Missing::Refuse if is_missing => Err(failed(ErrorKind::NotFound, path, "does not exist")),
        Missing::Refuse => Ok(()),
        Missing::Create | Missing::CreateAnyway => create_file(path),
    }
}

/// Creates an empty file that only its owner can read; SQLite gives its log the same mode. The mode
/// of an existing file is not changed.
pub(super) fn create_file(path: &Path) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let creating = lock(&CREATING);
    let created = options.open(path).and_then(|file| owner_only(&file));
    drop(creating);
    let Err(source) = created else {
        return Ok(());
    };
    match source.kind() {
        io::ErrorKind::AlreadyExists => Ok(()),
        io::ErrorKind::NotFound => {
            let what = "cannot be made: its directory does not exist";
            Err(failed(ErrorKind::NotFound, path, what))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            let what = "cannot be made: its directory is not writable";
            Err(failed(ErrorKind::Denied, path, what).with_source(source))
        }
        _ => Err(error::not_made(path, source)),
    }
}

/// Sets the mode whatever the mask of the process is: a mask of 0277 would forbid the owner to write.
#[cfg(unix)]
fn owner_only(file: &fs::File) -> io::Result<()> {
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))
}

#[cfg(not(unix))]
fn owner_only(_: &fs::File) -> io::Result<()> {
    Ok(())
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
    let empty = kind == 0 && tables == 0;
    if kind != schema.application_id && !empty {
        return Err(error::foreign(path));
    }
    let found: i64 = number(connection, "user_version").map_err(sql)?;
    let known = schema.migrations.len();
    if usize::try_from(found).is_ok_and(|found| found <= known) {
        return Ok(empty);
    }
    let what = format!(
        "has version {found}, but this program knows versions up to {known} only: use a newer program"
    );
    Err(failed(ErrorKind::Invalid, path, &what))
}

/// Enables the write-ahead log. The change needs exclusive access and does not always respect the
/// busy handler, so it is retried while another process makes the same change.
fn write_ahead(connection: &Connection, path: &Path) -> Result<()> {
    let pause = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
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
            Err(error) if is_busy(&error) && waited < LOCK_TIMEOUT => {
                std::thread::sleep(pause);
                waited += pause;
            }
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

/// Writes the log that an earlier process left back into the file, and begins it again. Called
/// before the first write.
///
/// After a failed fsync the log may hold a commit that is only in the system's cache. The next fsync
/// succeeds without it, and a loss of power would take all later commits with it. So no commit is
/// appended to a log that this process has not written.
pub(super) fn write_log_back(connection: &mut Connection) -> rusqlite::Result<()> {
    let (_, frames) = match checkpoint(connection, "PASSIVE") {
        // A full disk can still be read, and messages can be deleted.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => return Ok(()),
        checked => checked?,
    };
    if frames <= 0 {
        return Ok(());
    }
    // This waits for all readers, and no other process can write meanwhile.
    connection.busy_timeout(Duration::from_millis(50))?;
    let truncated = checkpoint(connection, "TRUNCATE");
    wait_for_locks(connection)?;
    match truncated {
        // Another process uses the log, so it was not read from the disk now.
        Ok((true, _)) => return Ok(()),
        Err(error) if is_busy(&error) => return Ok(()),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => return Ok(()),
        truncated => truncated?,
    };
    // The first commit of the new log makes the end of the old one durable. Under the write lock:
    // another process may be migrating the file.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: i64 = number(&transaction, "user_version")?;
    transaction.pragma_update(None, "user_version", version)?;
    transaction.commit()
}

/// Writes the log back. Returns whether another process prevented it, and the number of frames that
/// were in the log; -1 without a log.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<(bool, i64)> {
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
    connection.pragma_update(None, "mmap_size", 0)
}

/// Runs the missing migrations in one transaction. Returns whether there were any.
fn migrate(connection: &mut Connection, path: &Path, schema: Schema) -> Result<bool> {
    let known = schema.migrations.len();
    let run = |connection: &mut Connection| {
        if number::<i64>(connection, "user_version")? == i64::try_from(known).unwrap_or(i64::MAX) {
            return Ok(false);
        }
        write_log_back(connection)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Read again under the write lock, because another process may have migrated the file.
        let done: i64 = number(&transaction, "user_version")?;
        for step in schema
            .migrations
            .iter()
            .skip(usize::try_from(done).unwrap_or(known))
        {
            transaction.execute_batch(step)?;
        }
        transaction.pragma_update(None, "application_id", schema.application_id)?;
        transaction.pragma_update(None, "user_version", i64::try_from(known).unwrap_or(0))?;
        transaction.commit()?;
        Ok(true)
    };
    run(connection).map_err(|source| error::sql(path, source))
}

pub(super) fn number<T: rusqlite::types::FromSql>(
    connection: &Connection,
    pragma: &str,
) -> rusqlite::Result<T> {
    connection.pragma_query_value(None, pragma, |row| row.get(0))
}
