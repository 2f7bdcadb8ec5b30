//! A custom back-end: the operations that listeners need of a queue service.
//!
//! `cargo run --example own_queue` runs the contract's checks, then a listener handles a message. It
//! uses only the public API, like a separate crate. A list behind a lock replaces the service.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use reveille::{
    Error, ErrorKind, QueueAddress, Result,
    listener::{Delivery, Listener},
    queue::{
        Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue, async_trait,
    },
    testing::queue_contract,
};
use tokio::time::Instant;

#[derive(Debug)]
struct OwnQueue {
    address: QueueAddress,
    rows: Mutex<Vec<Row>>,
}

#[derive(Debug)]
struct Row {
    id: MessageId,
    body: Vec<u8>,
    visible_at: Instant,
    inserted_at: SystemTime,
    dequeue_count: u32,
    /// The number of deliveries; a receipt is valid until the next delivery.
    hand_out: u64,
}

impl OwnQueue {
    fn new(address: QueueAddress) -> Self {
        let rows = Mutex::default();
        Self { address, rows }
    }

    fn rows(&self) -> MutexGuard<'_, Vec<Row>> {
        self.rows.lock().expect("no thread panics with it")
    }

    /// Runs `work` with the message of a receipt, if the receipt is still valid.
    fn with<T>(
        &self,
        receipt: &Receipt,
        work: impl FnOnce(&mut Vec<Row>, usize) -> T,
    ) -> Result<T> {
        let mut rows = self.rows();
        let newest = |row: &Row| row.receipt() == *receipt;
        match rows.iter().position(newest) {
            Some(index) => Ok(work(&mut rows, index)),
            None => {
                let words = format!("message `{:?}` is lost", receipt.message_id());
                Err(Error::new(ErrorKind::Conflict, words))
            }
        }
    }
}

impl Row {
    fn receipt(&self) -> Receipt {
        Receipt::new(self.id.clone(), &self.hand_out.to_string())
    }

    fn hide(&mut self, span: Duration) -> Receipt {
        self.hand_out += 1;
        self.visible_at = Instant::now() + span;
        self.receipt()
    }
}

#[async_trait]
impl WorkQueue for OwnQueue {
    fn address(&self) -> &QueueAddress {
        &self.address
    }

    fn limits(&self) -> QueueLimits {
        let mut limits = QueueLimits::default();
        limits.batch = 10;
        limits
    }

    async fn create(&self) -> Result<bool> {
        Ok(false)
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.limits().check_put(&messages)?;
        let (mut rows, now) = (self.rows(), Instant::now());
        let mut ids = Vec::new();
        for message in messages {
            let id = MessageId::new(&format!("{:016x}", next_id()));
            ids.push(id.clone());
            rows.push(Row {
                id,
                body: message.body.to_vec(),
                visible_at: now + message.delay,
                inserted_at: SystemTime::now(),
                dequeue_count: 0,
                hand_out: 0,
            });
        }
        Ok(ids)
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let max = self.limits().check_max(max)?;
        self.limits().check_visibility(visibility_timeout)?;
        let (mut rows, now) = (self.rows(), Instant::now());
        let visible = rows.iter_mut().filter(|row| row.visible_at <= now);
        let got = visible.take(max).map(|row| {
            row.dequeue_count += 1;
            let (receipt, body) = (row.hide(visibility_timeout), row.body.clone());
            Message::new(receipt, body, row.dequeue_count, row.inserted_at)
        });
        Ok(got.collect())
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        self.with(receipt, |rows, index| drop(rows.remove(index)))
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.limits().check_visibility(visibility_timeout)?;
        self.with(receipt, |rows, index| rows[index].hide(visibility_timeout))
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.limits().check_delay(delay)?;
        self.with(receipt, |rows, index| drop(rows[index].hide(delay)))
    }

    async fn depth(&self) -> Result<u64> {
        Ok(self.rows().len() as u64)
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        let (max, now) = (self.limits().check_max(max)?, Instant::now());
        let rows = self.rows();
        let visible = rows.iter().filter(|row| row.visible_at <= now).take(max);
        let peeked = visible.map(|row| {
            let (id, body) = (row.id.clone(), row.body.clone());
            PeekedMessage::new(id, body, row.dequeue_count, row.inserted_at)
        });
        Ok(peeked.collect())
    }

    async fn purge(&self) -> Result<()> {
        self.rows().clear();
        Ok(())
    }
}

impl fmt::Display for OwnQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "own:{}", self.address.queue_name())
    }
}

/// Returns a number that no other call returns.
fn next_id() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[tokio::main]
async fn main() -> Result<()> {
    // A back-end that uses tokio's clock can run the checks with a paused clock, in no time.
    let queue = Arc::new(OwnQueue::new("local/jobs".parse()?));
    queue_contract::check(&*queue).await;
    let handle = || Arc::clone(&queue) as Arc<dyn WorkQueue>;
    queue_contract::check_races(&[handle(), handle()]).await;
    println!("{queue} keeps the contract");

    let (done, mut handled) = tokio::sync::mpsc::channel(1);
    let listener = Listener::builder(handle());
    let listener = listener.start(move |job: Delivery| {
        let done = done.clone();
        async move {
            println!("handled {}", String::from_utf8_lossy(&job.message.body));
            done.send(()).await?;
            Ok(())
        }
    });
    let listener = listener.await?;
    queue.put(vec![NewMessage::new("a job")]).await?;
    handled.recv().await.expect("the listener runs");
    listener.shutdown().await;
    println!("{} left", queue.depth().await?);
    Ok(())
}
