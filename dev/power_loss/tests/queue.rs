//! A workload on a queue, and the reading of a queue after a loss of power.

use std::{
    collections::BTreeMap,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use futures_util::future::{BoxFuture, join_all};
use reveille::{
    Error, ErrorKind, QueueAddress,
    queue::{NewMessage, Receipt, SqliteQueue, WorkQueue},
};
use reveille_power_loss::Image;

use crate::{
    history::{History, Put, Span, body, number_of},
    support::{Mounted, Recording, Violation},
};

/// The time-out of all gets: every message is visible again when an image is read.
const VISIBILITY: Duration = Duration::from_millis(1);

/// A queue on a disk, with the history of its calls.
pub(crate) struct Workload {
    pub(crate) mounted: Mounted,
    pub(crate) history: History,
    pub(crate) errors: Vec<Error>,
    random: Rng,
    queue: Option<SqliteQueue>,
    held: BTreeMap<u64, Receipt>,
    next: u64,
    /// The largest size of most bodies.
    size: usize,
}

/// The outcome of one call of several at the same time, and the moment of its answer.
enum Answer {
    Put(u64, Result<(), Error>, usize),
    Deleted(u64, Result<(), Error>, usize),
    Peeked,
}

pub(crate) fn address() -> QueueAddress {
    QueueAddress::new("host", "jobs").expect("an address")
}

impl Workload {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        Self {
            mounted: Mounted::new(&Image::default()),
            history: History::default(),
            errors: Vec::new(),
            queue: None,
            held: BTreeMap::new(),
            next: 1,
            // Large bodies fill the log, so that it is written back and begun again.
            size: [60, 3_000, 30_000][random.usize(..3)],
            random,
        }
    }

    /// Does this many steps, and closes the file.
    pub(crate) async fn run(mut self, steps: usize) -> Recording<History> {
        for _ in 0..steps {
            self.step().await;
        }
        self.close();
        Recording {
            events: self.mounted.disk.events(),
            history: self.history,
        }
    }

    pub(crate) async fn step(&mut self) {
        if !self.open().await {
            return;
        }
        match self.random.u8(..20) {
            0..=6 => self.put().await,
            7..=10 => self.get().await,
            11..=13 => self.delete().await,
            14 => self.give_back().await,
            15..=18 => self.several_at_once().await,
            _ if self.random.u8(..3) > 0 => self.close(),
            _ if self.random.u8(..3) == 0 => self.purge().await,
            _ => {}
        }
    }

    /// Closes the file, and waits until its thread has done so.
    pub(crate) fn close(&mut self) {
        self.queue = None;
        self.held.clear();
        self.mounted.disk.wait_until_closed();
    }

    /// Opens the file if it is closed; returns whether it is open.
    pub(crate) async fn open(&mut self) -> bool {
        if self.queue.is_some() {
            return true;
        }
        match SqliteQueue::create(self.mounted.path(), address()).await {
            Ok(queue) => {
                let now = self.moment();
                self.history.created.get_or_insert(now);
                self.queue = Some(queue);
                true
            }
            Err(error) => {
                self.errors.push(error);
                self.close();
                false
            }
        }
    }

    fn moment(&self) -> usize {
        self.mounted.disk.moment()
    }

    fn queue(&self) -> SqliteQueue {
        self.queue.clone().expect("open")
    }

    /// Makes a new message.
    fn message(&mut self) -> (u64, NewMessage) {
        let number = self.next;
        self.next += 1;
        let largest = match self.random.u8(..4) {
            0 => 9_000,
            _ => self.size,
        };
        let body = body(number, self.random.usize(..=largest));
        self.history.bodies.insert(number, body.clone());
        (number, NewMessage::new(body))
    }

    fn record_put(&mut self, messages: Vec<u64>, begun: usize, answer: (Option<Error>, usize)) {
        let (error, answered) = answer;
        let refused = error
            .as_ref()
            .is_some_and(|error| error.kind().is_refusal());
        let done = error.is_none().then_some(answered);
        self.errors.extend(error);
        let span = Span { begun, done };
        self.history.puts.push(Put {
            span,
            messages,
            refused,
        });
    }

    pub(crate) async fn put(&mut self) {
        let count = self.random.usize(1..=3);
        let (numbers, messages) = (0..count).map(|_| self.message()).unzip();
        let begun = self.moment();
        let outcome = self.queue().put(messages).await;
        let answered = self.moment();
        self.record_put(numbers, begun, (outcome.err(), answered));
    }

    pub(crate) async fn get(&mut self) {
        // The messages of the last get are visible again.
        tokio::time::sleep(VISIBILITY).await;
        let max = self.random.usize(1..=12);
        match self.queue().get(max, VISIBILITY).await {
            Ok(messages) => {
                for message in messages {
                    let number = number_of(&message.body).expect("a number");
                    let unchanged = self.history.bodies.get(&number) == Some(&message.body);
                    assert!(unchanged, "message {number} was altered");
                    self.held.insert(number, message.receipt);
                }
            }
            Err(error) => self.errors.push(error),
        }
    }

    /// Takes the receipt of a message that was got.
    fn take_held(&mut self) -> Option<(u64, Receipt)> {
        let number = *self.random.choice(self.held.keys())?;
        self.held.remove_entry(&number)
    }

    pub(crate) async fn delete(&mut self) {
        let Some((number, receipt)) = self.take_held() else {
            return;
        };
        let begun = self.moment();
        let outcome = self.queue().delete(&receipt).await;
        let answered = self.moment();
        self.record_delete(number, begun, (outcome.err(), answered));
    }

    fn record_delete(&mut self, number: u64, begun: usize, answer: (Option<Error>, usize)) {
        let (error, answered) = answer;
        // A delete whose answer was lost may have succeeded: the next one finds no message.
        let is_gone = error.as_ref().map(Error::kind) == Some(ErrorKind::Conflict);
        let is_known = is_gone && self.history.deletes.contains_key(&number);
        let done = (error.is_none() || is_known).then_some(answered);
        self.history.delete(number, begun, done);
        self.errors.extend(error.filter(|_| !is_known));
    }

    async fn give_back(&mut self) {
        let Some((_, receipt)) = self.take_held() else {
            return;
        };
        let queue = self.queue();
        let outcome = match self.random.bool() {
            true => queue.renew(&receipt, VISIBILITY).await.map(|_| ()),
            false => queue.release(&receipt, Duration::ZERO).await,
        };
        self.errors.extend(outcome.err());
    }

    async fn purge(&mut self) {
        let begun = self.moment();
        let outcome = self.queue().purge().await;
        let done = outcome.is_ok().then(|| self.moment());
        self.errors.extend(outcome.err());
        for number in 1..self.next {
            self.history.delete(number, begun, done);
        }
        self.held.clear();
    }

    /// Writes that share a commit: the disk waits until all of them are queued.
    pub(crate) async fn several_at_once(&mut self) {
        let count = self.random.usize(2..=5);
        let begun = self.moment();
        let disk = std::sync::Arc::clone(&self.mounted.disk);
        let moment = || disk.moment();
        let queue = self.queue();
        let mut calls: Vec<BoxFuture<'_, Answer>> = Vec::new();
        // The thread of the file is busy with this read while the writes arrive.
        calls.push(Box::pin(async {
            let _ = queue.peek(1).await;
            Answer::Peeked
        }));
        for _ in 0..count {
            let (queue, moment) = (&queue, &moment);
            calls.push(match self.take_held().filter(|_| self.random.bool()) {
                Some((number, receipt)) => Box::pin(async move {
                    let outcome = queue.delete(&receipt).await;
                    Answer::Deleted(number, outcome, moment())
                }),
                None => {
                    let (number, message) = self.message();
                    Box::pin(async move {
                        let outcome = queue.put(vec![message]).await.map(|_| ());
                        Answer::Put(number, outcome, moment())
                    })
                }
            });
        }
        let mut all = pin!(join_all(calls));
        let held = disk.hold();
        let first = all.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(first.is_pending(), "the disk waits");
        drop(held);
        for answer in all.await {
            match answer {
                Answer::Put(number, outcome, answered) => {
                    self.record_put(vec![number], begun, (outcome.err(), answered));
                }
                Answer::Deleted(number, outcome, answered) => {
                    self.record_delete(number, begun, (outcome.err(), answered));
                }
                Answer::Peeked => {}
            }
        }
    }
}

