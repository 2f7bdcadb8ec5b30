//! A publisher at a relay that has no room for some of its queues (R19: a bad event fails alone).

mod delayed;
mod sizes;

use std::{collections::BTreeMap, time::Duration};

use super::{super::publisher::*, answer, at, publisher, rng, told};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind, Result},
    types::{Accepted, Notification},
    wire::NotifyAnswer,
};

/// A relay that counts notifications. When full, it has no room for queues whose name begins with
/// `new`.
#[derive(Default)]
struct Relay {
    counted: BTreeMap<String, u64>,
    requests: usize,
    full: bool,
    /// It refuses delayed notifications.
    no_timers: bool,
}

impl Relay {
    fn full() -> Self {
        Self {
            full: true,
            ..Self::default()
        }
    }

    /// Answers all requests that the session sends now.
    fn serve(&mut self, session: &mut PublisherSession, now: Tick) {
        while let Some(request) = session.request(now) {
            self.requests += 1;
            assert!(self.requests < 100_000, "no end of requests");
            session.answered(self.answer(&request), now, &mut rng());
        }
    }

    fn answer(&mut self, request: &[Notification]) -> NotifyAnswer {
        let result = |event: &Notification| {
            let is_new = event.queue.queue_name().starts_with("new");
            if self.full && is_new || self.no_timers && !event.delay.is_zero() {
                return Err(full());
            }
            let counted = self.counted.entry(event.queue.to_string()).or_default();
            *counted += event.notifications;
            Ok(Accepted::default())
        };
        answer(request.iter().map(result).collect())
    }

    fn counted(&self, queue: &str) -> u64 {
        self.counted.get(queue).copied().unwrap_or_default()
    }
}

fn full() -> Error {
    Error::new(ErrorKind::Exhausted, "queues: the limit is 3")
}

/// Serves all requests until `end` or until `done`; returns the time at which it stopped.
fn serve_until(
    session: &mut PublisherSession,
    relay: &mut Relay,
    (mut now, end): (Tick, Tick),
    done: impl Fn(&Relay) -> bool,
) -> Tick {
    while now < end {
        relay.requests = 0;
        relay.serve(session, now);
        if done(relay) {
            return now;
        }
        now = session.next_at().max(now);
    }
    end
}

fn event(queue: &str) -> Notification {
    Notification::new(queue.parse().expect("an address"))
}

fn post(session: &mut PublisherSession, queue: &str, now: Tick) {
    super::post(session, event(queue), now).expect("taken");
}

/// Notifies, and returns the result if the caller gets it at once.
fn notify(
    session: &mut PublisherSession,
    relay: &mut Relay,
    queue: &str,
    now: Tick,
) -> Option<Result<Accepted>> {
    let mut caller = super::post(session, event(queue), now).expect("taken");
    relay.serve(session, now);
    told(&mut caller.0)
}

#[test]
fn a_refused_queue_does_not_hold_up_the_others() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    for number in 0..200 {
        post(&mut session, &format!("a/known-{number}"), at(0));
        if number % 50 == 0 {
            post(&mut session, &format!("a/new-{number}"), at(0));
        }
    }
    relay.serve(&mut session, at(0));
    assert_eq!(
        relay.counted.len(),
        200,
        "the relay has room for these, at once"
    );
    assert!(session.retry_at() <= at(0), "the others do not wait");
    assert_eq!(relay.requests, 1);
    assert!(relay.counted.values().all(|counted| *counted == 1));
    assert_eq!(session.pending(), 4);
    let healthy = notify(&mut session, &mut relay, "a/known-1", at(1));
    assert!(healthy.expect("answered").is_ok());
}

#[test]
fn the_callers_of_a_refused_queue_fail_at_once_and_it_is_sent_when_there_is_room() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    let refused = notify(&mut session, &mut relay, "a/new", at(0)).expect("told");
    let error = refused.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("the limit is 3"), "{error}");
    // Nothing is lost: another for the same queue joins it.
    let mut second = super::post(&mut session, event("a/new"), at(1)).expect("taken");
    relay.serve(&mut session, at(1));
    assert!(told(&mut second.0).is_none());
    assert_eq!(session.pending(), 1);
    relay.full = false;
    let due = session.next_at();
    assert!(due <= at(6_000), "{due:?}");
    relay.serve(&mut session, due);
    assert_eq!(relay.counted("a/new"), 2);
    assert!(told(&mut second.0).expect("told").is_ok());
    assert!(!session.has_work());
}

