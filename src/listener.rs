//! The auto-scaling queue listener: no dequeue task while there is no work, as many as needed after
//! a wake-up, and no stranded message.
//!
//! A [`Listener`] reads one queue. With wake-ups, from a relay over the network or in this process,
//! it sleeps without a single call to the queue until a wake-up arrives. While wake-ups cannot
//! arrive, it polls, less and less often. It knows neither client nor relay: it takes any [`Wakes`]
//! and any
//! [`Notify`].

pub(crate) mod attempts;
mod batch;
mod budget;
mod config;
#[cfg(feature = "console")]
mod console;
mod delivery;
mod dequeue;
mod handler;
mod hooks;
mod listeners;
mod monitor;
mod poison;
#[cfg(feature = "policy-file")]
mod policy_file;
mod redrive;
mod shared;
mod split;
mod state;
mod stream;
mod supervisor;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc, sync::atomic::Ordering, time::Duration};

use serde::de::DeserializeOwned;

#[cfg(feature = "console")]
pub use self::console::ListenerConsole;
#[cfg(feature = "policy-file")]
pub use self::policy_file::PolicyFile;
use self::{
    batch::Handlers,
    hooks::{AnyHooks, CatchPanics, NoHooks},
    shared::{Parts, Shared},
    supervisor::{RelayLink, Supervisor},
};
pub use self::{
    batch::{BatchFailures, BatchHandler},
    budget::Budget,
    config::ListenerConfig,
    handler::{
        Delivery, Handler, HandlerError, HandlerResult, Outcome, Postponed, Rejected, RetryAfter,
    },
    hooks::{Action, HandlingEnd, Hooks, ListenerError},
    listeners::{Listeners, ListenersBuilder},
    monitor::ListenerMonitor,
    poison::PoisonedMessage,
    redrive::{RedriveOptions, Redriven, redrive},
    state::{ListenerStats, QueryState},
    stream::{Messages, Received},
};
pub use crate::scaling::ListenerMode;
use crate::{
    error::{Error, ErrorKind, Result},
    fault::Fault,
    queue::{WorkQueue, json},
    scaling::{Scaler, ScalerConfig},
    task::Scope,
    words::{Notify, Wakes},
};

/// Reads a queue: gets messages, has them handled, and deletes what was handled.
///
/// Dropping it ends everything at once; messages that are being handled are seen again after their
/// visibility time-out. [`Listener::shutdown`] finishes or gives back what it holds.
///
/// ```
/// use reveille::{listener::{Delivery, Listener}, queue::{MemoryQueue, NewMessage, WorkQueue}};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let queue = std::sync::Arc::new(MemoryQueue::new("local/jobs".parse()?));
/// queue.put(vec![NewMessage::new("hello")]).await?;
/// let (done, mut seen) = tokio::sync::mpsc::channel(1);
/// let listener = Listener::builder(queue)
///     .start(move |job: Delivery| {
///         let done = done.clone();
///         async move { Ok(done.send(job.message.body).await?) }
///     })
///     .await?;
/// assert_eq!(seen.recv().await.unwrap(), "hello");
/// listener.shutdown().await;
/// # Ok::<(), reveille::Error>(())
/// # }).unwrap();
/// ```
pub struct Listener {
    shared: Arc<Shared>,
    tasks: Arc<Scope>,
    supervisor: Scope,
}

/// Builds a listener; see [`Listener::builder`].
pub struct ListenerBuilder {
    queue: Arc<dyn WorkQueue>,
    wakes: Option<Box<dyn Wakes>>,
    publisher: Option<Arc<dyn Notify>>,
    poison: Option<Arc<dyn WorkQueue>>,
    hooks: AnyHooks,
    config: ListenerConfig,
    /// The maximum number of messages that a stream gets before the reader takes them.
    prefetch: Option<usize>,
    is_checked: bool,
}

/// The start of a listener waits no longer for the queue's answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to release messages at a shutdown, even without a grace period.
const LAST_CALLS_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the last reports to the relay at a shutdown.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

impl Listener {
    /// Makes a builder for a listener on a queue.
    pub fn builder(queue: Arc<dyn WorkQueue>) -> ListenerBuilder {
        ListenerBuilder {
            queue,
            wakes: None,
            publisher: None,
            poison: None,
            hooks: Arc::new(NoHooks),
            config: ListenerConfig::default(),
            prefetch: None,
            is_checked: false,
        }
    }

    /// Starts `count` more dequeue tasks, up to the limit. They end when there is no work.
    pub fn start_listener(&self, count: usize) {
        let woken_early = self
            .shared
            .with_core(|core, now| core.scaler.start_more(count, now));
        self.shared.notify_changed(woken_early);
    }

    /// Gets no more messages until [`Listener::resume`]; messages that it holds are handled to
    /// their end. Then it ends its stream, so that the relay wakes other listeners instead. Until
    /// the last message is handled, a wake-up that a [group](crate::SubscribeOptions::group) shares
    /// may go to this listener first, and to another member a second later.
    pub fn pause(&self) {
        self.shared.with_core(|core, _| core.scaler.pause());
        self.shared.changed.notify_one();
    }

