//! A listener for several queues: one subscription, one handler, one budget.
//!
//! A task owns the subscription. It forwards each wake-up to the queues that it concerns. Link
//! changes and wake-ups share one channel per queue, so their order is kept: a sequence is never
//! attributed to a later stream, where it could cover work that no listener polled for.

use std::{collections::HashSet, future::ready, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    BatchHandler, Delivery, Handler, HandlerResult, Hooks, Listener, ListenerBuilder,
    ListenerConfig, ListenerStats, QueryState,
    builder::{json_handler, reach},
    handler::{Handlers, erased},
    hooks::NoHooks,
};
use crate::{
    base::{task::Scope, text::opaque_debug},
    error::{Error, ErrorKind, Result},
    queue::WorkQueue,
    types::{LinkState, Notifier, QueueAddress, Report, ReportFuture, WakeStream, WorkDetected},
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
        try_join_all(builders.iter().map(|one| reach(&*one.queue))).await?;
        let spawn = |one: ListenerBuilder| one.spawn(handlers.clone());
        let each = builders.into_iter().map(spawn).collect();
        Ok(Listeners { each, splitting })
    }
}

opaque_debug!(ListenersBuilder: queues);

/// Wait before a refused subscription is tried again.
const RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// An event for one queue.
#[derive(Clone)]
enum QueueEvent {
    Link(LinkState),
    Work(WorkDetected),
    /// The relay refused the subscription; the flag says whether it is tried again.
    Refused(Error, bool),
}

/// A command of one queue.
enum QueueCommand {
    /// A report for the stream of this number; on another stream its sequence would be wrong.
    Report(u64, Report, oneshot::Sender<ReportFuture>),
    Pause(usize, bool),
}

/// The wake-ups of one queue.
#[derive(Debug)]
struct QueueWakes {
    number: usize,
    events: mpsc::UnboundedReceiver<QueueEvent>,
    commands: mpsc::UnboundedSender<QueueCommand>,
    link: watch::Sender<LinkState>,
    will_retry: bool,
}

/// The task that owns the subscription.
struct Splitter {
    wakes: Box<dyn WakeStream>,
    link: watch::Receiver<LinkState>,
    queues: Vec<Part>,
    commands: mpsc::UnboundedReceiver<QueueCommand>,
}

struct Part {
    address: QueueAddress,
    events: mpsc::UnboundedSender<QueueEvent>,
    paused: bool,
}

/// Splits wake-ups by queue; returns them in the order of the addresses. The forwarding task
/// belongs to `scope`.
fn split(
    wakes: Box<dyn WakeStream>,
    addresses: Vec<QueueAddress>,
    scope: &Scope,
) -> Vec<Box<dyn WakeStream>> {
    let (commands, received) = mpsc::unbounded_channel();
    let (mut queues, mut parts) = (Vec::new(), Vec::<Box<dyn WakeStream>>::new());
    for (number, address) in addresses.into_iter().enumerate() {
        let (sender, events) = mpsc::unbounded_channel();
        queues.push(Part {
            address,
            events: sender,
            paused: false,
        });
        parts.push(Box::new(QueueWakes {
            number,
            events,
            commands: commands.clone(),
            link: watch::Sender::new(LinkState::default()),
            will_retry: true,
        }));
    }
    let mut link = wakes.link();
    link.mark_changed();
    let splitter = Splitter {
        wakes,
        link,
        queues,
        commands: received,
    };
    scope.spawn(splitter.run());
    parts
}

