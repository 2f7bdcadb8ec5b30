//! All connections of a server: what they share, and the bounds of their number, also of each peer address,
//! and of their streams.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    accept::ServerConfig,
    incidents::Incidents,
    server_limits::{MemoryGuard, connection_limits, open_files, retry_later},
    tls::Tls,
};
use crate::{
    base::{evicting_pool::EvictingPool, network::network, sync::lock},
    error::{Error, ErrorKind, Result},
    relay::hub::LimitUse,
};

/// What all connections of a server share.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) incidents: Arc<Incidents>,
    pub(crate) memory: Arc<MemoryGuard>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(super) draining: CancellationToken,
    /// Age from which on a connection takes no more streams, give or take a tenth.
    pub(super) max_age: Duration,
    /// Time for its streams to end afterwards.
    pub(super) grace: Duration,
    max: usize,
    /// One permit for each connection that may still be established.
    pub(super) permits: Arc<Semaphore>,
    /// Connections before their preface.
    pub(crate) handshakes: EvictingPool,
    max_streams: usize,
    streams: Arc<Semaphore>,
    /// Requests in progress of callers that are not known yet.
    unknown: Arc<Semaphore>,
}

/// Requests of callers that are not known yet, which are received at one time: 72 MiB.
const UNKNOWN: usize = 4096;
/// Time beyond the age of the longest streams, in which an old connection may end by itself.
const LAST_ANSWERS: Duration = Duration::from_secs(60);

impl Connections {
    pub(super) fn new(
        config: &ServerConfig,
        draining: CancellationToken,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let stated = config.limits.connections(config.listen);
        let (established, handshakes) = connection_limits(stated, open_files());
        let max = established.min(Semaphore::MAX_PERMITS);
        let max_streams = config.limits.max_streams.clamp(1, Semaphore::MAX_PERMITS);
        let streams_end = config
            .stream_max_age
            .saturating_add(config.stream_max_age / 5);
        Self {
            incidents: Arc::new(Incidents::new()),
            memory: Arc::new(MemoryGuard::new(config.limits.max_memory)),
            tls,
            draining,
            max_age: config.limits.max_connection_age,
            grace: streams_end.saturating_add(LAST_ANSWERS),
            max,
            permits: Arc::new(Semaphore::new(max)),
            handshakes: EvictingPool::new(handshakes),
            max_streams,
            streams: Arc::new(Semaphore::new(max_streams)),
            unknown: Arc::new(Semaphore::new(UNKNOWN)),
        }
    }

    /// Returns the number of established connections.
    pub(crate) fn open(&self) -> usize {
        self.max - self.permits.available_permits()
    }

    /// Returns the maximum of established connections.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Takes one of the relay's streams.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] if all are open, or if the process is short of memory.
    pub(crate) fn take_stream(&self) -> Result<OwnedSemaphorePermit> {
        self.memory.check()?;
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        permit.map_err(|_| {
            let limit = self.max_streams;
            let message = format!("streams: the limit of {limit} streams of this relay is reached");
            retry_later(Error::new(ErrorKind::Exhausted, message))
        })
    }

    /// Takes the place of a request of a caller that is not known yet.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] if so many are being received.
    pub(crate) fn take_unknown(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.unknown).try_acquire_owned();
        permit.map_err(|_| {
            let message = format!(
                "requests: the limit is {UNKNOWN} at one time of callers that are not known"
            );
            retry_later(Error::new(ErrorKind::Exhausted, message))
        })
    }

    /// Returns the use of the limits of streams and connections.
    pub(crate) fn limits(&self) -> [LimitUse; 2] {
        let of = |what, used: usize, limit: usize| LimitUse {
            what,
            used: used as u64,
            limit: limit as u64,
            is_full: used >= limit,
        };
        let (streams, max_streams) = self.streams();
        [
            of("streams", streams, max_streams),
            of("connections", self.open(), self.max),
        ]
    }

    /// Returns the number of open streams, and the maximum.
    pub(crate) fn streams(&self) -> (usize, usize) {
        let open = self.max_streams - self.streams.available_permits();
        (open, self.max_streams)
    }
}

/// Counts connections by address.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    /// `None`: no limit, and nothing is counted.
    max: Option<usize>,
    /// Peers on this machine are not counted, because one of them may be a proxy for others.
    exempt_loopback: bool,
    open: OpenByAddress,
}

