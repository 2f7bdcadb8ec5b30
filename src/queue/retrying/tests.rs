//! Retries of a queue with scripted faults.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use super::*;
use crate::{
    clock::{Clock, Tick},
    queue::{MemoryQueue, QueueLimits},
    testing::{Call, ScriptedQueue, queue_contract as contract},
    words::QueueAddress,
};

const LONG: Duration = Duration::from_secs(600);

/// The fault of one call.
#[derive(Debug)]
enum Trouble {
    /// The call has no effect.
    Refused(Error),
    /// The call takes effect, and its answer is lost.
    AnswerLost(Error),
}

/// A queue in memory that fails according to a script, and works after its end.
#[derive(Debug, Clone)]
struct Faulty {
    inner: MemoryQueue,
    clock: Clock,
    script: Arc<Mutex<VecDeque<Trouble>>>,
    calls: Arc<Mutex<Vec<Tick>>>,
}

impl Faulty {
    fn new() -> Self {
        Self {
            inner: MemoryQueue::new("local/jobs".parse().expect("an address")),
            clock: Clock::new(),
            script: Arc::default(),
            calls: Arc::default(),
        }
    }

    fn script(&self, script: impl IntoIterator<Item = Trouble>) {
        *self.script.lock().unwrap() = script.into_iter().collect();
        self.calls.lock().unwrap().clear();
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// Returns the waits before all calls but the first.
    fn waits(&self) -> Vec<Duration> {
        let calls = self.calls.lock().unwrap();
        calls.windows(2).map(|two| two[1].since(two[0])).collect()
    }

    async fn play<T>(&self, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.calls.lock().unwrap().push(self.clock.now());
        let next = self.script.lock().unwrap().pop_front();
        match next {
            None => call.await,
            Some(Trouble::Refused(error)) => Err(error),
            Some(Trouble::AnswerLost(error)) => call.await.and(Err(error)),
        }
    }
}

#[async_trait]
impl WorkQueue for Faulty {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    fn limits(&self) -> QueueLimits {
        self.inner.limits()
    }

    async fn create(&self) -> Result<bool> {
        self.play(self.inner.create()).await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.play(self.inner.put(messages)).await
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        self.play(self.inner.get(max, visibility_timeout)).await
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        self.play(self.inner.delete(receipt)).await
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.play(self.inner.renew(receipt, visibility_timeout))
            .await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.play(self.inner.release(receipt, delay)).await
    }

    async fn depth(&self) -> Result<u64> {
        self.play(self.inner.depth()).await
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        self.play(self.inner.peek(max)).await
    }