    /// Continues after [`Listener::pause`]: polls the queue at once, and receives wake-ups again.
    pub fn resume(&self) {
        let woken_early = self.shared.with_core(|core, now| core.scaler.resume(now));
        self.shared.notify_changed(woken_early);
    }

    /// Sets the maximum number of dequeue tasks from now on, instead of
    /// [`ListenerConfig::max_tasks`]; never more than the [`Budget`] has slots. Surplus tasks end when
    /// they have handled their messages. The relay still uses the capacity of the subscription.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where it is 0; use [`Listener::pause`] for no tasks.
    pub fn set_max_tasks(&self, max_tasks: usize) -> Result<()> {
        if max_tasks == 0 {
            return Err(Error::invalid("max_tasks", "must be at least 1"));
        }
        let most = max_tasks.min(self.shared.config.budget.slots());
        let woken_early = self
            .shared
            .with_core(|core, now| core.scaler.set_max_tasks(most, now));
        self.shared.notify_changed(woken_early);
        Ok(())
    }

    /// Returns the present state, with a depth that is read from the queue.
    pub async fn query_state(&self) -> QueryState {
        let depth = tokio::time::timeout(CHECK_TIMEOUT, self.shared.queue.depth()).await;
        let depth = depth.ok().and_then(Result::ok);
        if let Some(depth) = depth {
            self.shared.counters.depth.store(depth, Ordering::Relaxed);
        }
        QueryState {
            current_queue_depth: depth,
            ..self.state()
        }
    }

    /// Returns the present state without a depth: makes no call to the queue.
    pub fn state(&self) -> QueryState {
        self.shared.state()
    }

    /// Returns a monitor of this listener, for metrics.
    pub fn monitor(&self) -> ListenerMonitor {
        ListenerMonitor::new(&self.shared)
    }

    /// Gets no more messages and waits for the handlers, at most for [`ListenerConfig::grace`].
    /// Then it tells running handlers to end within [`ListenerConfig::wind_down`], releases the
    /// messages that are not handled by then, and reports to the relay.
    ///
    /// Returns the listener's totals.
    pub async fn shutdown(self) -> ListenerStats {
        self.shared.stop();
        let ended = tokio::time::timeout(self.shared.config.grace, self.tasks.ended()).await;
        if ended.is_err() {
            self.shared.abandoning.cancel();
            // Bounded: the handlers' wind-down and a few calls to the queue remain.
            let config = &self.shared.config;
            let last = config
                .wind_down
                .saturating_add(config.grace.max(LAST_CALLS_TIMEOUT));
            let _ = tokio::time::timeout(last, self.tasks.ended()).await;
        }
        let _ = tokio::time::timeout(LAST_REPORT_TIMEOUT, self.reports_answered()).await;
        self.supervisor.shutdown().await;
        self.shared.counters.stats()
    }

