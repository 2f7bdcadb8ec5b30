//! Limits the failed attempts of each address.
//!
//! An address has ten failures, and one more every six seconds. Further failures get no reason but a
//! time to retry, and the signatures of such an address are checked at a limited rate. A valid
//! credential is accepted nevertheless: many clients may share an address, and the guesses of one must
//! not lock out the others. A token has 256 random bits, and its check costs one hash; a signature
//! costs a hundred times as much.

use std::{collections::HashMap, net::IpAddr, sync::Mutex, time::Duration};

use super::denial::Denial;
use crate::base::{clock::Tick, network::network, sync::lock};

/// The failed attempts by address. A full table is emptied: that many attackers have many attempts
/// anyway.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<HashMap<IpAddr, Failures>>);

#[derive(Debug, Default)]
struct Failures {
    /// Each failure adds [`FORGIVEN_AFTER`].
    forgiven_at: Tick,
    /// For an address without an attempt left: the time of its next check of a signature.
    next_signature: Tick,
}

const FORGIVEN_AFTER: Duration = Duration::from_secs(6);
/// Ten failures.
const ALLOWED: Duration = Duration::from_secs(60);
/// Time between two checks of signatures: a tenth of a core at most.
const SIGNATURE_INTERVAL: Duration = Duration::from_millis(1);
/// A valid credential finds its turn sooner where the others come at a slower pace.
const SIGNATURE_RETRY: Duration = Duration::from_millis(500);
/// About 3 MiB.
const MOST_ADDRESSES: usize = 65_536;

impl Attempts {
    /// Counts a failed attempt.
    ///
    /// # Errors
    /// `TooManyFailures` if the address had no attempt left.
    pub(crate) fn failed(&self, peer: IpAddr, now: Tick) -> Result<(), Denial> {
        let peer = network(peer);
        let mut table = lock(&self.0);
        if table.len() >= MOST_ADDRESSES && !table.contains_key(&peer) {
            table.clear();
        }
        let failures = table.entry(peer).or_default();
        let forgiven_at = failures.forgiven_at.max(now) + FORGIVEN_AFTER;
        let retry_after = forgiven_at.since(now + ALLOWED);
        if retry_after > Duration::ZERO {
            return Err(Denial::TooManyFailures { retry_after });
        }
        failures.forgiven_at = forgiven_at;
        Ok(())
    }

    /// Returns whether a signature from this address is checked now.
    ///
    /// # Errors
    /// `TooManyFailures` if the address has no attempt left, and another signature was just checked.
    /// Not for a peer on this machine, which may be a proxy for all clients.
    pub(crate) fn check_signature(&self, peer: IpAddr, now: Tick) -> Result<(), Denial> {
        if peer.to_canonical().is_loopback() {
            return Ok(());
        }
        let mut table = lock(&self.0);
        let Some(failures) = table.get_mut(&network(peer)) else {
            return Ok(());
        };
        let has_attempt = failures.forgiven_at + FORGIVEN_AFTER <= now + ALLOWED;
        if !has_attempt && now < failures.next_signature {
            return Err(Denial::TooManyFailures {
                retry_after: SIGNATURE_RETRY,
            });
        }
        failures.next_signature = now + SIGNATURE_INTERVAL;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Tick {
        Tick::default() + Duration::from_secs(1000 + seconds)
    }

    /// Returns how many of these failures get their reason.
    fn fail(attempts: &Attempts, peer: &str, times: usize, now: Tick) -> usize {
        let peer = peer.parse().expect("an address");
        let failed = (0..times).filter(|_| attempts.failed(peer, now).is_ok());
        failed.count()
    }

    #[test]
    fn an_address_has_ten_failures_and_one_more_every_six_seconds() {
        let attempts = Attempts::default();
        assert_eq!(fail(&attempts, "10.0.0.1", 20, at(0)), 10);
        let refused = attempts.failed("::ffff:10.0.0.1".parse().expect("an address"), at(2));
        let retry_after = Duration::from_secs(4);
        assert_eq!(refused, Err(Denial::TooManyFailures { retry_after }));
        assert_eq!(fail(&attempts, "10.0.0.2", 1, at(2)), 1);
        assert_eq!(fail(&attempts, "10.0.0.1", 5, at(6)), 1);
        assert_eq!(fail(&attempts, "10.0.0.1", 20, at(1000)), 10);
    }

    #[test]
    fn signatures_of_an_address_without_attempts_are_checked_at_a_limited_rate() {
        let attempts = Attempts::default();
        let checked = |peer: &str, from| {
            let peer = peer.parse().expect("an address");
            let times = (0..10_000).map(|step| from + Duration::from_micros(100) * step);
            let checked = times.filter(|now| attempts.check_signature(peer, *now).is_ok());
            checked.count()
        };
        fail(&attempts, "10.0.0.1", 9, at(0));
        assert_eq!(checked("10.0.0.1", at(0)), 10_000);
        fail(&attempts, "10.0.0.1", 2, at(1));
        assert_eq!(checked("10.0.0.1", at(1)), 1000);
        assert_eq!(checked("10.0.0.2", at(1)), 10_000);
        assert_eq!(checked("10.0.0.1", at(61)), 10_000);
        for proxy in ["127.0.0.1", "::1"] {
            fail(&attempts, proxy, 10, at(1));
            assert_eq!(checked(proxy, at(1)), 10_000);
        }
    }

    #[test]
    fn a_network_of_64_bits_is_one_address() {
        let attempts = Attempts::default();
        for last in 0..10 {
            fail(&attempts, &format!("2001:db8:0:1::{last}"), 1, at(0));
        }
        assert_eq!(fail(&attempts, "2001:db8:0:1:ffff::1", 1, at(0)), 0);
        assert_eq!(fail(&attempts, "2001:db8:0:2::1", 1, at(0)), 1);
    }
}
