//! Faults D1 and D2 on transactions: a committed send is there, a committed receive does not come
//! back, both together, and nothing of a transaction that was not committed is there.
//!
//! The steps before a commit are not synced; all of them may be lost.

use bytes::Bytes;
use fastrand::Rng;
use reveille::{
    Error,
    courier::{QueueManager, QueueManagerConfig},
    queue::WorkQueue,
};
use reveille_power_loss::Image;

use crate::{
    history::{History, Put, Span, body, number_of},
    queue::words,
    support::{Mounted, Recording, Violation, assert_none, block_on, check_images, seeds, share},
};

const QUEUES: [&str; 2] = ["orders", "invoices"];
/// Where messages are sent: the local queues, and a queue of another machine.
const DESTINATIONS: [&str; 3] = ["orders", "invoices", "reveille://billing:7600/invoices"];

/// The calls of all queues of the file, and the transactions that received and sent.
#[derive(Debug, Default)]
struct Transactions {
    history: History,
    moves: Vec<Move>,
}

/// A commit with received and sent messages.
#[derive(Debug)]
struct Move {
    begun: usize,
    received: Vec<u64>,
    sent: Vec<u64>,
}

/// A file with transactions on a disk.
struct Workload {
    mounted: Mounted,
    random: Rng,
    manager: Option<QueueManager>,
    calls: Transactions,
    next: u64,
}

async fn open(mounted: &Mounted) -> Result<QueueManager, Error> {
    QueueManager::open(mounted.path(), QueueManagerConfig::default()).await
}

impl Workload {
    fn new(seed: u64) -> Self {
        Self {
            mounted: Mounted::new(&Image::default()),
            random: Rng::with_seed(seed),
            manager: None,
            calls: Transactions::default(),
            next: 1,
        }
    }

    async fn run(mut self, steps: usize) -> Recording<Transactions> {
        for _ in 0..steps {
            if self.random.u8(..25) == 0 {
                self.close();
            }
            self.transaction().await;
        }
        self.close();
        Recording {
            events: self.mounted.disk.events(),
            history: self.calls,
        }
    }

    fn close(&mut self) {
        self.manager = None;
        self.mounted.disk.wait_until_closed();
    }

    async fn open(&mut self) -> QueueManager {
        if let Some(manager) = &self.manager {
            return manager.clone();
        }
        let manager = open(&self.mounted).await.expect("open");
        for queue in QUEUES {
            let queue = manager.queue(queue).expect("a name");
            queue.create().await.expect("created");
        }
        self.manager = Some(manager.clone());
        manager
    }

    /// Receives and sends some messages, and mostly commits.
    async fn transaction(&mut self) {
        let manager = self.open().await;
        let mut transaction = manager.begin();
        let (mut received, mut sent) = (Vec::new(), Vec::new());
        if self.random.bool() {
            let queue = QUEUES[self.random.usize(..2)];
            let max = self.random.usize(1..=4);
            let messages = transaction.receive_many(queue, max).await;
            for message in messages.expect("received") {
                received.push(number_of(&message.body).expect("a number"));
            }
        }
        for _ in 0..self.random.usize(..4) {
            let number = self.next;
            self.next += 1;
            let len = [40, 2_000, 30_000][self.random.usize(..3)];
            let body = body(number, self.random.usize(..len));
            self.calls.history.bodies.insert(number, body.clone());
            let to = DESTINATIONS[self.random.usize(..3)];
            let to = manager.destination(to).expect("a destination");
            transaction.send(&to, body).expect("sent");
            sent.push(number);
        }
        let begun = self.mounted.disk.moment();
        let done = match self.random.u8(..8) {
            0 => {
                transaction.roll_back().await.expect("rolled back");
                None
            }
            1 => {
                drop(transaction);
                None
            }
            _ => {
                transaction.commit().await.expect("committed");
                Some(self.mounted.disk.moment())
            }
        };
        self.record(received, sent, begun, done);
    }

    fn record(&mut self, received: Vec<u64>, sent: Vec<u64>, begun: usize, done: Option<usize>) {
        // Without a commit the messages are never there.
        let begun = done.map_or(usize::MAX, |_| begun);
        let span = Span { begun, done };
        self.calls.history.puts.push(Put {
            span,
            messages: sent.clone(),
            refused: false,
        });
        if done.is_some() {
            for number in &received {
                self.calls.history.delete(*number, begun, done);
            }
        }
        self.calls.moves.push(Move {
            begun,
            received,
            sent,
        });
    }
}

impl Transactions {
    fn check(&self, point: usize, found: &[Bytes]) -> Result<(), Violation> {
        self.history.check(point, Some(found))?;
        let is_there = |number: &u64| found.contains(&self.history.bodies[number]);
        for step in self.moves.iter().filter(|step| step.begun <= point) {
            let later = |number: &&u64| {
                let delete = self.history.deletes.get(number);
                !delete.is_some_and(|delete| delete.has_begun(point))
            };
            for sent in step.sent.iter().filter(later) {
                if let Some(received) = step
                    .received
                    .iter()
                    .find(|received| is_there(received) == is_there(sent))
                {
                    return Err(format!("half of a commit: {received} in, {sent} out"));
                }
            }
        }
        Ok(())
    }
}

/// Opens an image with the product's code, checks it and reads all messages, also those that a
/// transaction holds.
async fn read_image(image: &Image) -> Result<Vec<Bytes>, Violation> {
    let mounted = Mounted::new(image);
    let manager = open(&mounted).await;
    let manager = manager.map_err(|error| format!("open: {}", words(&error)))?;
    mounted.check_integrity()?;
    let read = || -> rusqlite::Result<Vec<Bytes>> {
        let connection = manager.connect().expect("a connection");
        let select = "SELECT body FROM messages UNION ALL SELECT body FROM outgoing";
        let mut select = connection.prepare(select)?;
        let bodies = select.query_map((), |row| row.get::<_, Vec<u8>>(0))?;
        bodies.map(|body| body.map(Bytes::from)).collect()
    };
    let found = read().map_err(|error| format!("read: {error}"));
    drop(manager);
    mounted.disk.wait_until_closed();
    found
}

/// D1, D2.
#[test]
fn a_commit_survives_a_loss_of_power_as_a_whole_and_nothing_else_does() {
    let (mut images, mut violations) = (0, Vec::new());
    for seed in seeds(0..8) {
        block_on(async {
            let recording = Workload::new(seed).run(60).await;
            let check = async |image: &_, point| {
                let found = read_image(image).await?;
                recording.history.check(point, &found)
            };
            let (count, found) = check_images(&recording, seed, share(400), check).await;
            images += count;
            violations.extend(found);
        });
    }
    println!("{images} images");
    assert_none(&violations);
}

/// D5: the same check notices a disk that ignores syncs.
#[test]
fn the_check_of_commits_notices_a_disk_that_ignores_syncs() {
    for seed in seeds(0..2) {
        block_on(async {
            let workload = Workload::new(seed);
            workload.mounted.disk.ignore_syncs();
            let recording = workload.run(60).await;
            let check = async |image: &_, point| {
                let found = read_image(image).await?;
                recording.history.check(point, &found)
            };
            let (images, violations) = check_images(&recording, seed, 60, check).await;
            assert!(violations.len() * 2 > images, "of {images}: {violations:?}");
        });
    }
}
