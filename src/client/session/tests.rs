//! Tests that step the client's machines directly.

mod full_relay;
mod leaving;
mod publishing;
mod subscribing;

use super::{PublisherConfig, PublisherSession, outbox::Answer};
use crate::{
    base::clock::Tick,
    error::{Error, Result},
    types::{Accepted, Notification},
    wire::NotifyAnswer,
};

fn at(millis: u64) -> Tick {
    Tick::from_nanos(millis * 1_000_000)
}

fn rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(7)
}

fn publisher() -> PublisherSession {
    PublisherSession::new(PublisherConfig::default())
}

/// The caller of one notification.
#[derive(Debug)]
struct Caller(Answer);

/// Notifies; the caller stops waiting when it is dropped.
fn post(session: &mut PublisherSession, notification: Notification, now: Tick) -> Result<Caller> {
    let mut answers = session.notify(vec![notification], now)?;
    Ok(Caller(answers.pop().expect("one for each")))
}

/// The answer to a request whose events have these results.
fn answer(results: Vec<Result<Accepted>>) -> NotifyAnswer {
    NotifyAnswer {
        results,
        ..NotifyAnswer::default()
    }
}

/// The answer to a request that failed as a whole.
fn failure(error: Error) -> NotifyAnswer {
    NotifyAnswer {
        error: Some(error),
        ..NotifyAnswer::default()
    }
}

/// Returns the result that a caller has got since; `None` if it waits.
fn told(answer: &mut Answer) -> Option<Result<Accepted>> {
    answer.try_recv().expect("it is answered")
}
