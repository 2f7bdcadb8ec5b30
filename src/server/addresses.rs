//! How many connections each peer's address has.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Counts connections by address, up to a limit for each.
#[derive(Debug, Clone)]
pub(super) struct Addresses {
    shared: Arc<Shared>,
}

/// A connection's place in the count. It leaves the count when this is dropped.
#[derive(Debug)]
pub(super) struct AddressPlace {
    counted: Option<(Arc<Shared>, IpAddr)>,
}

#[derive(Debug)]
struct Shared {
    /// `None`: no limit, and nothing is counted.
    max: Option<usize>,
    /// Peers on this machine are not counted: they may be a proxy for others.
    spares_loopback: bool,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// Where the relay listens on other addresses than loopback: half as many clients, which have one
/// connection for calls and one for 256 streams. Many for one machine, few for one that wants all.
const DEFAULT_MAX: usize = 256;

impl Addresses {
    /// Makes the count for a server that listens there. `stated` is the configured limit, 0 for
    /// none; without one there is no limit on loopback, nor for peers on it.
    pub(super) fn new(stated: Option<usize>, listen: SocketAddr) -> Self {
        let max = match stated {
            Some(0) => None,
            Some(max) => Some(max),
            None if listen.ip().is_loopback() => None,
            None => Some(DEFAULT_MAX),
        };
        let shared = Shared {
            max,
            spares_loopback: stated.is_none(),
            counts: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Counts a connection from this address, or returns `None` where it has its most.
    pub(super) fn enter(&self, peer: IpAddr) -> Option<AddressPlace> {
        let peer = peer.to_canonical();
        let spared = self.shared.spares_loopback && peer.is_loopback();
        let Some(max) = self.shared.max.filter(|_| !spared) else {
            return Some(AddressPlace { counted: None });
        };
        let network = network(peer);
        let mut counts = self.shared.lock();
        let count = counts.entry(network).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(AddressPlace {
            counted: Some((Arc::clone(&self.shared), network)),
        })
    }
}

/// Returns what counts as one address: a machine has a whole /64 network of IPv6 for itself.
fn network(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(peer) => Ipv6Addr::from_bits(peer.to_bits() >> 64 << 64).into(),
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let Some((shared, network)) = &self.counted else {
            return;
        };
        let mut counts = shared.lock();
        if let Some(count) = counts.get_mut(network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(network);
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
    fn an_address_at_its_limit_waits_for_one_of_its_own_to_leave() {
        let addresses = counting(Some(2), "0.0.0.0");
        let first = addresses.enter(ip("10.0.0.1")).expect("room");
        let _second = addresses.enter(ip("::ffff:10.0.0.1")).expect("room");
        assert!(
            addresses.enter(ip("10.0.0.1")).is_none(),
            "the same machine"
        );
        assert!(addresses.enter(ip("10.0.0.2")).is_some());
        drop(first);
        assert!(addresses.enter(ip("10.0.0.1")).is_some());
    }

    #[test]
    fn a_network_of_64_bits_is_one_address() {
        let addresses = counting(Some(1), "::");
        let _place = addresses.enter(ip("2001:db8:0:1::1")).expect("room");
        assert!(addresses.enter(ip("2001:db8:0:1:ffff::2")).is_none());
        assert!(addresses.enter(ip("2001:db8:0:2::1")).is_some());
    }

    #[test]
    fn who_left_is_not_remembered() {
        let addresses = counting(Some(1), "0.0.0.0");
        for last in 0..=255 {
            drop(addresses.enter(IpAddr::from([10, 0, 0, last])));
        }
        assert!(addresses.shared.lock().is_empty());
    }

    #[test]
    fn loopback_is_open_unless_a_limit_is_stated() {
        let held = |addresses: &Addresses, peer| {
            let places = (0..1000).map_while(|_| addresses.enter(ip(peer)));
            places.collect::<Vec<_>>().len()
        };
        assert_eq!(held(&counting(None, "127.0.0.1"), "127.0.0.1"), 1000);
        assert_eq!(held(&counting(None, "0.0.0.0"), "127.0.0.1"), 1000);
        assert_eq!(held(&counting(None, "0.0.0.0"), "10.0.0.1"), 256);
        assert_eq!(held(&counting(Some(0), "0.0.0.0"), "10.0.0.1"), 1000);
        assert_eq!(held(&counting(Some(5), "127.0.0.1"), "127.0.0.1"), 5);
    }
}
