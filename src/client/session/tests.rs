//! Tests that step the client's machines directly.

mod full_relay;
mod leaving;
mod publishing;
mod subscribing;

use super::{PublisherConfig, PublisherSession};
use crate::base::clock::Tick;

fn at(millis: u64) -> Tick {
    Tick::from_nanos(millis * 1_000_000)
}

fn rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(7)
}

fn publisher() -> PublisherSession {
    PublisherSession::new(PublisherConfig::default())
}
