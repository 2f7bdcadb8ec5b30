//! A publisher over the network: one task, one pipelined stream, notifications until acknowledged.
//!
//! Callers put what they notify into the session and are answered when the relay has acknowledged
//! it; the task connects only while there is something to send. Dropping the last handle ends the
//! task: what was only posted and not flushed is lost then.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use tokio::sync::{Notify as Bell, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{
    config::PublisherOptions,
    connection::{Client, RelayClient},
    pool::Lease,
};
use crate::{
    clock::{Clock, Tick},
    error::{Error, ErrorKind, Result},
    log_limiter::LogLimiter,
    session::{PublisherConfig, PublisherSession, WaiterId},
    task::Scope,
    wire::{NotifyRequest, accepted_from_wire, from_answer, from_status, proto},
    words::{Accepted, Limits, Notification, Notify, check_text},
};

/// Says that there is work. Cheap to clone; clones share one connection.
///
/// * [`notify`](Self::notify) returns when the relay has acknowledged it, and retries until then or
///   until its deadline;
/// * [`post`](Self::post) returns at once, [`flush`](Self::flush) waits for all that was posted.
///
/// What waits for the same queue is conflated, so an unreachable relay costs memory for queues,
/// not for events; a publisher with 100,000 queues waiting refuses more.
///
/// Queues that the relay has no room for are kept beside those, 100,000 of them as well, so that they
/// take no room from others. Beyond that, a notification that the relay has no room for is dropped:
/// its caller is told, a queue's name is logged at warn, and [`dropped`](Self::dropped) counts it.
#[derive(Clone)]
pub struct Publisher {
    shared: Arc<Shared>,
    /// Ends the task with the last handle.
    _scope: Arc<Scope>,
}

struct Shared {
    client: Client,
    name: Arc<str>,
    deadline: Duration,
    pipeline: usize,
    batch: usize,
    clock: Clock,
    state: Mutex<State>,
    /// Rung when there is something for the task to do.
    bell: Bell,
}

struct State {
    session: PublisherSession,
    callers: HashMap<WaiterId, oneshot::Sender<Result<Vec<Accepted>>>>,
    rng: fastrand::Rng,
    /// Where requests go while a stream is open. Whoever has something to send puts it there
    /// itself: the task would only be one more turn to wait for.
    requests: Option<Requests>,
    /// When the task looks without being rung.
    looks_at: Tick,
    warnings: LogLimiter<1>,
}

/// Forgets a caller that stopped waiting.
struct Waiting<'a> {
    shared: &'a Shared,
    id: WaiterId,
}

/// Requests on their way at most, whatever the options say.
const PIPELINE: usize = 4096;
/// Dropped notifications are logged so often at most.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// What is due and cannot be done is looked at again after this long.
const UNABLE: Duration = Duration::from_millis(50);

type Requests = mpsc::Sender<NotifyRequest>;

impl Publisher {
    pub(super) fn start(client: &Client, options: PublisherOptions) -> Self {
        let batch = options.batch.clamp(1, Limits::EVENTS);
        let pipeline = options.pipeline.clamp(1, PIPELINE);
        let config = PublisherConfig {
            conflate: options.conflate,
            batch,
            pipeline,
            max_pending: options.max_pending,
            max_set_aside: options.max_pending,
            answer_timeout: client.config().request_timeout,
            ..PublisherConfig::default()
        };
        let state = State {
            session: PublisherSession::new(config),
            callers: HashMap::new(),
            rng: fastrand::Rng::new(),
            requests: None,
            looks_at: Tick::NEVER,
            warnings: LogLimiter::new(WARN_EVERY),
        };
        let shared = Arc::new(Shared {
            client: client.clone(),
            name: options.name.into(),
            deadline: options.deadline,
            pipeline,
            batch,
            clock: client.clock(),
            state: Mutex::new(state),
            bell: Bell::new(),
        });
        let scope = Scope::new();
        scope.spawn(run(Arc::clone(&shared)));
        Self {
            shared,
            _scope: Arc::new(scope),
        }
    }

    /// Notifies, and returns what was counted once the relay has acknowledged it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where it is refused; [`ErrorKind::Denied`] where
    /// the relay refuses this publisher; [`ErrorKind::Unsupported`] or [`ErrorKind::NotFound`] where
    /// there never was a relay at this address;
    /// [`ErrorKind::Timeout`] where no acknowledgement came before the deadline, with the last
    /// failure; [`ErrorKind::Exhausted`] where the relay has no room for the queue. After the last
    /// five it is still sent, should that become possible, unless the error says that it was dropped
    /// because too many queues are kept for want of room at the relay. [`ErrorKind::Exhausted`] also
    /// where too much waits already in this publisher: nothing is taken then.
    ///
    /// # Cancel safety
    /// A caller that stops waiting does not take the notification back.
    pub async fn notify(&self, notification: Notification) -> Result<Accepted> {
        let accepted = self.notify_all(vec![notification]).await?;
        Ok(accepted.first().copied().unwrap_or_default())
    }

