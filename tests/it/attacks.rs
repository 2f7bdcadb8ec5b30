//! Attacks on the real relay, each concurrent with a publisher and a subscriber that it must not
//! disturb.
//!
//! A test starts a [`harness::Trial`], runs its attack in [`harness::Trial::under`], and states the
//! limits of the damage: resident memory, the latency of the good pair's wake-ups, and the relay's
//! processor time after the attack. No other test runs beside one that judges latencies: all files but
//! `deadlines` and `shutdown`. Run them by `tests/run attacks::` or by nextest, which run them one at a
//! time; `cargo test` would run them side by side.
//!
//! A new attack is a function in one of these files. One that is in [`target::plain_and_tls`] runs over
//! plain text, and with `tests/run --full` inside of TLS. Peers are in `peer` (HTTP/2 by hyper) and
//! `frames` (handwritten frames); the good pair is in `good`.

mod admin;
mod connections;
mod credentials;
mod data;
mod deadlines;
mod floods;
pub(crate) mod frames;
mod framing;
mod good;
mod handshakes;
mod harness;
mod headers;
mod lists;
mod log;
mod memory;
mod observers;
pub(crate) mod peer;
mod publishers;
mod repeats;
mod requests;
mod resets;
mod shutdown;
mod tables;
pub(crate) mod target;
mod unread;
