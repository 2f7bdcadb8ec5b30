//! Retries of a queue with scripted faults.

use super::*;
use crate::{
    queue::{ClaimCheck, ClaimConfig, MemoryQueue},
    store::MemoryStore,
    testing::{Call, ScriptedQueue, queue_contract as contract},
    types::QueueAddress,
};

const LONG: Duration = Duration::from_secs(600);

/// The fault of one call.
#[derive(Debug)]
enum CallFault {
    /// The call has no effect.
    Refused(Error),
    /// The call takes effect, and its answer is lost.
    AnswerLost(Error),
}

fn address() -> QueueAddress {
    "local/jobs".parse().expect("an address")
}

fn queue() -> (ScriptedQueue, Retrying) {
    let scripted = ScriptedQueue::new(address());
    let retrying = Retrying::new(Arc::new(scripted.clone()), RetryConfig::default());
    (scripted, retrying)
}

/// Replaces the script by the faults of the next calls of a kind, and forgets earlier calls.
fn script(queue: &ScriptedQueue, call: Call, faults: impl IntoIterator<Item = CallFault>) {
    queue.reset();
    for fault in faults {
        match fault {
            CallFault::Refused(error) => queue.fail(call, 1, error),
            CallFault::AnswerLost(error) => queue.lose_answers(call, 1, error),
        }
    }
}

/// Returns the waits before all calls but the first.
fn waits(queue: &ScriptedQueue) -> Vec<Duration> {
    let calls = queue.calls();
    calls.windows(2).map(|two| two[1].at - two[0].at).collect()
}

fn refused(kind: ErrorKind) -> CallFault {
    CallFault::Refused(Error::new(kind, "refused"))
}

fn lost(kind: ErrorKind) -> CallFault {
    CallFault::AnswerLost(Error::new(kind, "the answer is lost"))
}

async fn got(queue: &impl WorkQueue) -> Receipt {
    let put = queue.put(vec![NewMessage::new("work")]).await;
    put.expect("put");
    let mut got = queue.get(1, LONG).await.expect("get");
    got.pop().expect("just put").receipt
}

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract() {
    let queue = Arc::new(MemoryQueue::new(address()));
    contract::check(&Retrying::new(queue, RetryConfig::default())).await;
}

/// A method that a wrapper does not forward has the trait's default.
#[test]
fn no_wrapper_makes_an_uncertain_queue_certain() {
    let uncertain = Arc::new(ScriptedQueue::new(address()).uncertain());
    let store = Arc::new(MemoryStore::new());
    let inner = Arc::clone(&uncertain) as Arc<dyn WorkQueue>;
    let claims = ClaimCheck::new(inner, store, ClaimConfig::default());
    assert!(!claims.expect("a good prefix").empty_is_certain());
    assert!(!Retrying::new(uncertain, RetryConfig::default()).empty_is_certain());
}

