//! A listener for several queues: one subscription, one handler, one budget.

use std::{collections::HashSet, fmt, sync::Arc};

use futures_util::future::{join_all, try_join_all};
use serde::de::DeserializeOwned;

use super::{
    BatchHandler, Delivery, Handler, HandlerResult, Hooks, Listener, ListenerBuilder,
    ListenerConfig, ListenerStats, QueryState, batch::Handlers, builder::json_handler,
    handler::erased, hooks::NoHooks, split::split,
};
use crate::{
    base::task::Scope,
    error::{Error, Result},
    queue::WorkQueue,
    types::{Notifier, QueueAddress, WakeStream},
};

/// Reads several queues with one handler: a [`Listener`] for each of them, on one stream of
/// wake-ups.
///
/// ```
/// use std::sync::Arc;
/// use reveille::{
///     listener::{Budget, Delivery, ListenerConfig, Listeners},
///     queue::{MemoryQueue, NewMessage, WorkQueue},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> reveille::Result<()> {
/// let queues = ["local/orders", "local/bills"].map(|address| {
///     Arc::new(MemoryQueue::new(address.parse().expect("an address"))) as Arc<dyn WorkQueue>
/// });
/// queues[1].put(vec![NewMessage::new("hello")]).await?;
/// let (done, mut seen) = tokio::sync::mpsc::channel(1);
/// let listeners = Listeners::builder(queues)
///     .config(ListenerConfig {
///         budget: Budget::new(8),
///         ..ListenerConfig::default()
///     })
///     .start(move |job: Delivery| {
///         let done = done.clone();
///         async move { Ok(done.send(job.queue).await?) }
///     })
///     .await?;
/// assert_eq!(seen.recv().await.expect("a job").queue_name(), "bills");
/// listeners.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// Every queue has separate tasks, up to [`ListenerConfig::max_tasks`]; give the configuration a
/// [`Budget`](super::Budget) to bound those of all queues together. [`Delivery::queue`] says where a
/// message came from.
///
/// Dropping it ends everything at once, as with a [`Listener`].
#[derive(Debug)]
pub struct Listeners {
    each: Vec<Listener>,
    splitting: Scope,
}

/// Returns the poison queue of a queue, where it has one.
type PoisonOf = dyn Fn(&QueueAddress) -> Option<Arc<dyn WorkQueue>> + Send;

/// Builds [`Listeners`].
pub struct ListenersBuilder {
    queues: Vec<Arc<dyn WorkQueue>>,
    wakes: Option<Box<dyn WakeStream>>,
    publisher: Option<Arc<dyn Notifier>>,
    poison: Box<PoisonOf>,
    hooks: Arc<dyn Hooks>,
    config: ListenerConfig,
}

impl Listeners {
    /// Makes a builder for listeners on these queues; each has one address.
    pub fn builder(queues: impl IntoIterator<Item = Arc<dyn WorkQueue>>) -> ListenersBuilder {
        ListenersBuilder {
            queues: queues.into_iter().collect(),
            wakes: None,
            publisher: None,
            poison: Box::new(|_| None),
            hooks: Arc::new(NoHooks),
            config: ListenerConfig::default(),
        }
    }

    /// Returns the listener of each queue, in the order in which the queues were given.
    pub fn each(&self) -> &[Listener] {
        &self.each
    }

    /// Returns the present state of each, without depths: makes no call to a queue.
    pub fn states(&self) -> Vec<(QueueAddress, QueryState)> {
        let state = |one: &Listener| (one.shared.queue.address().clone(), one.state());
        self.each.iter().map(state).collect()
    }

    /// Pauses all of them, as [`Listener::pause`] does. The stream ends when all have handled their
    /// messages. A single paused listener keeps it open for the others.
    pub fn pause(&self) {
        self.each.iter().for_each(Listener::pause);
    }

    /// Resumes all of them.
    pub fn resume(&self) {
        self.each.iter().for_each(Listener::resume);
    }

