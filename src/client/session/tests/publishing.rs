//! Pending entries, results of callers, and refusals by the relay.

use std::time::Duration;

use super::{super::publisher::*, Caller, answer, at, failure, post, publisher, rng, told};
use crate::{
    error::{Error, ErrorKind},
    types::{Accepted, Limits, Notification},
    wire::{NotifyAnswer, proto::Counted},
};

fn one_at_a_time() -> PublisherSession {
    PublisherSession::new(PublisherConfig {
        pipeline: 1,
        ..PublisherConfig::default()
    })
}

fn event(queue: &str) -> Notification {
    Notification {
        payload_size: 10,
        ..Notification::new(queue.parse().expect("an address"))
    }
}

fn accept(session: &mut PublisherSession, sequences: &[u64]) {
    let accepted = |sequence: &u64| {
        Ok(Accepted {
            sequence: *sequence,
            listeners: 1,
        })
    };
    let accepted = answer(sequences.iter().map(accepted).collect());
    session.answered(accepted, at(0), &mut rng());
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "connection reset")
}

#[test]
fn pending_notifications_of_one_queue_are_one_entry_with_exact_sums() {
    let mut session = publisher();
    for _ in 0..100_000 {
        post(&mut session, event("a/q"), at(0)).expect("taken");
    }
    assert_eq!(session.pending(), 1);
    let sent = session.request(at(0)).expect("a request");
    assert_eq!(
        (
            sent[0].notifications,
            sent[0].messages,
            sent[0].payload_size
        ),
        (100_000, 100_000, 1_000_000)
    );
}

#[test]
fn a_delayed_notification_is_not_conflated_with_one_that_is_not() {
    let mut session = publisher();
    post(&mut session, event("a/q"), at(0)).expect("taken");
    let delayed = Notification {
        delay: Duration::from_secs(60),
        ..event("a/q")
    };
    post(&mut session, delayed.clone(), at(0)).expect("taken");
    post(&mut session, delayed, at(1)).expect("taken");
    let sent = session.request(at(30_000)).expect("a request");
    assert_eq!(sent.len(), 2, "the delayed ones are conflated");
    assert!(sent[0].delay.is_zero());
    let left = sent[1].delay;
    assert!(
        left >= Duration::from_secs(30) && left <= Duration::from_secs(34),
        "{left:?}"
    );
}

#[test]
fn a_caller_gets_the_result_of_each_of_its_notifications() {
    let mut session = PublisherSession::new(PublisherConfig {
        batch: 1,
        ..PublisherConfig::default()
    });
    let both = vec![event("a/q"), event("a/r")];
    let mut answers = session.notify(both, at(0)).expect("taken");
    session.request(at(0)).expect("the first");
    session.request(at(0)).expect("the second");
    let mut sequence = |number: usize| {
        let told = told(&mut answers[number]);
        told.map(|result| result.expect("accepted").sequence)
    };
    accept(&mut session, &[5]);
    assert_eq!((sequence(0), sequence(1)), (Some(5), None));
    accept(&mut session, &[9]);
    assert_eq!(sequence(1), Some(9));
}

#[test]
fn requests_in_flight_are_sent_again_when_the_connection_breaks() {
    let mut session = publisher();
    let mut first = post(&mut session, event("a/q"), at(0)).expect("taken");
    session.request(at(0)).expect("a request");
    post(&mut session, event("a/q"), at(0)).expect("taken");
    session.broken(&unavailable(), at(1), &mut rng());
    assert_eq!(
        session.request(at(10_000)).expect("again")[0].notifications,
        2
    );
    accept(&mut session, &[2]);
    assert!(told(&mut first.0).expect("told").is_ok());
}

#[test]
fn retries_wait_and_start_again_after_a_success() {
    let mut session = publisher();
    post(&mut session, event("a/q"), at(0)).expect("taken");
    let mut rng = rng();
    for _ in 0..30 {
        session.broken(&unavailable(), at(0), &mut rng);
    }
    assert!(
        session.retry_at() <= at(5_000),
        "no wait exceeds the maximum"
    );
    assert!(session.request(at(0)).is_none(), "not before its time");
    let told = unavailable().with_retry_after(Duration::from_secs(60));
    session.broken(&told, at(0), &mut rng);
    assert!(
        session.retry_at() >= at(60_000),
        "the wait that the relay requests counts"
    );
}

