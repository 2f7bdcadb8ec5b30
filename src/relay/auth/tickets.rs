//! Random texts that stand for a credential for some time: sessions of the console, and the one-time
//! codes that begin them. Only their digests are kept.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderValue;
use ring::digest::{SHA256, digest};
use tokio::time::Instant;

use crate::{
    base::sync::lock,
    error::{Error, ErrorKind, Result},
};

/// The tickets of one kind. Each stands for the value of a header `authorization`, so the rules apply
/// to a request as they are then.
#[derive(Debug)]
pub(crate) struct Tickets {
    open: Mutex<HashMap<[u8; 32], Ticket>>,
    max: usize,
    lasts: Duration,
}

#[derive(Debug)]
struct Ticket {
    authorization: HeaderValue,
    until: Instant,
}

/// Random bytes of a ticket.
const BYTES: usize = 32;

impl Tickets {
    /// At most `max` are open; the one that ends first gives way to a new one.
    pub(crate) fn new(max: usize, lasts: Duration) -> Self {
        Self {
            open: Mutex::default(),
            max,
            lasts,
        }
    }

    /// Returns a new ticket, of letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the system has no random numbers.
    pub(crate) fn issue(&self, authorization: HeaderValue, now: Instant) -> Result<String> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|_| Error::new(ErrorKind::Internal, "the system has no random numbers"))?;
        let ticket = URL_SAFE_NO_PAD.encode(bytes);
        let mut open = lock(&self.open);
        open.retain(|_, ticket| ticket.until > now);
        if open.len() >= self.max {
            let first = open.iter().min_by_key(|(_, ticket)| ticket.until);
            let first = first.map(|(digest, _)| *digest);
            first.and_then(|first| open.remove(&first));
        }
        let until = now + self.lasts;
        let of = Ticket {
            authorization,
            until,
        };
        open.insert(digest_of(&ticket), of);
        Ok(ticket)
    }

    /// Returns what an open ticket stands for.
    pub(crate) fn get(&self, ticket: &str, now: Instant) -> Option<HeaderValue> {
        let open = lock(&self.open);
        let known = open
            .get(&digest_of(ticket))
            .filter(|known| known.until > now);
        known.map(|known| known.authorization.clone())
    }

    /// Ends a ticket, and returns what it stood for if it was open.
    pub(crate) fn take(&self, ticket: &str, now: Instant) -> Option<HeaderValue> {
        let known = lock(&self.open).remove(&digest_of(ticket));
        let known = known.filter(|known| known.until > now);
        known.map(|known| known.authorization)
    }
}

fn digest_of(ticket: &str) -> [u8; 32] {
    let digest = digest(&SHA256, ticket.as_bytes());
    digest.as_ref().try_into().expect("32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(60);

    fn credential(number: usize) -> HeaderValue {
        HeaderValue::from_str(&format!("Bearer {number}")).expect("text")
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_is_open_until_its_end_or_until_it_is_taken() {
        let tickets = Tickets::new(10, LASTS);
        let now = Instant::now();
        let ticket = tickets.issue(credential(1), now).expect("issued");
        assert_eq!(tickets.get(&ticket, now), Some(credential(1)));
        assert_eq!(tickets.get(&ticket, now + LASTS), None);
        assert_eq!(tickets.get("another", now), None);
        assert_eq!(tickets.take(&ticket, now), Some(credential(1)));
        assert_eq!(tickets.get(&ticket, now), None);
        assert_eq!(tickets.take(&ticket, now), None);
        let late = tickets.issue(credential(2), now).expect("issued");
        assert_eq!(tickets.take(&late, now + LASTS), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_to_end_gives_way() {
        let tickets = Tickets::new(3, LASTS);
        let now = Instant::now();
        let issue = |number| {
            let at = now + Duration::from_secs(number as u64);
            tickets.issue(credential(number), at).expect("issued")
        };
        let issued: Vec<_> = (0..4).map(issue).collect();
        assert_eq!(tickets.get(&issued[0], now), None);
        for (number, ticket) in issued.iter().enumerate().skip(1) {
            assert_eq!(tickets.get(ticket, now), Some(credential(number)));
        }
    }
}
