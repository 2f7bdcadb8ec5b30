//! Queues for this crate's own tests.

mod counting;
#[path = "../../tests/it/support/metered.rs"]
mod metered;
mod scripted_queue;

pub(crate) use self::{
    metered::{Metered, QueueUsage},
    scripted_queue::{Call, ScriptedQueue},
};
