//! The dequeue tasks of a queue: how many it needs, who looks, who rests, who leaves, and what the
//! relay is told of it.
//!
//! Pure: depths and times come in, counts, spans and steps go out; `now` and chance are arguments.
//! Knows neither queues nor tasks: the listener runs it on tokio, the simulation by seed.

mod idle;
mod policy;
mod scaler;
mod slots;
mod step;
mod tasks;
mod telling;
#[cfg(test)]
mod tests;

pub use self::{
    idle::{Idle, IdleBackoff},
    policy::{Load, ScalePolicy, StepPolicy, TargetLatencyPolicy},
    scaler::ListenerMode,
};
pub(crate) use self::{
    scaler::{Scaler, ScalerConfig},
    slots::{Slots, Ticket},
    step::{Begin, Rest, Step},
    tasks::TaskId,
    telling::Due,
};