#[test]
fn a_caller_that_joins_a_refused_queue_fails_when_it_is_refused_again() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    notify(&mut session, &mut relay, "a/new", at(0));
    let mut second = super::post(&mut session, event("a/new"), at(1)).expect("taken");
    relay.serve(&mut session, at(1));
    assert!(told(&mut second.0).is_none());
    let due = session.next_at();
    relay.serve(&mut session, due);
    let error = told(&mut second.0).expect("told").expect_err("still full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert_eq!(session.pending(), 1, "and it is kept");
}

#[test]
fn a_refused_queue_is_sent_again_after_some_seconds_or_as_late_as_the_relay_asks() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    post(&mut session, "a/new", at(0));
    let mut now = at(0);
    for _ in 0..40 {
        relay.serve(&mut session, now);
        let wait = session.next_at().since(now);
        let (least, most) = (Duration::from_secs(5), Duration::from_secs(6));
        assert!(wait >= least && wait <= most, "{wait:?}");
        now += wait;
    }
    session.request(now).expect("a retry");
    let later = full().with_retry_after(Duration::from_secs(40));
    session.answered(answer(vec![Err(later)]), now, &mut rng());
    assert!(session.next_at() >= now + Duration::from_secs(40));
}

#[test]
fn when_there_is_room_again_all_waiting_entries_are_sent_in_few_requests() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    for number in 0..2_000 {
        post(&mut session, &format!("a/new-{number}"), at(0));
    }
    relay.serve(&mut session, at(0));
    assert_eq!(session.pending(), 2_000);
    // Full for a minute.
    relay.requests = 0;
    let mut now = at(0);
    while now < at(60_000) {
        relay.serve(&mut session, now);
        now = session.next_at();
    }
    assert!(relay.requests <= 400, "{} requests", relay.requests);
    (relay.full, relay.requests) = (false, 0);
    relay.serve(&mut session, now);
    assert_eq!(relay.requests, 8);
    assert!(!session.has_work(), "{} wait", session.pending());
    assert_eq!(relay.counted.len(), 2_000);
}

/// Returns a publisher that keeps as many entries as it may have pending ones: four.
fn with_four_kept() -> PublisherSession {
    let config = PublisherConfig {
        max_pending: 4,
        ..PublisherConfig::default()
    };
    let (mut session, mut relay) = (PublisherSession::new(config), Relay::full());
    for n in 0..4 {
        post(&mut session, &format!("a/new-{n}"), at(0));
        relay.serve(&mut session, at(0));
    }
    session
}

#[test]
fn refused_queues_leave_healthy_ones_their_room() {
    let mut session = with_four_kept();
    let known = session.notify(vec![event("a/known")], at(1));
    assert!(known.is_ok());
}

#[test]
fn kept_entries_of_a_relay_that_is_cut_off_leave_healthy_ones_their_room() {
    let mut session = with_four_kept();
    let cut_off = || Err(Error::new(ErrorKind::Unavailable, "cut off"));
    for retry in 1..=3 {
        let due = session.next_at();
        assert!(due >= at(5_000 * retry), "others do not wait for them");
        let retry = session.request(due).expect("a retry");
        let results = retry.iter().map(|_| cut_off()).collect();
        session.answered(answer(results), due, &mut rng());
        assert_eq!((retry.len(), session.pending()), (4, 4));
    }
    let known = session.notify(vec![event("a/known")], at(1));
    assert!(known.is_ok());
}

#[test]
fn relays_that_are_full_and_cut_off_are_tried_once_each() {
    let mut session = with_four_kept();
    let cut_off = || Error::new(ErrorKind::Unavailable, "cut off");
    for _ in 0..2 {
        assert!(session.has_relay_to_try(2));
        let due = session.next_at();
        let retry = session.request(due).expect("a retry");
        let results = retry.iter().map(|_| Err(cut_off())).collect();
        session.answered(answer(results), due, &mut rng());
        session.broken(&cut_off(), due, &mut rng());
        session.left_relay(2, due, &mut rng());
    }
    assert!(!session.has_relay_to_try(2), "the back-off applies");
    assert!(session.failure().is_some());
}

