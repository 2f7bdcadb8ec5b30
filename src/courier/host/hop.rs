//! The task of one next machine: connects while there are messages, and waits longer after each
//! failure.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use tonic::transport::Endpoint;

use super::{
    HostConfig, Shared,
    sending::{End, Sending},
};
use crate::{
    base::{backoff::Backoff, causes::with_causes, task::Scope},
    client::{ClientTls, Connector, Credential, RelayChannel},
    error::{Error, ErrorKind, Result},
    wire::proto::courier_client::CourierClient,
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
            match is_known {
                true => continue,
                false => return,
            }
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
        greetings = match attempt.settled {
            true => 0,
            false => greetings.saturating_sub(1),
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
    let credential = match shared.manager.config().names_machine(authority) {
        true => shared.config.credential.clone(),
        false => Credential::default(),
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