    /// Waits until all reports are answered.
    async fn reports_answered(&self) {
        while self
            .shared
            .with_core(|core, now| core.scaler.has_pending_report(now))
        {
            self.shared.changed.notify_one();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl ListenerBuilder {
    /// Sets the wake-ups; without them the listener polls. Make their subscription with
    /// [`ListenerConfig::subscription`].
    ///
    /// They must be of one address. For a queue with several addresses, such as
    /// [`Partitioned`](crate::queue::Partitioned), start [`Listeners`] for its queues.
    #[must_use]
    pub fn wakes(mut self, wakes: impl Wakes) -> Self {
        self.wakes = Some(Box::new(wakes));
        self
    }

    /// Sets the publisher that notifies the poison queue's listeners.
    #[must_use]
    pub fn publisher(mut self, publisher: Arc<dyn Notify>) -> Self {
        self.publisher = Some(publisher);
        self
    }

    /// Sets the queue for messages that cannot be handled. Without it such messages are retried for
    /// ever, less and less often.
    #[must_use]
    pub fn poison(mut self, queue: Arc<dyn WorkQueue>) -> Self {
        self.poison = Some(queue);
        self
    }

    /// Sets hooks that observe the listener and decide what an idle task does.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Arc::new(CatchPanics::new(hooks));
        self
    }

    /// Sets the configuration.
    #[must_use]
    pub fn config(mut self, config: ListenerConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts the listener; needs a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the configuration breaks a rule, or where there are wake-ups and
    /// the queue has several addresses, or where the poison queue has the queue's own address;
    /// [`ErrorKind::NotFound`] where there is no such queue, [`ErrorKind::Denied`] where the queue
    /// refuses the credentials. A queue that cannot be reached at the moment is no error.
    pub async fn start(self, handler: impl Handler) -> Result<Listener> {
        self.launch(Handlers::Each(Arc::new(handler))).await
    }

    /// Starts the listener with a handler that receives all messages of a get at once;
    /// [`ListenerConfig::concurrency`] does not apply.
    ///
    /// # Errors
    /// As [`ListenerBuilder::start`].
    pub async fn start_batches(mut self, handler: impl BatchHandler) -> Result<Listener> {
        self.config.concurrency = 0;
        self.launch(Handlers::Together(Arc::new(handler))).await
    }

    /// Starts the listener with a handler of values that messages hold as JSON. A message that does
    /// not parse as `T` is [`Rejected`]: it goes to the poison queue at once, with the reason, and
    /// the handler does not see it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use reveille::{listener::{Delivery, Listener}, queue::{MemoryQueue, NewMessage, WorkQueue}};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Order {
    ///     number: u32,
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let orders = Arc::new(MemoryQueue::new("local/orders".parse()?));
    /// orders.put(vec![NewMessage::new(r#"{"number": 7}"#)]).await?;
    /// let (done, mut numbers) = tokio::sync::mpsc::channel(1);
    /// let listener = Listener::builder(orders)
    ///     .start_json(move |order: Order, _: Delivery| {
    ///         let done = done.clone();
    ///         async move { Ok(done.send(order.number).await?) }
    ///     })
    ///     .await?;
    /// assert_eq!(numbers.recv().await, Some(7));
    /// listener.shutdown().await;
    /// # Ok::<(), reveille::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`ListenerBuilder::start`].
    pub async fn start_json<T, F, Fut>(self, handler: F) -> Result<Listener>
    where
        T: DeserializeOwned,
        F: Fn(T, Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send,
    {
        self.start(json_handler(handler)).await
    }

    /// Checks the settings, without a call to the queue.
    fn validate(&self) -> Result<ListenerConfig> {
        let config = self.config.clone().validate(&*self.queue)?;
        if self.wakes.is_some() {
            check_addresses(&*self.queue)?;
        }
        if let Some(poison) = &self.poison {
            check_poison(&*self.queue, &**poison)?;
        }
        Ok(config)
    }

    async fn launch(self, handlers: Handlers) -> Result<Listener> {
        let config = self.validate()?;
        if !self.is_checked {
            check(&*self.queue).await?;
        }
        let scaler = Scaler::new(
            ScalerConfig {
                max_tasks: config.max_tasks.min(config.budget.slots()),
                idle: config.idle,
                away: config.away,
                empty_is_certain: self.queue.empty_is_certain(),
                fault: Fault::NONE,
            },
            self.wakes.is_some(),
        );
        let parts = Parts {
            queue: self.queue,
            poison: self.poison,
            publisher: self.publisher,
            handlers,
            hooks: self.hooks,
            config,
            prefetch: self.prefetch,
        };
        let (shared, tasks) = (Arc::new(Shared::new(parts, scaler)), Arc::new(Scope::new()));
        let supervisor = Scope::new();
        let run = Supervisor {
            shared: Arc::clone(&shared),
            scope: Arc::clone(&tasks),
            relay: self.wakes.map(RelayLink::new),
        };
        supervisor.spawn(run.run());
        Ok(Listener {
            shared,
            tasks,
            supervisor,
        })
    }
}

/// Wraps a handler of JSON values as a handler of messages.
fn json_handler<T, F, Fut>(handler: F) -> impl Handler
where
    T: DeserializeOwned,
    F: Fn(T, Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult> + Send,
{
    move |delivery: Delivery| {
        let value = json::decode(&delivery.message.body);
        let handling = value.map(|value| handler(value, delivery));
        async move { handling.map_err(Rejected::because)?.await }
    }
}

/// Wake-ups of one address do not cover messages under another: such a listener would sleep beside
/// a full queue.
fn check_addresses(queue: &dyn WorkQueue) -> Result<()> {
    let addresses = queue.addresses();
    if addresses.len() < 2 {
        return Ok(());
    }
    let rule = format_args!(
        "`{queue}` has {} addresses, and a listener is woken for one: start a listener for each of its \
         queues, with clones of one `Budget`",
        addresses.len()
    );
    Err(Error::invalid("wakes", rule))
}

/// A message that is moved to its own queue would return each time in one more envelope.
fn check_poison(queue: &dyn WorkQueue, poison: &dyn WorkQueue) -> Result<()> {
    let own = queue.addresses();
    let Some(same) = poison.addresses().into_iter().find(|one| own.contains(one)) else {
        return Ok(());
    };
    let rule =
        format_args!("must be a queue of another address than `{same}`, the address that is read");
    Err(Error::invalid("poison", rule))
}

/// Checks that the queue exists and accepts the credentials.
async fn check(queue: &dyn WorkQueue) -> Result<()> {
    let Ok(depth) = tokio::time::timeout(CHECK_TIMEOUT, queue.depth()).await else {
        tracing::warn!(%queue, "the queue does not answer; the listener tries again");
        return Ok(());
    };
    match depth.map_err(|error| (error.kind(), error)) {
        Ok(_) => Ok(()),
        Err((ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Invalid, error)) => Err(error),
        Err((_, error)) => {
            tracing::warn!(%queue, %error, "the queue cannot be read; the listener tries again");
            Ok(())
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

impl fmt::Debug for ListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerBuilder")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
