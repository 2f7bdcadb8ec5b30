//! Databases on a real disk: faults, and several connections to one file.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ffi};
use tokio::time::Instant;

use super::{Database, Missing, Schema, error, open::LOCK_TIMEOUT, with_suffix};
use crate::error::{Error, ErrorKind, Result};

const SCHEMA: Schema = Schema {
    application_id: 0x7265_7654,
    version: 1,
    tables: "CREATE TABLE numbers (number INTEGER NOT NULL) STRICT",
};

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("numbers.db");
    (directory, path)
}

async fn add(database: &Database, number: i64) -> Result<()> {
    database
        .write(move |transaction| {
            transaction.execute("INSERT INTO numbers VALUES (?1)", [number])?;
            Ok(())
        })
        .await
}

async fn sum(database: &Database) -> i64 {
    database
        .run(|connection| {
            connection.query_row("SELECT coalesce(sum(number), 0) FROM numbers", [], |row| {
                row.get(0)
            })
        })
        .await
        .expect("a sum")
}

#[tokio::test]
async fn written_data_is_there_after_opening_again() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    add(&database, 7).await.expect("write");
    drop(database);
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    assert_eq!(sum(&database).await, 7);
}

#[tokio::test]
async fn the_pragmas_are_in_force() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    for (pragma, value) in [
        ("synchronous", 2),
        ("foreign_keys", 1),
        ("trusted_schema", 0),
        ("cell_size_check", 1),
        ("mmap_size", 0),
        ("user_version", 1),
    ] {
        let found: i64 = database
            .run(move |connection| connection.pragma_query_value(None, pragma, |row| row.get(0)))
            .await
            .expect(pragma);
        assert_eq!(found, value, "{pragma}");
    }
    // In older versions, two connections that write and checkpoint at once may corrupt the file.
    assert!(rusqlite::version_number() >= 3_051_003);
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_the_file_and_its_log() {
    use std::os::unix::fs::PermissionsExt;
    let (directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    add(&database, 1).await.expect("write");
    let files: Vec<_> = std::fs::read_dir(directory.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry"))
        .collect();
    assert_eq!(files.len(), 3, "the file, its log and the log's index");
    for file in files {
        let mode = file.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file:?}");
    }
}

#[tokio::test]
async fn a_file_of_another_version_is_refused() {
    let (_directory, path) = place();
    drop(one(&path).await);
    let later = Schema {
        version: 2,
        ..SCHEMA
    };
    let error = Database::open(&path, later, Missing::Create).await;
    let error = error.expect_err("older");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("has version 1"), "{error}");
    assert!(error.message().contains("numbers.db"), "{error}");
}

#[tokio::test]
async fn a_file_of_another_program_is_refused_and_not_changed() {
    let (_directory, path) = place();
    std::fs::write(
        &path,
        "a text that is no database, long enough to have a header",
    )
    .expect("write");
    let error = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect_err("text");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.message().ends_with("is not a SQLite database"),
        "{error}"
    );

    let (_directory, path) = place();
    let other = Connection::open(&path).expect("open");
    other
        .execute_batch("CREATE TABLE theirs (x)")
        .expect("table");
    let before = std::fs::read(&path).expect("bytes");
    let error = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect_err("theirs");
    assert!(
        error.message().contains("another kind or program"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).expect("bytes"), before);
}

#[tokio::test]
async fn an_impossible_path_is_one_clear_line() {
    let (directory, path) = place();
    let missing = directory.path().join("missing").join("numbers.db");
    let error = Database::open(missing, SCHEMA, Missing::Create)
        .await
        .expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.message().ends_with("its directory does not exist"),
        "{error}"
    );
    let error = Database::open(directory.path(), SCHEMA, Missing::Create)
        .await
        .expect_err("directory");
    assert!(error.message().contains("cannot be opened"), "{error}");
    drop(path);
}

#[tokio::test]
async fn the_error_for_a_lock_that_is_held_too_long_says_so() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    let brief = Duration::from_millis(10);
    database
        .run(move |connection| connection.busy_timeout(brief))
        .await
        .expect("time-out");
    let other = Connection::open(&path).expect("open");
    other.execute_batch("BEGIN IMMEDIATE").expect("lock");
    let error = add(&database, 1).await.expect_err("locked");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.message().contains("is locked by another process"),
        "{error}"
    );
    other.execute_batch("ROLLBACK").expect("unlock");
    add(&database, 1).await.expect("unlocked");
}

