//! Three queues in memory as one.

use std::collections::HashSet;

use super::*;
use crate::{
    error::ErrorKind,
    queue::{MemoryQueue, RetryConfig, Retrying, forward::forward},
    testing::{Call, ScriptedQueue, queue_contract as contract},
};

const LONG: Duration = Duration::from_secs(600);

fn memory(name: &str) -> MemoryQueue {
    MemoryQueue::new(format!("local/{name}").parse().expect("an address"))
}

/// Returns three queues, and one queue of all three.
fn three() -> ([MemoryQueue; 3], Partitioned) {
    let parts = ["jobs-0", "jobs-1", "jobs-2"].map(memory);
    let queue = over(&parts);
    (parts, queue)
}

fn over(parts: &[MemoryQueue]) -> Partitioned {
    let parts = parts.iter().cloned();
    let parts = parts.map(|part| Arc::new(part) as Arc<dyn WorkQueue>);
    Partitioned::new(parts.collect()).expect("some")
}

fn numbered(count: usize) -> Vec<NewMessage> {
    let bodies = (0..count).map(|number| number.to_string());
    bodies.map(NewMessage::new).collect()
}

async fn depths(parts: &[MemoryQueue; 3]) -> [u64; 3] {
    let mut depths = [0; 3];
    for (depth, part) in depths.iter_mut().zip(parts) {
        *depth = part.depth().await.expect("depth");
    }
    depths
}

/// A partition with different limits and an optional fault.
#[derive(Debug)]
struct FaultyQueue {
    inner: MemoryQueue,
    limits: QueueLimits,
    fails: bool,
}

#[async_trait]
impl WorkQueue for FaultyQueue {
    forward!([inner] address, delete, renew, release, depth, purge);

    fn limits(&self) -> QueueLimits {
        self.limits
    }

    async fn create(&self) -> Result<bool> {
        Ok(true)
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.answer()?;
        self.inner.put(messages).await
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        self.answer()?;
        self.inner.get(max, visibility_timeout).await
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        self.answer()?;
        self.inner.peek(max).await
    }
}

impl FaultyQueue {
    fn answer(&self) -> Result<()> {
        match self.fails {
            true => Err(Error::new(ErrorKind::Unavailable, "it is down")),
            false => Ok(()),
        }
    }
}

impl Display for FaultyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

