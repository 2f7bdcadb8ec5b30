//! Listeners of several queues with one handler.

use std::{collections::HashSet, sync::Arc};

use futures_util::future::{join_all, try_join_all};

use super::{
    Handler, Listener, ListenerBuilder, ListenerStats, QueryState, builder::reach, handler::erased,
};
use crate::{
    error::{Error, Result},
    types::QueueAddress,
};

/// Reads several queues with one handler: a [`Listener`] for each of them.
///
/// ```
/// use std::sync::Arc;
/// use reveille::{
///     listener::{Budget, Delivery, Listener, ListenerConfig, Listeners},
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
/// let config = ListenerConfig {
///     budget: Budget::new(8),
///     ..ListenerConfig::default()
/// };
/// let builders = queues.map(|queue| Listener::builder(queue).config(config.clone()));
/// let listeners = Listeners::start(builders, move |job: Delivery| {
///     let done = done.clone();
///     async move { Ok(done.send(job.queue).await?) }
/// })
/// .await?;
/// assert_eq!(seen.recv().await.expect("a job").queue_name(), "bills");
/// listeners.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// Every queue has separate tasks, up to [`ListenerConfig::max_tasks`](super::ListenerConfig::max_tasks);
/// give the configurations one [`Budget`](super::Budget) to bound those of all queues together.
/// [`Delivery::queue`](super::Delivery::queue) says where a message came from.
///
/// Dropping it ends everything at once, as with a [`Listener`].
#[derive(Debug)]
pub struct Listeners(Vec<Listener>);

impl Listeners {
    /// Starts a listener of each builder; needs a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for no queue or for two of one address, and as
    /// [`ListenerBuilder::start`] for the first queue that fails. Then no listener is started.
    pub async fn start(
        builders: impl IntoIterator<Item = ListenerBuilder>,
        handler: impl Handler,
    ) -> Result<Self> {
        let mut builders: Vec<_> = builders.into_iter().collect();
        builders
            .iter_mut()
            .try_for_each(ListenerBuilder::validate)?;
        let addresses: HashSet<_> = builders.iter().map(|one| one.queue.address()).collect();
        if addresses.is_empty() || addresses.len() < builders.len() {
            let rule = "must be at least one, with an address each";
            return Err(Error::invalid("queues", rule));
        }
        drop(addresses);
        try_join_all(builders.iter().map(|one| reach(&*one.queue))).await?;
        let handler = erased(handler);
        let each = builders.into_iter();
        let each = each.map(|one| one.spawn(Arc::clone(&handler)));
        Ok(Self(each.collect()))
    }

    /// Returns the listener of each queue, in the order in which the builders were given.
    pub fn each(&self) -> &[Listener] {
        &self.0
    }

    /// Returns the present state of each, without depths: makes no call to a queue.
    pub fn states(&self) -> Vec<(QueueAddress, QueryState)> {
        let state = |one: &Listener| (one.shared.queue.address().clone(), one.state());
        self.0.iter().map(state).collect()
    }

    /// Ends all of them at the same time, as [`Listener::shutdown`] does; returns the totals of
    /// each, in the order in which the builders were given.
    pub async fn shutdown(self) -> Vec<ListenerStats> {
        join_all(self.0.into_iter().map(Listener::shutdown)).await
    }
}