#[test]
fn an_entry_that_is_refused_when_too_many_are_kept_is_dropped_and_reported() {
    let config = PublisherConfig {
        max_pending: 2,
        ..PublisherConfig::default()
    };
    let (mut session, mut relay) = (PublisherSession::new(config), Relay::full());
    for queue in ["a/new-1", "a/new-2"] {
        let error = notify(&mut session, &mut relay, queue, at(0)).expect("told");
        let error = error.expect_err("full");
        assert!(!error.message().contains("dropped"), "{error}");
    }
    let error = notify(&mut session, &mut relay, "a/new-3", at(0)).expect("told");
    let error = error.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("is dropped"), "{error}");
    post(&mut session, "a/new-1", at(0));
    relay.serve(&mut session, at(0));
    // A retry in flight keeps its room.
    let due = session.next_at();
    let retry = session.request(due).expect("a retry");
    assert_eq!(retry.len(), 2);
    post(&mut session, "a/new-5", due);
    let request = session.request(due).expect("a request");
    session.answered(relay.answer(&retry), due, &mut rng());
    session.answered(relay.answer(&request), due, &mut rng());
    assert_eq!(session.pending(), 2);
    relay.full = false;
    serve_until(&mut session, &mut relay, (due, at(60_000)), |_| false);
    assert_eq!((relay.counted("a/new-1"), relay.counted("a/new-2")), (2, 1));
}

#[test]
fn a_retry_on_a_connection_that_broke_is_sent_again() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    post(&mut session, "a/new", at(0));
    relay.serve(&mut session, at(0));
    let due = session.next_at();
    session.request(due).expect("a retry");
    let reset = Error::new(ErrorKind::Unavailable, "connection reset");
    session.broken(&reset, due, &mut rng());
    relay.full = false;
    let due = session.next_at();
    relay.serve(&mut session, due);
    assert_eq!(relay.counted("a/new"), 1);
    assert!(!session.has_work());
}

#[test]
fn a_retry_that_is_refused_for_good_is_dropped() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    post(&mut session, "a/new", at(0));
    relay.serve(&mut session, at(0));
    let due = session.next_at();
    session.request(due).expect("a retry");
    let denied = Err(Error::new(ErrorKind::Denied, "no"));
    session.answered(answer(vec![denied]), due, &mut rng());
    assert!(!session.has_work());
}

#[test]
fn other_requests_are_in_flight_beside_a_retry() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    for number in 0..2_000 {
        post(&mut session, &format!("a/new-{number}"), at(0));
    }
    relay.serve(&mut session, at(0));
    let due = session.next_at();
    post(&mut session, "a/known", due);
    let is_known = |request: &[Notification]| request[0].queue == event("a/known").queue;
    let mut sent = Vec::new();
    while let Some(request) = session.request(due) {
        sent.push(request);
    }
    assert_eq!(sent.len(), 2, "one retry, and what is new");
    assert!(!is_known(&sent[0]) && is_known(&sent[1]));
}

#[test]
fn retries_take_turns_with_new_events_where_one_request_is_in_flight() {
    let config = PublisherConfig {
        pipeline: 1,
        ..PublisherConfig::default()
    };
    let (mut session, mut relay) = (PublisherSession::new(config), Relay::full());
    for number in 0..2_000 {
        post(&mut session, &format!("a/new-{number}"), at(0));
    }
    relay.serve(&mut session, at(0));
    let due = session.next_at();
    let retry = session.request(due).expect("a retry");
    post(&mut session, "a/known", due);
    assert!(session.request(due).is_none(), "one is in flight");
    session.answered(relay.answer(&retry), due, &mut rng());
    let known = session.request(due).expect("the new one");
    assert_eq!(known[0].queue, event("a/known").queue);
    post(&mut session, "a/known", due);
    session.answered(relay.answer(&known), due, &mut rng());
    let retry = session.request(due).expect("the next retry");
    assert_ne!(retry[0].queue, event("a/known").queue);
}