    /// Notifies several at once; answers in their order.
    ///
    /// # Errors
    /// As [`Publisher::notify`]: the first refusal among them.
    ///
    /// # Cancel safety
    /// A caller that stops waiting does not take the notifications back.
    pub async fn notify_all(&self, mut notifications: Vec<Notification>) -> Result<Vec<Accepted>> {
        notifications.iter_mut().for_each(stamp);
        self.check_name()?;
        let shared = &*self.shared;
        let now = shared.clock.now();
        let wait = shared.wait(|state| {
            state
                .session
                .notify(notifications, now + shared.deadline, now)
        })?;
        wait.await
    }

    /// Takes a notification to be sent in the background.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where it breaks a rule; [`ErrorKind::Exhausted`] where too much
    /// waits already. What the relay has no room for later is told by [`Publisher::flush`] and, where
    /// it is dropped, by the log and [`Publisher::dropped`].
    pub fn post(&self, mut notification: Notification) -> Result<()> {
        self.check_name()?;
        stamp(&mut notification);
        let shared = &*self.shared;
        let now = shared.clock.now();
        let mut state = shared.lock();
        state.session.post(notification, now)?;
        if state.session.waiting() >= shared.batch {
            state.send(&shared.name, now);
        }
        drop(state);
        // The task sends what does not fill a request: more may be posted until it has its turn.
        shared.bell.notify_one();
        Ok(())
    }

    /// Waits until all that was posted or notified before has been acknowledged, however long
    /// that takes. Does not wait for queues that the relay has no room for just now.
    ///
    /// # Errors
    /// The first refusal of something that was posted since the last flush (one for want of room is
    /// [`ErrorKind::Exhausted`], and the notification is still sent when there is room, unless the
    /// error says that it was dropped); or the relay's refusal of this publisher, as with [`Publisher::notify`].
    ///
    /// # Cancel safety
    /// Safe: what was posted is sent all the same.
    pub async fn flush(&self) -> Result<()> {
        self.shared
            .wait(|state| Ok(state.session.flush()))?
            .await
            .map(|_| ())
    }

    /// Returns how many entries wait to be acknowledged.
    pub fn pending(&self) -> usize {
        self.shared.lock().session.pending()
    }

    /// Returns how many notifications were dropped so far: the relay had no room for their queues, and
    /// as many queues were kept for that already as `max_pending` allows.
    pub fn dropped(&self) -> u64 {
        self.shared.lock().session.dropped()
    }

    fn check_name(&self) -> Result<()> {
        check_text("publisher", &self.shared.name, Limits::TEXT)
    }
}

#[async_trait]
impl Notify for Publisher {
    async fn notify(&self, notifications: Vec<Notification>) -> Result<Vec<Accepted>> {
        self.notify_all(notifications).await
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Puts a caller into the session and returns its answer to come.
    fn wait(
        &self,
        enter: impl FnOnce(&mut State) -> Result<WaiterId>,
    ) -> Result<impl Future<Output = Result<Vec<Accepted>>>> {
        let (answer, answered) = oneshot::channel();
        let now = self.clock.now();
        let mut state = self.lock();
        let id = enter(&mut state)?;
        state.callers.insert(id, answer);
        state.send(&self.name, now);
        state.answer();
        let rings = state.requests.is_none() || state.session.next_at() < state.looks_at;
        drop(state);
        if rings {
            self.bell.notify_one();
        }
        Ok(async move {
            let _waiting = Waiting { shared: self, id };
            let closed = |_| Err(Error::new(ErrorKind::Closed, "the publisher was closed"));
            answered.await.unwrap_or_else(closed)
        })
    }

    /// Sends what may be sent now, answers who can be answered, and says when to look again.
    fn pump(&self) -> Pumped {
        let now = self.clock.now();
        let mut state = self.lock();
        let late = state.session.elapsed(now);
        if !late {
            state.send(&self.name, now);
        }
        state.answer();
        let mut look_at = state.session.next_at();
        if look_at <= now {
            // It could not be done just now.
            look_at = now + UNABLE;
        }
        if state.looks_at > now {
            // A look in vain costs less than moving the timer with each request.
            look_at = look_at.min(state.looks_at);
        }
        state.looks_at = look_at;
        Pumped {
            late,
            look_at,
            has_work: state.session.has_work(),
        }
    }

    fn broken(&self, error: &Error) {
        let now = self.clock.now();
        let mut state = self.lock();
        let State { session, rng, .. } = &mut *state;
        session.broken(error, now, rng);
        state.requests = None;
        state.answer();
    }

    fn answered(&self, response: &proto::NotifyResponse) {
        let answer = match &response.error {
            Some(error) => Err(from_answer(error)),
            None => Ok(accepted_from_wire(&response.accepted)),
        };
        let now = self.clock.now();
        let mut state = self.lock();
        let State { session, rng, .. } = &mut *state;
        session.answered(answer, now, rng);
        state.warn_of_dropped(now);
        state.answer();
    }

    async fn sleep_until(&self, at: Tick) {
        tokio::time::sleep_until(self.clock.instant(at)).await;
    }

    /// Waits until the bell rings, or until then.
    async fn rung_or(&self, at: Tick) {
        tokio::select! {
            () = self.bell.notified() => {}
            () = self.sleep_until(at) => {}
        }
    }
}

struct Pumped {
    /// The oldest request has waited too long for its answer.
    late: bool,
    look_at: Tick,
    has_work: bool,
}

impl State {
    /// Sends what may be sent now.
    fn send(&mut self, name: &Arc<str>, now: Tick) {
        while let Some(requests) = &self.requests
            && let Ok(room) = requests.try_reserve()
            && let Some(notifications) = self.session.request(now)
        {
            room.send(NotifyRequest::new(Arc::clone(name), notifications));
        }
    }

