//! Attacks on the real relay, each concurrent with a publisher and a subscriber that it must not
//! disturb.
//!
//! A test starts a [`harness::Trial`], runs its attack in [`harness::Trial::under`], and states the
//! limits of the damage: resident memory, the latency of the good pair's wake-ups, and the relay's
//! processor time after the attack. No other test runs beside one that judges latencies: all files but
//! `deadlines` and `limits`. Run them by `tests/run attacks::` or by nextest, which run them one at a
//! time; `cargo test` would run them side by side.
//!
//! There is one test for each bound of docs/limits.md; other files test those of principals, of streams
//! and of ages. Peers are in `peer` (HTTP/2 by hyper) and `frames` (handwritten frames); the good pair
//! is in `good`.

mod connections;
mod credentials;
mod deadlines;
pub(crate) mod frames;
mod good;
mod harness;
mod http2;
mod limits;
mod log;
mod memory;
pub(crate) mod peer;
mod tables;
pub(crate) mod target;