#[test]
fn each_other_relay_is_tried_soon_although_one_asked_for_a_long_wait() {
    let (mut session, mut rng) = (one_at_a_time(), fastrand::Rng::with_seed(1));
    let draining = || unavailable().with_retry_after(Duration::from_secs(60));
    post(&mut session, event("acct/a"), at(0)).expect("room");
    for tried in 0..3 {
        session.request(session.retry_at()).expect("due");
        session.broken(&draining(), at(0), &mut rng);
        assert!(session.retry_at() >= at(60_000), "there is no other relay");
        session.left_relay(2, at(0), &mut rng);
        let soon = session.retry_at() <= at(0) + Duration::from_millis(250);
        assert_eq!(soon, tried < 2, "each of the two others once");
    }
    session.request(session.retry_at()).expect("due");
    accept(&mut session, &[1]);
    post(&mut session, event("acct/a"), at(90)).expect("room");
    session.request(session.retry_at()).expect("due");
    session.broken(&draining(), at(90), &mut rng);
    session.left_relay(2, at(90), &mut rng);
    assert!(
        session.retry_at() <= at(90 + 250),
        "a relay has counted a request"
    );
}

fn denied() -> Error {
    Error::new(ErrorKind::Denied, "notify on `a/bad` is not allowed")
}

#[test]
fn only_the_bad_entry_of_a_batch_fails_and_the_others_are_sent_once() {
    let mut session = publisher();
    let callers = ["a/good", "a/bad", "a/best"];
    let callers = callers.map(|queue| post(&mut session, event(queue), at(0)).expect("taken"));
    assert_eq!(session.request(at(0)).expect("all").len(), 3);
    let accepted = || Ok(Accepted::default());
    let answer = answer(vec![accepted(), Err(denied()), accepted()]);
    session.answered(answer, at(0), &mut rng());
    let is_ok = |mut caller: Caller| told(&mut caller.0).expect("told").is_ok();
    assert_eq!(callers.map(is_ok), [true, false, true]);
    assert!(!session.has_work());
    assert!(session.failure().is_none(), "the relay is well");
}

#[test]
fn a_caller_of_several_learns_which_one_was_refused() {
    let mut session = publisher();
    let both = vec![event("a/bad"), event("a/good")];
    let mut answers = session.notify(both, at(0)).expect("taken");
    session.request(at(0)).expect("both");
    let accepted = Accepted {
        sequence: 7,
        listeners: 1,
    };
    let answer = answer(vec![Err(denied()), Ok(accepted)]);
    session.answered(answer, at(0), &mut rng());
    let mut results = answers.iter_mut().map(|answer| told(answer).expect("told"));
    let error = results.next().expect("two").expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(results.next().expect("two").ok(), Some(accepted));
}

#[test]
fn a_refused_event_of_a_failed_request_is_not_sent_again() {
    let mut session = publisher();
    let mut bad = post(&mut session, event("a/bad"), at(0)).expect("taken");
    post(&mut session, event("a/good"), at(0)).expect("taken");
    session.request(at(0)).expect("both");
    let accepted = Ok(Accepted::default());
    let unconfirmed = NotifyAnswer {
        results: vec![Err(denied()), accepted],
        error: Some(unavailable()),
        counted: Some(counted("one", 5)),
    };
    session.answered(unconfirmed, at(0), &mut rng());
    let again = session.request(at(60_000)).expect("the other");
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].queue, event("a/good").queue);
    assert_eq!(session.counted(), [counted("one", 5)]);
    let error = told(&mut bad.0).expect("told").expect_err("denied");
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[test]
fn an_event_that_a_relay_cannot_take_now_is_sent_again_and_no_other() {
    let mut session = publisher();
    post(&mut session, event("a/new"), at(0)).expect("taken");
    post(&mut session, event("a/known"), at(0)).expect("taken");
    session.request(at(0)).expect("both");
    let answer = answer(vec![Err(unavailable()), Ok(Accepted::default())]);
    session.answered(answer, at(0), &mut rng());
    let again = session.request(at(60_000)).expect("one");
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].queue, event("a/new").queue);
}

