//! Counts the connections of each peer address.
//!
//! At its limit, and beyond 64 without an admitted request, an address loses its oldest one of those for each new one:
//! silent connections of one program must not keep its neighbours behind the same address out.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use super::limits::HANDSHAKES;
use crate::base::{
    eviction::{EvictingPool, PoolPlace},
    network::network,
    sync::lock,
};

/// Counts connections by address, up to a limit for each.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    /// `None`: no limit, and nothing is counted.
    max: Option<usize>,
    /// Peers on this machine are not counted, because one of them may be a proxy for others.
    exempt_loopback: bool,
    peers: Peers,
}

/// Those with connections.
type Peers = Arc<Mutex<HashMap<IpAddr, Peer>>>;

/// Counts one connection until dropped.
#[derive(Debug)]
pub(crate) struct AddressGuard {
    counted: Option<(Peers, IpAddr)>,
}

/// A connection that was let in.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) guard: AddressGuard,
    /// Held until a request is admitted; `None` for an address without a limit.
    pub(crate) place: Option<PoolPlace>,
}

#[derive(Debug)]
struct Peer {
    open: usize,
    /// The connections without an admitted request.
    unproven: EvictingPool,
}

/// Default when the relay does not listen on loopback. It allows half as many clients, because a
/// client has one connection for calls and one for 256 streams. This is plenty for one machine, and
/// a small part of the relay's connections for an attacker.
const DEFAULT_MAX: usize = 256;
/// Connections of an address without an admitted request: a quarter of those of all addresses that may be in
/// their handshake.
const MAX_UNPROVEN: usize = HANDSHAKES / 4;

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
            peers: Arc::default(),
        }
    }

    /// Counts a connection from this address, or returns `None` if the address is at its limit with
    /// connections that have an admitted request.
    pub(crate) fn admit(&self, peer: IpAddr) -> Option<Admitted> {
        let peer = peer.to_canonical();
        let exempt = self.exempt_loopback && peer.is_loopback();
        let Some(max) = self.max.filter(|_| !exempt) else {
            return Some(Admitted {
                guard: AddressGuard { counted: None },
                place: None,
            });
        };
        let network = network(peer);
        let mut peers = lock(&self.peers);
        let peer = peers.entry(network).or_default();
        let displaced = match peer.open >= max {
            true => Some(peer.unproven.take_oldest()?),
            false => None,
        };
        // One that is displaced counts until it has closed.
        peer.open += 1;
        let place = peer.unproven.enter();
        drop(peers);
        if let Some(displaced) = displaced {
            displaced.cancel();
        }
        Some(Admitted {
            guard: AddressGuard {
                counted: Some((Arc::clone(&self.peers), network)),
            },
            place: Some(place),
        })
    }
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            open: 0,
            unproven: EvictingPool::new(MAX_UNPROVEN),
        }
    }
}

impl Drop for AddressGuard {
    fn drop(&mut self) {
        let Some((peers, network)) = &self.counted else {
            return;
        };
        let mut peers = lock(peers);
        if let Some(peer) = peers.get_mut(network) {
            peer.open -= 1;
            if peer.open == 0 {
                peers.remove(network);
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

    /// Counts a connection whose request is admitted at once.
    fn proven(addresses: &Addresses, peer: &str) -> Option<AddressGuard> {
        addresses.admit(ip(peer)).map(|admitted| admitted.guard)
    }

    #[test]
    fn at_its_limit_an_address_loses_its_oldest_connection_without_a_request() {
        let addresses = counting(Some(3), "0.0.0.0");
        let admit = || addresses.admit(ip("10.0.0.1"));
        let _proven = proven(&addresses, "10.0.0.1").expect("room");
        let is_displaced = |admitted: &Admitted| {
            let place = admitted.place.as_ref().expect("it is counted");
            place.token().is_cancelled()
        };
        let (oldest, other) = (admit().expect("room"), admit().expect("room"));
        let new = admit().expect("the oldest makes room");
        assert!(is_displaced(&oldest) && !is_displaced(&other));
        drop(oldest);
        // Another one for the next, also while the displaced ones have not closed.
        let newer = admit().expect("the next makes room");
        assert!(is_displaced(&other) && !is_displaced(&new));
        for mut admitted in [other, new, newer] {
            admitted.place = None;
            std::mem::forget(admitted.guard);
        }
        assert!(admit().is_none(), "all have an admitted request");
        assert!(addresses.admit(ip("10.0.0.2")).is_some());
    }

    #[test]
    fn an_address_holds_a_quarter_of_the_handshakes() {
        let addresses = counting(None, "0.0.0.0");
        let admit = || addresses.admit(ip("10.0.0.1")).expect("room");
        let all: Vec<_> = (0..2 * MAX_UNPROVEN).map(|_| admit()).collect();
        let is_displaced = |admitted: &&Admitted| {
            let place = admitted.place.as_ref().expect("it is counted");
            place.token().is_cancelled()
        };
        assert_eq!(all.iter().take_while(is_displaced).count(), MAX_UNPROVEN);
        assert_eq!(all.iter().filter(is_displaced).count(), MAX_UNPROVEN);
    }

    #[test]
    fn an_address_at_its_limit_is_admitted_again_when_one_of_its_connections_ends() {
        let addresses = counting(Some(2), "0.0.0.0");
        let first = proven(&addresses, "10.0.0.1").expect("room");
        let _second = proven(&addresses, "::ffff:10.0.0.1").expect("room");
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
        let _guard = proven(&addresses, "2001:db8:0:1::1").expect("room");
        assert!(addresses.admit(ip("2001:db8:0:1:ffff::2")).is_none());
        assert!(addresses.admit(ip("2001:db8:0:2::1")).is_some());
    }

    #[test]
    fn addresses_without_connections_are_removed() {
        let addresses = counting(Some(1), "0.0.0.0");
        for number in 0..1024_u32 {
            let admitted = addresses.admit(IpAddr::from(number.to_be_bytes()));
            drop(admitted.expect("the first of its address"));
        }
        assert!(lock(&addresses.peers).is_empty());
    }

    #[test]
    fn loopback_is_open_unless_a_limit_is_stated() {
        let held = |addresses: &Addresses, peer| {
            let guards = (0..1000).map_while(|_| proven(addresses, peer));
            guards.collect::<Vec<_>>().len()
        };
        assert_eq!(held(&counting(None, "127.0.0.1"), "127.0.0.1"), 1000);
        assert_eq!(held(&counting(None, "0.0.0.0"), "127.0.0.1"), 1000);
        assert_eq!(held(&counting(None, "0.0.0.0"), "10.0.0.1"), 256);
        assert_eq!(held(&counting(Some(0), "0.0.0.0"), "10.0.0.1"), 1000);
        assert_eq!(held(&counting(Some(5), "127.0.0.1"), "127.0.0.1"), 5);
    }
}
