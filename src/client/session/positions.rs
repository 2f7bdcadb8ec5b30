//! The newest tokens that a subscriber holds, to resume with.
//!
//! Two bounds apply. Beyond the protocol's 4,096 tokens the oldest is dropped. A request states
//! only as many of the newest as fit. A missing token is harmless: without a resume number of the
//! relay it costs one CATCH_UP.

use std::collections::{BTreeMap, HashMap};

use crate::types::{Limits, Position, Selector, Token, WorkDetected};

/// Tokens by queue, ordered by age.
#[derive(Debug)]
pub(super) struct Positions {
    tokens: HashMap<Selector, (u64, Token)>,
    ages: BTreeMap<u64, Selector>,
    next: u64,
    /// Maximum number of tokens kept.
    limit: usize,
    /// Maximum positions of a request. Halved when the relay refuses a request for its size,
    /// doubled by each stream that opens.
    request_limit: usize,
    /// Positions in the newest request.
    last_stated: usize,
}

/// The limit grows to at least this many after an accepted request without positions.
const MIN_GROWN_REQUEST: usize = 64;

impl Positions {
    /// Records the position of a wake-up that was handed to the application.
    pub(super) fn record(&mut self, work: &WorkDetected) {
        if work.token.is_empty() || work.token.0.len() > Limits::TOKEN {
            return;
        }
        self.insert(&work.queue, &work.token);
    }

    /// Starts with positions that the application kept from an earlier process.
    pub(super) fn restore(positions: &[Position], limit: usize) -> Self {
        let mut kept = Self {
            tokens: HashMap::new(),
            ages: BTreeMap::new(),
            next: 0,
            limit,
            request_limit: limit,
            last_stated: 0,
        };
        let readable = |position: &&Position| position.token.0.len() <= Limits::TOKEN;
        for position in positions.iter().filter(readable) {
            kept.insert(&position.queue, &position.token);
        }
        kept
    }

    /// Returns the newest positions that fit into `max_bytes` of a subscribe request, oldest first.
    pub(super) fn newest(&mut self, max_bytes: usize) -> Vec<Position> {
        let mut left = max_bytes;
        let mut newest: Vec<Position> = self
            .ages
            .values()
            .rev()
            .take(self.request_limit)
            .map_while(|queue| {
                let (_, token) = self.tokens.get(queue)?;
                let position = Position {
                    queue: queue.clone(),
                    token: token.clone(),
                };
                left = left.checked_sub(position.encoded())?;
                Some(position)
            })
            .collect();
        newest.reverse();
        self.last_stated = newest.len();
        newest
    }

    /// Halves the limit after the relay refused a request for its size. Returns whether the next
    /// request is smaller.
    pub(super) fn shrink_request(&mut self) -> bool {
        self.request_limit = self.last_stated / 2;
        self.last_stated > 0
    }

    /// Doubles the limit after the relay accepted a request.
    pub(super) fn grow_request(&mut self) {
        self.request_limit = (self.request_limit * 2)
            .max(MIN_GROWN_REQUEST)
            .min(self.limit);
    }

    fn insert(&mut self, queue: &Selector, token: &Token) {
        self.next += 1;
        let entry = (self.next, token.clone());
        if let Some((old, _)) = self.tokens.insert(queue.clone(), entry) {
            self.ages.remove(&old);
        }
        self.ages.insert(self.next, queue.clone());
        if self.ages.len() > self.limit
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.tokens.remove(&oldest);
        }
    }
}