type OpenByAddress = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// Counts one connection until dropped.
#[derive(Debug)]
pub(crate) struct AddressGuard(Option<(OpenByAddress, IpAddr)>);

/// Default when the relay does not listen on loopback. It allows half as many clients, because a
/// client has one connection for calls and one for 256 streams. This is plenty for one machine, and
/// a small part of the relay's connections for an attacker.
const DEFAULT_MAX: usize = 256;

impl Addresses {
    /// Creates the counts of a server that listens on `listen`. `stated` is the configured limit, 0
    /// for none. Without it there is no limit for a server or a peer on loopback.
    pub(crate) fn new(stated: Option<usize>, listen: SocketAddr) -> Self {
        let max = match stated {
            Some(0) => None,
            Some(max) => Some(max),
            None if listen.ip().is_loopback() => None,
            None => Some(DEFAULT_MAX),
        };
        Self {
            max,
            exempt_loopback: stated.is_none(),
            open: Arc::default(),
        }
    }

    /// Counts a connection from this address, or returns `None` if the address is at its limit.
    pub(crate) fn admit(&self, peer: IpAddr) -> Option<AddressGuard> {
        let peer = peer.to_canonical();
        let exempt = self.exempt_loopback && peer.is_loopback();
        let Some(max) = self.max.filter(|_| !exempt) else {
            return Some(AddressGuard(None));
        };
        let network = network(peer);
        let mut open = lock(&self.open);
        let count = open.entry(network).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(AddressGuard(Some((Arc::clone(&self.open), network))))
    }
}

impl Drop for AddressGuard {
    fn drop(&mut self) {
        let Some((open, network)) = &self.0 else {
            return;
        };
        let mut open = lock(open);
        if let Some(count) = open.get_mut(network) {
            *count -= 1;
            if *count == 0 {
                open.remove(network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn counting(stated: Option<usize>, listen: &str) -> Addresses {
        Addresses::new(stated, SocketAddr::new(ip(listen), 7600))
    }

    #[test]
    fn an_address_at_its_limit_is_admitted_again_when_one_of_its_connections_ends() {
        let addresses = counting(Some(2), "0.0.0.0");
        let first = addresses.admit(ip("10.0.0.1")).expect("room");
        let _second = addresses.admit(ip("::ffff:10.0.0.1")).expect("room");
        assert!(
            addresses.admit(ip("10.0.0.1")).is_none(),
            "the same machine"
        );
        assert!(addresses.admit(ip("10.0.0.2")).is_some());
        drop(first);
        assert!(addresses.admit(ip("10.0.0.1")).is_some());
    }

    #[test]
    fn a_network_of_64_bits_is_one_address() {
        let addresses = counting(Some(1), "::");
        let _guard = addresses.admit(ip("2001:db8:0:1::1")).expect("room");
        assert!(addresses.admit(ip("2001:db8:0:1:ffff::2")).is_none());
        assert!(addresses.admit(ip("2001:db8:0:2::1")).is_some());
    }

    #[test]
    fn addresses_without_connections_are_removed() {
        let addresses = counting(Some(1), "0.0.0.0");
        for number in 0..1024_u32 {
            let guard = addresses.admit(IpAddr::from(number.to_be_bytes()));
            drop(guard.expect("the first of its address"));
        }
        assert!(lock(&addresses.open).is_empty());
    }

    #[test]
    fn loopback_is_open_unless_a_limit_is_stated() {
        let held = |addresses: &Addresses, peer| {
            let guards = (0..1000).map_while(|_| addresses.admit(ip(peer)));
            guards.collect::<Vec<_>>().len()
        };
        assert_eq!(held(&counting(None, "127.0.0.1"), "127.0.0.1"), 1000);
        assert_eq!(held(&counting(None, "0.0.0.0"), "127.0.0.1"), 1000);
        assert_eq!(held(&counting(None, "0.0.0.0"), "10.0.0.1"), 256);
        assert_eq!(held(&counting(Some(0), "0.0.0.0"), "10.0.0.1"), 1000);
        assert_eq!(held(&counting(Some(5), "127.0.0.1"), "127.0.0.1"), 5);
    }
}
