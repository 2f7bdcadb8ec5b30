//! Flips in the file of a plain queue, which is opened without a check.

use std::time::Duration;

use fastrand::Rng;
use reveille::{
    Error, QueueAddress,
    queue::{NewMessage, SqliteQueue, WorkQueue as _},
};

use super::{
    Bodies, Found, Tally,
    copies::{Copy, Flip, Original, random_body},
};
use crate::{
    queue::words,
    support::{block_on, seeds, share},
};

const FLIPS: usize = 1_000;
const MESSAGES: u64 = 40;

fn address() -> QueueAddress {
    QueueAddress::new("host", "jobs").expect("an address")
}

async fn original() -> Original {
    let copy = Copy::new();
    let queue = SqliteQueue::create(copy.path(), address()).await;
    let queue = queue.expect("created");
    let mut random = Rng::with_seed(4);
    let mut committed = Bodies::new();
    for number in 1..=MESSAGES {
        let body = random_body(number, &mut random);
        let message = NewMessage::new(body.clone());
        committed.insert(number, body);
        queue.put(vec![message]).await.expect("put");
    }
    drop(queue);
    Original::closed(&copy.path(), committed)
}

/// Gets all messages.
async fn read(copy: &Copy) -> Found {
    let mut found = Found::default();
    if let Err(error) = read_into(copy, &mut found).await {
        found.error = Some(words(&error));
    }
    found
}

async fn read_into(copy: &Copy, found: &mut Found) -> Result<(), Error> {
    let queue = SqliteQueue::open(copy.path(), address()).await?;
    loop {
        let messages = queue.get(8, Duration::from_secs(3_600)).await?;
        if messages.is_empty() {
            return Ok(());
        }
        for message in messages {
            match message.payload() {
                Ok(body) => found.bodies.push(body.clone()),
                Err(_) => found.reported += 1,
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_a_plain_queue_alters_no_body() {
    block_on(async {
        let original = original().await;
        let untouched = read(&original.copy(None)).await;
        assert_eq!(untouched.bodies.len(), original.committed.len());
        let mut tally = Tally::default();
        for seed in seeds(0..share(FLIPS) as u64) {
            let flip = original.flip(&mut Rng::with_seed(seed));
            let found = read(&original.copy(Some(flip))).await;
            let Flip { offset, bit } = flip;
            let place = format!("seed {seed}: bit {bit} of byte {offset}");
            tally.add(original.area(offset), &place, &found, &original.committed);
            if let Some(error) = &found.error {
                tally.blocked.push(format!("{place}: {error}"));
            }
        }
        // Nothing checks this file before it is used: a flipped key in `messages_by_time`, or a
        // flipped number of cells in a page, may hide messages. Measured: 4.
        tally.check(share(FLIPS) / 50);
    });
}