#[tokio::test]
async fn a_full_disk_refuses_the_write_and_takes_it_again_when_there_is_space() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    let limit = |pages: i64| {
        database.run(move |connection| {
            connection
                .pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0))
        })
    };
    limit(2).await.expect("limit");
    let mut refused = None;
    for number in 0..2000 {
        if let Err(error) = add(&database, number << 40).await {
            refused = Some(error);
            break;
        }
    }
    let error = refused.expect("two pages fill up quickly");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().ends_with("the disk is full"), "{error}");
    limit(1000).await.expect("limit");
    add(&database, 1).await.expect("space");
}

#[tokio::test]
async fn a_panic_fails_its_own_caller_only() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    let error = database
        .write::<(), _>(|transaction| {
            transaction.execute("INSERT INTO numbers VALUES (5)", [])?;
            panic!("on purpose")
        })
        .await
        .expect_err("panicked");
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(sum(&database).await, 0, "rolled back");
}

/// Keeps the thread busy until the returned value is dropped.
async fn busy(database: &Database) -> std::sync::mpsc::Sender<()> {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let database = database.clone();
    tokio::spawn(async move {
        let wait = move |_: &mut Connection| {
            begun.send(()).expect("awaited");
            // Ends with an error when the other side is dropped.
            let _ = held.recv();
            Ok(())
        };
        database.run(wait).await
    });
    begins.await.expect("the job runs");
    release
}

#[tokio::test]
async fn writes_that_wait_at_the_same_time_share_a_commit() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    // The first write begins the log anew.
    add(&database, 0).await.expect("written");
    let log = || std::fs::metadata(log_of(&path)).map_or(0, |log| log.len());
    let before = log();
    let release = busy(&database).await;
    let mut writes = tokio::task::JoinSet::new();
    for number in 0..50 {
        let database = database.clone();
        writes.spawn(async move { add(&database, number).await.expect("written") });
    }
    // All writes are queued before the thread is free.
    tokio::task::yield_now().await;
    drop(release);
    writes.join_all().await;
    assert_eq!(sum(&database).await, 49 * 50 / 2);
    let pages = (log() - before) / 4096;
    assert!(pages <= 10, "{pages} pages written for one of content");
}

/// Returns the level of a commit while the write runs: 2 if it waits for the disk, 1 if not.
fn level(transaction: &rusqlite::Transaction<'_>) -> rusqlite::Result<i64> {
    transaction.execute("INSERT INTO numbers VALUES (1)", [])?;
    transaction.pragma_query_value(None, "synchronous", |row| row.get(0))
}

#[tokio::test]
async fn only_a_group_of_unsynced_writes_does_not_wait_for_the_disk() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    assert_eq!(database.write_unsynced(level).await.expect("written"), 1);
    assert_eq!(database.write(level).await.expect("written"), 2);

    let release = busy(&database).await;
    let free = async { drop(release) };
    let (unsynced, synced, ()) =
        tokio::join!(database.write_unsynced(level), database.write(level), free);
    assert_eq!(unsynced.expect("written"), 2, "shares a durable commit");
    assert_eq!(synced.expect("written"), 2);

    let refused = database.write_unsynced::<(), _>(|transaction| {
        level(transaction)?;
        Err(super::refuse(Error::new(ErrorKind::Conflict, "no")))
    });
    let error = refused.await.expect_err("refused");
    assert_eq!((error.kind(), error.message()), (ErrorKind::Conflict, "no"));
    let after = |connection: &mut Connection| {
        connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0))
    };
    assert_eq!(database.run(after).await.expect("read"), 2, "restored");
    assert_eq!(sum(&database).await, 4, "the refused one is rolled back");
    drop(database);
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    assert_eq!(sum(&database).await, 4, "a commit without a sync is there");
}

