//! A queue whose calls fail according to a test's script, and which records its calls.
//!
//! It wraps a queue in memory, so calls without a script keep the contract. It uses tokio's clock:
//! with a paused clock, a hanging call takes no real time.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    base::{
        clock::{Clock, Tick},
        sync::lock,
    },
    error::{Error, Result},
    queue::{
        MemoryQueue, Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue,
    },
    types::{GroupName, QueueAddress},
};

/// A queue in memory with a script. Clones are the same queue with the same script.
///
/// Each kind of call has its own script. Its entries apply in the order in which they were added,
/// one entry per call. After the last entry the calls work.
#[derive(Debug, Clone)]
pub(crate) struct ScriptedQueue {
    inner: MemoryQueue,
    empty_is_certain: bool,
    clock: Clock,
    state: Arc<Mutex<ScriptState>>,
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Call {
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

/// A recorded call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Called {
    /// Its kind.
    pub(crate) call: Call,
    /// The start of the call by tokio's clock, since the creation of the queue.
    pub(crate) at: Duration,
}

#[derive(Debug, Default)]
struct ScriptState {
    scripts: HashMap<Call, VecDeque<ScriptedFault>>,
    message_faults: VecDeque<Error>,
    calls: Vec<Called>,
}

/// The fault of one call.
#[derive(Debug, Clone)]
enum ScriptedFault {
    /// The call has no effect.
    Refused(Error),
    /// The call takes effect, and its answer is lost.
    AnswerLost(Error),
    /// The call takes effect after this time.
    Hangs(Duration),
    /// A get that returns no message, even if there are some.
    Empty,
}

impl ScriptedQueue {
    pub(crate) fn new(address: QueueAddress) -> Self {
        Self {
            inner: MemoryQueue::new(address),
            empty_is_certain: true,
            clock: Clock::new(),
            state: Arc::default(),
        }
    }

    /// Makes [`WorkQueue::empty_is_certain`] return `false`.
    pub(crate) fn uncertain(mut self) -> Self {
        self.empty_is_certain = false;
        self
    }

    /// Makes the next `times` calls of a kind fail without an effect.
    pub(crate) fn fail(&self, call: Call, times: usize, error: Error) {
        self.add(call, times, &ScriptedFault::Refused(error));
    }

    /// Makes the next `times` calls of a kind take effect and fail, as if the connection broke
    /// before the answer.
    pub(crate) fn lose_answers(&self, call: Call, times: usize, error: Error) {
        self.add(call, times, &ScriptedFault::AnswerLost(error));
    }

    /// Makes the next `times` calls of a kind hang for `span` before they take effect;
    /// [`Duration::MAX`] means for ever.
    pub(crate) fn hang(&self, call: Call, times: usize, span: Duration) {
        self.add(call, times, &ScriptedFault::Hangs(span));
    }

    /// Makes the next `times` gets return no message, even if there are some.
    pub(crate) fn answer_empty(&self, times: usize) {
        self.add(Call::Get, times, &ScriptedFault::Empty);
    }

    /// Adds a fault to the next `times` messages of gets ([`Message::payload`]), as a claim check
    /// does if it cannot read the blob. The bodies stay unchanged.
    pub(crate) fn spoil(&self, times: usize, error: Error) {
        let mut state = lock(&self.state);
        let faults = std::iter::repeat_n(error, times);
        state.message_faults.extend(faults);
    }

    /// Takes over a message, as another consumer does after the time-out: `receipt` becomes invalid,
    /// and the new receipt is returned. The message's dequeue count does not change.
    pub(crate) async fn steal(
        &self,
        receipt: &Receipt,
        visibility_timeout: Duration,
    ) -> Result<Receipt> {
        self.inner.renew(receipt, visibility_timeout).await
    }

    /// The calls so far, in the order in which they began.
    pub(crate) fn calls(&self) -> Vec<Called> {
        lock(&self.state).calls.clone()
    }

    pub(crate) fn count(&self, call: Call) -> usize {
        let state = lock(&self.state);
        state.calls.iter().filter(|made| made.call == call).count()
    }

    /// Removes the recorded calls and the rest of the script.
    pub(crate) fn reset(&self) {
        *lock(&self.state) = ScriptState::default();
    }

    fn add(&self, call: Call, times: usize, fault: &ScriptedFault) {
        let mut state = lock(&self.state);
        let script = state.scripts.entry(call).or_default();
        script.extend(std::iter::repeat_n(fault, times).cloned());
    }

    /// Records a call; returns its scripted fault.
    fn begin(&self, call: Call) -> Option<ScriptedFault> {
        let at = self.clock.now().since(Tick::default());
        let mut state = lock(&self.state);
        state.calls.push(Called { call, at });
        state.scripts.get_mut(&call)?.pop_front()
    }

    async fn play<T>(&self, call: Call, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.play_or(call, work, None).await
    }

    /// Does the work with its scripted fault; `empty` is the result for [`ScriptedFault::Empty`].
    async fn play_or<T>(
        &self,
        call: Call,
        work: impl Future<Output = Result<T>> + Send,
        empty: Option<T>,
    ) -> Result<T> {
        match (self.begin(call), empty) {
            (Some(ScriptedFault::Refused(error)), _) => Err(error),
            (Some(ScriptedFault::AnswerLost(error)), _) => work.await.and(Err(error)),
            (Some(ScriptedFault::Empty), Some(empty)) => Ok(empty),
            (Some(ScriptedFault::Hangs(span)), _) => {
                tokio::time::sleep(span).await;
                work.await
            }
            (Some(ScriptedFault::Empty) | None, _) => work.await,
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WorkQueue for ScriptedQueue {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    fn listener_group(&self) -> GroupName {
        self.inner.listener_group()
    }

    fn limits(&self) -> QueueLimits {
        self.inner.limits()
    }

    async fn create(&self) -> Result<bool> {
        self.play(Call::Create, self.inner.create()).await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        self.play(Call::Put, self.inner.put(messages)).await
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let got = self.inner.get(max, visibility_timeout);
        let mut got = self.play_or(Call::Get, got, Some(Vec::new())).await?;
        let mut state = lock(&self.state);
        for message in &mut got {
            message.fault = state.message_faults.pop_front();
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
    async fn a_script_applies_in_order_to_all_clones() {
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
        assert_eq!(got[0].dequeue_count, 1, "the failed gets had no effect");
        assert_eq!((queue.count(Call::Get), queue.count(Call::Put)), (4, 1));
    }

    #[tokio::test]
    async fn a_call_whose_answer_is_lost_has_taken_effect() {
        let queue = filled().await;
        let got = queue.get(1, LONG).await.expect("get");
        queue.lose_answers(Call::Delete, 1, busy());
        let lost = queue.delete(&got[0].receipt).await;
        assert_eq!(lost.expect_err("lost").kind(), ErrorKind::Busy);
        assert_eq!(queue.depth().await.expect("depth"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_hangs_by_tokios_clock_and_its_start_is_recorded() {
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
    async fn a_stolen_message_invalidates_the_old_receipt() {
        let queue = filled().await;
        let got = queue.get(1, LONG).await.expect("get");
        let stolen = queue.steal(&got[0].receipt, LONG).await.expect("steal");
        let lost = queue.delete(&got[0].receipt).await;
        assert_eq!(lost.expect_err("lost").kind(), ErrorKind::Conflict);
        queue.delete(&stolen).await.expect("the new receipt");
    }
}
