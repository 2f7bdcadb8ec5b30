//! Damaged rows that SQLite cannot detect: each is reported, and blocks no other message.

use std::time::Duration;

use reveille::queue::WorkQueue as _;

use super::{
    copies::{Copy, wait_until_closed},
    hosted::{QUEUES, Receiver, host, original, read},
};
use crate::support::block_on;

/// Each statement damages one row, as a flipped bit or a flipped byte does.
const DAMAGES: [&str; 8] = [
    "UPDATE messages SET body = x'00' WHERE id = (SELECT min(id) FROM messages)",
    "UPDATE messages SET checksum = checksum + (1 << 40) WHERE id = (SELECT min(id) FROM messages)",
    "UPDATE messages SET checksum = -checksum WHERE id = (SELECT min(id) FROM messages)",
    "UPDATE outgoing SET body = x'00' WHERE id = (SELECT min(id) FROM outgoing)",
    "UPDATE outgoing SET checksum = -checksum WHERE id = (SELECT min(id) FROM outgoing)",
    "UPDATE outgoing SET checksum = 1 << 40 WHERE id = (SELECT max(id) FROM outgoing)",
    "UPDATE dead_letters SET body = x'00' WHERE id = (SELECT min(id) FROM dead_letters)",
    "UPDATE dead_letters SET checksum = 1 << 40 WHERE id = (SELECT min(id) FROM dead_letters)",
];

fn damage(copy: &Copy, sql: &str) {
    let connection = rusqlite::Connection::open(copy.path()).expect("open");
    assert_eq!(connection.execute(sql, ()).expect(sql), 1, "{sql}");
    drop(connection);
    wait_until_closed(&copy.path());
}

#[test]
fn a_damaged_message_is_reported_and_blocks_no_other_one() {
    block_on(async {
        let receiver = Receiver::start().await;
        let original = original(&receiver).await;
        for sql in DAMAGES {
            let copy = original.copy(None);
            damage(&copy, sql);
            let found = read(&copy, Some(&receiver)).await;
            assert_eq!(found.error, None, "{sql}");
            assert_eq!(found.reported, 1, "{sql}");
            assert_eq!(found.bodies.len(), original.committed.len() - 1, "{sql}");
            found.judge(&original.committed).expect("none is altered");
        }
    });
}

#[test]
fn a_wrong_dequeue_count_hides_no_message() {
    block_on(async {
        let receiver = Receiver::start().await;
        let original = original(&receiver).await;
        for count in [-1, 1_i64 << 40] {
            let copy = original.copy(None);
            let sql = format!(
                "UPDATE messages SET dequeue_count = {count}
                 WHERE id = (SELECT min(id) FROM messages)"
            );
            damage(&copy, &sql);
            let manager = host(&copy).await.expect("hosted");
            for queue in QUEUES {
                let queue = manager.queue(queue).expect("a name");
                let depth = queue.depth().await.expect("counted");
                let peeked = queue.peek(32).await.expect("peeked").len();
                let hidden = Duration::from_secs(60);
                let got = queue.get(32, hidden).await.expect("got").len();
                assert_eq!((depth, peeked), (got as u64, got), "{count}");
            }
        }
    });
}
