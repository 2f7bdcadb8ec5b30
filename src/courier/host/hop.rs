//! The task of one next machine: connects while there are messages, moves them, and waits longer after
//! each failure.
//!
//! Each answer is written to the queue file before the next frame is sent; answers that arrive together
//! share a write. The rules are those of [`SenderSession`], which a failed write ends together with the
//! connection.

use std::{sync::Arc, time::Duration};

use rusqlite::Transaction;
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

use super::{HostConfig, Shared, wire};
use crate::{
    base::{backoff::Backoff, causes::with_causes, clock::Tick, task::Scope},
    client::{ClientTls, Connector, Credential, RelayChannel},
    courier::{
        crash_point::crash_point,
        handover::{
            ReceiverContent, ReceiverFrame, SenderFrame, SenderSession, outgoing::bury_damaged,
        },
    },
    error::{Error, ErrorKind, Result},
    wire::{
        from_status,
        proto::{HandOverRequest, HandOverResponse, courier_client::CourierClient},
    },
};

/// The handle of the task.
#[derive(Debug)]
pub(super) struct Hop {
    changed: Arc<Notify>,
}

/// Attempts to reach a machine for which no message waits.
const GREETINGS: u32 = 10;
/// A known machine is contacted this often without messages. It may hold messages that need a
/// confirmation: its file, or this one, may have been restored from an older copy.
const GREETING_INTERVAL: Duration = Duration::from_secs(3600);
/// The first wait after a failure is at most this long.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// A silent connection is checked with an HTTP/2 PING.
const KEEPALIVE: Duration = Duration::from_secs(10);

impl Hop {
    /// Starts the task of the machine `authority`. With `greets`, it connects at
    /// once although no messages wait.
    pub(super) fn start(shared: Arc<Shared>, authority: &str, scope: &Scope, greets: bool) -> Self {
        let changed = Arc::new(Notify::new());
        let (authority, signal) = (authority.to_owned(), Arc::clone(&changed));
        scope.spawn_restarting("hand-over", move || {
            let (shared, signal) = (Arc::clone(&shared), Arc::clone(&signal));
            run(shared, authority.clone(), signal, greets)
        });
        Self { changed }
    }

    /// There may be messages.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Returns whether the task has ended, because no message waits for a machine that never answered.
    /// Senders name any machines.
    pub(super) fn has_ended(&self) -> bool {
        Arc::strong_count(&self.changed) == 1
    }
}

async fn run(shared: Arc<Shared>, authority: String, changed: Arc<Notify>, greets: bool) {
    let mut rng = fastrand::Rng::new();
    let mut backoff = Backoff::new(FIRST_WAIT, shared.config.max_backoff);
    let mut greetings = if greets { GREETINGS } else { 0 };
    let (mut failing, mut is_known) = (false, greets);
    // Any number: the session has a limit.
    let mut offer_bytes = usize::MAX;
    while !shared.ending.is_cancelled() {
        let waited = tokio::time::timeout(GREETING_INTERVAL, changed.notified());
        if waited.await.is_err() {
            greetings = GREETINGS;
        }
        let has_messages = match shared.manager.has_messages_for(&authority).await {
            Ok(has_messages) => has_messages,
            Err(error) => {
                tracing::warn!(machine = authority, %error, "the queue file cannot be read");
                tokio::time::sleep(backoff.next(&mut rng)).await;
                changed.notify_one();
                continue;
            }
        };
        if !has_messages && greetings == 0 {
            if is_known { continue } else { return }
        }
        let mut attempt = Attempt {
            offer_bytes,
            ..Attempt::default()
        };
        let ended = connection(&shared, &authority, &changed, &mut attempt).await;
        offer_bytes = attempt.offer_bytes;
        // Two machines with copies of one file replace each other's connections all the time.
        let is_replaced = ended
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::Conflict);
        if attempt.accepted && !is_replaced {
            backoff.reset();
        }
        is_known |= attempt.settled;
        greetings = if attempt.settled {
            0
        } else {
            greetings.saturating_sub(1)
        };
        let error = match ended {
            Ok(End::Idle) => {
                failing = false;
                continue;
            }
            Ok(End::ByPeer) if attempt.accepted => {
                failing = false;
                tokio::time::sleep(backoff.next(&mut rng)).await;
                changed.notify_one();
                continue;
            }
            Ok(End::ByPeer) => closed(&authority),
            Err(error) => error,
        };
        if has_messages {
            let error = with_causes(&error);
            if !failing || attempt.accepted {
                tracing::warn!(machine = authority, %error, "messages wait: the machine cannot take them over");
            }
            failing = true;
            if let Err(error) = shared.manager.hop_failed(&authority, &error).await {
                tracing::warn!(machine = authority, %error, "the queue file cannot be written");
            }
        }
        tokio::time::sleep(backoff.next(&mut rng)).await;
        changed.notify_one();
    }
}