#[test]
fn events_that_a_cut_off_relay_counted_stay_in_one_request() {
    let mut session = publisher();
    for queue in ["a/new-1", "a/known-1", "a/new-2", "a/known-2"] {
        post(&mut session, event(queue), at(0)).expect("taken");
    }
    session.request(at(0)).expect("all");
    let refused = || Err(unavailable());
    let accepted = || Ok(Accepted::default());
    let cut_off = NotifyAnswer {
        results: vec![refused(), accepted(), refused(), accepted()],
        ..unconfirmed("one", 5)
    };
    session.answered(cut_off, at(0), &mut rng());
    let known = session.request(at(60_000)).expect("those it counted");
    assert_eq!(known.len(), 2);
    assert_eq!(known[0].queue, event("a/known-1").queue);
    assert_eq!(session.counted(), [counted("one", 5)]);
    let new = session.request(at(60_000)).expect("the others");
    assert_eq!((new.len(), session.counted().len()), (2, 0));
}

#[test]
fn a_notification_whose_caller_stopped_waiting_is_still_sent() {
    let mut session = publisher();
    drop(post(&mut session, event("a/q"), at(0)).expect("taken"));
    assert_eq!(session.next_at(), at(0));
    assert!(session.request(at(1_000)).is_some());
}

#[test]
fn a_request_without_an_answer_is_a_dead_connection() {
    let mut session = publisher();
    post(&mut session, event("a/q"), at(0)).expect("taken");
    session.request(at(0)).expect("a request");
    assert_eq!(session.next_at(), at(5_000));
    assert!(!session.is_overdue(at(4_999)));
    assert!(session.is_overdue(at(5_000)));
}

#[test]
fn notifications_beyond_the_pending_limit_are_refused_and_none_is_lost() {
    let mut session = PublisherSession::new(PublisherConfig {
        max_pending: 2,
        ..PublisherConfig::default()
    });
    post(&mut session, event("a/1"), at(0)).expect("taken");
    post(&mut session, event("a/2"), at(0)).expect("taken");
    let error = post(&mut session, event("a/3"), at(0)).expect_err("one too many");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert_eq!(session.request(at(0)).expect("a request").len(), 2);
}

#[test]
fn the_requests_in_flight_are_bounded_and_put_back() {
    let config = PublisherConfig {
        batch: 64,
        pipeline: 2,
        ..PublisherConfig::default()
    };
    let mut session = PublisherSession::new(config);
    for number in 0..200 {
        let one = event(&format!("a/{number}"));
        post(&mut session, one, at(0)).expect("taken");
    }
    assert_eq!(session.request(at(0)).expect("a request").len(), 64);
    assert_eq!(session.request(at(0)).expect("a request").len(), 64);
    assert!(session.request(at(0)).is_none(), "two are in flight");
    accept(&mut session, &[1; 64]);
    assert_eq!(session.request(at(0)).expect("a request").len(), 64);
    session.broken(&unavailable(), at(0), &mut rng());
    assert_eq!(session.pending(), 136);
}

#[test]
fn the_longest_delay_stays_within_the_limit_on_its_grid() {
    let mut session = publisher();
    let delay = Limits::DELAY;
    let delayed = Notification {
        delay,
        ..event("a/q")
    };
    post(&mut session, delayed, at(1)).expect("taken");
    let sent = session.request(at(1)).expect("a request");
    assert_eq!(sent[0].delay, delay);
    sent[0].check().expect("the relay takes it");
}