impl Splitter {
    /// Ends when the wake-ups end, or when no queue is left.
    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                Ok(()) = self.link.changed() => self.send_link(),
                command = self.commands.recv() => match command {
                    Some(command) => self.execute(command),
                    None => return,
                },
                work = self.wakes.next() => {
                    // It may have come together with its stream's Welcome.
                    if self.link.has_changed().unwrap_or(false) {
                        self.send_link();
                    }
                    match work {
                        Some(Ok(work)) => {
                            let wanted = work.queue.clone();
                            self.send(&QueueEvent::Work(work), |address| wanted.matches(address));
                        }
                        Some(Err(refusal)) => {
                            let will_retry = self.wakes.ask_again(RETRY_AFTER_REFUSAL);
                            self.send(&QueueEvent::Refused(refusal, will_retry), |_| true);
                            if !will_retry {
                                return;
                            }
                        }
                        None => return,
                    }
                }
            }
        }
    }

    fn send_link(&mut self) {
        let link = self.link.borrow_and_update().clone();
        self.send(&QueueEvent::Link(link), |_| true);
    }

    fn send(&self, event: &QueueEvent, concerns: impl Fn(&QueueAddress) -> bool) {
        for queue in self.queues.iter().filter(|queue| concerns(&queue.address)) {
            // A queue whose listener has ended needs no event.
            let _ = queue.events.send(event.clone());
        }
    }

    fn execute(&mut self, command: QueueCommand) {
        match command {
            QueueCommand::Report(stream, report, sent) => {
                let reported = if self.link.borrow().welcomes == stream {
                    self.wakes.report(report)
                } else {
                    Box::pin(ready(Err(stream_has_ended())))
                };
                let _ = sent.send(reported);
            }
            QueueCommand::Pause(number, paused) => {
                self.queues[number].paused = paused;
                // All queues share the stream: it closes when all are paused.
                self.wakes
                    .pause(self.queues.iter().all(|queue| queue.paused));
            }
        }
    }
}

#[cold]
fn stream_has_ended() -> Error {
    let text = "no stream just now: report after the next welcome";
    Error::new(ErrorKind::Unavailable, text)
}

#[async_trait]
impl WakeStream for QueueWakes {
    async fn next(&mut self) -> Option<Result<WorkDetected>> {
        loop {
            match self.events.recv().await? {
                QueueEvent::Link(link) => {
                    self.link.send_replace(link);
                }
                QueueEvent::Work(work) => return Some(Ok(work)),
                QueueEvent::Refused(refusal, will_retry) => {
                    self.will_retry = will_retry;
                    return Some(Err(refusal));
                }
            }
        }
    }

    fn report(&mut self, report: Report) -> ReportFuture {
        let (sent, sending) = oneshot::channel();
        let stream = self.link.borrow().welcomes;
        let _ = self
            .commands
            .send(QueueCommand::Report(stream, report, sent));
        Box::pin(async move { sending.await.map_err(|_| stream_has_ended())?.await })
    }

    fn ask_again(&mut self, _after: Duration) -> bool {
        self.will_retry
    }

    fn pause(&mut self, paused: bool) {
        let _ = self.commands.send(QueueCommand::Pause(self.number, paused));
    }

    fn link(&self) -> watch::Receiver<LinkState> {
        self.link.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::types::{ConnectionState, ReportState};

    /// A subscription without wake-ups that records reports.
    #[derive(Debug)]
    struct SilentWakes {
        link: watch::Sender<LinkState>,
        reported: Arc<Mutex<Vec<u64>>>,
    }

    #[async_trait]
    impl WakeStream for SilentWakes {
        async fn next(&mut self) -> Option<Result<WorkDetected>> {
            std::future::pending().await
        }

        fn report(&mut self, report: Report) -> ReportFuture {
            self.reported
                .lock()
                .expect("no panic")
                .push(report.sequence);
            Box::pin(ready(Ok(())))
        }

        fn link(&self) -> watch::Receiver<LinkState> {
            self.link.subscribe()
        }
    }

    fn stream(welcomes: u64) -> LinkState {
        LinkState {
            connection: ConnectionState::Connected,
            welcomes,
            ..LinkState::default()
        }
    }

    /// Makes a queue process its pending events.
    async fn hear(wakes: &mut dyn WakeStream) {
        let events = tokio::time::timeout(Duration::from_millis(10), wakes.next()).await;
        assert!(events.is_err(), "there is no wake-up");
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_an_older_stream_is_not_sent_on_the_next_one() {
        let (link, scope) = (watch::Sender::new(stream(1)), Scope::new());
        let reported = Arc::default();
        let silent = SilentWakes {
            link: link.clone(),
            reported: Arc::clone(&reported),
        };
        let address: QueueAddress = "local/orders".parse().expect("an address");
        let mut parts = split(Box::new(silent), vec![address.clone()], &scope);
        let report = |sequence| Report {
            state: ReportState::Drained,
            sequence,
            ..Report::new(address.clone())
        };
        hear(&mut *parts[0]).await;
        parts[0].report(report(4)).await.expect("of this stream");
        link.send_replace(stream(2));
        let error = parts[0]
            .report(report(5))
            .await
            .expect_err("of the last one");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        hear(&mut *parts[0]).await;
        parts[0].report(report(6)).await.expect("of this stream");
        assert_eq!(*reported.lock().expect("no panic"), [4, 6]);
        scope.shutdown().await;
    }
}
