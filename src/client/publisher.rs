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

use super::{config::PublisherOptions, connection::Client};
use crate::{
    clock::{Clock, Tick},
    error::{Error, ErrorKind, Result},
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
    clock: Clock,
    state: Mutex<State>,
    /// Rung when there is something new to send.
    bell: Bell,
}

struct State {
    session: PublisherSession,
    callers: HashMap<WaiterId, oneshot::Sender<Result<Vec<Accepted>>>>,
    rng: fastrand::Rng,
}

/// Forgets a caller that stopped waiting.
struct Waiting<'a> {
    shared: &'a Shared,
    id: WaiterId,
}

/// Requests on their way at most, whatever the options say.
const PIPELINE: usize = 4096;

type Requests = mpsc::Sender<NotifyRequest>;

impl Publisher {
    pub(super) fn start(client: &Client, options: PublisherOptions) -> Self {
        let config = PublisherConfig {
            conflate: options.conflate,
            batch: options.batch.clamp(1, Limits::EVENTS),
            pipeline: options.pipeline.clamp(1, PIPELINE),
            max_pending: options.max_pending,
            answer_timeout: client.config().request_timeout,
            ..PublisherConfig::default()
        };
        let state = State {
            session: PublisherSession::new(config),
            callers: HashMap::new(),
            rng: fastrand::Rng::new(),
        };
        let shared = Arc::new(Shared {
            client: client.clone(),
            name: options.name.into(),
            deadline: options.deadline,
            pipeline: options.pipeline.clamp(1, PIPELINE),
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
    /// [`ErrorKind::Invalid`] or [`ErrorKind::Denied`] where it is refused;
    /// [`ErrorKind::Timeout`] where no acknowledgement came before the deadline (it is still sent);
    /// [`ErrorKind::Exhausted`] where too much waits already.
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
    /// waits already.
    pub fn post(&self, mut notification: Notification) -> Result<()> {
        self.check_name()?;
        stamp(&mut notification);
        let shared = &*self.shared;
        shared
            .lock()
            .session
            .post(notification, shared.clock.now())?;
        shared.bell.notify_one();
        Ok(())
    }

    /// Waits until all that was posted or notified before has been acknowledged, however long
    /// that takes.
    ///
    /// # Errors
    /// The first refusal of something that was posted since the last flush.
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
        let id = {
            let mut state = self.lock();
            let id = enter(&mut state)?;
            state.callers.insert(id, answer);
            state.answer();
            id
        };
        self.bell.notify_one();
        Ok(async move {
            let _waiting = Waiting { shared: self, id };
            let closed = |_| Err(Error::new(ErrorKind::Closed, "the publisher was closed"));
            answered.await.unwrap_or_else(closed)
        })
    }

    /// Sends what may be sent now, and answers who can be answered.
    fn pump(&self, requests: Option<&Requests>) -> Pumped {
        let now = self.clock.now();
        let mut state = self.lock();
        let late = state.session.elapsed(now);
        while let Some(requests) = requests
            && !late
            && let Ok(room) = requests.try_reserve()
        {
            let Some(notifications) = state.session.request(now) else {
                break;
            };
            room.send(NotifyRequest::new(Arc::clone(&self.name), notifications));
        }
        state.answer();
        Pumped {
            late,
            next_at: state.session.next_at(),
            has_work: state.session.has_work(),
        }
    }

    fn broken(&self, error: &Error) {
        let now = self.clock.now();
        let mut state = self.lock();
        let State { session, rng, .. } = &mut *state;
        session.broken(error, now, rng);
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
        state.answer();
    }

    async fn sleep_until(&self, at: Tick) {
        tokio::time::sleep_until(self.clock.instant(at)).await;
    }
}

struct Pumped {
    late: bool,
    next_at: Tick,
    has_work: bool,
}

impl State {
    /// Hands finished answers to their callers.
    fn answer(&mut self) {
        for done in self.session.take_done() {
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
        let pumped = shared.pump(None);
        if !pumped.has_work {
            tokio::select! {
                () = shared.bell.notified() => {}
                () = shared.sleep_until(pumped.next_at) => {}
            }
            continue;
        }
        let error = match open(&shared).await {
            Ok((requests, answers)) => serve(&shared, &requests, answers).await,
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
        let now = shared.clock.now();
        let retry_at = shared.lock().session.retry_at();
        let pumped = shared.pump(None);
        if retry_at <= now {
            return;
        }
        shared.sleep_until(retry_at.min(pumped.next_at)).await;
    }
}

/// Opens the stream, answering callers whose deadline passes meanwhile.
async fn open(shared: &Shared) -> Result<(Requests, Streaming<proto::NotifyResponse>)> {
    // Room for all that may be on their way: a full channel would have the task ask on and on.
    let (requests, outbound) = mpsc::channel(shared.pipeline);
    let mut relay = shared.client.relay_calls();
    let opening = shared
        .client
        .call(relay.notify_stream(ReceiverStream::new(outbound)));
    tokio::pin!(opening);
    loop {
        shared.pump(None);
        let deadline = shared.lock().session.deadline();
        tokio::select! {
            answers = &mut opening => return Ok((requests, answers?)),
            () = shared.sleep_until(deadline) => {}
            // A new caller, whose deadline may be the first.
            () = shared.bell.notified() => {}
        }
    }
}

/// Sends and receives until the stream breaks; returns why.
async fn serve(
    shared: &Shared,
    requests: &Requests,
    mut answers: Streaming<proto::NotifyResponse>,
) -> Error {
    loop {
        let pumped = shared.pump(Some(requests));
        if pumped.late {
            return Error::new(ErrorKind::Unavailable, "no answer in time");
        }
        tokio::select! {
            answer = answers.message() => match answer {
                Ok(Some(answer)) => shared.answered(&answer),
                Ok(None) => return Error::new(ErrorKind::Unavailable, "the relay ended the stream"),
                Err(status) => return from_status(status),
            },
            () = shared.bell.notified() => {}
            () = shared.sleep_until(pumped.next_at) => {}
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