    /// Ends all of them at the same time, as [`Listener::shutdown`] does; returns the totals of
    /// each, in the order in which the queues were given. The stream ends with the last listener.
    /// Until then a group may wake a listener that has ended already first, and another member a
    /// second later.
    pub async fn shutdown(self) -> Vec<ListenerStats> {
        let stats = join_all(self.each.into_iter().map(Listener::shutdown)).await;
        self.splitting.shutdown().await;
        stats
    }
}

impl ListenersBuilder {
    /// Sets the wake-ups, which must cover all queues; without them the listeners poll. Make their
    /// subscription with [`ListenerConfig::subscription_of`].
    #[must_use]
    pub fn wakes(mut self, wakes: impl WakeStream) -> Self {
        self.wakes = Some(Box::new(wakes));
        self
    }

    /// Sets the publisher that notifies the poison queues' listeners.
    #[must_use]
    pub fn publisher(mut self, publisher: Arc<dyn Notifier>) -> Self {
        self.publisher = Some(publisher);
        self
    }

    /// Sets the function that returns the poison queue of each queue; see
    /// [`ListenerBuilder::poison`](super::ListenerBuilder::poison).
    #[must_use]
    pub fn poison(
        mut self,
        poison: impl Fn(&QueueAddress) -> Option<Arc<dyn WorkQueue>> + Send + 'static,
    ) -> Self {
        self.poison = Box::new(poison);
        self
    }

    /// Sets hooks that observe all listeners.
    #[must_use]
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Arc::new(hooks);
        self
    }

    /// Sets the configuration of each listener.
    #[must_use]
    pub fn config(mut self, config: ListenerConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts the listeners; needs a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where there is no queue or two have one
    /// address; else as [`ListenerBuilder::start`](super::ListenerBuilder::start), for the first
    /// queue that fails. Then no listener is started.
    pub async fn start(self, handler: impl Handler) -> Result<Listeners> {
        self.start_each(Handlers::Each(erased(handler))).await
    }

    /// As [`ListenersBuilder::start`], with a handler of batches. A batch holds messages of one
    /// queue.
    ///
    /// # Errors
    /// As [`ListenersBuilder::start`].
    pub async fn start_batches(self, handler: impl BatchHandler) -> Result<Listeners> {
        self.start_each(Handlers::together(handler)).await
    }

    /// As [`ListenersBuilder::start`], with a handler of JSON values; see
    /// [`ListenerBuilder::start_json`](super::ListenerBuilder::start_json).
    ///
    /// # Errors
    /// As [`ListenersBuilder::start`].
    pub async fn start_json<T, F, Fut>(self, handler: F) -> Result<Listeners>
    where
        T: DeserializeOwned,
        F: Fn(T, Delivery) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult> + Send,
    {
        self.start(json_handler(handler)).await
    }

    async fn start_each(self, handlers: Handlers) -> Result<Listeners> {
        let addresses = self.queues.iter().map(|one| one.address().clone());
        let addresses: Vec<QueueAddress> = addresses.collect();
        if addresses.is_empty() {
            return Err(Error::invalid("queues", "must be at least one"));
        }
        let mut known = HashSet::new();
        if let Some(twice) = addresses.iter().find(|one| !known.insert(*one)) {
            let rule = format_args!("must have an address each, but two are `{twice}`");
            return Err(Error::invalid("queues", rule));
        }
        let splitting = Scope::new();
        let parts = self.wakes.map(|wakes| split(wakes, addresses, &splitting));
        let mut parts = parts.into_iter().flatten();
        let mut builders = Vec::new();
        for queue in self.queues {
            let mut builder = ListenerBuilder {
                poison: (self.poison)(queue.address()),
                queue,
                wakes: parts.next(),
                publisher: self.publisher.clone(),
                hooks: Arc::clone(&self.hooks),
                config: self.config.clone(),
            };
            builder.validate()?;
            builders.push(builder);
        }
        try_join_all(builders.iter().map(ListenerBuilder::reach)).await?;
        let spawn = |one: ListenerBuilder| one.spawn(handlers.clone());
        let each = builders.into_iter().map(spawn).collect();
        Ok(Listeners { each, splitting })
    }
}

impl fmt::Debug for ListenersBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenersBuilder")
            .field("queues", &self.queues)
            .finish_non_exhaustive()
    }
}
