//! The task of one next machine: connects while there are messages, and waits longer after each
//! failure.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use tonic::transport::Endpoint;

use super::{Shared, sending::Sending};
use crate::{
    base::{backoff::Backoff, task::Scope},
    error::{Error, ErrorKind, Result},
    wire::proto::courier_client::CourierClient,
};

/// The handle of the task.
#[derive(Debug)]
pub(super) struct Hop {
    changed: Arc<Notify>,
}

/// The first wait after a failure is at most this long.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// A silent connection is checked with an HTTP/2 PING.
const KEEPALIVE: Duration = Duration::from_secs(10);

impl Hop {
    /// Starts the task of the machine `authority`.
    pub(super) fn start(shared: Arc<Shared>, authority: &str, scope: &Scope) -> Self {
        let changed = Arc::new(Notify::new());
        let (authority, signal) = (authority.to_owned(), Arc::clone(&changed));
        scope.spawn_restarting("hand-over", move || {
            let (shared, signal) = (Arc::clone(&shared), Arc::clone(&signal));
            run(shared, authority.clone(), signal)
        });
        Self { changed }
    }

    /// There may be messages.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }
}

async fn run(shared: Arc<Shared>, authority: String, changed: Arc<Notify>) {
    let mut rng = fastrand::Rng::new();
    let mut backoff = Backoff::new(FIRST_WAIT, shared.config.max_backoff);
    let mut failing = false;
    loop {
        changed.notified().await;
        let mut accepted = false;
        let ended = connection(&shared, &authority, &changed, &mut accepted).await;
        if accepted {
            backoff.reset();
        }
        let Err(error) = ended else {
            failing = false;
            continue;
        };
        if !failing || accepted {
            tracing::warn!(machine = authority, %error, "messages wait: the machine cannot take them over");
        }
        failing = true;
        if let Err(error) = shared
            .manager
            .hop_failed(&authority, &error.to_string())
            .await
        {
            tracing::warn!(machine = authority, %error, "the queue file cannot be written");
        }
        tokio::time::sleep(backoff.next(&mut rng)).await;
        changed.notify_one();
    }
}

/// Connects and moves messages until the connection is idle.
async fn connection(
    shared: &Arc<Shared>,
    authority: &str,
    changed: &Notify,
    accepted: &mut bool,
) -> Result<()> {
    if !shared.manager.has_messages_for(authority).await? {
        return Ok(());
    }
    let channel = endpoint(authority, shared.config.connect_timeout)?
        .connect()
        .await
        .map_err(|error| {
            let text = format!("`{authority}` cannot be reached");
            Error::new(ErrorKind::Unavailable, text).with_source(error)
        })?;
    let client = CourierClient::new(channel);
    let mut sending = Sending::open(Arc::clone(shared), authority, client).await?;
    let ended = sending.run(changed).await;
    *accepted = sending.has_accepted();
    let closed = sending.end().await;
    ended.and(closed)
}

fn endpoint(authority: &str, timeout: Duration) -> Result<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))
        .map_err(|_| Error::invalid("destination", format_args!("`{authority}` is no machine")))?;
    Ok(endpoint
        .connect_timeout(timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true))
}