#[test]
fn an_answer_that_does_not_fit_its_request_loses_nothing() {
    let mut session = publisher();
    post(&mut session, event("a/q"), at(0)).expect("taken");
    post(&mut session, event("a/r"), at(0)).expect("taken");
    assert_eq!(session.request(at(0)).expect("a request").len(), 2);
    accept(&mut session, &[1]);
    let again = session.request(at(3600)).expect("sent again");
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].queue, event("a/r").queue);
}

fn refused(kind: ErrorKind) -> Error {
    Error::new(kind, "publisher: not allowed here")
}

#[test]
fn a_refusal_of_the_whole_stream_fails_all_waiting_callers() {
    let mut session = publisher();
    let callers = ["a/p", "a/q"].map(|queue| post(&mut session, event(queue), at(0)));
    session.request(at(0)).expect("a request");
    session.broken(&refused(ErrorKind::Denied), at(0), &mut rng());
    for caller in callers {
        let told = told(&mut caller.expect("taken").0).expect("told");
        assert_eq!(told.expect_err("refused").kind(), ErrorKind::Denied);
    }
    let again = session.request(session.retry_at()).expect("kept");
    assert_eq!(again.len(), 2, "both are sent after the cause is fixed");
}

#[test]
fn a_refusal_that_a_proxy_may_send_is_final_only_before_the_first_answer() {
    for kind in [ErrorKind::Unsupported, ErrorKind::NotFound] {
        let mut session = publisher();
        let mut caller = post(&mut session, event("a/q"), at(0)).expect("taken");
        session.broken(&refused(kind), at(0), &mut rng());
        assert!(told(&mut caller.0).is_some(), "no relay has answered yet");
        session.request(session.retry_at()).expect("a request");
        accept(&mut session, &[1]);
        let mut caller = post(&mut session, event("a/q"), at(0)).expect("taken");
        session.broken(&refused(kind), at(0), &mut rng());
        assert!(told(&mut caller.0).is_none(), "the relay may return");
    }
}

#[test]
fn at_the_limit_what_merges_is_still_taken() {
    let mut session = PublisherSession::new(PublisherConfig {
        max_pending: 1,
        ..PublisherConfig::default()
    });
    post(&mut session, event("a/q"), at(0)).expect("the first");
    post(&mut session, event("a/q"), at(0)).expect("costs nothing");
    let both = vec![event("a/q"), event("a/q")];
    session.notify(both, at(0)).expect("nor do these");
    let error = post(&mut session, event("a/r"), at(0)).expect_err("one more");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
}

#[test]
fn a_request_that_came_too_soon_is_sent_again_in_halves() {
    let mut session = publisher();
    let callers = ["a/one", "a/two", "a/three"];
    let callers = callers.map(|queue| post(&mut session, event(queue), at(0)));
    let sent = session.request(at(0)).expect("all").len();
    let over_rate = Error::new(ErrorKind::Exhausted, "notify_rate: the limit is reached")
        .with_retry_after(Duration::from_millis(400));
    session.answered(failure(over_rate.clone()), at(0), &mut rng());
    for caller in callers {
        let told = told(&mut caller.expect("taken").0);
        assert!(told.is_none(), "no caller fails");
    }
    assert!(session.request(at(399)).is_none(), "not before its time");
    let again = session.next_at();
    assert!(again <= at(800), "no back-off: {again:?}");
    assert_eq!(session.request(again).expect("again").len(), 2);
    // The end of a stream at a limit, too.
    session.broken(&over_rate, again, &mut rng());
    assert_eq!(session.pending(), sent);
    let again = session.next_at();
    assert_eq!(session.request(again).expect("again").len(), 1);
}

/// Others that share the limit take the room before a large request fits.
#[test]
fn a_request_that_comes_too_soon_again_is_sent_in_parts() {
    let mut session = publisher();
    for number in 0..8 {
        let event = event(&format!("a/{number}"));
        post(&mut session, event, at(0)).expect("taken");
    }
    let too_soon = || {
        let error = Error::new(ErrorKind::Exhausted, "notify_rate");
        failure(error.with_retry_after(Duration::from_millis(1)))
    };
    let (mut now, mut sizes) = (at(0), Vec::new());
    for _ in 0..5 {
        sizes.push(session.request(now).expect("due").len());
        session.answered(too_soon(), now, &mut rng());
        now = session.next_at();
    }
    assert_eq!(sizes, [8, 4, 2, 1, 1]);
    // Nothing is lost.
    let mut counted = 0;
    while let Some(sent) = session.request(now) {
        counted += sent.len();
        let accepted = vec![Ok(Accepted::default()); sent.len()];
        session.answered(answer(accepted), now, &mut rng());
    }
    assert_eq!(counted, 8);
    assert!(!session.has_work());
}

