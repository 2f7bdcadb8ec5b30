//! The builder of a listener: its parts, the checks before the start, and the start.

use std::{fmt, sync::Arc};

use serde::de::DeserializeOwned;

use super::{
    BatchHandler, CHECK_TIMEOUT, Delivery, Handler, HandlerResult, Hooks, Listener, ListenerConfig,
    Rejected,
    batch::Handlers,
    hooks::{AnyHooks, CatchPanics, NoHooks},
    shared::Shared,
    supervisor::{RelayLink, Supervisor},
};
use crate::{
    base::task::Scope,
    error::{Error, ErrorKind, Result},
    queue::{WorkQueue, json},
    types::{Notifier, WakeStream},
};

/// Builds a listener; see [`Listener::builder`].
pub struct ListenerBuilder {
    pub(super) queue: Arc<dyn WorkQueue>,
    pub(super) wakes: Option<Box<dyn WakeStream>>,
    pub(super) publisher: Option<Arc<dyn Notifier>>,
    pub(super) poison: Option<Arc<dyn WorkQueue>>,
    pub(super) hooks: AnyHooks,
    pub(super) config: ListenerConfig,
    pub(super) is_checked: bool,
}

impl ListenerBuilder {
    pub(super) fn new(queue: Arc<dyn WorkQueue>) -> Self {
        Self {
            queue,
            wakes: None,
            publisher: None,
            poison: None,
            hooks: Arc::new(NoHooks),
            config: ListenerConfig::default(),
            is_checked: false,
        }
    }

    /// Sets the wake-ups; without them the listener polls. Make their subscription with
    /// [`ListenerConfig::subscription`].
    #[must_use]
    pub fn wakes(mut self, wakes: impl WakeStream) -> Self {
        self.wakes = Some(Box::new(wakes));
        self
    }

    /// Sets the publisher that notifies the poison queue's listeners.
    #[must_use]
    pub fn publisher(mut self, publisher: Arc<dyn Notifier>) -> Self {
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
    /// [`ErrorKind::Invalid`] where the configuration breaks a rule, or where the poison queue has
    /// the queue's own address;
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
    pub async fn start_batches(self, handler: impl BatchHandler) -> Result<Listener> {
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
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> reveille::Result<()> {
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
    /// # Ok(())
    /// # }
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
    pub(super) fn validate(&self) -> Result<ListenerConfig> {
        let config = self.config.clone().validate(&*self.queue)?;
        if let Some(poison) = &self.poison {
            check_poison(&*self.queue, &**poison)?;
        }
        Ok(config)
    }

    pub(super) async fn launch(mut self, handlers: Handlers) -> Result<Listener> {
        if matches!(handlers, Handlers::Together(_)) {
            self.config.concurrency = 0;
        }
        self.config = self.validate()?;
        if !self.is_checked {
            check(&*self.queue).await?;
        }
        let relay = self.wakes.take().map(RelayLink::new);
        let shared = Arc::new(Shared::new(self, handlers, relay.is_some()));
        let tasks = Arc::new(Scope::new());
        let supervisor = Scope::new();
        let run = Supervisor {
            shared: Arc::clone(&shared),
            scope: Arc::clone(&tasks),
            relay,
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
pub(super) fn json_handler<T, F, Fut>(handler: F) -> impl Handler
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

/// A message that is moved to its own queue would return each time in one more envelope.
fn check_poison(queue: &dyn WorkQueue, poison: &dyn WorkQueue) -> Result<()> {
    let own = queue.address();
    if poison.address() != own {
        return Ok(());
    }
    let rule =
        format_args!("must be a queue of another address than `{own}`, the address that is read");
    Err(Error::invalid("poison", rule))
}

/// Checks that the queue exists and accepts the credentials.
pub(super) async fn check(queue: &dyn WorkQueue) -> Result<()> {
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

impl fmt::Debug for ListenerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerBuilder")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
