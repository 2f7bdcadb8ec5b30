//! How a database file is opened: its mode, its pragmas, its version.

use std::{fs, io, path::Path, sync::Mutex, time::Duration};

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::{
    Schema,
    busy::{PATIENCE, wait_for_locks},
    error::{SqliteError, is_busy},
};

/// Held while a missing file is made. Closing any descriptor of a file drops all of the process's
/// locks on it, SQLite's own among them; so nobody may open it between our making and closing it.
static MAKING: Mutex<()> = Mutex::new(());

/// Opens the file, makes it where it is missing, and brings it to the schema's version.
pub(super) fn open(path: &Path, schema: Schema) -> Result<Connection, SqliteError> {
    make(path)?;
    let sql = |error| SqliteError::sql(path, error);
    // No URI flag: a path with a `?` in it is a path.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(sql)?;
    wait_for_locks(&mut connection).map_err(sql)?;
    check_kind(&connection, path, schema)?;
    write_ahead(&connection, path)?;
    set_pragmas(&connection).map_err(sql)?;
    migrate(&mut connection, path, schema)?;
    Ok(connection)
}

/// Makes an empty file that only its owner can read; SQLite gives its log the same mode. The mode
/// of a file that exists is its owner's choice.
fn make(path: &Path) -> Result<(), SqliteError> {
    let shown = || path.display().to_string();
    if path.is_dir() {
        return Err(SqliteError::IsDirectory { path: shown() });
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let making = MAKING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let made = options.open(path).map(drop);
    drop(making);
    match made {
        Ok(()) => Ok(()),
        Err(error) => match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            io::ErrorKind::NotFound => Err(SqliteError::NoDirectory { path: shown() }),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                let path = shown();
                Err(SqliteError::DirectoryDenied {
                    path,
                    source: error,
                })
            }
            _ => Err(SqliteError::Create {
                path: shown(),
                source: error,
            }),
        },
    }
}

/// Refuses what is not ours before anything in it is changed.
fn check_kind(connection: &Connection, path: &Path, schema: Schema) -> Result<(), SqliteError> {
    let sql = |error| SqliteError::sql(path, error);
    let shown = || path.display().to_string();
    // The tables first: where another process makes them meanwhile, the kind is its own by then.
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(sql)?;
    let kind: i32 = number(connection, "application_id").map_err(sql)?;
    let empty = kind == 0 && tables == 0;
    if kind != schema.application_id && !empty {
        return Err(SqliteError::Foreign { path: shown() });
    }
    let found: i64 = number(connection, "user_version").map_err(sql)?;
    let known = schema.migrations.len();
    if usize::try_from(found).is_ok_and(|found| found <= known) {
        Ok(())
    } else {
        Err(SqliteError::Newer {
            path: shown(),
            found,
            known,
        })
    }
}

/// Turns the write-ahead log on. The change needs the file for itself and does not always keep the
/// busy time-out, so it is tried again where another process makes the same one.
fn write_ahead(connection: &Connection, path: &Path) -> Result<(), SqliteError> {
    let pause = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    loop {
        let mode: rusqlite::Result<String> =
            connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0));
        match mode {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => {
                let path = path.display().to_string();
                return Err(SqliteError::NoWriteAheadLog { path, mode });
            }
            Err(error) if is_busy(&error) && waited < PATIENCE => {
                std::thread::sleep(pause);
                waited += pause;
            }
            Err(error) => return Err(SqliteError::sql(path, error)),
        }
    }
}

fn set_pragmas(connection: &Connection) -> rusqlite::Result<()> {
    // A commit that has returned survives the loss of power.
    connection.pragma_update(None, "synchronous", "FULL")?;
    if cfg!(target_os = "macos") {
        // There, an fsync without it leaves the data in the drive's cache.
        connection.pragma_update(None, "fullfsync", true)?;
        connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    }
    connection.pragma_update(None, "foreign_keys", true)?;
    // A file that somebody tampered with shall not run functions, nor crash us by bad cells.
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // An I/O error in a mapped page is a signal that kills; in a read it is an error.
    connection.pragma_update(None, "mmap_size", 0)
}

/// Runs the migrations that are missing, all or none of them.
fn migrate(connection: &mut Connection, path: &Path, schema: Schema) -> Result<(), SqliteError> {
    let known = schema.migrations.len();
    let run = |connection: &mut Connection| {
        if number::<i64>(connection, "user_version")? == i64::try_from(known).unwrap_or(i64::MAX) {
            return Ok(());
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Read again under the write lock: another process may have migrated meanwhile.
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
        transaction.commit()
    };
    run(connection).map_err(|error| SqliteError::sql(path, error))
}

fn number<T: rusqlite::types::FromSql>(
    connection: &Connection,
    pragma: &str,
) -> rusqlite::Result<T> {
    connection.pragma_query_value(None, pragma, |row| row.get(0))
}
