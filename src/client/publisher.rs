//! A publisher over the network: one task, one pipelined stream, retries until acknowledged.
//!
//! Callers put notifications into the session and get a result when the relay has acknowledged
//! them. The task connects only while something is unsent. Dropping the last handle ends the task.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use tokio::sync::{Notify as Signal, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{
    config::PublisherOptions,
    connection::{Client, RelayClient},
    pool::Lease,
};
use crate::{
    base::{
        clock::{Clock, Tick},
        sync::lock,
        task::Scope,
    },
    client::session::{PublisherSession, leaves_relay},
    error::{Error, ErrorKind, Result},
    types::{Accepted, Limits, Notification, Notifier, check_text},
    wire::{NotifyRequest, answer_from_wire, from_status, proto},
};

/// Notifies the relay of new messages in queues. Cheap to clone; clones share one connection.
///
/// [`notify`](Self::notify) retries until the relay has acknowledged the notification or the deadline
/// has passed.
///
/// Pending notifications of the same queue are conflated, so an unreachable relay costs memory for
/// queues, not for events. A publisher with 100,000 pending queues refuses more.
///
/// Queues that the relay has no room for are kept separately, up to another 100,000, so that they
/// take no room from others. Beyond that, a notification that the relay has no room for is dropped, and
/// the error says so.
#[derive(Clone)]
pub struct Publisher {
    inner: Arc<PublisherInner>,
    /// Ends the task with the last handle.
    _scope: Arc<Scope>,
}

struct PublisherInner {
    client: Client,
    name: Arc<str>,
    deadline: Duration,
    pipeline: usize,
    clock: Clock,
    state: Mutex<PublisherState>,
    /// Wakes the task when it has work.
    task_signal: Signal,
}

struct PublisherState {
    session: PublisherSession,
    rng: fastrand::Rng,
    /// Sender of the open stream's requests. A caller sends its request itself, which saves a wake
    /// of the task.
    requests: Option<Requests>,
    /// Time at which the task's timer fires.
    next_pump: Tick,
}

/// Wait before the next attempt when work is due but blocked, as by a full request channel.
const BLOCKED_RETRY: Duration = Duration::from_millis(50);

type Requests = mpsc::Sender<NotifyRequest>;

impl Publisher {
    pub(super) fn start(client: &Client, options: PublisherOptions) -> Self {
        let config = options.session(client.0.config.request_timeout);
        let pipeline = config.pipeline;
        let state = PublisherState {
            session: PublisherSession::new(config),
            rng: fastrand::Rng::new(),
            requests: None,
            next_pump: Tick::NEVER,
        };
        let inner = Arc::new(PublisherInner {
            client: client.clone(),
            name: options.name.into(),
            deadline: options.deadline,
            pipeline,
            clock: Clock::new(),
            state: Mutex::new(state),
            task_signal: Signal::new(),
        });
        let scope = Scope::new();
        scope.spawn(run(Arc::clone(&inner)));
        Self {
            inner,
            _scope: Arc::new(scope),
        }
    }

