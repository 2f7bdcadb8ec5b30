//! The task of one next machine: connects while there are messages, moves them, and waits longer after
//! each failure.
//!
//! Each answer is written to the queue file before the next offer is sent. The rules are those of
//! [`SenderSession`], which a failed write ends together with the connection.

use std::{sync::Arc, time::Duration};

use rusqlite::Transaction;
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

use super::{HostConfig, Shared};
use crate::{
    base::{backoff::Backoff, causes::with_causes, task::Scope},
    client::{ClientTls, Connector, Credential},
    courier::handover::SenderSession,
    error::{Error, ErrorKind, Result},
    queue::sqlite::clock::{self, Micros},
    wire::{
        from_status,
        proto::{HandOverRequest, HandOverResponse, courier_client::CourierClient},
    },
};

/// The first wait after a failure is at most this long.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// A connection without messages is closed after this long.
const IDLE: Duration = Duration::from_secs(60);
/// A connection whose offer is not answered for this long is closed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// A silent connection is checked with an HTTP/2 PING.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Starts the task of a next machine. It ends when no message waits for the machine; then it drops its
/// copy of the signal that is returned. With `greets`, it connects once although no message waits.
pub(super) fn start(
    shared: Arc<Shared>,
    authority: &str,
    scope: &Scope,
    greets: bool,
) -> Arc<Notify> {
    let changed = Arc::new(Notify::new());
    let (authority, signal) = (authority.to_owned(), Arc::clone(&changed));
    scope.spawn_restarting("hand-over", move || {
        let (shared, signal) = (Arc::clone(&shared), Arc::clone(&signal));
        run(shared, authority.clone(), signal, greets)
    });
    changed
}

async fn run(shared: Arc<Shared>, authority: String, changed: Arc<Notify>, mut greets: bool) {
    let mut rng = fastrand::Rng::new();
    let mut backoff = Backoff::new(FIRST_WAIT, shared.config.max_backoff);
    let mut failing = false;
    while !shared.ending.is_cancelled() {
        let (mut has_messages, mut accepted) = (false, false);
        let attempt = async {
            let names = shared.manager.hops_with_messages().await?;
            has_messages = names.contains(&authority);
            if has_messages || greets {
                connection(&shared, &authority, &changed, &mut accepted).await?;
            }
            Ok(())
        };
        let ended = attempt.await;
        if ended.is_ok() && !has_messages {
            return;
        }
        greets = false;
        // Two machines with copies of one file replace each other's connections all the time.
        let is_replaced = |error: &Error| error.kind() == ErrorKind::Conflict;
        if accepted && !ended.as_ref().is_err_and(is_replaced) {
            backoff.reset();
        }
        match ended {
            Ok(()) => failing = false,
            Err(error) if has_messages => {
                let error = with_causes(&error);
                if !failing || accepted {
                    tracing::warn!(machine = authority, %error, "messages wait: the machine cannot take them over");
                }
                failing = true;
                if let Err(error) = shared.manager.hop_failed(&authority, &error).await {
                    tracing::warn!(machine = authority, %error, "the queue file cannot be written");
                }
            }
            Err(_) => {}
        }
        sleep(backoff.next(&mut rng)).await;
    }
}

/// Connects and moves messages until there are none for a while, the other machine ends the stream at the
/// maximum age of its connection, or the host ends. Sets `accepted` when the machine has stored a message.
async fn connection(
    shared: &Arc<Shared>,
    authority: &str,
    changed: &Notify,
    accepted: &mut bool,
) -> Result<()> {
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
    let mut client = CourierClient::new(credential.over(channel));
    let _open = shared.connections.token();
    // One request is on the way at a time.
    let (requests, stream) = mpsc::channel(1);
    let mut sending = Sending {
        shared: Arc::clone(shared),
        authority,
        requests,
        session: Some(SenderSession::new(authority)),
        progress: Instant::now(),
    };
    let hello = sending
        .step(false, |session, transaction, _| session.begin(transaction))
        .await?;
    sending.send(hello);
    let opened = timeout(
        ANSWER_TIMEOUT,
        client.hand_over(ReceiverStream::new(stream)),
    )
    .await;
    let opened = opened.map_err(|_| silent(authority))?;
    let answers =
        opened.map_err(|status| without_credential(shared, authority, from_status(status)))?;
    let ended = sending.run(answers.into_inner(), changed).await;
    if let Some(session) = sending.session {
        *accepted = session.has_accepted;
        let noted = shared
            .manager
            .database()
            .write(move |transaction| session.end(transaction));
        noted.await?;
    }
    ended
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
        // On a slow line an answer waits behind the offer.
        .keep_alive_timeout(ANSWER_TIMEOUT)
        .keep_alive_while_idle(true);
    Ok((endpoint, connector))
}