    /// Logs the newest notification that was dropped: nobody may wait for it.
    fn warn_of_dropped(&mut self, now: Tick) {
        if let Some(dropped) = self.session.take_dropped()
            && self.warnings.count(0, now).is_some()
            && let Some(queue) = &dropped.queue
        {
            let count = dropped.count;
            tracing::warn!(
                %queue, dropped = count,
                "notification dropped: the relay has no room for its queue, and too many are kept"
            );
        }
    }

    /// Hands finished answers to their callers.
    fn answer(&mut self) {
        for done in self.session.take_completions() {
            if let Some(caller) = self.callers.remove(&done.waiter) {
                // A caller that stopped waiting is gone, and that is all right.
                let _ = caller.send(done.result);
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.callers.remove(&self.id).is_some() {
            state.session.abandon(self.id);
        }
    }
}

/// The publisher's task: holds a stream while there is work, for ever.
async fn run(shared: Arc<Shared>) {
    loop {
        let pumped = shared.pump();
        if !pumped.has_work {
            shared.rung_or(pumped.look_at).await;
            continue;
        }
        let error = match open(&shared).await {
            Ok((answers, connection)) => serve(&shared, answers, &connection).await,
            Err(error) => error,
        };
        tracing::debug!(%error, "notify stream ended");
        shared.broken(&error);
        back_off(&shared).await;
    }
}

/// Waits out the session's back-off, answering callers whose deadline passes.
async fn back_off(shared: &Shared) {
    loop {
        let pumped = shared.pump();
        let retry_at = shared.lock().session.retry_at();
        if retry_at <= shared.clock.now() {
            return;
        }
        shared.rung_or(retry_at.min(pumped.look_at)).await;
    }
}

/// Opens the stream, answering callers whose deadline passes meanwhile.
async fn open(shared: &Shared) -> Result<(Streaming<proto::NotifyResponse>, Lease)> {
    // Room for all that may be on their way: a full channel would have the task ask on and on.
    let (requests, outbound) = mpsc::channel(shared.pipeline);
    let connection = shared.client.call_connection();
    let mut relay = RelayClient::new(connection.channel());
    let call = relay.notify_stream(ReceiverStream::new(outbound));
    let answers = {
        let opening = shared.client.call_on(&connection, call);
        tokio::pin!(opening);
        loop {
            let look_at = shared.pump().look_at;
            tokio::select! {
                answers = &mut opening => break answers?,
                () = shared.rung_or(look_at) => {}
            }
        }
    };
    shared.lock().requests = Some(requests);
    Ok((answers, connection))
}

/// Receives, and sends what no caller sends, until the stream breaks; returns why.
async fn serve(
    shared: &Shared,
    mut answers: Streaming<proto::NotifyResponse>,
    connection: &Lease,
) -> Error {
    let sleep = tokio::time::sleep_until(shared.clock.instant(Tick::NEVER));
    tokio::pin!(sleep);
    loop {
        let pumped = shared.pump();
        if pumped.late {
            connection.leave();
            return Error::new(ErrorKind::Unavailable, "no answer in time");
        }
        let look_at = shared.clock.instant(pumped.look_at);
        if sleep.deadline() != look_at {
            sleep.as_mut().reset(look_at);
        }
        tokio::select! {
            answer = answers.message() => match answer {
                Ok(Some(answer)) => shared.answered(&answer),
                Ok(None) => return Error::new(ErrorKind::Unavailable, "the relay ended the stream"),
                Err(status) => return from_status(status),
            },
            () = shared.bell.notified() => {}
            () = &mut sleep => {}
        }
    }
}

/// Dates a notification, where its caller did not.
fn stamp(notification: &mut Notification) {
    notification
        .published_at
        .get_or_insert_with(SystemTime::now);
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (url, pending) = (self.shared.client.url(), self.pending());
        f.debug_struct("Publisher")
            .field("relay", &url)
            .field("pending", &pending)
            .finish()
    }
}