#[tokio::test(start_paused = true)]
async fn every_call_is_repeated_after_a_temporary_failure() {
    let (scripted, queue) = queue();
    assert_eq!(queue.to_string(), "memory:jobs");
    const REFUSED: [ErrorKind; 2] = [ErrorKind::Busy, ErrorKind::Exhausted];
    const ANY: [ErrorKind; 4] = [
        ErrorKind::Busy,
        ErrorKind::Exhausted,
        ErrorKind::Unavailable,
        ErrorKind::Timeout,
    ];
    macro_rules! heals {
        ($kind:ident, $call:expr) => {
            heals!($kind, $call, ANY)
        };
        ($kind:ident, $call:expr, $faults:ident) => {{
            script(&scripted, Call::$kind, $faults.map(refused));
            let answer = $call.await.expect(stringify!($call));
            let calls = scripted.count(Call::$kind);
            assert_eq!(calls, $faults.len() + 1, stringify!($call));
            answer
        }};
    }
    assert!(!heals!(Create, queue.create()));
    heals!(Put, queue.put(vec![NewMessage::new("work")]));
    assert_eq!(
        heals!(Depth, queue.depth()),
        1,
        "a refused put has no effect"
    );
    assert_eq!(heals!(Peek, queue.peek(1)).len(), 1);
    let first = heals!(Get, queue.get(1, LONG), REFUSED)
        .pop()
        .expect("just put");
    let renewed = heals!(Renew, queue.renew(&first.receipt, LONG));
    heals!(Release, queue.release(&renewed, Duration::ZERO));
    let second = heals!(Get, queue.get(1, LONG), REFUSED)
        .pop()
        .expect("given back");
    heals!(Delete, queue.delete(&second.receipt));
    heals!(Purge, queue.purge());
    assert_eq!(heals!(Depth, queue.depth()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_returned_at_once() {
    let (scripted, queue) = queue();
    for kind in [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::Conflict,
        ErrorKind::Denied,
        ErrorKind::Closed,
        ErrorKind::Unsupported,
        ErrorKind::Internal,
    ] {
        script(&scripted, Call::Depth, [refused(kind)]);
        let error = queue.depth().await.expect_err("for good");
        assert_eq!((error.kind(), scripted.calls().len()), (kind, 1));
    }
    // A receipt that was invalid from the start does not count as deleted.
    let receipt = got(&queue).await;
    queue.delete(&receipt).await.expect("delete");
    script(&scripted, Call::Delete, [refused(ErrorKind::Busy)]);
    let error = queue.delete(&receipt).await.expect_err("gone before");
    assert_eq!(
        (error.kind(), scripted.calls().len()),
        (ErrorKind::Conflict, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn it_gives_up_after_the_last_attempt_with_the_last_error() {
    for (tries, calls) in [(0, 1), (1, 1), (3, 3)] {
        let scripted = ScriptedQueue::new(address());
        let config = RetryConfig {
            tries,
            ..RetryConfig::default()
        };
        let queue = Retrying::new(Arc::new(scripted.clone()), config);
        let busy = |number: usize| {
            let error = Error::new(ErrorKind::Unavailable, number.to_string());
            CallFault::Refused(error)
        };
        script(&scripted, Call::Depth, (1..10).map(busy));
        let error = queue.depth().await.expect_err("no attempts left");
        assert_eq!(error.message(), calls.to_string());
        assert_eq!(scripted.calls().len(), calls);
        assert_eq!(waits(&scripted).len(), calls - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn waits_grow_up_to_the_longest() {
    fastrand::seed(7);
    let (scripted, queue) = queue();
    let mut greatest = [Duration::ZERO; 7];
    for _ in 0..300 {
        let faults = (0..7).map(|_| refused(ErrorKind::Unavailable));
        script(&scripted, Call::Depth, faults);
        queue.depth().await.expect("the eighth");
        for (most, wait) in greatest.iter_mut().zip(waits(&scripted)) {
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
    let (scripted, queue) = queue();
    let asked = Duration::from_secs(30);
    for _ in 0..50 {
        let busy = Error::new(ErrorKind::Unavailable, "busy").with_retry_after(asked);
        let faults = [CallFault::Refused(busy), refused(ErrorKind::Busy)];
        script(&scripted, Call::Depth, faults);
        queue.depth().await.expect("healed");
        let [first, second] = waits(&scripted)[..] else {
            panic!("two waits")
        };
        assert!(first >= asked && first < asked + Duration::from_millis(102));
        assert!(
            second < Duration::from_millis(202),
            "retry_after applies once"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_get_that_may_have_taken_effect_is_not_repeated() {
    for kind in [ErrorKind::Timeout, ErrorKind::Unavailable] {
        let (scripted, queue) = queue();
        let put = queue.put(vec![NewMessage::new("work")]).await;
        put.expect("put");
        let faults = [refused(ErrorKind::Exhausted), lost(kind)];
        script(&scripted, Call::Get, faults);
        let error = queue
            .get(1, LONG)
            .await
            .expect_err("the caller must see it");
        assert_eq!((error.kind(), scripted.calls().len()), (kind, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_failed_messages_of_a_put_are_put_again() {
    let (scripted, queue) = queue();
    let busy = Error::new(ErrorKind::Exhausted, "busy");
    scripted.fail(Call::Put, 3, busy.with_retry_after(Duration::from_secs(60)));
    let bodies = ["a", "b", "c", "d", "e"];
    let ids = queue.put(bodies.map(NewMessage::new).to_vec()).await;
    let ids = ids.expect("put");
    assert_eq!(scripted.count(Call::Put), 8);
    let waited = scripted.calls().last().expect("some").at;
    assert!(
        waited >= Duration::from_secs(60),
        "not before the service's retry_after"
    );
    let got = queue.get(32, LONG).await.expect("get");
    assert_eq!(got.len(), 5, "no message twice");
    for (id, body) in ids.iter().zip(bodies) {
        let message = got.iter().find(|message| message.id == *id);
        assert_eq!(message.expect("put").body, body, "ids are in order");
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_that_may_have_taken_effect_never_ends_in_a_refusal() {
    let (scripted, queue) = queue();
    let faults = [lost(ErrorKind::Timeout), refused(ErrorKind::NotFound)];
    script(&scripted, Call::Put, faults);
    let error = queue.put(vec![NewMessage::new("work")]).await;
    let error = error.expect_err("the queue is gone");
    assert!(
        !error.kind().is_refusal() && !error.is_retryable(),
        "{error:?}"
    );
    let faults = [refused(ErrorKind::Busy), refused(ErrorKind::NotFound)];
    script(&scripted, Call::Put, faults);
    let error = queue.put(vec![NewMessage::new("work")]).await;
    assert_eq!(error.expect_err("refused").kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_put_without_an_answer_may_put_twice() {
    let (scripted, queue) = queue();
    script(&scripted, Call::Put, [lost(ErrorKind::Timeout)]);
    let ids = queue.put(vec![NewMessage::new("work")]).await;
    assert_eq!(ids.expect("put").len(), 1);
    assert_eq!(queue.depth().await.expect("depth"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_delete_without_an_answer_is_done_when_its_message_is_gone() {
    for kind in [ErrorKind::Timeout, ErrorKind::Unavailable] {
        let (scripted, queue) = queue();
        let receipt = got(&queue).await;
        script(
            &scripted,
            Call::Delete,
            [lost(kind), refused(ErrorKind::Busy)],
        );
        queue
            .delete(&receipt)
            .await
            .expect("the first attempt did it");
        assert_eq!(scripted.calls().len(), 3);
        assert_eq!(queue.depth().await.expect("depth"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_loses_the_receipt() {
    let (scripted, queue) = queue();
    let receipt = got(&queue).await;
    script(&scripted, Call::Renew, [lost(ErrorKind::Timeout)]);
    let error = queue.renew(&receipt, LONG).await.expect_err("replaced");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    tokio::time::sleep(LONG).await;
    assert_eq!(queue.get(1, LONG).await.expect("get").len(), 1, "back");
}
