//! One host per file, damage, and compaction.

use std::fs;

use super::*;

async fn host(place: &Place) -> Result<QueueManager> {
    QueueManager::host(place.path(), QueueManagerConfig::default()).await
}

/// Waits until the thread of the file has closed it.
async fn closed(place: &Place) {
    let log = place.0.path().join("queues.db-wal");
    for _ in 0..2_000 {
        if !log.exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the file stays open");
}

/// Overwrites the pages after the first one.
fn damage(place: &Place) {
    let mut bytes = fs::read(place.path()).expect("a file");
    assert!(bytes.len() > 8192, "{}", bytes.len());
    for byte in &mut bytes[4096..] {
        *byte ^= 0x5a;
    }
    fs::write(place.path(), bytes).expect("written");
}

#[tokio::test]
async fn one_process_hosts_a_file_and_others_share_it() {
    let place = Place::new();
    let first = host(&place).await.expect("hosted");
    let error = host(&place).await.expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(
        error.message().contains("is hosted by another process"),
        "{error}"
    );
    let application = place.open().await;
    send(&application, "orders", &["tea"]).await;
    assert_eq!(drain(&first, "orders").await, ["tea"]);
    drop(first);
    host(&place).await.expect("free again");
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_not_changed() {
    let place = Place::new();
    drop(place.open().await);
    closed(&place).await;
    damage(&place);
    let damaged = fs::read(place.path()).expect("a file");
    let error = host(&place).await.expect_err("damaged");
    assert!(error.message().contains("is damaged"), "{error}");
    assert!(error.message().contains("restore a copy"), "{error}");
    assert!(damaged == fs::read(place.path()).expect("a file"));
}

/// An index that lacks a row is found by the full check only.
#[tokio::test]
async fn a_start_after_a_crash_checks_more_than_one_after_a_clean_end() {
    let place = Place::new();
    let manager = host(&place).await.expect("hosted");
    manager
        .queue("orders")
        .expect("a name")
        .create()
        .await
        .expect("created");
    send(&manager, "orders", &["tea"]).await;
    // The index is told to hold other rows than it does.
    execute(
        &manager,
        "PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET sql = replace(sql, 'ends_at IS NOT NULL', 'ends_at IS NULL')
           WHERE name = 'messages_by_end';
         PRAGMA writable_schema = OFF",
    )
    .await;
    drop(manager);
    closed(&place).await;
    let manager = host(&place).await.expect("the quick check finds nothing");
    drop(manager);
    closed(&place).await;
    let mark = place.0.path().join("queues.db.host");
    assert_eq!(fs::read_to_string(&mark).expect("a mark"), "clean\n");
    fs::write(&mark, "in use\n").expect("written");
    let error = host(&place).await.expect_err("the full check finds it");
    assert!(error.message().contains("messages_by_end"), "{error}");
}

#[tokio::test]
async fn a_file_of_another_program_is_refused() {
    let place = Place::new();
    fs::write(
        place.path(),
        "a letter to a friend, longer than the header of a database: ".repeat(100),
    )
    .expect("written");
    let error = host(&place).await.expect_err("a text");
    assert!(
        error.message().contains("is not a SQLite database"),
        "{error}"
    );
}

#[tokio::test]
async fn an_old_file_that_is_mostly_free_becomes_small() {
    let place = Place::new();
    let manager = place.open().await;
    execute(&manager, "CREATE TABLE filling (x BLOB)").await;
    drop(manager);
    closed(&place).await;
    let old = rusqlite::Connection::open(place.path()).expect("open");
    old.execute_batch(
        "PRAGMA auto_vacuum = NONE; PRAGMA journal_mode = DELETE; VACUUM;
         INSERT INTO filling VALUES (zeroblob(4000000)); DELETE FROM filling",
    )
    .expect("filled");
    drop(old);
    assert!(fs::metadata(place.path()).expect("a file").len() > 4_000_000);
    let manager = host(&place).await.expect("hosted");
    assert_eq!(number(&manager, "PRAGMA auto_vacuum").await, 2);
    assert!(number(&manager, "PRAGMA page_count").await < 100);
}
