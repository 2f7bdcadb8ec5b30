//! The networks of peers.

use std::net::{IpAddr, Ipv6Addr};

/// Returns the unit in which peers are counted: the IPv4 address, or the IPv6 /64 network, as one
/// machine may use a whole /64.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(peer) => Ipv6Addr::from_bits(peer.to_bits() >> 64 << 64).into(),
        peer @ IpAddr::V4(_) => peer,
    }
}
