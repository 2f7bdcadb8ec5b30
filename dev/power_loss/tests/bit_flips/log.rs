//! Flips in the write-ahead log of a file that was not closed.
//!
//! SQLite takes a frame with a wrong checksum for the end of the log. So it cannot report such a
//! flip: the commits from there on are gone. What it promises is that the file is as after the last
//! commit before the flip: no message of it is altered, and none is missing.

use std::fs;

use fastrand::Rng;
use reveille::courier::{QueueManager, QueueManagerConfig, Transaction};

use super::{
    Bodies,
    copies::{Copy, Original, random_body, wait_until_closed},
    hosted::read_queue,
};
use crate::{
    history::number_of,
    queue::words,
    support::{Violation, assert_none, block_on, seeds, share},
};

const FLIPS: usize = 300;
const MESSAGES: u64 = 30;
const QUEUE: &str = "orders";

/// A file with its log, and the length of the log after the commit of each message.
async fn original() -> (Original, Vec<(u64, usize)>) {
    let copy = Copy::new();
    let path = copy.path();
    let open = || QueueManager::host(path.clone(), QueueManagerConfig::default());
    let manager = open().await.expect("open");
    let queue = manager.queue(QUEUE).expect("a name");
    reveille::queue::WorkQueue::create(&queue)
        .await
        .expect("created");
    drop((queue, manager));
    wait_until_closed(&path);
    let manager = open().await.expect("open");
    let log = path.with_file_name("queues.db-wal");
    let orders = manager.destination(QUEUE).expect("a destination");
    let mut random = Rng::with_seed(5);
    let (mut committed, mut lengths) = (Bodies::new(), Vec::new());
    for number in 1..=MESSAGES {
        let body = random_body(number, &mut random);
        committed.insert(number, body.clone());
        let mut transaction: Transaction = manager.begin();
        transaction.send(&orders, body).expect("sent");
        transaction.commit().await.expect("committed");
        let length = fs::metadata(&log).expect("a log").len();
        lengths.push((number, usize::try_from(length).expect("a length")));
    }
    let main = fs::read(&path).expect("a file");
    let log = fs::read(&log).expect("a log");
    drop(manager);
    let mut original = Original::closed(&path, committed);
    (original.main, original.log) = (main, Some(log));
    (original, lengths)
}

/// Reads a copy, which must have the messages of the first commits and no other ones.
async fn check(copy: &Copy, committed: &Bodies, expected: u64) -> Result<(), Violation> {
    copy.mark(false);
    let manager = QueueManager::host(copy.path(), QueueManagerConfig::default()).await;
    let manager = manager.map_err(|error| format!("open: {}", words(&error)))?;
    let found = read_queue(&manager, QUEUE).await;
    let found = found.map_err(|error| format!("read: {}", words(&error)))?;
    let numbers: Vec<_> = found.iter().filter_map(|body| number_of(body)).collect();
    let first: Vec<_> = (1..=expected).collect();
    let is_right = found.iter().eq(committed.values().take(first.len()));
    match is_right {
        true => Ok(()),
        false => Err(format!(
            "of the messages 1 to {expected} there are {numbers:?}"
        )),
    }
}

#[test]
fn a_flipped_bit_in_the_log_removes_only_the_commits_from_there_on() {
    block_on(async {
        let (original, lengths) = original().await;
        let log = original.log.clone().expect("a log");
        let end = lengths.last().expect("a message").1;
        assert_eq!(log.len(), end, "the log was not begun again");
        let whole = check(&original.copy(None), &original.committed, MESSAGES).await;
        whole.expect("all messages without a flip");
        let mut violations = Vec::new();
        for seed in seeds(0..share(FLIPS) as u64) {
            let mut random = Rng::with_seed(seed);
            let (offset, bit) = (random.usize(..end), random.u8(..8));
            let kept = lengths.iter().rev().find(|(_, length)| *length <= offset);
            let kept = kept.map_or(0, |(number, _)| *number);
            let copy = original.copy(None);
            let mut flipped = log.clone();
            flipped[offset] ^= 1 << bit;
            copy.write_log(&flipped);
            if let Err(violation) = check(&copy, &original.committed, kept).await {
                violations.push(format!("seed {seed}, byte {offset}: {violation}"));
            }
        }
        assert_none(&violations);
    });
}
