//! Attacks on the real relay, each concurrent with a publisher and a subscriber that it must not
//! disturb.
//!
//! A test starts a [`harness::Trial`], runs its attack in [`harness::Trial::under`], and states the
//! limits of the damage: resident memory, and the latency of the good pair's wake-ups. A new
//! attack is a function in one of these files; peers are in `peer` (HTTP/2 by hyper) and
//! `frames` (handwritten frames); the good pair is in `good`.

mod admin;
mod budget;
mod connections;
mod floods;
mod frames;
mod good;
mod harness;
mod lists;
mod log;
mod memory;
mod observers;
mod peer;
mod publishers;
mod requests;
mod shutdown;
mod tables;