/// How far a connection came.
#[derive(Debug, Default)]
struct Attempt {
    /// The machine holds no message of an earlier connection any more.
    settled: bool,
    accepted: bool,
    /// The largest offer of this connection, and then of the next one.
    offer_bytes: usize,
}

/// Connects and moves messages until the connection is idle.
async fn connection(
    shared: &Arc<Shared>,
    authority: &str,
    changed: &Notify,
    attempt: &mut Attempt,
) -> Result<End> {
    // Every sender of this machine may name any other machine, which must not get the credential.
    let credential = if shared.manager.config().names_machine(authority) {
        shared.config.credential.clone()
    } else {
        Credential::default()
    };
    let (endpoint, connector) = endpoint(authority, &shared.config, &credential)?;
    let channel = connector.connect(&endpoint).await.map_err(|error| {
        let text = format!("`{authority}` cannot be reached");
        Error::new(ErrorKind::Unavailable, text).with_source(error)
    })?;
    let channel = RelayChannel::new(channel, credential);
    let client = CourierClient::new(channel);
    let _open = shared.connections.token();
    let opened = Sending::open(Arc::clone(shared), authority, attempt.offer_bytes, client).await;
    let mut sending = opened.map_err(|error| without_credential(shared, authority, error))?;
    let ended = sending.run(changed).await;
    attempt.offer_bytes = sending.next_offer_bytes().unwrap_or(attempt.offer_bytes);
    attempt.settled = sending.has_settled();
    attempt.accepted = sending.has_accepted();
    let written = sending.end().await;
    let ended = ended?;
    written.map(|()| ended)
}

/// Says why a machine that no route and no alias names has got no credential.
#[cold]
fn without_credential(shared: &Shared, authority: &str, error: Error) -> Error {
    let is_named = shared.manager.config().names_machine(authority);
    if is_named || shared.config.credential.is_none() || error.kind() != ErrorKind::Denied {
        return error;
    }
    let text = format!(
        "`{authority}` was shown no credential, because no route and no alias names it: add it to \
         [queues.aliases]"
    );
    Error::new(ErrorKind::Denied, text).with_source(error)
}

#[cold]
fn closed(authority: &str) -> Error {
    let text = format!("`{authority}` has ended the hand-over");
    Error::new(ErrorKind::Unavailable, text)
}

/// Returns the endpoint of a machine and its connector, which reads the files of TLS.
fn endpoint(
    authority: &str,
    config: &HostConfig,
    credential: &Credential,
) -> Result<(Endpoint, Connector)> {
    let (scheme, tls) = match &config.tls {
        Some(tls) => ("https", tls.clone()),
        None => ("http", ClientTls::default()),
    };
    let url = format!("{scheme}://{authority}");
    let (endpoint, connector) = Connector::new(&url, &tls, config.connect_timeout)
        .map_err(|error| Error::new(error.kind(), format!("`{authority}`")).with_source(error))?;
    if !credential.is_none() && !config.insecure {
        connector.check_credential(&format!("http://{authority}"), &endpoint)?;
    }
    let endpoint = endpoint
        .http2_keep_alive_interval(KEEPALIVE)
        // On a slow line an answer waits behind the offers.
        .keep_alive_timeout(config.answer_timeout)
        .keep_alive_while_idle(true);
    Ok((endpoint, connector))
}