fn counted(epoch: &str, position: u64) -> Counted {
    Counted {
        epoch: epoch.into(),
        position,
    }
}

/// The relay of this epoch has counted the request, and cannot confirm it.
fn unconfirmed(epoch: &str, position: u64) -> NotifyAnswer {
    NotifyAnswer {
        counted: Some(counted(epoch, position)),
        ..failure(unavailable())
    }
}

#[test]
fn a_repetition_states_which_relays_have_counted_it() {
    let mut session = publisher();
    post(&mut session, event("a/q"), at(0)).expect("taken");
    session.request(at(0)).expect("a request");
    assert!(session.counted().is_empty());
    for (epoch, position) in [("one", 5), ("two", 1), ("one", 9)] {
        session.answered(unconfirmed(epoch, position), at(0), &mut rng());
        session.request(at(60_000)).expect("again");
    }
    assert_eq!(session.counted(), [counted("one", 9), counted("two", 1)]);
    // A relay that was restarted many times.
    for number in 0..20 {
        let answer = unconfirmed(&format!("{number}"), 1);
        session.answered(answer, at(0), &mut rng());
        session.request(at(60_000)).expect("again");
        assert!(session.counted().len() <= 8);
    }
}

/// Each round of an outage adds one notification, at three relays in turn.
#[test]
fn a_queue_with_traffic_costs_a_few_entries_in_an_outage_and_each_relay_counts_each_once() {
    let mut session = publisher();
    let epochs = ["one", "two", "three"];
    let mut positions = [0; 3];
    let mut sums = [0; 3];
    for round in 0..300_u64 {
        post(&mut session, event("a/q"), at(round)).expect("taken");
        let relay = usize::try_from(round % 3).expect("small");
        let now = at(round).max(session.retry_at());
        let mut sent = Vec::new();
        while let Some(request) = session.request(now) {
            let sum: u64 = request.iter().map(|sent| sent.notifications).sum();
            sent.push((sum, session.counted()));
        }
        for (sum, known) in sent {
            let known = known.iter().find(|known| *known.epoch == *epochs[relay]);
            if known.is_none() {
                positions[relay] += 1;
                sums[relay] += sum;
            }
            let answer = unconfirmed(epochs[relay], positions[relay]);
            session.answered(answer, now, &mut rng());
        }
        assert!(session.pending() <= 4, "{} entries", session.pending());
    }
    assert!(sums.iter().all(|sum| *sum <= 300), "{sums:?}");
}

#[test]
fn what_was_not_counted_is_not_in_a_request_that_was() {
    let mut session = publisher();
    post(&mut session, event("a/q"), at(0)).expect("taken");
    session.request(at(0)).expect("a request");
    session.answered(unconfirmed("one", 5), at(0), &mut rng());
    post(&mut session, event("a/r"), at(1)).expect("taken");
    let first = session.request(at(60_000)).expect("again");
    assert_eq!((first.len(), session.counted().len()), (1, 1));
    let second = session.request(at(60_000)).expect("the other");
    assert_eq!((second.len(), session.counted().len()), (1, 0));
    // A notification that joins the entry is not counted yet.
    session.broken(&unavailable(), at(60_001), &mut rng());
    post(&mut session, event("a/q"), at(60_002)).expect("taken");
    let first = session.request(at(180_000)).expect("again");
    assert_eq!((first.len(), session.counted().len()), (1, 1));
    let second = session.request(at(180_000)).expect("the others");
    assert_eq!((second.len(), session.counted().len()), (2, 0));
}
