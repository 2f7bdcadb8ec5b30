//! Counts the connections of each peer address, up to a limit for each.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use crate::base::{network::network, sync::lock};

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
