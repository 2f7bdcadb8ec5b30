//! The dequeue tasks of a queue: how many it needs, which task polls, sleeps or ends, and the
//! reports to the relay.
//!
//! Pure: takes depths and times, returns counts, durations and steps. `now` and random numbers are
//! arguments. It knows neither queues nor tokio tasks: the listener runs it on tokio, the
//! simulation by seed.

mod idle;
mod policy;
mod push_or_poll;
mod reporter;
mod scaler;
mod tasks;
#[cfg(test)]
mod tests;

pub use self::{
    idle::{Idle, IdleBackoff},
    policy::{Load, ScalePolicy, StepPolicy},
    push_or_poll::ListenerMode,
};
pub(crate) use self::{
    reporter::{PendingReport, Reporter, Snapshot},
    scaler::{DepthQuery, Scaler, ScalerConfig, Step, TaskAction},
    tasks::TaskId,
};