/// Opens an image with the product's code, checks it and reads all messages.
pub(crate) async fn read_image(image: &Image) -> Result<Option<Vec<Bytes>>, Violation> {
    let mounted = Mounted::new(image);
    let queue = SqliteQueue::open(mounted.path(), address()).await;
    let queue = queue.map_err(|error| format!("open: {}", words(&error)))?;
    mounted.check_integrity()?;
    let found = read_queue(&queue).await;
    drop(queue);
    mounted.disk.wait_until_closed();
    found
}

/// Gets all messages; `None` if the queue does not exist.
pub(crate) async fn read_queue(queue: &SqliteQueue) -> Result<Option<Vec<Bytes>>, Violation> {
    let depth = match queue.depth().await {
        Ok(depth) => depth,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("depth: {}", words(&error))),
    };
    let mut found = Vec::new();
    loop {
        let messages = queue.get(32, Duration::from_secs(3_600)).await;
        let messages = messages.map_err(|error| format!("get: {}", words(&error)))?;
        if messages.is_empty() {
            break;
        }
        found.extend(messages.into_iter().map(|message| message.body));
    }
    match u64::try_from(found.len()) {
        Ok(count) if count == depth => Ok(Some(found)),
        _ => Err(format!("{} messages, but a depth of {depth}", found.len())),
    }
}

/// Returns an error with its causes.
pub(crate) fn words(error: &Error) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