    /// Notifies, and returns the relay's acknowledgement.
    ///
    /// # Errors
    /// * [`ErrorKind::Invalid`] if the notification breaks a rule;
    /// * [`ErrorKind::Denied`] if the relay refuses this publisher, or its rules deny the queue; in the
    ///   second case the notification is dropped;
    /// * [`ErrorKind::Unsupported`] or [`ErrorKind::NotFound`] if no relay has ever answered there;
    /// * [`ErrorKind::Timeout`], with the last failure, if no acknowledgement came before the
    ///   deadline;
    /// * [`ErrorKind::Exhausted`] if the relay has no room for the queue, and then also
    ///   [`ErrorKind::Unavailable`] if it can make none because it is cut off from its cluster.
    ///
    /// After `Invalid`, and after a denial of the queue, the notification is not sent again. After the
    /// others it is still sent as soon as that is possible, unless the error says that it was dropped
    /// because too many queues are kept for lack of room at the relay. [`ErrorKind::Exhausted`] is also
    /// returned if this publisher has too many pending entries; it accepts none of the notifications
    /// then.
    ///
    /// # Cancel safety
    /// The notification is still sent after its caller stops waiting, as long as a handle of this
    /// publisher exists. It is dropped if the relay has no room for it and too many queues are kept.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn notify(&self, notification: Notification) -> Result<Accepted> {
        let accepted = self.notify_all(vec![notification]).await?;
        Ok(accepted.first().copied().unwrap_or_default())
    }

    /// Notifies of several at once; returns the acknowledgements in their order.
    ///
    /// # Errors
    /// As [`Publisher::notify`]: the first error among them. The others are counted or still sent, each
    /// by itself; [`notify_each`](Self::notify_each) tells which.
    ///
    /// # Cancel safety
    /// As [`Publisher::notify`].
    pub async fn notify_all(&self, notifications: Vec<Notification>) -> Result<Vec<Accepted>> {
        self.notify_each(notifications).await?.into_iter().collect()
    }

    /// Notifies of several at once; returns the result of each in their order, with the errors of
    /// [`Publisher::notify`]. A refused one does not affect the others.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if one breaks a rule, and [`ErrorKind::Exhausted`] if too many entries are
    /// pending: then none is accepted.
    ///
    /// # Cancel safety
    /// As [`Publisher::notify`].
    pub async fn notify_each(
        &self,
        mut notifications: Vec<Notification>,
    ) -> Result<Vec<Result<Accepted>>> {
        for notification in &mut notifications {
            let published_at = &mut notification.published_at;
            published_at.get_or_insert_with(SystemTime::now);
        }
        check_text("publisher", &self.inner.name, Limits::MAX_TEXT)?;
        let inner = &*self.inner;
        let now = inner.clock.now();
        let (answers, signals_task) = {
            let mut state = lock(&inner.state);
            let answers = state.session.notify(notifications, now)?;
            state.send(&inner.name, now);
            let is_sooner = state.session.next_at() < state.next_pump;
            (answers, state.requests.is_none() || is_sooner)
        };
        if signals_task {
            inner.task_signal.notify_one();
        }
        let deadline = inner.clock.instant(now + inner.deadline);
        let mut deadline = std::pin::pin!(tokio::time::sleep_until(deadline));
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            let answered = tokio::select! {
                biased;
                answered = answer => answered.ok(),
                () = &mut deadline => None,
            };
            results.push(answered.unwrap_or_else(|| Err(self.timeout_error())));
        }
        Ok(results)
    }

    /// Returns the number of entries that are not acknowledged yet.
    pub fn pending(&self) -> usize {
        lock(&self.inner.state).session.pending()
    }

    /// Returns why the newest attempt to notify failed; `None` once one was acknowledged.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.inner.state).session.failure().cloned()
    }

    fn timeout_error(&self) -> Error {
        let mut message =
            "no acknowledgement before the deadline; the notification may still arrive".to_owned();
        if let Some(failure) = self.failure() {
            message.push_str(&format!("; the last attempt failed: {failure}"));
        }
        Error::new(ErrorKind::Timeout, message)
    }
}

#[async_trait]
impl Notifier for Publisher {
    async fn notify_each(&self, notifications: Vec<Notification>) -> Result<Vec<Result<Accepted>>> {
        Self::notify_each(self, notifications).await
    }
}

impl PublisherInner {
    /// Sends due requests, and returns when to call it again; `None` if the oldest request has had no
    /// answer for too long.
    fn pump(&self) -> Option<Tick> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        if state.session.is_overdue(now) {
            return None;
        }
        state.send(&self.name, now);
        let mut next_pump = state.session.next_at();
        if next_pump <= now {
            // Work is due but blocked.
            next_pump = now + BLOCKED_RETRY;
        }
        if state.next_pump > now {
            // An early wake costs less than rearming the timer with each request.
            next_pump = next_pump.min(state.next_pump);
        }
        state.next_pump = next_pump;
        Some(next_pump)
    }

    /// The stream has ended. `has_left`: the client has left the relay, if it knows others.
    fn broken(&self, error: &Error, has_left: bool) {
        let (now, others) = (self.clock.now(), self.client.0.relays.others());
        let mut state = lock(&self.state);
        let PublisherState { session, rng, .. } = &mut *state;
        session.broken(error, now, rng);
        if has_left {
            session.left_relay(others, now, rng);
        }
        state.requests = None;
    }

    /// Returns the time in which the relay must answer. It is shorter while another relay may be
    /// well; where none was, the network may be slow.
    fn answer_timeout(&self) -> Duration {
        let others = self.client.0.relays.others();
        if lock(&self.state).session.has_relay_to_try(others) {
            self.client.answer_timeout()
        } else {
            self.client.0.config.request_timeout
        }
    }

    /// Returns the error of a relay that cannot serve the publisher now.
    fn answered(&self, response: proto::NotifyResponse) -> Option<Error> {
        let answer = answer_from_wire(response);
        let refusals = answer
            .results
            .iter()
            .filter_map(|result| result.as_ref().err());
        let mut errors = answer.error.iter().chain(refusals);
        let failure = errors.find(|error| error.kind() == ErrorKind::Unavailable);
        let failure = failure.cloned();
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let PublisherState { session, rng, .. } = &mut *state;
        session.answered(answer, now, rng);
        failure
    }
}

