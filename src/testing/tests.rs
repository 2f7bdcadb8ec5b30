//! Queues for this crate's own tests.

mod scripted_queue;

pub(crate) use self::scripted_queue::{Call, ScriptedQueue};
