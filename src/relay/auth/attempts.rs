//! Limits the failed attempts of each address.
//!
//! After ten failures within a minute, further failures of the address get no reason for a minute, and
//! its signatures are checked at a limited rate. A valid credential is accepted nevertheless:
//! many clients may share an address, and the guesses of one must not lock out the others. A token
//! has 256 random bits, and its check costs one hash; a signature costs a hundred times as much.
//! The oldest address leaves a full table.

use std::{net::IpAddr, sync::Mutex, time::Duration};

use super::{bounded_map::BoundedMap, denial::Denial};
use crate::base::{clock::Tick, network::network, sync::lock};

/// The failed attempts of all addresses.
#[derive(Debug)]
pub(crate) struct Attempts(Mutex<BoundedMap<IpAddr, Failures>>);

/// The failures of one address since the start of a period.
#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    since: Tick,
    refused_until: Option<Tick>,
    /// While the address is refused: the time of its next check of a signature.
    next_signature: Tick,
}

const ALLOWED: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);
const REFUSAL: Duration = Duration::from_secs(60);
/// Time between two checks of signatures of a refused address: a tenth of a core at most. Each
/// credential of a good client is checked once, so the clients behind one proxy find their turns.
const SIGNATURE_INTERVAL: Duration = Duration::from_millis(1);
/// A valid credential finds its turn sooner where the others come at a slower pace.
const SIGNATURE_RETRY: Duration = Duration::from_millis(500);
/// About 6 MiB. More attackers than this have many attempts anyway.
const MOST_ADDRESSES: usize = 65_536;

impl Default for Attempts {
    fn default() -> Self {
        Self(Mutex::new(BoundedMap::new(MOST_ADDRESSES)))
    }
}

impl Attempts {
    /// Returns whether a failure from this address gets its reason.
    ///
    /// # Errors
    /// `TooManyFailures` while the address is refused.
    pub(crate) fn check(&self, peer: IpAddr, now: Tick) -> Result<(), Denial> {
        let table = lock(&self.0);
        let failures = table.get(&network(peer));
        match failures.and_then(|failures| failures.refused_until) {
            Some(until) if now < until => Err(Denial::TooManyFailures {
                // The address may have been refused after this call read the time.
                retry_after: until.since(now).min(REFUSAL),
            }),
            _ => Ok(()),
        }
    }

    /// Returns whether a signature from this address is checked now.
    ///
    /// # Errors
    /// `TooManyFailures` with a short time while the address is refused and another one was checked.
    /// Not for a peer on this machine, which may be a proxy for all clients.
    pub(crate) fn check_signature(&self, peer: IpAddr, now: Tick) -> Result<(), Denial> {
        if peer.to_canonical().is_loopback() {
            return Ok(());
        }
        let mut table = lock(&self.0);
        let Some(failures) = table.get_mut(&network(peer)) else {
            return Ok(());
        };
        if failures.refused_until.is_none_or(|until| until <= now) {
            return Ok(());
        }
        if now < failures.next_signature {
            return Err(Denial::TooManyFailures {
                retry_after: SIGNATURE_RETRY,
            });
        }
        failures.next_signature = now + SIGNATURE_INTERVAL;
        Ok(())
    }

    /// Counts a failed attempt.
    pub(crate) fn failed(&self, peer: IpAddr, now: Tick) {
        let peer = network(peer);
        let mut table = lock(&self.0);
        let failures = table.get_mut(&peer);
        match failures.filter(|failures| !failures.is_over(now)) {
            Some(failures) => failures.count(now),
            None => table.insert(
                peer,
                Failures {
                    count: 1,
                    since: now,
                    refused_until: None,
                    next_signature: now,
                },
            ),
        }
    }
}

impl Failures {
    fn count(&mut self, now: Tick) {
        self.count += 1;
        // Calls that were checked at the same time may fail after the tenth.
        if self.count >= ALLOWED && self.refused_until.is_none() {
            self.refused_until = Some(now + REFUSAL);
        }
    }

