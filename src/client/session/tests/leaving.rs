//! Callers that stop waiting: their notifications cost memory for queues, not for calls.

use std::collections::VecDeque;

use super::{answer, at, post, publisher, rng, told};
use crate::{
    error::{Error, ErrorKind},
    types::{Accepted, Notification},
};

const CALLS: u64 = 360_000;

fn event(queue: u64) -> Notification {
    Notification::new(format!("a/q{queue}").parse().expect("an address"))
}

#[test]
fn callers_whose_deadline_passed_are_removed_from_the_lists() {
    let mut session = publisher();
    let mut waiting = VecDeque::new();
    // A hundred calls a second for an hour, each of which waits for 30 s.
    for call in 0..CALLS {
        waiting.push_back(post(&mut session, event(call % 10), at(call * 10)).expect("taken"));
        if waiting.len() > 3_000 {
            waiting.pop_front();
        }
        assert!(
            session.listed().0 <= 3_000 * 2 + 64,
            "{:?}",
            session.listed()
        );
    }
    let (listed, capacity) = session.listed();
    assert!(
        capacity <= 4 * 3_000 + 64,
        "{listed} listed, room for {capacity}"
    );
    waiting.clear();
    let broken = Error::new(ErrorKind::Unavailable, "no relay");
    session.broken(&broken, at(CALLS * 10 + 30_000), &mut rng());
    let (listed, capacity) = session.listed();
    assert!(
        listed <= 64 && capacity <= 128,
        "{listed} listed, room for {capacity}"
    );
    let sent: u64 = session
        .request(at(CALLS * 10 + 40_000))
        .expect("kept")
        .iter()
        .map(|event| event.notifications)
        .sum();
    assert_eq!(sent, CALLS);
}

#[test]
fn callers_that_stopped_waiting_are_removed_from_the_lists() {
    let mut session = publisher();
    for call in 0..CALLS {
        let both = vec![event(call % 10), event(call % 7)];
        drop(session.notify(both, at(0)).expect("taken"));
        assert!(session.listed().0 <= 64 + 2, "{:?}", session.listed());
    }
}

#[test]
fn a_refusal_of_the_whole_stream_empties_the_lists() {
    let mut session = publisher();
    let calls = (0..1_000).map(|call| post(&mut session, event(call % 10), at(0)));
    let mut callers: Vec<_> = calls.map(|caller| caller.expect("taken")).collect();
    let denied = Error::new(ErrorKind::Denied, "not here");
    session.broken(&denied, at(0), &mut rng());
    assert!(
        callers
            .iter_mut()
            .all(|caller| told(&mut caller.0).is_some())
    );
    assert!(session.listed().0 <= 64, "{:?}", session.listed());
}

#[test]
fn a_waiting_caller_stays_on_the_lists_and_is_answered() {
    let mut session = publisher();
    let mut stays = post(&mut session, event(0), at(0)).expect("taken");
    for _ in 0..1_000 {
        drop(post(&mut session, event(0), at(0)).expect("taken"));
    }
    session.request(at(0)).expect("a request");
    session.answered(answer(vec![Ok(Accepted::default())]), at(0), &mut rng());
    assert!(told(&mut stays.0).expect("told").is_ok());
}