/// One connection.
struct Sending<'a> {
    shared: Arc<Shared>,
    authority: &'a str,
    requests: mpsc::Sender<HandOverRequest>,
    /// `None` after a step has failed.
    session: Option<SenderSession>,
    /// The last request or answer.
    progress: Instant,
}

impl Sending<'_> {
    async fn run(
        &mut self,
        mut answers: Streaming<HandOverResponse>,
        changed: &Notify,
    ) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        loop {
            let wait = self.offer().await?;
            let awaits = self.session()?.awaits_answer;
            let limit = if awaits { ANSWER_TIMEOUT } else { IDLE };
            let left = limit.saturating_sub(self.progress.elapsed());
            tokio::select! {
                answer = answers.message() => match answer.map_err(from_status)? {
                    Some(answer) => self.on_answer(answer).await?,
                    None => return Ok(()),
                },
                () = changed.notified() => {}
                () = shared.ending.cancelled() => return Ok(()),
                () = sleep(left.min(wait)) => match awaits {
                    _ if wait < left => {}
                    true => return Err(silent(self.authority)),
                    false => return Ok(()),
                }
            }
        }
    }

    /// Offers messages, unless an answer is awaited. Returns when there may be more to offer.
    async fn offer(&mut self) -> Result<Duration> {
        if self.session()?.awaits_answer {
            return Ok(Duration::MAX);
        }
        let next = self.step(false, SenderSession::next_offer).await?;
        if let Some(offer) = next.offer {
            self.send(offer);
        }
        Ok(next.wait.unwrap_or(Duration::MAX))
    }

    async fn on_answer(&mut self, answer: HandOverResponse) -> Result<()> {
        self.progress = Instant::now();
        let is_synced = self.session()?.awaits_verdicts();
        let handled = self.step(is_synced, |session, transaction, now| {
            session.on_answer(transaction, now, answer)
        });
        handled.await
    }

    /// Runs a step of the session. Without `is_synced`, a loss of power may undo it until the next synced
    /// write.
    async fn step<T: Send + 'static>(
        &mut self,
        is_synced: bool,
        work: impl FnOnce(&mut SenderSession, &Transaction<'_>, Micros) -> rusqlite::Result<T>
        + Send
        + 'static,
    ) -> Result<T> {
        let mut session = self.session.take().ok_or_else(failed)?;
        let work = move |transaction: &Transaction<'_>| {
            let now = clock::now(transaction)?;
            let value = work(&mut session, transaction, now)?;
            Ok((session, value))
        };
        let database = self.shared.manager.database();
        let (session, value) = if is_synced {
            database.write(work).await?
        } else {
            database.write_unsynced(work).await?
        };
        self.session = Some(session);
        Ok(value)
    }

    fn session(&self) -> Result<&SenderSession> {
        self.session.as_ref().ok_or_else(failed)
    }

    fn send(&mut self, request: HandOverRequest) {
        self.progress = Instant::now();
        // After the end of the stream no request is taken. The next answer says why it ended.
        let _ = self.requests.try_send(request);
    }
}

#[cold]
fn failed() -> Error {
    let text = "the hand-over has failed: a new connection begins";
    Error::new(ErrorKind::Unavailable, text)
}

#[cold]
fn silent(authority: &str) -> Error {
    let text = format!("`{authority}` has not answered for {ANSWER_TIMEOUT:?}");
    Error::new(ErrorKind::Timeout, text)
}
