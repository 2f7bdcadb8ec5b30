//! The auto-scaling queue listener: no dequeue task while there is no work, as many as are needed
//! when it is woken, and nothing stranded.
//!
//! A [`Listener`] reads one queue. Where it is given wake-ups, from a relay over the network or in
//! this process, it sleeps without a single call to the queue until one comes; where they cannot
//! come, it polls, less and less often, until they can again. Knows neither client nor relay: any
//! [`Wakes`] and any [`Notify`] will do.

pub(crate) mod attempts;
mod batch;
mod budget;
mod conductor;
mod config;
#[cfg(feature = "console")]
mod console;
mod delivery;
mod dequeue;
mod handler;
mod hooks;
mod monitor;
mod poison;
#[cfg(feature = "policy-file")]
mod policy_file;
mod redrive;
mod several;
mod shared;
mod split;
mod state;
mod stream;
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
    conductor::{Conductor, Hearing},
    hooks::{AnyHooks, Caught, NoHooks},
    shared::{Parts, Shared},
};
pub use self::{
    batch::{BatchFailures, BatchHandler},
    budget::Budget,
    config::ListenerConfig,
    handler::{
        Delivery, Handler, HandlerError, HandlerResult, Outcome, Postponed, Rejected, RetryAfter,
    },
    hooks::{Action, HandlingEnd, Hooks, ListenerError},
    monitor::ListenerMonitor,
    poison::PoisonedMessage,
    redrive::{RedriveOptions, Redriven, redrive},
    several::{Listeners, ListenersBuilder},
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
    conductor: Scope,
}

/// What a listener is to be made of; see [`Listener::builder`].
pub struct ListenerBuilder {
    queue: Arc<dyn WorkQueue>,
    wakes: Option<Box<dyn Wakes>>,
    publisher: Option<Arc<dyn Notify>>,
    poison: Option<Arc<dyn WorkQueue>>,
    hooks: AnyHooks,
    config: ListenerConfig,
    /// Messages of a stream that are got before they are taken, at most.
    prefetch: Option<usize>,
    is_checked: bool,
}