#[tokio::test]
async fn only_the_bad_writes_of_a_shared_commit_fail() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    let release = busy(&database).await;
    let refused = database.write(|transaction| {
        transaction.execute("INSERT INTO numbers VALUES (1000)", [])?;
        transaction.execute("INSERT INTO numbers VALUES (NULL)", [])
    });
    let panics = database.write::<(), _>(|transaction| {
        transaction.execute("INSERT INTO numbers VALUES (1000)", [])?;
        panic!("on purpose")
    });
    let free = async { drop(release) };
    let (first, refused, panicked, last, ()) =
        tokio::join!(add(&database, 1), refused, panics, add(&database, 2), free);
    first.and(last).expect("written");
    refused.expect_err("NULL");
    let error = panicked.expect_err("panicked");
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.message().contains("panicked"), "{error}");
    assert_eq!(sum(&database).await, 3, "nothing of the others is left");
}

#[tokio::test]
async fn after_an_io_error_the_file_is_opened_again() {
    let (_directory, path) = place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    database
        .run(|connection| connection.execute_batch("CREATE TEMP TABLE of_this_connection (x)"))
        .await
        .expect("a table");
    let failure = || rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None);
    let error = database
        .run::<(), _>(move |_| Err(failure()))
        .await
        .expect_err("failed");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let seen = database
        .run(|connection| connection.execute_batch("SELECT * FROM of_this_connection"))
        .await;
    assert!(seen.is_err(), "the connection that saw the failure is gone");
}

#[tokio::test]
async fn two_connections_to_one_file_lose_nothing() {
    let (_directory, path) = place();
    let (one, two) = tokio::join!(
        Database::open_alone(&path, SCHEMA, Missing::Create),
        Database::open_alone(&path, SCHEMA, Missing::Create)
    );
    let (one, two) = (one.expect("open"), two.expect("open"));
    let adds = |database: Database| async move {
        for _ in 0..100 {
            add(&database, 1).await.expect("write");
        }
    };
    tokio::join!(adds(one.clone()), adds(two.clone()));
    assert_eq!((sum(&one).await, sum(&two).await), (200, 200));
}

/// A disk may hang, and the thread of the runtime that drops the handle has other tasks.
#[tokio::test]
async fn the_last_handle_waits_some_seconds_for_a_job() {
    let (_directory, path) = quick_place();
    let database = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    let (release, held) = std::sync::mpsc::channel::<()>();
    let job = database.run(move |_| {
        let _ = held.recv();
        Ok(())
    });
    let given_up = tokio::time::timeout(Duration::from_millis(50), job).await;
    given_up.expect_err("it hangs");
    let began = Instant::now();
    drop(database);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    drop(release);
}

/// Returns a directory in memory if there is one, because the test measures the lock and not the
/// disk.
fn quick_place() -> (tempfile::TempDir, PathBuf) {
    let memory = Path::new("/dev/shm");
    let directory = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let directory = directory.expect("a directory");
    let path = directory.path().join("numbers.db");
    (directory, path)
}

/// Uses real time, because SQLite's busy handler does.
#[tokio::test(flavor = "multi_thread")]
async fn six_connections_take_turns_to_write() {
    const SPAN: Duration = Duration::from_secs(3);
    let (_directory, path) = quick_place();
    let until = Instant::now() + SPAN;
    let mut writers = tokio::task::JoinSet::new();
    for connection in 0..6 {
        let database = Database::open_alone(&path, SCHEMA, Missing::Create)
            .await
            .expect("open");
        for _ in 0..16 {
            let database = database.clone();
            writers.spawn(async move {
                let (mut writes, mut slowest) = (0, Duration::ZERO);
                while Instant::now() < until {
                    let began = Instant::now();
                    add(&database, 1).await.expect("write");
                    (writes, slowest) = (writes + 1, slowest.max(began.elapsed()));
                }
                (connection, writes, slowest)
            });
        }
    }
    let (mut shares, mut slowest) = ([0; 6], Duration::ZERO);
    for (connection, writes, wait) in writers.join_all().await {
        shares[connection] += writes;
        slowest = slowest.max(wait);
    }
    println!("{shares:?}, slowest {slowest:?}");
    // Some 25 ms on an idle machine.
    let limit = Duration::from_secs(1);
    assert!(slowest < limit, "{slowest:?}: {shares:?}");
    let (least, most) = (shares.iter().min(), shares.iter().max());
    assert!(least.expect("six") * 3 > *most.expect("six"), "{shares:?}");
}

