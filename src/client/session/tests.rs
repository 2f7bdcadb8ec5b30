//! Tests that step the client's machines directly.

mod full_relay;
mod leaving;
mod publishing;
mod subscribing;

use super::{PublisherConfig, PublisherSession, WaiterId, waiters::Completion};
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

/// Notifies for a caller that waits for ever.
fn post(session: &mut PublisherSession, notification: Notification, now: Tick) -> Result<WaiterId> {
    session.notify(vec![notification], Tick::NEVER, now)
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

/// Returns the acknowledgements for a caller, or its first error.
fn result(done: Completion) -> Result<Vec<Accepted>> {
    done.results.into_iter().collect()
}