    fn is_over(&self, now: Tick) -> bool {
        now >= self.refused_until.unwrap_or(self.since + PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn at(seconds: u64) -> Tick {
        Tick::default() + Duration::from_secs(seconds)
    }

    fn fail(attempts: &Attempts, peer: &str, times: u32, now: Tick) {
        for _ in 0..times {
            attempts.failed(ip(peer), now);
        }
    }

    #[test]
    fn the_tenth_failure_within_a_minute_refuses_the_address_for_a_minute() {
        let attempts = Attempts::default();
        fail(&attempts, "10.0.0.1", 9, at(0));
        assert_eq!(attempts.check(ip("10.0.0.1"), at(59)), Ok(()));
        fail(&attempts, "10.0.0.1", 1, at(59));
        let refused = attempts.check(ip("::ffff:10.0.0.1"), at(100));
        let retry_after = Duration::from_secs(19);
        assert_eq!(refused, Err(Denial::TooManyFailures { retry_after }));
        assert_eq!(attempts.check(ip("10.0.0.2"), at(100)), Ok(()));
        assert_eq!(attempts.check(ip("10.0.0.1"), at(119)), Ok(()));
        // The count starts anew.
        fail(&attempts, "10.0.0.1", 9, at(119));
        assert_eq!(attempts.check(ip("10.0.0.1"), at(119)), Ok(()));
    }

    #[test]
    fn a_call_that_read_the_time_before_the_refusal_waits_no_longer_than_it() {
        let attempts = Attempts::default();
        fail(&attempts, "10.0.0.1", 10, at(2));
        let refused = attempts.check(ip("10.0.0.1"), at(1));
        let retry_after = REFUSAL;
        assert_eq!(refused, Err(Denial::TooManyFailures { retry_after }));
    }

    #[test]
    fn signatures_of_a_refused_address_are_checked_at_a_limited_rate() {
        let attempts = Attempts::default();
        let check = |peer, now| attempts.check_signature(ip(peer), now);
        let checked = |peer, from| {
            let times = (0..10_000).map(|step| from + Duration::from_micros(100) * step);
            times.filter(|now| check(peer, *now).is_ok()).count()
        };
        fail(&attempts, "10.0.0.1", 9, at(0));
        assert_eq!(checked("10.0.0.1", at(1)), 10_000);
        fail(&attempts, "10.0.0.1", 1, at(2));
        assert_eq!(checked("10.0.0.1", at(2)), 1000);
        assert_eq!(checked("10.0.0.2", at(2)), 10_000);
        assert_eq!(checked("10.0.0.1", at(62)), 10_000);
        // A proxy on this machine.
        fail(&attempts, "127.0.0.1", 10, at(2));
        assert_eq!(checked("127.0.0.1", at(2)), 10_000);
    }

    #[test]
    fn failures_of_another_minute_do_not_add_up() {
        let attempts = Attempts::default();
        fail(&attempts, "10.0.0.1", 9, at(0));
        fail(&attempts, "10.0.0.1", 9, at(60));
        assert_eq!(attempts.check(ip("10.0.0.1"), at(60)), Ok(()));
    }

    #[test]
    fn late_failures_do_not_prolong_the_refusal() {
        let attempts = Attempts::default();
        fail(&attempts, "10.0.0.1", 10, at(0));
        fail(&attempts, "10.0.0.1", 10, at(30));
        assert!(attempts.check(ip("10.0.0.1"), at(59)).is_err());
        assert_eq!(attempts.check(ip("10.0.0.1"), at(60)), Ok(()));
    }

    #[test]
    fn a_network_of_64_bits_is_one_address() {
        let attempts = Attempts::default();
        for last in 0..10 {
            fail(&attempts, &format!("2001:db8:0:1::{last}"), 1, at(0));
        }
        assert!(attempts.check(ip("2001:db8:0:1:ffff::1"), at(0)).is_err());
        assert_eq!(attempts.check(ip("2001:db8:0:2::1"), at(0)), Ok(()));
    }
}
