//! Random texts that stand for a credential for some time: sessions of the console, and the one-time
//! codes that begin them. Only their digests are kept.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderValue;
use tokio::time::Instant;

use super::token::{Digest, digest};
use crate::{
    base::{random::random, sync::lock},
    error::Result,
};

/// The tickets of one kind. Each stands for the value of a header `authorization`, so the rules apply
/// to a request as they are then.
#[derive(Debug)]
pub(crate) struct Tickets {
    open: Mutex<HashMap<Digest, Ticket>>,
    max: usize,
    lasts: Duration,
}

#[derive(Debug)]
struct Ticket {
    authorization: HeaderValue,
    until: Instant,
}

impl Tickets {
    /// At most `max` are open; the one that was issued first gives way to a new one.
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
    /// `Unavailable` if the system has no random numbers.
    pub(crate) fn issue(&self, authorization: HeaderValue, now: Instant) -> Result<String> {
        let text = URL_SAFE_NO_PAD.encode(random::<32>()?);
        let ticket = Ticket {
            authorization,
            until: now + self.lasts,
        };
        let mut open = lock(&self.open);
        if open.len() >= self.max
            && let Some((first, _)) = open.iter().min_by_key(|(_, ticket)| ticket.until)
        {
            let first = *first;
            open.remove(&first);
        }
        open.insert(digest([text.as_bytes()]), ticket);
        Ok(text)
    }

    /// Returns what an open ticket stands for.
    pub(crate) fn get(&self, ticket: &str, now: Instant) -> Option<HeaderValue> {
        lock(&self.open)
            .get(&digest([ticket.as_bytes()]))
            .filter(|known| known.until > now)
            .map(|known| known.authorization.clone())
    }

    /// Ends a ticket, and returns what it stood for if it was open.
    pub(crate) fn take(&self, ticket: &str, now: Instant) -> Option<HeaderValue> {
        lock(&self.open)
            .remove(&digest([ticket.as_bytes()]))
            .filter(|known| known.until > now)
            .map(|known| known.authorization)
    }
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
