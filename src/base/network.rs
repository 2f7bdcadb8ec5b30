//! The networks of peers, and this machine.

use std::net::{IpAddr, Ipv6Addr};

/// Returns whether the host of a URL is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Returns the unit in which peers are counted: the IPv4 address, or the IPv6 /64 network, as one
/// machine may use a whole /64.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => Ipv6Addr::from_bits(peer.to_bits() >> 64 << 64).into(),
        peer @ IpAddr::V4(_) => peer,
    }
}