#[cfg(unix)]
#[tokio::test]
async fn all_handles_of_one_file_share_a_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let (here, there) = (
        directory.path().join("here"),
        directory.path().join("there"),
    );
    std::fs::create_dir(&here).expect("a directory");
    let (path, link) = (here.join("numbers.db"), directory.path().join("link.db"));
    let same = |one: &Database, two: &Database| std::sync::Arc::ptr_eq(&one.jobs, &two.jobs);
    let (one, two) = tokio::join!(
        Database::open(&path, SCHEMA, Missing::Create),
        Database::open(&path, SCHEMA, Missing::Create)
    );
    let (one, two) = (one.expect("open"), two.expect("open"));
    assert!(
        same(&one, &two),
        "also where they are opened at the same time"
    );
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let linked = Database::open(&link, SCHEMA, Missing::Create)
        .await
        .expect("open");
    assert!(same(&one, &linked), "the same file under another name");
    assert_eq!(linked.path(), link);
    add(&linked, 7).await.expect("write");

    // A new file at the same path is another database.
    std::fs::rename(&here, there).expect("renamed");
    std::fs::create_dir(&here).expect("a directory");
    let other = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    assert!(!same(&one, &other));
    assert_eq!(sum(&other).await, 0);

    drop((one, two, linked, other));
    let again = Database::open(&path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    assert_eq!(sum(&again).await, 0, "a thread that has ended is not used");
}

async fn one(path: &Path) -> Database {
    let database = Database::open(path, SCHEMA, Missing::Create).await;
    let database = database.expect("open");
    add(&database, 1).await.expect("write");
    database
}

fn log_of(path: &Path) -> PathBuf {
    with_suffix(path, "-wal")
}

#[tokio::test]
async fn the_last_handle_leaves_a_file_that_is_complete_without_its_log() {
    let (_directory, path) = place();
    let database = one(&path).await;
    let other = database.clone();
    drop(database);
    assert!(log_of(&path).exists(), "one handle is left");
    drop(other);
    assert!(!log_of(&path).exists());
    let copy = path.with_file_name("copy.db");
    std::fs::copy(&path, &copy).expect("copied");
    let copy = Database::open(copy, SCHEMA, Missing::Refuse).await;
    assert_eq!(sum(&copy.expect("open")).await, 1);
}

#[tokio::test]
async fn a_reader_that_is_the_last_user_writes_back_what_others_wrote() {
    let (_directory, path) = place();
    let writer = one(&path).await;
    let reader = Database::open_alone(&path, SCHEMA, Missing::Refuse).await;
    let reader = reader.expect("open");
    assert_eq!(sum(&reader).await, 1);
    drop(writer);
    assert!(log_of(&path).exists(), "the reader has it open");
    drop(reader);
    assert!(!log_of(&path).exists());
}

#[tokio::test]
async fn a_file_that_is_moved_or_replaced_under_its_users_is_used_no_more() {
    let (_directory, path) = place();
    let away = path.with_file_name("away.db");
    let database = one(&path).await;
    std::fs::rename(&path, &away).expect("moved");
    let gone = add(&database, 2).await.expect_err("moved");
    assert_eq!(gone.kind(), ErrorKind::Closed);
    assert!(gone.message().contains("was moved or deleted"), "{gone}");
    std::fs::rename(&away, &path).expect("moved back");
    add(&database, 4).await.expect("it is there again");

    for suffix in ["", "-wal", "-shm"] {
        std::fs::rename(with_suffix(&path, suffix), with_suffix(&away, suffix)).expect("moved");
    }
    let other = Database::open(&path, SCHEMA, Missing::Create).await;
    let other = other.expect("another file");
    add(&other, 8).await.expect("written");
    for failed in [
        add(&database, 16).await,
        database.run(|_| Ok(())).await,
        database.write_unsynced(|_| Ok(())).await,
    ] {
        let error = failed.expect_err("replaced");
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.message().contains("was replaced"), "{error}");
    }
    // Its end must not take the other file's log away.
    drop(database);
    assert!(log_of(&path).exists());
    assert_eq!(sum(&other).await, 8);
    let moved = Database::open(&away, SCHEMA, Missing::Refuse).await;
    assert_eq!(sum(&moved.expect("open")).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_make_a_file_at_the_same_time_make_one() {
    for _ in 0..40 {
        let (_directory, path) = place();
        let make = || async {
            let database = Database::open_alone(&path, SCHEMA, Missing::Create).await;
            add(&database.expect("open"), 1).await.expect("written");
        };
        futures_util::future::join_all((0..6).map(|_| make())).await;
        let database = Database::open(&path, SCHEMA, Missing::Refuse).await;
        assert_eq!(sum(&database.expect("open")).await, 6);
    }
}

#[tokio::test]
async fn a_missing_file_is_made_only_where_that_is_asked_for() {
    let (_directory, path) = place();
    let refused = || async {
        let opened = Database::open(&path, SCHEMA, Missing::Refuse).await;
        opened.map(drop).expect_err("missing")
    };
    assert_eq!(refused().await.kind(), ErrorKind::NotFound);
    assert!(!path.exists());
    std::fs::write(with_suffix(&path, ".damaged-1"), []).expect("written");
    assert_eq!(refused().await.kind(), ErrorKind::Conflict);
    let made = Database::open(&path, SCHEMA, Missing::Create).await;
    let error = made.map(drop).expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains(".damaged-1"), "{error}");
    assert!(!path.exists());
    let made = Database::open(&path, SCHEMA, Missing::CreateAnyway).await;
    assert_eq!(sum(&made.expect("made")).await, 0);
}

