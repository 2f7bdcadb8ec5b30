//! The builder of a listener: its parts, the checks before the start, and the start.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{
    CHECK_TIMEOUT, Delivery, Handler, HandlerResult, Hooks, Listener, ListenerConfig, Rejected,
    handler::{AnyHandler, erased},
    hooks::NoHooks,
    shared::{Shared, in_time},
    supervisor::{RelayLink, Supervisor},
};
use crate::{
    base::{task::Scope, text::opaque_debug},
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
    pub(super) hooks: Arc<dyn Hooks>,
    pub(super) config: ListenerConfig,
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
        self.hooks = Arc::new(hooks);
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
    pub async fn start(mut self, handler: impl Handler) -> Result<Listener> {
        self.validate()?;
        reach(&*self.queue).await?;
        Ok(self.spawn(erased(handler)))
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
        self.start(move |delivery: Delivery| {
            let value = json::decode(&delivery.message.body);
            let handling = value.map(|value| handler(value, delivery));
            async move { handling.map_err(Rejected::because)?.await }
        })
        .await
    }

    /// Checks and completes the settings, without a call to the queue.
    pub(super) fn validate(&mut self) -> Result<()> {
        self.config = self.config.clone().validate(&*self.queue)?;
        let own = self.queue.address();
        // A message that is moved to its own queue would return each time in one more envelope.
        if self
            .poison
            .as_ref()
            .is_some_and(|poison| poison.address() == own)
        {
            let rule = format_args!(
                "must be a queue of another address than `{own}`, the address that is read"
            );
            return Err(Error::invalid("poison", rule));
        }
        Ok(())
    }

    pub(super) fn spawn(mut self, handler: AnyHandler) -> Listener {
        let relay = self.wakes.take().map(RelayLink::new);
        let shared = Arc::new(Shared::new(self, handler, relay.is_some()));
        let (tasks, supervisor) = (Arc::new(Scope::new()), Scope::new());
        let run = Supervisor {
            shared: Arc::clone(&shared),
            scope: Arc::clone(&tasks),
            relay,
        };
        supervisor.spawn(run.run());
        Listener {
            shared,
            tasks,
            supervisor,
        }
    }
}

/// Checks that the queue exists and accepts the credentials.
pub(super) async fn reach(queue: &dyn WorkQueue) -> Result<()> {
    match in_time(CHECK_TIMEOUT, "the first depth query", queue.depth()).await {
        Ok(_) => {}
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Invalid
            ) =>
        {
            return Err(error);
        }
        Err(error) => {
            tracing::warn!(%queue, %error, "the queue cannot be read; the listener tries again");
        }
    }
    Ok(())
}

opaque_debug!(ListenerBuilder: queue);
