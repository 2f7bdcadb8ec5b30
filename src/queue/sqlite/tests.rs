//! Queues in files: the contract, several queues of a file, counters, and the clock.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{error::ErrorKind, testing::queue_contract as contract};

fn address(name: &str) -> QueueAddress {
    QueueAddress::new("local", name).expect("an address")
}

async fn open(directory: &tempfile::TempDir) -> SqliteQueue {
    let path = directory.path().join("queues.db");
    let database = Database::open(path, SCHEMA, Missing::Create).await;
    let queue = SqliteQueue::with_database(database.expect("open"), address("jobs")).await;
    queue.expect("open")
}

#[tokio::test]
async fn it_keeps_the_contract() {
    let directory = tempfile::tempdir().expect("a directory");
    contract::check(&open(&directory).await).await;
}

/// Opens a handle with a separate thread and connection, like another process.
async fn open_alone(directory: &tempfile::TempDir) -> SqliteQueue {
    let path = directory.path().join("queues.db");
    let database = Database::open_alone(path, SCHEMA, Missing::Create)
        .await
        .expect("open");
    let queue = SqliteQueue::with_database(database, address("jobs")).await;
    queue.expect("open")
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_contract_among_many() {
    let directory = tempfile::tempdir().expect("a directory");
    let (one, other) = (open(&directory).await, open_alone(&directory).await);
    contract::check_races(&[Arc::new(one) as Arc<dyn WorkQueue>, Arc::new(other)]).await;
}

#[tokio::test]
async fn a_queue_that_does_not_exist_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let queue = open(&directory).await;
    let put = queue.put(vec![NewMessage::new("lost?")]).await;
    let error = put.expect_err("there is no queue");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("queue=jobs"), "{error}");
    for outcome in [
        queue.get(1, Duration::from_secs(1)).await.map(|_| ()),
        queue.depth().await.map(|_| ()),
        queue.purge().await,
    ] {
        let error = outcome.expect_err("there is no queue");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

#[tokio::test]
async fn queues_of_one_file_do_not_mix_and_messages_survive() {
    let directory = tempfile::tempdir().expect("a directory");
    let jobs = open(&directory).await;
    let mails = jobs.another(address("mails"));
    for queue in [&jobs, &mails] {
        queue.create().await.expect("create");
    }
    jobs.put(vec![NewMessage::new("job")]).await.expect("put");
    assert_eq!(mails.depth().await.expect("depth"), 0);
    let got = jobs.get(1, Duration::from_secs(60)).await.expect("get");
    let foreign = mails.delete(&got[0].receipt).await;
    assert_eq!(
        foreign.expect_err("not its own").kind(),
        ErrorKind::Conflict
    );
    drop((jobs, mails));
    let again = open(&directory).await;
    assert_eq!(again.depth().await.expect("depth"), 1, "hidden, and there");
}

/// A random operation on a queue.
#[derive(Debug, Clone)]
enum Step {
    Put { messages: usize },
    Get { max: usize },
    Delete,
    Release,
    Purge,
    Create,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        6 => (1..40usize).prop_map(|messages| Step::Put { messages }),
        6 => (1..40usize).prop_map(|max| Step::Get { max }),
        6 => Just(Step::Delete),
        2 => Just(Step::Release),
        1 => Just(Step::Purge),
        1 => Just(Step::Create),
    ];
    prop::collection::vec((0..4usize, step), 1..40)
}

async fn take(queue: &SqliteQueue, step: Step, held: &mut Vec<Message>) {
    const LONG: Duration = Duration::from_secs(600);
    match step {
        Step::Put { messages } => {
            let message = NewMessage::new("work");
            queue.put(vec![message; messages]).await.expect("put");
        }
        Step::Get { max } => held.extend(queue.get(max, LONG).await.expect("get")),
        Step::Delete => {
            for message in held.drain(..held.len().min(5)) {
                // The message was purged.
                let _ = queue.delete(&message.receipt).await;
            }
        }
        Step::Release => {
            if let Some(message) = held.pop() {
                let _ = queue.release(&message.receipt, Duration::ZERO).await;
            }
        }
        Step::Purge => queue.purge().await.expect("purge"),
        Step::Create => assert!(!queue.create().await.expect("create")),
    }
}

