//! Callers that stop waiting: their notifications cost memory for queues, not for calls.

use super::{answer, at, publisher, rng};
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
    // A hundred calls a second for an hour, each of which waits for 30 s.
    for call in 0..CALLS {
        let now = at(call * 10);
        let deadline = at(call * 10 + 30_000);
        session
            .notify(vec![event(call % 10)], deadline, now)
            .expect("taken");
        session.elapsed(now);
        session.take_completions();
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
    session.elapsed(at(CALLS * 10 + 30_000));
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
fn abandoned_callers_are_removed_from_the_lists() {
    let mut session = publisher();
    for call in 0..CALLS {
        let waiter = session
            .notify(
                vec![event(call % 10), event(call % 7)],
                crate::base::clock::Tick::NEVER,
                at(0),
            )
            .expect("taken");
        session.abandon(waiter);
        assert!(session.listed().0 <= 64 + 2, "{:?}", session.listed());
    }
}

#[test]
fn a_refusal_of_the_whole_stream_empties_the_lists() {
    let mut session = publisher();
    for call in 0..1_000 {
        session
            .notify(
                vec![event(call % 10)],
                crate::base::clock::Tick::NEVER,
                at(0),
            )
            .expect("taken");
    }
    let denied = Error::new(ErrorKind::Denied, "not here");
    session.broken(&denied, at(0), &mut rng());
    assert_eq!(session.take_completions().len(), 1_000);
    assert!(session.listed().0 <= 64, "{:?}", session.listed());
}

#[test]
fn a_waiting_caller_stays_on_the_lists_and_is_answered() {
    let mut session = publisher();
    let stays = session
        .notify(vec![event(0)], crate::base::clock::Tick::NEVER, at(0))
        .expect("taken");
    for _ in 0..1_000 {
        let waiter = session
            .notify(vec![event(0)], crate::base::clock::Tick::NEVER, at(0))
            .expect("taken");
        session.abandon(waiter);
    }
    session.request(at(0)).expect("a request");
    session.answered(answer(vec![Ok(Accepted::default())]), at(0), &mut rng());
    let done = session.take_completions();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].waiter, stays);
}
