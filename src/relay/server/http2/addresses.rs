//! Counts the connections of each peer address, and limits their rate.
//!
//! At its limit an address loses its oldest connection without an admitted request for each new one:
//! silent connections of one program must not keep its neighbours behind the same address out.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crate::base::{
    clock::Tick,
    eviction::{EvictingPool, PoolPlace},
    network::network,
    sync::lock,
};

/// Counts connections by address, up to a limit for each.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    table: Arc<AddressTable>,
}

/// Counts one connection until dropped.
#[derive(Debug)]
pub(crate) struct AddressGuard {
    counted: Option<(Arc<AddressTable>, IpAddr)>,
}

/// A connection that was let in.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) guard: AddressGuard,
    /// Held until a request is admitted; `None` for an address without a limit.
    pub(crate) place: Option<PoolPlace>,
}

#[derive(Debug)]
struct AddressTable {
    /// `None`: no limit, and nothing is counted.
    max: Option<usize>,
    /// Peers on this machine are not counted, because one of them may be a proxy for others.
    exempt_loopback: bool,
    /// Time between two new connections of an address in the long run, and the most at once after a
    /// pause, as a time.
    interval: Duration,
    burst: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    peers: HashMap<IpAddr, Peer>,
    /// Peers without a connection are removed once there are this many.
    sweep_at: usize,
}

#[derive(Debug)]
struct Peer {
    open: usize,
    /// The connections without an admitted request.
    unproven: EvictingPool,
    /// The time at which the peer has no unused connection of its rate: GCRA's theoretical arrival
    /// time (ITU-T I.371).
    due: Tick,
}

/// Default when the relay does not listen on loopback. It allows half as many clients, because a
/// client has one connection for calls and one for 256 streams. This is plenty for one machine, and
/// a small part of the relay's connections for an attacker.
const DEFAULT_MAX: usize = 256;
/// In this time an address may connect as often as its limit of connections allows at one time, and
/// twice as often after a pause. Connections that do not finish their handshake take no longer.
const PERIOD: Duration = Duration::from_secs(5);
const LEAST_RATE: u32 = 20;
const LEAST_BURST: u32 = 64;
const FIRST_SWEEP: usize = 1024;

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
        let limit = u32::try_from(max.unwrap_or_default()).unwrap_or(u32::MAX);
        let interval = Duration::from_secs(1) / LEAST_RATE;
        let interval = interval.min(PERIOD / limit.max(1));
        let table = AddressTable {
            max,
            exempt_loopback: stated.is_none(),
            interval,
            burst: interval * limit.saturating_mul(2).max(LEAST_BURST),
            state: Mutex::default(),
        };
        Self {
            table: Arc::new(table),
        }
    }

    /// Counts a connection from this address, or returns `None` if the address connects too often, or
    /// is at its limit with connections that have an admitted request.
    pub(crate) fn admit(&self, peer: IpAddr, now: Tick) -> Option<Admitted> {
        let peer = peer.to_canonical();
        let exempt = self.table.exempt_loopback && peer.is_loopback();
        let Some(max) = self.table.max.filter(|_| !exempt) else {
            return Some(Admitted {
                guard: AddressGuard { counted: None },
                place: None,
            });
        };
        let network = network(peer);
        let mut state = self.table.lock();
        state.sweep(now);
        let peer = state.peers.entry(network).or_default();
        let due = peer.due.max(now) + self.table.interval;
        if due.since(now) > self.table.burst {
            return None;
        }
        let displaced = match peer.open >= max {
            true => Some(peer.unproven.take_oldest()?),
            false => None,
        };
        // One that is displaced counts until it has closed.
        (peer.open, peer.due) = (peer.open + 1, due);
        let place = peer.unproven.enter();
        drop(state);
        if let Some(displaced) = displaced {
            displaced.cancel();
        }
        Some(Admitted {
            guard: AddressGuard {
                counted: Some((Arc::clone(&self.table), network)),
            },
            place: Some(place),
        })
    }
}

