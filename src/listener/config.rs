//! How a listener behaves.

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use super::budget::Budget;
use crate::{
    error::{Error, Result},
    queue::{QueueLimits, WorkQueue},
    scaling::{IdleBackoff, ScalePolicy, StepPolicy},
    words::{GroupName, Limits, ListenerId, SubscribeOptions},
};

/// How a listener behaves.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// Messages of one get, and those that a task holds at most: its places. At least 1; more than
    /// the queue's own limit are never got at once. A task gets more when half of its places are
    /// free, so a slow message keeps its own place only; where messages are handled in batches, or
    /// with a [`dequeue_interval`](Self::dequeue_interval), when all are.
    pub dequeue_batch_size: usize,
    /// Messages of one task that are handled at the same time; 0 is the whole batch.
    pub concurrency: usize,
    /// The pause of a task between two batches.
    pub dequeue_interval: Duration,
    /// For how long a message is hidden that was got. Renewed while it is handled, so it need not
    /// cover the handling: it is how long a message of a process that died stays away. Renewed after
    /// a third of it, where that takes long after half of it, each time with a sixth of it to succeed.
    pub visibility_timeout: Duration,
    /// A handler that takes longer has failed: it is told, and the message is handed out again.
    pub max_handling_time: Duration,
    /// After so many tries a message goes to the poison queue, where there is one.
    ///
    /// A try is a get, as queues count these, but for those that came to no try: the body could not
    /// be had for a reason that passes, such as a claim check's blob store that is away, the handler
    /// [postponed](super::Postponed) it, its turn did not come, or a shutdown had no time for it. The
    /// queues of this crate take such a get back from the count
    /// ([`release_untried`](crate::queue::WorkQueue::release_untried)). On others, Azure's among
    /// them, a listener remembers its own gets of 16,384 messages at least, the latest, until it
    /// ends; those of other listeners and of earlier processes count in full. Therefore a message
    /// that was got more often has one try here all the same, by itself where messages are handled
    /// in batches.
    ///
    /// Without any try goes only what may have ended the process of each listener that had it: a
    /// message that was got more than 20 times as often, that is old enough for as many
    /// [`visibility_timeout`](Self::visibility_timeout)s, and that no try of this listener has ended
    /// for.
    pub max_dequeue_count: u32,
    /// The wait before a message is handed out again after a handler failed: up to `0` the first
    /// time, doubled each time, never over `1`.
    pub retry: (Duration, Duration),
    /// When an idle task looks again, where no relay tells it.
    pub idle: IdleBackoff,
    /// The longest sleep of the task that stays while the relay is away; a day at most.
    pub away: Duration,
    /// Dequeue tasks at most.
    pub max_tasks: usize,
    /// How many tasks a depth needs.
    pub policy: Arc<dyn ScalePolicy>,
    /// What the listeners of a process share.
    pub budget: Budget,
    /// How long a shutdown waits for the handlers.
    pub grace: Duration,
    /// How long a handler goes on that was told to end, by [`Delivery::lost`], because it takes too
    /// long or because the grace of a shutdown is over; the message stays hidden for as long.
    ///
    /// [`Delivery::lost`]: super::Delivery::lost
    pub wind_down: Duration,
    /// Seeds the listener's chance; `None` draws it from the system.
    pub seed: Option<u64>,
}

/// A longer sleep would be the same as not to look.
const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 3600);

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            // Half of what Azure allows: few calls under load, and a slow handler does not keep
            // too many messages from the other tasks.
            dequeue_batch_size: 16,
            concurrency: 0,
            dequeue_interval: Duration::ZERO,
            visibility_timeout: Limits::VISIBILITY,
            max_handling_time: Duration::from_secs(3600),
            // As Azure Functions and Service Bus have it, roughly.
            max_dequeue_count: 5,
            retry: (Duration::from_secs(1), Duration::from_secs(300)),
            idle: IdleBackoff::default(),
            away: Duration::from_secs(30),
            max_tasks: 100,
            policy: Arc::new(StepPolicy::default()),
            budget: Budget::unlimited(),
            grace: Duration::from_secs(30),
            // For a last word to whatever works for it; who needs longer says so.
            wind_down: Duration::from_secs(2),
            seed: None,
        }
    }
}