    async fn purge(&self) -> Result<()> {
        self.play(self.inner.purge()).await
    }
}

impl Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

fn queue() -> (Faulty, Retrying<Faulty>) {
    let faulty = Faulty::new();
    let retrying = Retrying::new(faulty.clone(), RetryConfig::default());
    (faulty, retrying)
}

fn refused(kind: ErrorKind) -> Trouble {
    Trouble::Refused(Error::new(kind, "refused"))
}

fn lost(kind: ErrorKind) -> Trouble {
    Trouble::AnswerLost(Error::new(kind, "the answer is lost"))
}

async fn got(queue: &impl WorkQueue) -> Receipt {
    let put = queue.put(vec![NewMessage::new("work")]).await;
    put.expect("put");
    let mut got = queue.get(1, LONG).await.expect("get");
    got.pop().expect("just put").receipt
}

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract() {
    contract::check(&queue().1).await;
}

#[tokio::test(start_paused = true)]
async fn every_call_is_repeated_after_a_temporary_failure() {
    let (faulty, queue) = queue();
    assert_eq!(queue.to_string(), "memory:jobs");
    const REFUSED: [ErrorKind; 2] = [ErrorKind::Busy, ErrorKind::Exhausted];
    const ANY: [ErrorKind; 4] = [
        ErrorKind::Busy,
        ErrorKind::Exhausted,
        ErrorKind::Unavailable,
        ErrorKind::Timeout,
    ];
    macro_rules! heals {
        ($call:expr) => {
            heals!($call, ANY)
        };
        ($call:expr, $kinds:ident) => {{
            faulty.script($kinds.map(refused));
            let answer = $call.await.expect(stringify!($call));
            assert_eq!(faulty.calls(), $kinds.len() + 1, stringify!($call));
            answer
        }};
    }
    assert!(!heals!(queue.create()));
    heals!(queue.put(vec![NewMessage::new("work")]));
    assert_eq!(heals!(queue.depth()), 1, "refused is not put");
    assert_eq!(heals!(queue.peek(1)).len(), 1);
    let first = heals!(queue.get(1, LONG), REFUSED).pop().expect("just put");
    let renewed = heals!(queue.renew(&first.receipt, LONG));
    heals!(queue.release(&renewed, Duration::ZERO));
    let second = heals!(queue.get(1, LONG), REFUSED)
        .pop()
        .expect("given back");
    heals!(queue.delete(&second.receipt));
    heals!(queue.purge());
    assert_eq!(heals!(queue.depth()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_returned_at_once() {
    let (faulty, queue) = queue();
    for kind in [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::Conflict,
        ErrorKind::Denied,
        ErrorKind::Closed,
        ErrorKind::Unsupported,
        ErrorKind::Internal,
    ] {
        faulty.script([refused(kind)]);
        let error = queue.depth().await.expect_err("for good");
        assert_eq!((error.kind(), faulty.calls()), (kind, 1));
    }
    // A receipt that was invalid from the start does not count as deleted.
    let receipt = got(&queue).await;
    queue.delete(&receipt).await.expect("delete");
    faulty.script([refused(ErrorKind::Busy)]);
    let error = queue.delete(&receipt).await.expect_err("gone before");
    assert_eq!((error.kind(), faulty.calls()), (ErrorKind::Conflict, 2));
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_after_the_last_attempt_with_the_last_error() {
    for (tries, calls) in [(0, 1), (1, 1), (3, 3)] {
        let faulty = Faulty::new();
        let config = RetryConfig {
            tries,
            ..RetryConfig::default()
        };
        let queue = Retrying::new(faulty.clone(), config);
        let busy = |number: usize| {
            let error = Error::new(ErrorKind::Unavailable, number.to_string());
            Trouble::Refused(error)
        };
        faulty.script((1..10).map(busy));
        let error = queue.depth().await.expect_err("no more tries");
        assert_eq!(error.message(), calls.to_string());
        assert_eq!(faulty.calls(), calls);
        assert_eq!(queue.inner().waits().len(), calls - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn waits_grow_up_to_the_longest() {
    fastrand::seed(7);
    let (faulty, queue) = queue();
    let mut greatest = [Duration::ZERO; 7];
    for _ in 0..300 {
        faulty.script((0..7).map(|_| refused(ErrorKind::Unavailable)));
        queue.depth().await.expect("the eighth");
        for (most, wait) in greatest.iter_mut().zip(faulty.waits()) {
            *most = wait.max(*most);
        }
    }
    for (number, most) in (0u32..).zip(greatest) {
        let ceiling = Duration::from_millis(100 << number).min(Duration::from_secs(5));
        // Tokio's timers are a millisecond coarse.
        let coarse = ceiling + Duration::from_millis(2);
        assert!(most <= coarse && most > ceiling / 2, "{number}: {most:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_attempt_comes_before_the_services_retry_after() {
    let (faulty, queue) = queue();
    let asked = Duration::from_secs(30);
    for _ in 0..50 {
        let busy = Error::new(ErrorKind::Unavailable, "busy").with_retry_after(asked);
        faulty.script([Trouble::Refused(busy), refused(ErrorKind::Busy)]);
        queue.depth().await.expect("healed");
        let [first, second] = faulty.waits()[..] else {
            panic!("two waits")
        };
        assert!(first >= asked && first < asked + Duration::from_millis(102));
        assert!(second < Duration::from_millis(202), "asked for once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_get_that_may_have_taken_effect_is_not_repeated() {
    for kind in [ErrorKind::Timeout, ErrorKind::Unavailable] {
        let (faulty, queue) = queue();
        let put = queue.put(vec![NewMessage::new("work")]).await;
        put.expect("put");
        faulty.script([refused(ErrorKind::Exhausted), lost(kind)]);
        let error = queue.get(1, LONG).await.expect_err("who calls must know");
        assert_eq!((error.kind(), faulty.calls()), (kind, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_failed_messages_of_a_put_are_put_again() {
    let scripted = ScriptedQueue::new("local/jobs".parse().expect("an address"));
    let queue = Retrying::new(scripted.clone(), RetryConfig::default());
    let busy = Error::new(ErrorKind::Exhausted, "busy");
    scripted.fail(Call::Put, 3, busy.with_retry_after(Duration::from_secs(60)));
    let bodies = ["a", "b", "c", "d", "e"];
    let ids = queue.put(bodies.map(NewMessage::new).to_vec()).await;
    let ids = ids.expect("put");
    assert_eq!(scripted.count(Call::Put), 8);
    let waited = scripted.calls().last().expect("some").at;
    assert!(
        waited >= Duration::from_secs(60),
        "as long as was asked for"
    );
    let got = queue.get(32, LONG).await.expect("get");
    assert_eq!(got.len(), 5, "none of them twice");
    for (id, body) in ids.iter().zip(bodies) {
        let message = got.iter().find(|message| message.id == *id);
        assert_eq!(message.expect("put").body, body, "ids are in their order");
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_that_may_have_taken_effect_never_ends_in_a_refusal() {
    let (faulty, queue) = queue();
    faulty.script([lost(ErrorKind::Timeout), refused(ErrorKind::NotFound)]);
    let error = queue.put(vec![NewMessage::new("work")]).await;
    let error = error.expect_err("the queue is gone");
    assert!(
        !error.kind().is_refusal() && !error.is_retryable(),
        "{error:?}"
    );
    faulty.script([refused(ErrorKind::Busy), refused(ErrorKind::NotFound)]);
    let error = queue.put(vec![NewMessage::new("work")]).await;
    assert_eq!(error.expect_err("refused").kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_put_without_an_answer_may_put_twice() {
    let (faulty, queue) = queue();
    faulty.script([lost(ErrorKind::Timeout)]);
    let ids = queue.put(vec![NewMessage::new("work")]).await;
    assert_eq!(ids.expect("put").len(), 1);
    assert_eq!(queue.depth().await.expect("depth"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_delete_without_an_answer_is_done_when_its_message_is_gone() {
    for kind in [ErrorKind::Timeout, ErrorKind::Unavailable] {
        let (faulty, queue) = queue();
        let receipt = got(&queue).await;
        faulty.script([lost(kind), refused(ErrorKind::Busy)]);
        queue
            .delete(&receipt)
            .await
            .expect("the first attempt did it");
        assert_eq!(faulty.calls(), 3);
        assert_eq!(queue.depth().await.expect("depth"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_loses_the_receipt() {
    let (faulty, queue) = queue();
    let receipt = got(&queue).await;
    faulty.script([lost(ErrorKind::Timeout)]);
    let error = queue.renew(&receipt, LONG).await.expect_err("replaced");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    tokio::time::sleep(LONG).await;
    assert_eq!(queue.get(1, LONG).await.expect("get").len(), 1, "back");
}
