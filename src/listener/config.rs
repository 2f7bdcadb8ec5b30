//! The configuration of a listener.

use std::{fmt::Debug, sync::Arc, time::Duration};

use super::budget::Budget;
use crate::{
    error::{Error, Result},
    listener::scaling::{IdleBackoff, ScalePolicy, StepPolicy},
    queue::{QueueLimits, WorkQueue},
    types::{Limits, ListenerId, SubscribeOptions},
};

/// The configuration of a listener.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// The maximum number of messages of one get, and of messages that a task holds: its places. At
    /// least 1, and capped at the queue's own limit. A task gets more when half of its places are
    /// free, so a slow message occupies only its own place. With a
    /// [`dequeue_interval`](Self::dequeue_interval) it gets more when all places are free.
    pub dequeue_batch_size: usize,
    /// The number of messages of one task that are handled at the same time; 0 is the whole batch.
    pub concurrency: usize,
    /// The pause of a task between two batches.
    pub dequeue_interval: Duration,
    /// How long a get hides a message. It is renewed during the handling, so it need not cover the
    /// handling: it is the time after which the message of a crashed process becomes visible. It is
    /// renewed after a third of this time. Each renewal may take a sixth of it.
    pub visibility_timeout: Duration,
    /// A slower handler has failed: it is told to end, and the message is retried.
    pub max_handling_time: Duration,
    /// After this many attempts a message goes to the poison queue, if there is one.
    ///
    /// An attempt is a get, as queues count them, except a get without a try: a temporary error
    /// kept the body away (for example the blob store of a claim check), the handler
    /// [postponed](super::Postponed) it, its handler did not start in time, or a shutdown
    /// had no time for it. The queues of this crate remove such a get from their count
    /// ([`release_untried`](crate::queue::WorkQueue::release_untried)). For other queues, such as
    /// Azure's, a listener remembers its own gets without a try, for at least the 16,384 most
    /// recent messages, until it ends. Those of other listeners and of earlier processes count in
    /// full. Therefore a message with more gets still has one attempt here.
    ///
    /// Only a message that may have crashed every process that had it goes there without an
    /// attempt: it has more than 20 times as many gets, it is old enough for as many
    /// [`visibility_timeout`](Self::visibility_timeout)s, and no attempt of this listener has ended.
    pub max_dequeue_count: u32,
    /// The wait before a retry after a failed handler: at most `.0` the first time, doubled each
    /// time, never more than `.1`.
    pub retry: (Duration, Duration),
    /// The back-off of an idle task without wake-ups.
    pub idle: IdleBackoff,
    /// The longest sleep of the task that polls while the relay is away; at most a day.
    pub away: Duration,
    /// The maximum number of dequeue tasks.
    pub max_tasks: usize,
    /// Decides how many tasks a depth needs.
    pub policy: Arc<dyn ScalePolicy>,
    /// The slots for dequeue tasks; clones share them between listeners.
    pub budget: Budget,
    /// How long a shutdown waits for the handlers.
    pub grace: Duration,
    /// How long a handler may still run after it was told to end by [`Delivery::lost`], because it
    /// takes too long or the grace of a shutdown is over. The message stays hidden during this
    /// time.
    ///
    /// [`Delivery::lost`]: super::Delivery::lost
    pub wind_down: Duration,
    /// The seed of the listener's random numbers; `None` takes one from the system.
    pub seed: Option<u64>,
}

/// A longer sleep would amount to no polling.
const MAX_SLEEP: Duration = Duration::from_secs(24 * 3600);

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            // Half of Azure's limit: few calls under load, and a slow handler does not hold too
            // many messages that other tasks could handle.
            dequeue_batch_size: 16,
            concurrency: 0,
            dequeue_interval: Duration::ZERO,
            visibility_timeout: Limits::DEFAULT_VISIBILITY_TIMEOUT,
            max_handling_time: Duration::from_secs(3600),
            // About the defaults of Azure Functions and Service Bus.
            max_dequeue_count: 5,
            retry: (Duration::from_secs(1), Duration::from_secs(300)),
            idle: IdleBackoff::default(),
            away: Duration::from_secs(30),
            max_tasks: 100,
            policy: Arc::new(StepPolicy::default()),
            budget: Budget::unlimited(),
            grace: Duration::from_secs(30),
            // Enough to cancel a call; a handler that needs longer sets this field.
            wind_down: Duration::from_secs(2),
            seed: None,
        }
    }
}

impl ListenerConfig {
    /// Makes the options of a subscription for a listener with this configuration. The listener is
    /// a member of the queue's [group](WorkQueue::listener_group): the listeners of one queue share
    /// its wake-ups, and only as many are woken as the work needs. Set
    /// [`group`](SubscribeOptions::group) to `None` for a listener that must get every wake-up,
    /// because no other listener does its work.
    ///
    /// A member's capacity is [`max_tasks`](Self::max_tasks) times the messages that a task handles
    /// at the same time: the next member is woken for messages beyond it.
    pub fn subscription(&self, listener_id: ListenerId, queue: &dyn WorkQueue) -> SubscribeOptions {
        let tasks = self.max_tasks.min(self.budget.slots());
        let capacity = tasks.saturating_mul(self.handled_at_once());
        SubscribeOptions {
            group: Some(queue.listener_group()),
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
            visibility_timeout: self.visibility_timeout,
            ..SubscribeOptions::new(listener_id, [queue.address()])
        }
    }

    /// Returns how many messages a task handles at the same time.
    pub(super) fn handled_at_once(&self) -> usize {
        match self.concurrency {
            0 => self.dequeue_batch_size,
            some => some.min(self.dequeue_batch_size),
        }
    }

    /// Checks the configuration against a queue; caps values that are too large.
    pub(super) fn validate(mut self, queue: &dyn WorkQueue) -> Result<Self> {
        let limits: QueueLimits = queue.limits();
        let (count, span) = ("must be at least 1", "must be above zero");
        for (field, is_zero, rule) in [
            ("dequeue_batch_size", self.dequeue_batch_size == 0, count),
            ("max_tasks", self.max_tasks == 0, count),
            ("max_dequeue_count", self.max_dequeue_count == 0, count),
            ("max_handling_time", self.max_handling_time.is_zero(), span),
            ("away", self.away.is_zero(), span),
            ("idle.most", self.idle.most.is_zero(), span),
        ] {
            if is_zero {
                return Err(Error::invalid(field, rule));
            }
        }
        self.away = self.away.min(MAX_SLEEP);
        self.idle.most = self.idle.most.min(MAX_SLEEP);
        limits.check_visibility(self.visibility_timeout)?;
        if self.dequeue_batch_size > limits.batch {
            tracing::warn!(
                %queue, asked = self.dequeue_batch_size, limit = limits.batch,
                "dequeue_batch_size is above the queue's limit for one get; using the limit"
            );
            self.dequeue_batch_size = limits.batch;
        }
        Ok(self)
    }
}
