//! Loss of power, failing calls and full disks: the queue and the store in SQLite files keep what
//! they have acknowledged.
//!
//! A test prints the seed of a failure; `REVEILLE_SEED=17 cargo test -p reveille-power-loss NAME`
//! runs it again, for a failure of a quick run with `REVEILLE_FULL=0`. The calls, the crash points and
//! the images are the same; the times differ.

mod bit_flips;
mod control;
mod faults;
mod history;
mod power_loss;
mod queue;
mod quota;
mod store;
mod support;
mod transactions;
