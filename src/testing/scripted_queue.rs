//! A queue whose calls go wrong as a test wants them to, and which remembers what was called.
//!
//! Below it is a queue in memory, so what is not scripted keeps the contract. Time is tokio's: under
//! a paused clock a call hangs for no real time.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    clock::{Clock, Tick},
    error::{Error, Result},
    queue::{
        Fault, MemoryQueue, Message, MessageId, NewMessage, PeekedMessage, Receipt, WorkQueue,
        forward::forward,
    },
    sync::lock,
    words::QueueAddress,
};

/// A queue in memory with a script. Clones are the same queue, and play the same script.
///
/// What is scripted for one kind of call is played in the order in which it was written, one entry
/// a call; after its end the calls work.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> reveille::Result<()> {
/// use std::time::Duration;
/// use reveille::{Error, ErrorKind, queue::{NewMessage, RetryConfig, Retrying, WorkQueue}};
/// use reveille::testing::{Call, ScriptedQueue};
///
/// let scripted = ScriptedQueue::new("acct/orders".parse()?);
/// scripted.fail(Call::Get, 2, Error::new(ErrorKind::Busy, "it turns calls away"));
///
/// // What is tested: here, the wrapper that tries again.
/// let queue = Retrying::new(scripted.clone(), RetryConfig::default());
/// queue.put(vec![NewMessage::new("work")]).await?;
/// let got = queue.get(1, Duration::from_secs(30)).await?;
/// assert_eq!((got.len(), scripted.count(Call::Get)), (1, 3));
///
/// // Somebody else gets the message.
/// scripted.steal(&got[0].receipt, Duration::from_secs(30)).await?;
/// let error = queue.delete(&got[0].receipt).await.expect_err("it is another's now");
/// assert_eq!(error.kind(), ErrorKind::Conflict);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ScriptedQueue {
    inner: MemoryQueue,
    empty_is_certain: bool,
    clock: Clock,
    shared: Arc<Mutex<Shared>>,
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the method of its name")]
pub enum Call {
    Create,
    Put,
    Get,
    Delete,
    Renew,
    Release,
    Depth,
    Peek,
    Purge,
}

/// A call that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Called {
    /// Its kind.
    pub call: Call,
    /// When it began, by tokio's clock, counted from when the queue was made.
    pub at: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    script: HashMap<Call, VecDeque<Turn>>,
    faults: VecDeque<Fault>,
    calls: Vec<Called>,
}

/// What becomes of one call.
#[derive(Debug, Clone)]
enum Turn {
    /// It does not happen.
    Refused(Error),
    /// It happens, and its answer is lost.
    AnswerLost(Error),
    /// It happens after this.
    Hangs(Duration),
    /// It finds nothing, whatever there is.
    Empty,
}

impl ScriptedQueue {
    /// Makes an empty queue whose calls all work.
    pub fn new(address: QueueAddress) -> Self {
        Self {
            inner: MemoryQueue::new(address),
            empty_is_certain: true,
            clock: Clock::new(),
            shared: Arc::default(),
        }
    }

    /// Makes it say that an empty get is no proof ([`WorkQueue::empty_is_certain`]).
    #[must_use]
    pub fn uncertain(mut self) -> Self {
        self.empty_is_certain = false;
        self
    }

    /// Lets the next `times` calls of a kind fail; they do not happen.
    pub fn fail(&self, call: Call, times: usize, error: Error) {
        self.add(call, times, &Turn::Refused(error));
    }

    /// Lets the next `times` calls of a kind happen and fail all the same, as where the connection
    /// breaks before the answer.
    pub fn lose_answers(&self, call: Call, times: usize, error: Error) {
        self.add(call, times, &Turn::AnswerLost(error));
    }

    /// Lets the next `times` calls of a kind hang for so long before they happen;
    /// [`Duration::MAX`] is for good.
    pub fn hang(&self, call: Call, times: usize, span: Duration) {
        self.add(call, times, &Turn::Hangs(span));
    }

