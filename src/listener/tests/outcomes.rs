//! The verdicts of a handler's error, with several wrappers around it.

use super::*;
use crate::{
    error::{Error, ErrorKind},
    listener::{HandlerError, PoisonedMessage, Postponed, Rejected, RetryAfter},
};

/// A program's error type, as `thiserror` makes it.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("it is refused")]
    Rejected(#[from] Rejected),
    #[error(transparent)]
    Postponed(#[from] Postponed),
    #[error(transparent)]
    Bare(Rejected),
}

fn rejected() -> Rejected {
    Rejected::because("never good")
}

fn postponed() -> Postponed {
    Postponed::by(Duration::from_secs(60))
}

/// Returns an error as `?` in a handler's body returns it.
fn by_question_mark(error: anyhow::Error) -> HandlerResult {
    Err(error)?
}

/// Errors with which a handler rejects a message, and errors that postpone it by a minute.
fn wrapped() -> [Vec<HandlerError>; 2] {
    let internal = |source: HandlerError| {
        let error = Error::new(ErrorKind::Internal, "no order").with_source(source);
        HandlerError::from(error)
    };
    #[allow(unused_mut, reason = "more of them with `anyhow`")]
    let mut all = [
        vec![
            rejected().into(),
            Failed::from(rejected()).into(),
            Failed::Bare(rejected()).into(),
            internal(rejected().into()),
            internal(Failed::Bare(rejected()).into()),
            std::io::Error::other(rejected()).into(),
        ],
        vec![
            postponed().into(),
            Failed::from(postponed()).into(),
            internal(postponed().into()),
            std::io::Error::other(postponed()).into(),
        ],
    ];
    {
        let bare = [rejected().into(), anyhow::Error::from(postponed())];
        let in_context = [
            anyhow::Error::from(rejected()).context("order 7"),
            anyhow::Error::from(Failed::from(postponed())).context("order 7"),
        ];
        for errors in [bare, in_context] {
            for (all, error) in all.iter_mut().zip(errors) {
                all.push(by_question_mark(error).expect_err("it is one"));
            }
        }
    }
    all
}

fn poison() -> Arc<MemoryQueue> {
    let address = "local/jobs-poison".parse().expect("an address");
    Arc::new(MemoryQueue::new(address))
}

/// Ends the first attempt with this error. Returns how many times the message was handled within
/// half a minute, and the content of the poison queue.
async fn ends(error: HandlerError) -> (usize, Vec<PoisonedMessage>) {
    let bench = Bench::new();
    bench.put(&["job"]).await;
    let (poison, seen) = (poison(), Seen::default());
    let (noting, error) = (seen.clone(), Arc::new(Mutex::new(Some(error))));
    let builder = bench
        .pulling()
        .config(config())
        .poison(Arc::clone(&poison) as _);
    let handle = move |delivery: Delivery| {
        noting.note(&delivery);
        let error = error.lock().expect("no panic").take();
        std::future::ready(Err(error.unwrap_or_else(|| "once more".into())))
    };
    let _listener = builder.start(handle).await.expect("started");
    seconds(4).await;
    let poisoned = poison.get(9, Duration::from_secs(30)).await.expect("got");
    let read = |message: crate::queue::Message| serde_json::from_slice(&message.body);
    let poisoned = poisoned.into_iter().map(read).collect::<Result<_, _>>();
    (seen.all().len(), poisoned.expect("JSON"))
}

#[tokio::test(start_paused = true)]
async fn a_rejected_message_is_poisoned_at_once_with_any_wrapper() {
    let [rejections, _] = wrapped();
    for error in rejections {
        let what = format!("{error:?}");
        let (tries, poisoned) = ends(error).await;
        assert_eq!((tries, poisoned.len()), (1, 1), "{what}");
        assert!(poisoned[0].error.contains("never good"), "{poisoned:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_postponed_message_comes_back_on_time_with_any_wrapper() {
    let [_, postponements] = wrapped();
    for error in postponements {
        let what = format!("{error:?}");
        let (tries, poisoned) = ends(error).await;
        assert_eq!((tries, poisoned.len()), (1, 0), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_decides_by_its_result() {
    let minute = Duration::from_secs(60);
    let cases: [(HandlerResult, usize, u64, u64); 5] = [
        (Ok(()), 1, 0, 0),
        (Err("not yet".into()), 2, 0, 1),
        (Err(RetryAfter::because(minute, "not yet").into()), 1, 0, 1),
        (Err(Rejected::because("never good").into()), 1, 1, 0),
        (Err(Postponed::by(minute).into()), 1, 0, 1),
    ];
    for (outcome, tries, poisoned, left) in cases {
        let what = format!("{outcome:?}");
        let bench = Bench::new();
        bench.put(&["job"]).await;
        let (poison, seen) = (poison(), Seen::default());
        let (noting, outcome) = (seen.clone(), Mutex::new(Some(outcome)));
        let builder = bench.pulling().poison(Arc::clone(&poison) as _);
        let listener = builder.start(move |delivery: Delivery| {
            noting.note(&delivery);
            let outcome = outcome.lock().expect("no panic").take();
            std::future::ready(outcome.unwrap_or_else(|| Err(Postponed::by(minute).into())))
        });
        let _listener = listener.await.expect("started");
        seconds(10).await;
        let found = (
            seen.all().len(),
            poison.depth().await.ok(),
            bench.depth().await,
        );
        assert_eq!(found, (tries, Some(poisoned), left), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_whose_successor_was_given_a_time_counts_all_the_same() {
    let bench = Bench::new();
    bench.put(&["job"]).await;
    let (poison, tries) = (poison(), Arc::new(Mutex::new(Vec::new())));
    let noting = Arc::clone(&tries);
    let builder = bench.pulling().poison(Arc::clone(&poison) as _);
    let listener = builder.start(move |_: Delivery| {
        noting
            .lock()
            .expect("no panic")
            .push(tokio::time::Instant::now());
        let busy = RetryAfter::because(Duration::from_secs(60), "the mill is busy");
        std::future::ready(HandlerResult::Err(busy.into()))
    });
    let listener = listener.await.expect("started");
    seconds(600).await;
    let tries = tries.lock().expect("no panic").clone();
    assert_eq!((tries.len(), poison.depth().await.ok()), (5, Some(1)));
    for pair in tries.windows(2) {
        let gap = (pair[1] - pair[0]).as_secs();
        assert!((60..=62).contains(&gap), "{gap}");
    }
    assert_eq!(listener.state().stats.failed, 5);
}
