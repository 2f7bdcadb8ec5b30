//! The options of the client of the broker.

use std::{sync::Arc, time::Duration};

use async_nats::ConnectOptions;

use super::{NatsConfig, events::Events, login::Login, tls};
use crate::{
    base::{backoff::jitter, task::blocking},
    error::{Error, ErrorKind, Result},
};

/// Two pings without an answer end a connection: a half-open one is found after 6 s. The link
/// itself counts as isolated after 3.5 s.
const PING: Duration = Duration::from_secs(2);
/// The limit of one attempt, from the connection to the first answer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The first attempt of many relays after a broker's restart falls into this span.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// The longest delay: below it a server that returns is found while few frames are missed.
const MAX_DELAY: Duration = Duration::from_millis(500);
/// Messages of a subscription that wait for the relay: 32 MiB of the largest. The client drops those
/// above it. A relay that is behind by more would count them late, and a resync costs it less.
pub(super) const SUBSCRIPTION_CAPACITY: usize = 512;
/// Messages that wait for the socket.
pub(super) const CLIENT_CAPACITY: usize = 256;
/// The client cannot be told to stop its attempts; after [`Events::close`] the next is never due.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Reads the files of the configuration, and returns options whose first attempt is the only one.
///
/// # Errors
/// `Invalid`, with the setting whose file cannot be used.
pub(super) async fn options(config: &NatsConfig, events: &Arc<Events>) -> Result<ConnectOptions> {
    let files = config.clone();
    let read = blocking(move || {
        let login = Login::read(files.credentials.as_ref())?;
        Ok::<_, Error>((login, tls::client_config(&files)?))
    });
    let read = read.await.unwrap_or_else(|| {
        let message = "the runtime is shutting down";
        Err(Error::new(ErrorKind::Closed, message))
    });
    let (login, tls) = read?;
    let (for_events, for_delays) = (Arc::clone(events), Arc::clone(events));
    let options = ConnectOptions::new()
        .name(format!("reveille {}", env!("CARGO_PKG_VERSION")))
        .require_tls(config.requires_tls())
        .tls_client_config(tls)
        .ping_interval(PING)
        .connection_timeout(CONNECT_TIMEOUT)
        .max_reconnects(None)
        .reconnect_delay_callback(move |attempt| match for_delays.is_closed() {
            true => NEVER,
            false => jitter(delay_ceiling(attempt), &mut fastrand::Rng::new()),
        })
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .client_capacity(CLIENT_CAPACITY)
        .event_callback(move |event| {
            for_events.on_event(&event);
            std::future::ready(())
        });
    login.apply(options)
}

/// Returns the longest delay before an attempt; the first one has the number 1.
fn delay_ceiling(attempt: usize) -> Duration {
    let doublings = attempt.saturating_sub(1).min(10);
    (FIRST_DELAY * (1 << doublings)).min(MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_from_fifty_milliseconds_to_half_a_second() {
        let ceilings: Vec<_> = (1..=8).map(|n| delay_ceiling(n).as_millis()).collect();
        assert_eq!(ceilings, [50, 100, 200, 400, 500, 500, 500, 500]);
        assert_eq!(delay_ceiling(usize::MAX), MAX_DELAY);
    }
}