/// One connection.
struct Sending {
    shared: Arc<Shared>,
    authority: String,
    requests: mpsc::Sender<HandOverRequest>,
    answers: Streaming<HandOverResponse>,
    /// `None` while a job of the file has it, and after a job has failed.
    session: Option<SenderSession>,
    /// The last progress: an answer, or an offer while there was nothing to answer.
    progress: Tick,
}

/// How a connection has ended without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// There were no messages for a while, or this host ends.
    Idle,
    /// The other machine has closed the stream: its connection is at the maximum age.
    ByPeer,
}

/// Frames that wait for the network. The window of the session is the real limit.
const FRAMES: usize = 16;
/// Answers that share a write.
const MAX_ANSWERS: usize = 64;

impl Sending {
    /// Opens the stream and says hello.
    async fn open(
        shared: Arc<Shared>,
        authority: &str,
        offer_bytes: usize,
        mut client: CourierClient<RelayChannel>,
    ) -> Result<Self> {
        let name = shared.config.name.clone();
        let session = SenderSession::new(authority, &name, fastrand::u64(..));
        let mut session = session.with_offer_bytes(offer_bytes);
        let (session, hello) = shared
            .manager
            .read(move |connection, _| {
                let hello = session.begin(connection)?;
                Ok((session, hello))
            })
            .await?;
        let (requests, frames) = mpsc::channel(FRAMES);
        requests
            .try_send(wire::request(hello))
            .expect("the channel is new");
        let opened = client.hand_over(ReceiverStream::new(frames));
        let limit = shared.config.answer_timeout;
        let answers = match tokio::time::timeout(limit, opened).await {
            Ok(opened) => opened.map_err(from_status)?.into_inner(),
            Err(_) => return Err(silent(authority, limit)),
        };
        crash_point("sending-after-hello");
        Ok(Self {
            progress: shared.clock.now(),
            shared,
            authority: authority.to_owned(),
            requests,
            answers,
            session: Some(session),
        })
    }

    /// Returns whether the other machine holds no message of an earlier connection any more.
    fn has_settled(&self) -> bool {
        let session = self.session.as_ref();
        session.is_some_and(SenderSession::has_settled)
    }

    /// Returns whether the other machine has accepted a message on this connection.
    fn has_accepted(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(SenderSession::has_accepted)
    }

    /// Returns the largest offer for the next connection; `None` after a job has failed.
    fn next_offer_bytes(&self) -> Option<usize> {
        let session = self.session.as_ref();
        session.map(SenderSession::next_offer_bytes)
    }

    /// Moves messages until there are none for a while, the other machine closes the stream, or the
    /// host ends.
    async fn run(&mut self, changed: &Notify) -> Result<End> {
        let (answers_within, idle) = {
            let config = &self.shared.config;
            (config.answer_timeout, config.idle)
        };
        loop {
            let retry = self.offer().await?.unwrap_or(Duration::MAX);
            let waits = self.session.as_ref().ok_or_else(lost)?.awaits_answer();
            let limit = if waits { answers_within } else { idle };
            let silent_for = self.shared.clock.now().since(self.progress);
            tokio::select! {
                answer = self.answers.message() => match answer.map_err(from_status)? {
                    Some(answer) => self.on_answer(answer).await?,
                    None => return Ok(End::ByPeer),
                },
                () = changed.notified() => {}
                () = self.shared.ending.cancelled() => return Ok(End::Idle),
                () = tokio::time::sleep(retry.min(limit.saturating_sub(silent_for))) => {
                    let silent_for = self.shared.clock.now().since(self.progress);
                    match waits {
                        _ if silent_for < limit => {}
                        true => return Err(silent(&self.authority, limit)),
                        false => return Ok(End::Idle),
                    }
                }
            }
        }
    }

    /// Notes in the file which messages the other machine may have stored.
    async fn end(mut self) -> Result<()> {
        let Some(mut session) = self.session.take() else {
            return Ok(());
        };
        let manager = &self.shared.manager;
        let ended = manager.write(move |transaction, _| session.end(transaction));
        ended.await
    }