    /// Lets the next `times` gets find nothing, whatever there is.
    pub fn answer_empty(&self, times: usize) {
        self.add(Call::Get, times, &Turn::Empty);
    }

    /// Lets the next `times` messages that are got come with a fault ([`Message::payload`]), as from
    /// a claim check whose blob cannot be had; their bodies stay as they are.
    pub fn spoil(&self, times: usize, error: Error) {
        let fault = Fault::from(error);
        let mut shared = lock(&self.shared);
        shared.faults.extend(std::iter::repeat_n(fault, times));
    }

    /// Gets a message that somebody holds, as somebody else would after its time-out: the receipt
    /// is worth nothing from now on, and the one that is returned is. The message's dequeue count
    /// stays as it is.
    ///
    /// # Errors
    /// As [`WorkQueue::renew`].
    pub async fn steal(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        self.inner.renew(receipt, visibility_timeout).await
    }

    /// Returns the calls that were made so far, in the order in which they began.
    pub fn calls(&self) -> Vec<Called> {
        lock(&self.shared).calls.clone()
    }

    /// Returns how many calls of a kind were made so far.
    pub fn count(&self, call: Call) -> usize {
        let shared = lock(&self.shared);
        shared.calls.iter().filter(|made| made.call == call).count()
    }

    /// Forgets the calls that were made so far, and what is left of the script.
    pub fn reset(&self) {
        *lock(&self.shared) = Shared::default();
    }

    fn add(&self, call: Call, times: usize, turn: &Turn) {
        let mut shared = lock(&self.shared);
        let script = shared.script.entry(call).or_default();
        script.extend(std::iter::repeat_n(turn, times).cloned());
    }

    /// Remembers a call; returns what becomes of it.
    fn begin(&self, call: Call) -> Option<Turn> {
        let at = self.clock.now().since(Tick::default());
        let mut shared = lock(&self.shared);
        shared.calls.push(Called { call, at });
        shared.script.get_mut(&call)?.pop_front()
    }

    async fn play<T>(&self, call: Call, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.play_or(call, work, None).await
    }

    /// Does the work as the script says; `empty` is what a turn that finds nothing returns.
    async fn play_or<T>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T>> + Send,
        empty: Option<T>,
    ) -> Result<T> {
        match (self.begin(call), empty) {
            (Some(Turn::Refused(error)), _) => Err(error),
            (Some(Turn::AnswerLost(error)), _) => work.await.and(Err(error)),
            (Some(Turn::Empty), Some(nothing)) => Ok(nothing),
            (Some(Turn::Hangs(span)), _) => {
                tokio::time::sleep(span).await;
                work.await
            }
            (Some(Turn::Empty) | None, _) => work.await,
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WorkQueue for ScriptedQueue {
    forward!(inner: address, addresses, listener_group, limits);

    async fn create(&self) -> Result<bool> {
        self.play(Call::Create, self.inner.create()).await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.play(Call::Put, self.inner.put(messages)).await
    }

    /// Puts them one by one, so that a script fails some of them.
    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let mut outcomes = Vec::with_capacity(messages.len());
        for message in messages {
            let put = self.put(vec![message]).await;
            outcomes.push(put.map(|mut ids| ids.remove(0)));
        }
        outcomes
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let got = self.inner.get(max, visibility_timeout);
        let mut got = self.play_or(Call::Get, got, Some(Vec::new())).await?;
        let mut shared = lock(&self.shared);
        for message in &mut got {
            message.fault = shared.faults.pop_front();
        }
        Ok(got)
    }

    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        self.play(Call::Delete, self.inner.delete(receipt)).await
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        let renewed = self.inner.renew(receipt, visibility_timeout);
        self.play(Call::Renew, renewed).await
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        let released = self.inner.release(receipt, delay);
        self.play(Call::Release, released).await
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        let released = self.inner.release_untried(receipt, delay);
        self.play(Call::Release, released).await
    }

    async fn depth(&self) -> Result<u64> {
        self.play(Call::Depth, self.inner.depth()).await
    }

    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        self.play(Call::Peek, self.inner.peek(max)).await
    }

    async fn purge(&self) -> Result<()> {
        self.play(Call::Purge, self.inner.purge()).await
    }

    fn empty_is_certain(&self) -> bool {
        self.empty_is_certain
    }
}

