//! The relays of a client: any of them serves it, and all of its streams begin at the same one.
//!
//! A client stays with its relay. A stream or a call that cannot reach it, or that it sends away,
//! moves the client on: to the next address of its name, and after the last one to the next URL.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    ClientConfig,
    connector::Connector,
    pool::{Lease, Opener, Pool},
    resolver::Resolver,
};
use crate::error::Result;

/// The relays, and the one in use.
#[derive(Debug)]
pub(super) struct Relays {
    all: Box<[RelayAddress]>,
    present: AtomicUsize,
}

/// One relay and the connections to it. Its name may stand for several relays.
#[derive(Debug)]
struct RelayAddress {
    url: String,
    host: String,
    resolver: Resolver,
    streams: Arc<Pool>,
    calls: Arc<Pool>,
}

/// After this silence the client sends an HTTP/2 PING on the connection. Below the 60 s after which load
/// balancers cut idle connections.
const KEEPALIVE: Duration = Duration::from_secs(20);

impl Relays {
    /// Reads a list of URLs with commas between them. Each client tries them in another random order,
    /// so that the clients of a fleet spread: also those that one relay sends away.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a malformed URL, or a file of [`ClientConfig::tls`] that does not fit.
    pub(super) fn new(urls: &str, config: &ClientConfig) -> Result<Self> {
        let mut urls: Vec<_> = urls.split(',').map(str::trim).collect();
        fastrand::shuffle(&mut urls);
        Ok(Self {
            all: urls
                .iter()
                .enumerate()
                .map(|(number, url)| RelayAddress::new(number, url, config))
                .collect::<Result<_>>()?,
            present: AtomicUsize::new(0),
        })
    }

    /// Returns the URL of the relay in use.
    pub(super) fn url(&self) -> &str {
        &self.present().url
    }

    /// Returns the URL of the relay of a connection.
    pub(super) fn url_of(&self, connection: &Lease) -> &str {
        &self.all[connection.relay()].url
    }

    /// Returns the number of other relays. It changes when a name is resolved.
    pub(super) fn others(&self) -> usize {
        let relays = self.all.iter().map(|relay| relay.resolver.count());
        relays.sum::<usize>() - 1
    }

    /// Resolves the name of the relay in use, so that [`Relays::others`] is known before the first
    /// connection.
    pub(super) async fn resolve(&self) {
        let relay = self.present();
        relay.resolver.resolve_once(&relay.host).await;
    }

    /// Leases a connection for a response stream.
    pub(super) fn stream_connection(&self) -> Lease {
        self.present().streams.lease()
    }

    /// Leases a connection for calls.
    pub(super) fn call_connection(&self) -> Lease {
        self.present().calls.lease()
    }

    /// Leases a connection for calls to a certain relay.
    pub(super) fn call_connection_to(&self, relay: usize) -> Lease {
        self.all[relay].calls.lease()
    }

    /// Moves on from the relay of this connection, unless it is the only one, or another stream or
    /// call has done so: to the next address of its name, and after the last one to the next URL.
    pub(super) fn leave(&self, connection: &Lease) {
        let from = connection.relay();
        let relay = &self.all[from];
        if self.others() == 0 {
            return;
        }
        // A single address needs no turns: after a round of the list they would ignore a connection
        // from an earlier round.
        if relay.resolver.count() > 1 {
            if !relay.resolver.leave(connection.turn()) {
                return;
            }
            // New connections begin at the address of the new turn.
            relay.retire_connections();
            // Not all addresses have been left since the first one.
            if !relay.resolver.turn().is_multiple_of(relay.resolver.count()) {
                tracing::info!(relay = relay.url, "using another address of this name");
                return;
            }
        }
        let next = (from + 1) % self.all.len();
        let moved = self.present.compare_exchange(from, next, Relaxed, Relaxed);
        if moved.is_ok() && next != from {
            relay.retire_connections();
            tracing::info!(
                from = relay.url,
                to = self.all[next].url,
                "using another relay"
            );
        }
    }

    fn present(&self) -> &RelayAddress {
        &self.all[self.present.load(Relaxed)]
    }
}

impl RelayAddress {
    fn new(number: usize, url: &str, config: &ClientConfig) -> Result<Self> {
        let (endpoint, connector) = Connector::new(url, &config.tls, config.connect_timeout)?;
        if !config.credential.is_none() && !config.insecure {
            connector.check_credential(url, &endpoint)?;
        }
        let host = endpoint.uri().host().unwrap_or_default().to_owned();
        let opener = Opener {
            relay: number,
            endpoint: endpoint
                .http2_keep_alive_interval(KEEPALIVE)
                .keep_alive_timeout(Duration::from_secs(10))
                .keep_alive_while_idle(true),
            connector: connector.clone(),
            credential: config.credential.clone(),
        };
        Ok(Self {
            url: url.to_owned(),
            host,
            resolver: connector.resolver,
            streams: Pool::new(opener.clone()),
            calls: Pool::new(opener),
        })
    }

    fn retire_connections(&self) {
        self.streams.retire_all();
        self.calls.retire_all();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn relays(urls: &str) -> Result<Relays> {
        Relays::new(urls, &ClientConfig::default())
    }

    #[tokio::test]
    async fn a_client_moves_on_once_for_all_of_its_streams() {
        let relays = relays("http://a:1, http://b:2,http://c:3").expect("valid");
        assert_eq!(relays.others(), 2);
        let first = relays.url().to_owned();
        let (one, other) = (relays.stream_connection(), relays.stream_connection());
        relays.leave(&one);
        let second = relays.url().to_owned();
        assert_ne!(first, second);
        // The second stream of the same relay changes nothing any more.
        relays.leave(&other);
        assert_eq!(relays.url(), second);
        assert_eq!(relays.url_of(&other), first);
        relays.leave(&relays.call_connection());
        relays.leave(&relays.call_connection());
        assert_eq!(relays.url(), first, "around the list");
        relays.leave(&other);
        assert_eq!(relays.url(), second, "also by a stream from the first time");
        let same = relays.call_connection_to(other.relay());
        assert_eq!(relays.url_of(&same), first);
    }

    #[tokio::test]
    async fn clients_of_one_relay_go_to_different_ones() {
        let mut ways = HashSet::new();
        for _ in 0..200 {
            let relays = relays("http://a:1,http://b:2,http://c:3").expect("valid");
            let begun = relays.url().to_owned();
            relays.leave(&relays.call_connection());
            ways.insert((begun, relays.url().to_owned()));
        }
        assert_eq!(ways.len(), 6, "each of the two others, from each");
    }

    #[tokio::test]
    async fn each_url_of_a_list_is_checked() {
        for (urls, rule) in [
            (
                "http://a:1,",
                "must be written http[s]://HOST:PORT, but is \"\"",
            ),
            ("http://a:1,b:2", "must be written http[s]://HOST:PORT"),
        ] {
            let error = relays(urls).expect_err(urls).to_string();
            assert!(error.contains(rule), "{error}");
        }
    }
}