fn faulty(limits: QueueLimits, fails: bool) -> Arc<dyn WorkQueue> {
    Arc::new(FaultyQueue {
        inner: memory("faulty"),
        limits,
        fails,
    })
}

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract() {
    contract::check(&three().1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_contract_among_many() {
    let (parts, queue) = three();
    let queue: Arc<dyn WorkQueue> = Arc::new(queue);
    let another = Arc::new(over(&parts));
    contract::check_races(&[Arc::clone(&queue), another, queue]).await;
}

#[test]
fn it_needs_at_least_one_partition_and_has_the_name_of_the_first() {
    let error = Partitioned::new(Vec::new()).expect_err("none");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let (parts, queue) = three();
    assert_eq!(queue.to_string(), "memory:jobs-0 and 2 more");
    assert_eq!(over(&parts[..1]).to_string(), "memory:jobs-0");
    assert_eq!(queue.address(), parts[0].address());
    let all: Vec<_> = parts.iter().map(|part| part.address()).collect();
    assert_eq!(queue.addresses(), all);
}

#[tokio::test]
async fn messages_are_spread_evenly_for_all_sizes_of_puts() {
    let (parts, queue) = three();
    let mut ids = HashSet::new();
    for (count, expected) in [
        (1, [1, 0, 0]),
        (1, [1, 1, 0]),
        (0, [1, 1, 0]),
        (5, [3, 2, 2]),
        (1, [3, 3, 2]),
        (4, [4, 4, 4]),
    ] {
        let put = queue.put(numbered(count)).await.expect("put");
        assert_eq!(put.len(), count);
        ids.extend(put);
        assert_eq!(depths(&parts).await, expected, "{count}");
    }
    assert_eq!(ids.len(), 12, "no two alike");
    assert_eq!(queue.depth().await.expect("depth"), 12);
    assert_eq!(queue.peek(32).await.expect("peek").len(), 12);
}

#[tokio::test]
async fn a_key_always_has_the_same_partition() {
    let (parts, queue) = three();
    // From the published values of the hash, modulo 3.
    for (key, index) in [("", 2), ("a", 1), ("foobar", 0)] {
        let before = depths(&parts).await;
        for _ in 0..2 {
            let put = queue.put_keyed(key, numbered(2)).await.expect("put");
            assert!(
                put.iter()
                    .all(|id| split(id.as_str()).expect("two").0 == index)
            );
        }
        let mut expected = before;
        expected[index] += 4;
        assert_eq!(depths(&parts).await, expected, "{key}");
    }
    let large = NewMessage::new(vec![0; queue.limits().body + 1]);
    let error = queue.put_keyed("a", vec![large]).await;
    assert_eq!(error.expect_err("large").kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn each_get_starts_at_the_next_partition_and_fills_up_from_the_others() {
    let (parts, queue) = three();
    queue.put(numbered(30)).await.expect("put");
    for round in 1..=3 {
        for _ in 0..3 {
            assert_eq!(queue.peek(1).await.expect("peek").len(), 1);
            assert_eq!(queue.get(1, LONG).await.expect("get").len(), 1);
        }
        for part in &parts {
            let left = part.peek(32).await.expect("peek").len();
            assert_eq!(left, 10 - round);
        }
    }
    let many = queue.get(16, LONG).await.expect("get");
    assert_eq!(many.len(), 16);
    assert_eq!(queue.get(16, LONG).await.expect("get").len(), 5);
}

#[tokio::test]
async fn a_receipt_is_routed_to_its_partition() {
    let (parts, queue) = three();
    queue.put(numbered(3)).await.expect("put");
    let got = queue.get(3, LONG).await.expect("get");
    for message in &got {
        assert_eq!(message.receipt.message_id(), &message.id);
    }
    let one = got.iter().find(|message| message.id.as_str() == "1:1");
    let renewed = queue.renew(&one.expect("of the second").receipt, LONG);
    let renewed = renewed.await.expect("renew");
    queue.delete(&renewed).await.expect("delete");
    assert_eq!(depths(&parts).await, [1, 0, 1], "of equal ids, the one");
    let last = got.iter().find(|message| message.id.as_str() == "2:1");
    let released = queue.release(&last.expect("of the third").receipt, Duration::ZERO);
    released.await.expect("release");
    assert_eq!(parts[2].peek(1).await.expect("peek").len(), 1);
}

#[tokio::test]
async fn a_receipt_of_another_queue_is_invalid() {
    let (_, queue) = three();
    queue.put(numbered(3)).await.expect("put");
    queue.get(3, LONG).await.expect("get");
    for (id, token) in [("1", "1"), ("3:1", "3:1"), ("0:1", "1:1"), ("x:1", "x:1")] {
        let receipt = Receipt::new(MessageId::new(id), token);
        let error = queue.delete(&receipt).await.expect_err("not of this one");
        assert_eq!(error.kind(), ErrorKind::Conflict, "{id} {token}");
    }
    assert_eq!(queue.depth().await.expect("depth"), 3);
}

#[tokio::test]
async fn the_strictest_limits_hold_for_all() {
    let second = Duration::from_secs(1);
    let narrow = QueueLimits {
        batch: 10,
        body: 100_000,
        visibility: (second, second * 60),
        delay: second * 2,
        resolution: Duration::from_secs(1),
    };
    let parts = vec![faulty(QueueLimits::EMBEDDED, false), faulty(narrow, false)];
    let queue = Partitioned::new(parts).expect("two");
    let body = QueueLimits::EMBEDDED.body;
    assert_eq!(queue.limits(), QueueLimits { body, ..narrow });
    let late = NewMessage::new("late").after(second * 3);
    let put = queue.put(vec![NewMessage::new("first"), late]).await;
    assert_eq!(put.expect_err("late").kind(), ErrorKind::Invalid);
    assert_eq!(queue.depth().await.expect("depth"), 0, "nothing was put");
    queue.put(numbered(24)).await.expect("put");
    assert_eq!(queue.get(32, LONG / 20).await.expect("get").len(), 10);
    assert!(queue.create().await.expect("create"), "one was missing");
}

#[tokio::test]
async fn a_partition_that_is_down_hides_no_message_of_the_others() {
    let good = memory("good");
    let parts: Vec<Arc<dyn WorkQueue>> = vec![
        faulty(QueueLimits::EMBEDDED, true),
        Arc::new(good.clone()),
        faulty(QueueLimits::EMBEDDED, true),
    ];
    let queue = Partitioned::new(parts).expect("three");
    for _ in 0..3 {
        good.put(numbered(1)).await.expect("put");
        assert_eq!(queue.peek(2).await.expect("peek").len(), 1);
        assert_eq!(queue.get(2, LONG).await.expect("get").len(), 1);
        let error = queue.get(2, LONG).await.expect_err("no others");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let error = queue.put(numbered(3)).await.expect_err("the first is down");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(good.depth().await.expect("depth"), 3, "only the first few");
}

/// The first partition takes its messages; the second refuses them or does not answer.
#[tokio::test]
async fn a_partial_put_never_ends_in_a_refusal() {
    for (failed, kind) in [
        (ErrorKind::NotFound, ErrorKind::Internal),
        (ErrorKind::Invalid, ErrorKind::Internal),
        (ErrorKind::Exhausted, ErrorKind::Unavailable),
        (ErrorKind::Timeout, ErrorKind::Timeout),
    ] {
        let good = memory("good");
        let bad = ScriptedQueue::new("local/bad".parse().expect("an address"));
        bad.fail(Call::Put, 9, Error::new(failed, "it fails"));
        let parts: Vec<Arc<dyn WorkQueue>> = vec![Arc::new(good.clone()), Arc::new(bad.clone())];
        let queue = Partitioned::new(parts).expect("two");
        let error = queue.put(numbered(3)).await.expect_err("the second one");
        assert_eq!(error.kind(), kind, "{error}");
        let words = "2 of 3 messages were put; then it fails";
        assert_eq!(error.message(), words);
        assert_eq!(good.depth().await.expect("depth"), 2);
        // The next put starts at the second partition: nothing was put, and nothing is in doubt.
        let error = queue.put(numbered(1)).await.expect_err("the second one");
        assert_eq!(error.kind(), failed, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_messages_that_a_partition_refused_temporarily_are_put_again() {
    let bad = ScriptedQueue::new("local/bad".parse().expect("an address"));
    bad.fail(Call::Put, 2, Error::new(ErrorKind::Exhausted, "busy"));
    let parts = [memory("first"), memory("last")];
    let [first, last] = parts
        .clone()
        .map(|part| Arc::new(part) as Arc<dyn WorkQueue>);
    let queue = Partitioned::new(vec![first, Arc::new(bad), last]).expect("three");
    let queue = Retrying::new(queue, RetryConfig::default());
    let ids = queue.put(numbered(9)).await.expect("put in the end");
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 9);
    assert_eq!(queue.depth().await.expect("depth"), 9, "none twice");
}

#[tokio::test]
async fn a_message_that_one_partition_cannot_store_is_refused_before_any_put() {
    let seconds = QueueLimits {
        resolution: Duration::from_secs(1),
        ..QueueLimits::EMBEDDED
    };
    let good = memory("good");
    let parts = vec![
        Arc::new(good.clone()) as Arc<dyn WorkQueue>,
        faulty(seconds, false),
    ];
    let queue = Partitioned::new(parts).expect("two");
    let millis = Duration::from_millis;
    let unseen = NewMessage::new("b")
        .expiring(millis(1_200))
        .after(millis(1_100));
    let put = queue.put(vec![NewMessage::new("a"), unseen]).await;
    let error = put.expect_err("both are two seconds there");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.message().starts_with("delay: must be shorter"),
        "{error}"
    );
    assert_eq!(good.depth().await.expect("depth"), 0);
}