/// Counts the messages one by one.
async fn count(queue: &SqliteQueue) -> u64 {
    let count = queue.write(|transaction, queue| {
        let count = "SELECT count(*) FROM messages WHERE queue = ?1";
        transaction.query_row(count, [queue], |row| row.get::<_, i64>(0))
    });
    count.await.expect("a count").unsigned_abs()
}

proptest! {
    // Each case is a file and some hundred commits.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_depth_equals_an_exact_count_after_any_operations(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let directory = tempfile::tempdir().expect("a directory");
            // Two queues with two handles each, like two processes.
            let (one, other) = (open(&directory).await, open_alone(&directory).await);
            let mails = [one.another(address("mails")), other.another(address("mails"))];
            let [mails, others_mails] = mails;
            let queues = [one, other, mails, others_mails];
            for queue in &queues {
                queue.create().await.expect("create");
            }
            let mut held = vec![Vec::new(); 4];
            for (handle, step) in steps {
                take(&queues[handle], step, &mut held[handle]).await;
                for queue in &queues {
                    assert_eq!(count(queue).await, queue.depth().await.expect("depth"));
                }
            }
        });
    }
}

/// Simulates that the machine's clock is set back: moves all times in the file forward.
async fn set_back(queue: &SqliteQueue, span: Duration) {
    let moved = queue.write(move |transaction, _| {
        let micros = i64::try_from(span.as_micros()).expect("a short span");
        let moved = "UPDATE messages SET visible_at = visible_at + ?1";
        transaction.execute(moved, [micros])?;
        transaction.execute("UPDATE clock SET seen = seen + ?1", [micros])
    });
    moved.await.expect("moved");
}

#[tokio::test]
async fn a_clock_that_is_set_back_delays_no_message() {
    const HOUR: Duration = Duration::from_secs(3600);
    let short = Duration::from_millis(300);
    let directory = tempfile::tempdir().expect("a directory");
    let queue = open(&directory).await;
    queue.create().await.expect("create");
    let messages = ["seen", "held"].map(NewMessage::new).to_vec();
    queue.put(messages).await.expect("put");
    let held = queue.get(1, short).await.expect("get").remove(0);
    for _ in 0..2 {
        set_back(&queue, HOUR).await;
        let seen = queue.peek(32).await.expect("peek");
        assert_eq!(seen.len(), 1, "the visible message stays visible");
    }
    let got = queue.get(32, HOUR).await.expect("get");
    assert_eq!(got.len(), 1);
    tokio::time::sleep(short * 2).await;
    // With another handle, as after a restart.
    let again = open_alone(&directory).await.get(32, HOUR).await;
    let again = again.expect("get");
    assert_eq!(again.len(), 1, "the file's time went on");
    assert_eq!(again[0].id, held.id);
    let age = again[0].inserted_at.elapsed().expect("in the past");
    assert!(age < HOUR, "the insertion time is the machine's");
}

#[tokio::test]
async fn listeners_of_a_file_are_one_group_and_those_of_another_file_are_not() {
    let (one, other) = (tempfile::tempdir(), tempfile::tempdir());
    let (one, other) = (one.expect("a directory"), other.expect("a directory"));
    let (first, again) = (open(&one).await, open_alone(&one).await);
    assert_eq!(first.listener_group(), again.listener_group());
    let mails = first.another(address("mails"));
    assert_ne!(first.listener_group(), mails.listener_group());
    let elsewhere = open(&other).await;
    assert_ne!(first.listener_group(), elsewhere.listener_group());
    // A copy with another path is another queue.
    let copies = tempfile::tempdir().expect("a directory");
    let copy = copies.path().join("queues.db");
    let copied = copy.display().to_string();
    let vacuumed = first
        .database
        .run(move |connection| connection.execute("VACUUM INTO ?1", [copied]).map(|_| ()));
    vacuumed.await.expect("copied");
    let copied = open(&copies).await;
    assert_ne!(first.listener_group(), copied.listener_group());
    let name = address(&"q".repeat(128));
    assert!(first.another(name).listener_group().as_str().len() <= 128);
}