/// A queue that does not answer is not waited for when a listener starts.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Messages are given back within this even where a shutdown has no grace.
const LAST_CALLS: Duration = Duration::from_secs(2);
/// What is left to say to the relay at the end is said within this.
const LAST_WORDS: Duration = Duration::from_secs(2);

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

    /// Starts `count` more dequeue tasks, in so far as there may be so many. None of them stays
    /// where there is nothing to do.
    pub fn start_listener(&self, count: usize) {
        let roused = self
            .shared
            .ask(|core, now| core.scaler.start_more(count, now));
        self.shared.stir(roused);
    }

    /// Gets nothing more until [`Listener::resume`]; messages that it holds are handled to their end.
    /// Then it ends its stream, so that the relay wakes other listeners instead. Until the last one is
    /// handled, a wake-up that a [group](crate::SubscribeOptions::group) shares may go to this listener
    /// first, and to another one a second later.
    pub fn pause(&self) {
        self.shared.ask(|core, _| core.scaler.pause());
        self.shared.stirred.notify_one();
    }

    /// Goes on after [`Listener::pause`]: looks into the queue at once, and hears of work again.
    pub fn resume(&self) {
        let roused = self.shared.ask(|core, now| core.scaler.resume(now));
        self.shared.stir(roused);
    }

    /// Sets how many dequeue tasks there may be from now on, instead of
    /// [`ListenerConfig::max_tasks`]; never more than the [`Budget`] has slots. Tasks beyond it end
    /// when they have handled what they hold. The relay goes on to reckon with the capacity that was
    /// stated when the listener subscribed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where it is 0: [`Listener::pause`] is the way to have none.
    pub fn set_max_tasks(&self, max_tasks: usize) -> Result<()> {
        if max_tasks == 0 {
            return Err(Error::invalid("max_tasks", "must be at least 1"));
        }
        let most = max_tasks.min(self.shared.config.budget.slots());
        let roused = self
            .shared
            .ask(|core, now| core.scaler.set_max_tasks(most, now));
        self.shared.stir(roused);
        Ok(())
    }

    /// Returns what it does just now; asks the queue for its depth.
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

    /// Returns what it does just now, without a depth: asks nobody.
    pub fn state(&self) -> QueryState {
        self.shared.state()
    }

    /// Returns what looks on at this listener, for its metrics.
    pub fn monitor(&self) -> ListenerMonitor {
        ListenerMonitor::new(&self.shared)
    }

    /// Gets nothing more, waits for the handlers, at most for [`ListenerConfig::grace`], tells those
    /// that still run to end within [`ListenerConfig::wind_down`], gives back what they have not
    /// handled by then, and tells the relay.
    ///
    /// Returns what it has done in all.
    pub async fn shutdown(self) -> ListenerStats {
        self.shared.stop();
        let ended = tokio::time::timeout(self.shared.config.grace, self.tasks.ended()).await;
        if ended.is_err() {
            self.shared.abandoning.cancel();
            // Bounded: what is left is what handlers do at last, and a few calls to the queue.
            let config = &self.shared.config;
            let last = config
                .wind_down
                .saturating_add(config.grace.max(LAST_CALLS));
            let _ = tokio::time::timeout(last, self.tasks.ended()).await;
        }
        let _ = tokio::time::timeout(LAST_WORDS, self.said()).await;
        self.conductor.shutdown().await;
        self.shared.counters.stats()
    }

    /// Waits until nothing is left to be reported.
    async fn said(&self) {
        while self.shared.ask(|core, now| core.scaler.has_to_say(now)) {
            self.shared.stirred.notify_one();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl ListenerBuilder {
    /// Hears of work by these wake-ups; without any it polls. Make them with
    /// [`ListenerConfig::subscription`].
    ///
    /// They are those of one address. On a queue of several, such as
    /// [`Partitioned`](crate::queue::Partitioned), start [`Listeners`] for its queues.
    #[must_use]
    pub fn wakes(mut self, wakes: impl Wakes) -> Self {
        self.wakes = Some(Box::new(wakes));
        self
    }

    /// Notifies the poison queue's listeners by this.
    #[must_use]
    pub fn publisher(mut self, publisher: Arc<dyn Notify>) -> Self {
        self.publisher = Some(publisher);
        self
    }

    /// Messages that cannot be handled go there. Without one they are handed out again for ever,
    /// less and less often.
    #[must_use]
    pub fn poison(mut self, queue: Arc<dyn WorkQueue>) -> Self {
        self.poison = Some(queue);
        self
    }

    /// Has a program hear of what happens, and decide what an idle task does.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Arc::new(Caught::new(hooks));
        self
    }

    /// Sets how it behaves.
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
    /// refuses the credentials. A queue that cannot be reached just now is no error.
    pub async fn start(self, handler: impl Handler) -> Result<Listener> {
        self.launch(Handlers::Each(Arc::new(handler))).await
    }

    /// Starts the listener with a handler that is handed all messages of a get at once;
    /// [`ListenerConfig::concurrency`] does not apply.
    ///
    /// # Errors
    /// As [`ListenerBuilder::start`].
    pub async fn start_batches(mut self, handler: impl BatchHandler) -> Result<Listener> {
        self.config.concurrency = 0;
        self.launch(Handlers::Together(Arc::new(handler))).await
    }

    /// Starts the listener with a handler of values that messages hold as JSON. A message that is no
    /// such value goes to the poison queue at once, with the reason, as one that is
    /// [`Rejected`]; the handler does not see it.
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
        self.start(of_json(handler)).await
    }

    /// Checks what can be checked without a call to the queue.
    fn fit(&self) -> Result<ListenerConfig> {
        let config = self.config.clone().fit(&*self.queue)?;
        if self.wakes.is_some() {
            check_addresses(&*self.queue)?;
        }
        if let Some(poison) = &self.poison {
            check_poison(&*self.queue, &**poison)?;
        }
        Ok(config)
    }

    async fn launch(self, handlers: Handlers) -> Result<Listener> {
        let config = self.fit()?;
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
        let conductor = Scope::new();
        let run = Conductor {
            shared: Arc::clone(&shared),
            scope: Arc::clone(&tasks),
            relay: self.wakes.map(Hearing::new),
        };
        conductor.spawn(run.run());
        Ok(Listener {
            shared,
            tasks,
            conductor,
        })
    }
}

/// Makes a handler of messages of one that handles what they hold as JSON.
fn of_json<T, F, Fut>(handler: F) -> impl Handler
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

/// Wake-ups of one address say nothing of messages under another: such a listener would sleep
/// beside a full queue.
fn check_addresses(queue: &dyn WorkQueue) -> Result<()> {
    let addresses = queue.addresses();
    if addresses.len() < 2 {
        return Ok(());
    }
    let rule = format_args!(
        "`{queue}` has {} addresses, and a listener hears of one: start a listener for each of its \
         queues, with clones of one `Budget`",
        addresses.len()
    );
    Err(Error::invalid("wakes", rule))
}

/// A message that goes to its own queue would come back each time with one more envelope around it.
fn check_poison(queue: &dyn WorkQueue, poison: &dyn WorkQueue) -> Result<()> {
    let own = queue.addresses();
    let Some(same) = poison.addresses().into_iter().find(|one| own.contains(one)) else {
        return Ok(());
    };
    let rule = format_args!(
        "must be a queue of another address than `{same}`, which is the one that is read"
    );
    Err(Error::invalid("poison", rule))
}

/// Asks the queue whether it is there and lets us in.
async fn check(queue: &dyn WorkQueue) -> Result<()> {
    let Ok(depth) = tokio::time::timeout(CHECK_TIMEOUT, queue.depth()).await else {
        tracing::warn!(%queue, "the queue gives no answer; the listener goes on trying");
        return Ok(());
    };
    match depth.map_err(|error| (error.kind(), error)) {
        Ok(_) => Ok(()),
        Err((ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Invalid, error)) => Err(error),
        Err((_, error)) => {
            tracing::warn!(%queue, %error, "the queue cannot be read; the listener goes on trying");
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