    /// Offers messages as far as the window allows. Returns when a postponed destination may be
    /// offered again.
    async fn offer(&mut self) -> Result<Option<Duration>> {
        loop {
            let mut session = self.session.take().ok_or_else(lost)?;
            let awaited = session.awaits_answer();
            let offering = self.shared.manager.read(move |connection, now| {
                let next = session.next_offer(connection, now)?;
                Ok((session, next))
            });
            let (session, next) = offering.await?;
            self.session = Some(session);
            let has_more_purged = next.has_purged && self.expire().await?;
            if !next.damaged.is_empty() {
                let bury = self
                    .shared
                    .manager
                    .write(move |transaction, now| bury_damaged(transaction, &next.damaged, now));
                bury.await?;
            }
            let Some(offer) = next.offer else {
                // Between two steps an answer is read.
                return Ok(if has_more_purged {
                    Some(Duration::ZERO)
                } else {
                    next.wait
                });
            };
            if !awaited {
                self.progress = self.shared.clock.now();
            }
            crash_point("sending-before-offer");
            self.send(offer).await?;
            crash_point("sending-after-offer");
        }
    }

    /// Removes messages that were purged meanwhile, in one step. Returns whether there may be more.
    async fn expire(&mut self) -> Result<bool> {
        let session = self.session.take().ok_or_else(lost)?;
        let expiring = self.shared.manager.write(move |transaction, now| {
            let has_more = session.expire(transaction, now)?;
            Ok((session, has_more))
        });
        let (session, has_more) = expiring.await?;
        self.session = Some(session);
        Ok(has_more)
    }

    /// Handles an answer, together with further answers that have arrived.
    async fn on_answer(&mut self, first: HandOverResponse) -> Result<()> {
        self.progress = self.shared.clock.now();
        let mut frames: Vec<ReceiverFrame> = vec![wire::answer(first)?];
        while frames.len() < MAX_ANSWERS {
            let next = futures_util::FutureExt::now_or_never(self.answers.message());
            match next {
                Some(Ok(Some(answer))) => frames.push(wire::answer(answer)?),
                // The end is found again by the next call.
                _ => break,
            }
        }
        crash_point("sending-before-write");
        // A connection begins with the messages that the other machine holds: those that are missing
        // there are visible. So a loss of power may undo the mark.
        let is_visible =
            |frame: &ReceiverFrame| matches!(frame.content, ReceiverContent::Visible(_));
        let is_repeatable = frames.iter().all(is_visible);
        let mut session = self.session.take().ok_or_else(lost)?;
        let handle = move |transaction: &Transaction<'_>, now| {
            let mut replies = Vec::new();
            for frame in frames {
                match session.on_frame(transaction, now, frame)? {
                    Ok(frames) => replies.extend(frames),
                    Err(error) => return Ok((session, Err(error))),
                }
            }
            Ok((session, Ok(replies)))
        };
        let manager = &self.shared.manager;
        let (session, replies) = if is_repeatable {
            manager.write_unsynced(handle).await?
        } else {
            manager.write(handle).await?
        };
        crash_point("sending-after-write");
        self.session = Some(session);
        for reply in replies? {
            self.send(reply).await?;
            crash_point("sending-after-confirm");
        }
        Ok(())
    }

    async fn send(&self, frame: SenderFrame) -> Result<()> {
        let limit = self.shared.config.answer_timeout;
        match tokio::time::timeout(limit, self.requests.send(wire::request(frame))).await {
            // After the end of the stream no frame is taken. The next answer says why it ended.
            Ok(Ok(()) | Err(_)) => Ok(()),
            Err(_) => Err(silent(&self.authority, limit)),
        }
    }
}

#[cold]
fn lost() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the hand-over has failed: a new connection begins",
    )
}

#[cold]
fn silent(authority: &str, limit: Duration) -> Error {
    let text = format!("`{authority}` has not answered for {limit:?}");
    Error::new(ErrorKind::Timeout, text)
}