impl ListenerConfig {
    /// Makes the options of a subscription for a listener with this configuration: a member of the
    /// queue's [group](WorkQueue::listener_group), so that the listeners of one queue share its
    /// wake-ups, and as many of them are woken as there is work for. Set
    /// [`group`](SubscribeOptions::group) to `None` for a listener that is to be told of every one,
    /// because it is the only one for what it does.
    ///
    /// A member's capacity is [`max_tasks`](Self::max_tasks) times the messages that a task handles at
    /// the same time: the next member is woken for what is beyond it.
    pub fn subscription(&self, listener_id: ListenerId, queue: &dyn WorkQueue) -> SubscribeOptions {
        let options = SubscribeOptions::new(listener_id, [queue.address()]);
        self.member(options, Some(queue.listener_group()))
    }

    /// Makes the options of one subscription for [`Listeners`](super::Listeners) of several queues: a
    /// member of a group of those that read the very same queues.
    pub fn subscription_of(
        &self,
        listener_id: ListenerId,
        queues: &[Arc<dyn WorkQueue>],
    ) -> SubscribeOptions {
        let mut groups: Vec<_> = queues.iter().map(|queue| queue.listener_group()).collect();
        groups.sort_unstable();
        let mut hasher = DefaultHasher::new();
        groups.hash(&mut hasher);
        let group = GroupName::new(&format!("listeners-{:016x}", hasher.finish()));
        let addresses = queues.iter().map(|queue| queue.address());
        // The name keeps the rule.
        self.member(SubscribeOptions::new(listener_id, addresses), group.ok())
    }

    fn member(&self, options: SubscribeOptions, group: Option<GroupName>) -> SubscribeOptions {
        let tasks = self.max_tasks.min(self.budget.slots());
        let capacity = tasks.saturating_mul(self.handled_at_once());
        SubscribeOptions {
            group,
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
            visibility_timeout: self.visibility_timeout,
            ..options
        }
    }

    /// Returns how many messages a task handles at the same time.
    pub(super) fn handled_at_once(&self) -> usize {
        match self.concurrency {
            0 => self.dequeue_batch_size,
            some => some.min(self.dequeue_batch_size),
        }
    }

    /// Checks it against a queue, and caps what may be capped.
    pub(super) fn fit(mut self, queue: &dyn WorkQueue) -> Result<Self> {
        let limits: QueueLimits = queue.limits();
        for (field, count) in [
            ("dequeue_batch_size", self.dequeue_batch_size),
            ("max_tasks", self.max_tasks),
            ("max_dequeue_count", self.max_dequeue_count as usize),
        ] {
            if count == 0 {
                return Err(Error::invalid(field, "must be at least 1"));
            }
        }
        for (field, span) in [
            ("max_handling_time", self.max_handling_time),
            ("away", self.away),
            ("idle.most", self.idle.most),
        ] {
            if span.is_zero() {
                return Err(Error::invalid(field, "must be above zero"));
            }
        }
        for (field, span) in [("away", &mut self.away), ("idle.most", &mut self.idle.most)] {
            if *span > LONGEST_SLEEP {
                tracing::warn!(%queue, field, "a task that is to look sleeps for a day at most");
                *span = LONGEST_SLEEP;
            }
        }
        limits.check_visibility(self.visibility_timeout)?;
        if self.dequeue_batch_size > limits.batch {
            tracing::warn!(
                %queue, asked = self.dequeue_batch_size, limit = limits.batch,
                "dequeue_batch_size is above what the queue gives at once; getting fewer"
            );
            self.dequeue_batch_size = limits.batch;
        }
        Ok(self)
    }
}