impl PublisherState {
    /// Sends the requests that are due.
    fn send(&mut self, name: &Arc<str>, now: Tick) {
        while let Some(requests) = &self.requests
            && let Ok(room) = requests.try_reserve()
            && let Some(notifications) = self.session.request(now)
        {
            let request = NotifyRequest::new(Arc::clone(name), notifications);
            room.send(request.with_counted(self.session.counted()));
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (url, pending) = (self.inner.client.url(), self.pending());
        f.debug_struct("Publisher")
            .field("relay", &url)
            .field("pending", &pending)
            .finish()
    }
}

/// The publisher's task: keeps a stream open while there is work.
async fn run(inner: Arc<PublisherInner>) {
    loop {
        if !lock(&inner.state).session.has_work() {
            inner.task_signal.notified().await;
            continue;
        }
        let (opened, connection) = open(&inner).await;
        let is_open = opened.is_ok();
        let error = match opened {
            Ok(answers) => serve(&inner, answers, &connection).await,
            Err(error) => Some(error),
        };
        // A relay whose connection is at its maximum age ends the stream without an error, and serves the
        // next one. A limit of the rate is the publisher's own.
        let has_left = error.as_ref().is_some_and(|error| {
            let is_own = is_open && error.kind() == ErrorKind::Exhausted;
            !is_own && leaves_relay(Some(error))
        });
        if has_left {
            inner.client.0.relays.leave(&connection);
        }
        drop(connection);
        let ended = || Error::new(ErrorKind::Unavailable, "the relay ended the stream");
        let error = error.unwrap_or_else(ended);
        tracing::debug!(%error, "notify stream ended");
        inner.broken(&error, has_left);
        let retry_at = lock(&inner.state).session.retry_at();
        tokio::time::sleep_until(inner.clock.instant(retry_at)).await;
    }
}

async fn open(inner: &PublisherInner) -> (Result<Streaming<proto::NotifyResponse>>, Lease) {
    // Capacity for all requests in flight: with a full channel the task would poll repeatedly.
    let (requests, outbound) = mpsc::channel(inner.pipeline);
    // The number of relays must be known: another one may be well.
    inner.client.resolve().await;
    let connection = inner.client.0.relays.call_connection();
    let within = inner.answer_timeout();
    let mut relay = RelayClient::new(connection.channel());
    let call = relay.notify_stream(ReceiverStream::new(outbound));
    let answers = inner.client.call_on(&connection, within, call).await;
    if answers.is_ok() {
        let mut state = lock(&inner.state);
        state.requests = Some(requests);
        state.session.set_answer_timeout(within);
    }
    (answers, connection)
}

/// Receives answers, and sends the requests that no caller sends, until the stream ends; returns its
/// error. A relay that is cut off from its cluster answers each request with UNAVAILABLE; if there are
/// others, that ends the stream.
async fn serve(
    inner: &PublisherInner,
    mut answers: Streaming<proto::NotifyResponse>,
    connection: &Lease,
) -> Option<Error> {
    let sleep = tokio::time::sleep_until(inner.clock.instant(Tick::NEVER));
    tokio::pin!(sleep);
    loop {
        let Some(next_pump) = inner.pump() else {
            connection.retire();
            return Some(Error::new(ErrorKind::Unavailable, "no answer in time"));
        };
        let next_pump = inner.clock.instant(next_pump);
        if sleep.deadline() != next_pump {
            sleep.as_mut().reset(next_pump);
        }
        tokio::select! {
            answer = answers.message() => match answer {
                Ok(Some(answer)) => {
                    let failure = inner.answered(answer);
                    let others = inner.client.0.relays.others();
                    if failure.is_some() && others > 0 {
                        return failure;
                    }
                }
                Ok(None) => return None,
                Err(status) => return Some(from_status(status)),
            },
            () = inner.task_signal.notified() => {}
            () = &mut sleep => {}
        }
    }
}