impl Default for Peer {
    fn default() -> Self {
        Self {
            open: 0,
            unproven: EvictingPool::new(usize::MAX),
            due: Tick::default(),
        }
    }
}

impl State {
    /// Removes the peers without a connection whose rate is unused, from time to time.
    fn sweep(&mut self, now: Tick) {
        if self.peers.len() >= self.sweep_at {
            self.peers.retain(|_, peer| peer.open > 0 || peer.due > now);
            self.sweep_at = FIRST_SWEEP.max(2 * self.peers.len());
        }
    }
}

impl AddressTable {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for AddressGuard {
    fn drop(&mut self) {
        let Some((table, network)) = &self.counted else {
            return;
        };
        if let Some(peer) = table.lock().peers.get_mut(network) {
            peer.open -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Tick = Tick::from_nanos(0);

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn counting(stated: Option<usize>, listen: &str) -> Addresses {
        Addresses::new(stated, SocketAddr::new(ip(listen), 7600))
    }

    /// Counts a connection whose request is admitted at once.
    fn proven(addresses: &Addresses, peer: &str) -> Option<AddressGuard> {
        addresses
            .admit(ip(peer), START)
            .map(|admitted| admitted.guard)
    }

    #[test]
    fn at_its_limit_an_address_loses_its_oldest_connection_without_a_request() {
        let addresses = counting(Some(3), "0.0.0.0");
        let admit = || addresses.admit(ip("10.0.0.1"), START);
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
        assert!(addresses.admit(ip("10.0.0.2"), START).is_some());
    }

    #[test]
    fn an_address_at_its_limit_is_admitted_again_when_one_of_its_connections_ends() {
        let addresses = counting(Some(2), "0.0.0.0");
        let first = proven(&addresses, "10.0.0.1").expect("room");
        let _second = proven(&addresses, "::ffff:10.0.0.1").expect("room");
        assert!(
            addresses.admit(ip("10.0.0.1"), START).is_none(),
            "the same machine"
        );
        assert!(addresses.admit(ip("10.0.0.2"), START).is_some());
        drop(first);
        assert!(addresses.admit(ip("10.0.0.1"), START).is_some());
    }

    #[test]
    fn a_network_of_64_bits_is_one_address() {
        let addresses = counting(Some(1), "::");
        let _guard = proven(&addresses, "2001:db8:0:1::1").expect("room");
        assert!(addresses.admit(ip("2001:db8:0:1:ffff::2"), START).is_none());
        assert!(addresses.admit(ip("2001:db8:0:2::1"), START).is_some());
    }

    #[test]
    fn addresses_without_connections_are_removed() {
        let addresses = counting(Some(1), "0.0.0.0");
        let mut now = START;
        for number in 0..10 * 1024_u32 {
            drop(addresses.admit(IpAddr::from(number.to_be_bytes()), now));
            now += Duration::from_millis(50);
        }
        let kept = addresses.table.lock().peers.len();
        assert!(kept <= FIRST_SWEEP, "{kept}");
    }

    #[test]
    fn an_address_that_connects_again_and_again_is_admitted_at_a_rate() {
        let addresses = counting(None, "0.0.0.0");
        let peer = ip("10.0.0.1");
        let admitted = |millis: std::ops::Range<u64>| {
            let times = millis.map(|millis| Tick::from_nanos(millis * 1_000_000));
            times
                .filter(|now| addresses.admit(peer, *now).is_some())
                .count()
        };
        let at_once = (0..1000).filter(|_| addresses.admit(peer, START).is_some());
        assert_eq!(at_once.count(), 2 * DEFAULT_MAX);
        assert!((50..=52).contains(&admitted(0..1000)));
        let later = Tick::from_nanos(60_000_000_000);
        assert!(
            addresses.admit(ip("10.0.0.2"), START).is_some(),
            "another one"
        );
        let again = (0..1000).filter(|_| addresses.admit(peer, later).is_some());
        assert_eq!(again.count(), 2 * DEFAULT_MAX);
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
