//! On a SQLite file: another program that holds it locked, and a disk that is full.

use std::{path::Path, process::Output, sync::Arc, time::Duration};

use reveille::{
    ErrorKind,
    listener::ListenerConfig,
    queue::{NewMessage, SqliteQueue, WorkQueue},
    scaling::StepPolicy,
    testing::TestRelay,
};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::process::Command;

use super::{Seen, builder_with_wakes, names, put_and_notify};
use crate::{
    binary::{reveille, stderr},
    support::{until, within},
};

async fn queue_in(directory: &Path) -> Arc<dyn WorkQueue> {
    let address = "local/jobs".parse().expect("an address");
    let queue = SqliteQueue::create(directory.join("jobs.db"), address).await;
    Arc::new(queue.expect("a queue"))
}

/// More than the five seconds for which SQLite waits for a lock: calls of all kinds fail, deletes among
/// them.
const LOCKED: Duration = Duration::from_secs(7);

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_another_holds_locked_is_waited_for_and_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let relay = TestRelay::start().await.expect("a relay");
    let queue = queue_in(directory.path()).await;
    let config = ListenerConfig {
        dequeue_batch_size: 4,
        policy: Arc::new(StepPolicy::new([], 2).expect("two tasks")),
        ..ListenerConfig::default()
    };
    let seen = Seen::default();
    let builder = builder_with_wakes(&relay, &queue, config);
    let listener = builder.start(seen.handler(Duration::from_millis(20))).await;
    let listener = listener.expect("started");
    let (early, late) = (names("early", 100), names("late", 20));
    put_and_notify(&relay, &*queue, &early).await;
    until("some", async || seen.bodies().len() >= 8).await;

    let other = Connection::open(directory.path().join("jobs.db")).expect("open");
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let unlock = async {
        tokio::time::sleep(LOCKED).await;
        let handled = seen.bodies().len();
        other.execute_batch("COMMIT").expect("unlocked");
        handled
    };
    let refused = queue.put(vec![NewMessage::new("refused")]);
    let (handled, refused) = tokio::join!(unlock, refused);
    assert!(handled < early.len(), "locked too late");
    let error = refused.expect_err("the file is locked");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("is locked by another"), "{error}");

    put_and_notify(&relay, &*queue, &late).await;
    let expected = &early | &late;
    until("all", async || seen.bodies() == expected).await;
    until("an empty queue", async || {
        queue.depth().await.ok() == Some(0)
    })
    .await;
    let twice: Vec<_> = seen.times().into_iter().filter(|(_, n)| *n > 1).collect();
    assert!(twice.is_empty(), "handled again without need: {twice:?}");
    listener.shutdown().await;
}

/// Puts with the binary, in a process whose files are limited to this many KiB.
async fn put_within(kib: u32, directory: &TempDir, bodies: &[String]) -> Output {
    let url = format!("sqlite:{}/jobs.db?queue=jobs", directory.path().display());
    let put = reveille(directory, &["queue", "put", &url]);
    let mut limited = Command::new("bash");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\""])
        .arg(kib.to_string())
        .arg(put.as_std().get_program())
        .args(put.as_std().get_args())
        .args(bodies)
        .env("HOME", directory.path())
        .kill_on_drop(true);
    within("the end", limited.output())
        .await
        .expect("it starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_finds_no_room_fails_loudly_and_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let relay = TestRelay::start().await.expect("a relay");
    let queue = queue_in(directory.path()).await;
    let seen = Seen::default();
    let builder = builder_with_wakes(&relay, &queue, ListenerConfig::default());
    let listener = builder.start(seen.handler(Duration::ZERO)).await;
    let listener = listener.expect("started");
    let before = names("before", 10);
    put_and_notify(&relay, &*queue, &before).await;
    until("handled", async || seen.bodies() == before).await;

    let large: Vec<String> = ["a", "b", "c", "d", "e"]
        .iter()
        .map(|letter| letter.repeat(60_000))
        .collect();
    let output = put_within(256, &directory, &large).await;
    let complaint = stderr(&output);
    assert!(!output.status.success(), "no room for 300,000 bytes");
    assert!(complaint.contains("jobs.db"), "{complaint}");
    assert!(complaint.contains("the disk reported"), "{complaint}");
    assert_eq!(queue.depth().await.ok(), Some(0), "all of it or nothing");

    // The same put with enough room; the listener has run the whole time.
    let output = put_within(65_536, &directory, &large).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let after = names("after", 10);
    put_and_notify(&relay, &*queue, &after).await;
    let large = large.into_iter().collect();
    let expected = &(&before | &large) | &after;
    until("all", async || seen.bodies() == expected).await;
    until("an empty queue", async || {
        queue.depth().await.ok() == Some(0)
    })
    .await;
    assert_eq!(listener.state().stats.errors, 0);
    listener.shutdown().await;
}
