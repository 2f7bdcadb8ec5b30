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

fn names(place: &Place) -> Vec<String> {
    let entries = fs::read_dir(place.0.path()).expect("a directory");
    let mut names: Vec<_> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    names
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
async fn a_damaged_file_is_set_aside_and_never_replaced_silently() {
    let place = Place::new();
    drop(place.open().await);
    closed(&place).await;
    damage(&place);
    let error = host(&place).await.expect_err("damaged");
    assert!(error.message().contains("is damaged"), "{error}");
    assert!(error.message().contains("restore a copy"), "{error}");
    let left = names(&place);
    assert!(!left.contains(&"queues.db".to_owned()), "{left:?}");
    let aside = left
        .iter()
        .find(|name| name.starts_with("queues.db.damaged-"));
    let aside = aside.unwrap_or_else(|| panic!("{left:?}"));
    assert!(error.message().contains(aside), "{error}");

    for opened in [
        host(&place).await,
        QueueManager::open(place.path(), QueueManagerConfig::default()).await,
    ] {
        let error = opened.expect_err("missing");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.message().contains(aside), "{error}");
    }
    assert!(!place.path().exists());
    let allowed = QueueManagerConfig {
        allow_new_file: true,
        ..QueueManagerConfig::default()
    };
    let manager = QueueManager::host(place.path(), allowed)
        .await
        .expect("a new file");
    assert!(
        manager
            .queue("orders")
            .expect("a name")
            .create()
            .await
            .expect("created")
    );
    assert!(names(&place).contains(aside), "the damaged file is kept");
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
    let queue = manager.queue("orders").expect("a name");
    queue.put(vec![NewMessage::new("tea")]).await.expect("put");
    drop(queue);
    // The index is told to hold other rows than it does.
    execute(
        &manager,
        "PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET sql = replace(sql, 'uid IS NOT NULL', 'uid IS NULL')
           WHERE name = 'messages_by_uid';
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
    assert!(error.message().contains("messages_by_uid"), "{error}");
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