impl fmt::Display for ScriptedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::ErrorKind, testing::queue_contract as contract};

    const LONG: Duration = Duration::from_secs(600);

    fn queue() -> ScriptedQueue {
        ScriptedQueue::new("local/jobs".parse().expect("an address"))
    }

    async fn filled() -> ScriptedQueue {
        let queue = queue();
        let put = queue.put(vec![NewMessage::new("work")]).await;
        put.expect("put");
        queue
    }

    fn busy() -> Error {
        Error::new(ErrorKind::Busy, "too much at once")
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_script_it_keeps_the_contract() {
        contract::check(&queue()).await;
    }

    #[tokio::test]
    async fn a_script_is_played_in_order_and_by_all_clones() {
        let queue = filled().await;
        queue.answer_empty(1);
        queue.fail(Call::Get, 2, busy());
        let clone = queue.clone();
        assert!(clone.get(1, LONG).await.expect("empty").is_empty());
        for queue in [&queue, &clone] {
            let error = queue.get(1, LONG).await.expect_err("as scripted");
            assert_eq!(error.kind(), ErrorKind::Busy);
        }
        let got = queue.get(1, LONG).await.expect("the script has ended");
        assert_eq!(got[0].dequeue_count, 1, "nothing happened before");
        assert_eq!((queue.count(Call::Get), queue.count(Call::Put)), (4, 1));
    }

    #[tokio::test]
    async fn what_was_done_stays_done_where_its_answer_is_lost() {
        let queue = filled().await;
        let got = queue.get(1, LONG).await.expect("get");
        queue.lose_answers(Call::Delete, 1, busy());
        let lost = queue.delete(&got[0].receipt).await;
        assert_eq!(lost.expect_err("lost").kind(), ErrorKind::Busy);
        assert_eq!(queue.depth().await.expect("depth"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_hangs_by_tokios_clock_and_is_dated() {
        let queue = filled().await;
        queue.hang(Call::Renew, 1, LONG);
        queue.hang(Call::Delete, 1, Duration::MAX);
        let got = queue.get(1, LONG * 2).await.expect("get");
        queue.renew(&got[0].receipt, LONG).await.expect("renew");
        queue.release(&got[0].receipt, LONG).await.expect_err("old");
        let called = *queue.calls().last().expect("some");
        assert_eq!((called.call, called.at), (Call::Release, LONG));
        let never = tokio::time::timeout(LONG, queue.delete(&got[0].receipt)).await;
        never.expect_err("it hangs");
        queue.reset();
        assert_eq!(queue.calls(), []);
    }

    #[tokio::test]
    async fn a_spoilt_message_comes_with_its_fault_until_it_is_got_again() {
        let queue = filled().await;
        queue.spoil(1, busy());
        let got = queue.get(1, LONG).await.expect("get");
        assert_eq!(
            got[0].payload().expect_err("spoilt").kind(),
            ErrorKind::Busy
        );
        let released = queue.release(&got[0].receipt, Duration::ZERO).await;
        released.expect("release");
        let got = queue.get(1, LONG).await.expect("get");
        assert_eq!(got[0].payload().expect("whole"), "work");
    }

    #[tokio::test]
    async fn a_stolen_message_is_somebody_elses() {
        let queue = filled().await;
        let got = queue.get(1, LONG).await.expect("get");
        let stolen = queue.steal(&got[0].receipt, LONG).await.expect("steal");
        let lost = queue.delete(&got[0].receipt).await;
        assert_eq!(lost.expect_err("lost").kind(), ErrorKind::Conflict);
        queue.delete(&stolen).await.expect("the thief's");
    }
}