#[tokio::test]
async fn after_an_io_error_a_missing_file_is_not_made_again() {
    let (_directory, path) = place();
    let database = one(&path).await;
    let panicked = database.run(|_| -> rusqlite::Result<()> { panic!("planned") });
    panicked.await.expect_err("the connection is closed");
    std::fs::remove_file(&path).expect("removed");
    let error = add(&database, 2).await.expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(!path.exists());
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_with_two_names_is_refused() {
    let (_directory, path) = place();
    drop(one(&path).await);
    let second = path.with_file_name("second.db");
    std::fs::hard_link(&path, &second).expect("linked");
    for path in [path, second] {
        let opened = Database::open(path, SCHEMA, Missing::Create).await;
        let error = opened.map(drop).expect_err("two names");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("hard links"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_to_read_writes_nothing_and_waits_for_nobody() {
    let (_directory, path) = place();
    let database = one(&path).await;
    let writer = Connection::open(&path).expect("open");
    let reader = Connection::open(&path).expect("open");
    let read = "BEGIN; SELECT count(*) FROM numbers";
    reader
        .execute_batch(read)
        .expect("a report that takes long");
    writer.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let before = std::fs::read(log_of(&path)).expect("a log");
    let began = std::time::Instant::now();
    let other = Database::open_alone(&path, SCHEMA, Missing::Refuse).await;
    assert_eq!(sum(&other.expect("open")).await, 1);
    assert!(began.elapsed() < LOCK_TIMEOUT / 2, "{:?}", began.elapsed());
    assert!(before == std::fs::read(log_of(&path)).expect("a log"));
    writer.execute_batch("ROLLBACK").expect("unlocked");
    // Also a first write waits for no reader.
    let other = Database::open_alone(&path, SCHEMA, Missing::Refuse).await;
    add(&other.expect("open"), 2).await.expect("written");
    assert!(began.elapsed() < LOCK_TIMEOUT, "{:?}", began.elapsed());
    assert_eq!(sum(&database).await, 3);
}

#[test]
fn sqlite_codes_give_the_error_kind() {
    let told = |code| {
        let failure = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        error::sql("/data/flags.db".as_ref(), failure)
    };
    for (code, kind, words) in [
        (ffi::SQLITE_READONLY, ErrorKind::Denied, "read-only"),
        (ffi::SQLITE_CANTOPEN, ErrorKind::Denied, "cannot be opened"),
        (ffi::SQLITE_CORRUPT, ErrorKind::Internal, "is corrupt"),
        (ffi::SQLITE_FULL, ErrorKind::Exhausted, "disk is full"),
        (
            ffi::SQLITE_IOERR_WRITE,
            ErrorKind::Unavailable,
            "disk reported",
        ),
    ] {
        let error = told(code);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "{error}");
        assert!(error.message().contains("/data/flags.db"), "{error}");
    }
}
