//! The newest tokens that a subscriber holds, to resume with.
//!
//! Bounded twice: beyond the protocol's 4,096 the oldest is dropped, and a request states only as
//! many of the newest as it has room for. A missing token is never wrong: without a resume number of
//! the relay it costs one CATCH_UP.

use std::collections::{BTreeMap, HashMap};

use crate::words::{Limits, Position, Selector, Token, WorkDetected};

/// Tokens by queue, and their order of age.
#[derive(Debug)]
pub(super) struct Positions {
    tokens: HashMap<Selector, (u64, Token)>,
    ages: BTreeMap<u64, Selector>,
    next: u64,
    /// So many are kept.
    limit: usize,
    /// A request states at most so many. Halved when the relay refuses a request for its size,
    /// doubled by each stream that opens.
    most: usize,
    /// Stated by the newest request.
    stated: usize,
}

/// After a relay that took none at all, so many are tried.
const FEW: usize = 64;

impl Positions {
    /// Keeps the place after a wake-up that was handed to the application.
    pub(super) fn keep(&mut self, work: &WorkDetected) {
        if work.token.is_empty() || work.token.0.len() > Limits::TOKEN {
            return;
        }
        self.insert(&work.queue, &work.token);
    }

    /// Starts with what the application kept from another life.
    pub(super) fn starting_with(positions: &[Position], limit: usize) -> Self {
        let mut kept = Self {
            tokens: HashMap::new(),
            ages: BTreeMap::new(),
            next: 0,
            limit,
            most: limit,
            stated: 0,
        };
        let readable = |position: &&Position| position.token.0.len() <= Limits::TOKEN;
        for position in positions.iter().filter(readable) {
            kept.insert(&position.queue, &position.token);
        }
        kept
    }

    /// Returns what a subscribe request states that has room for so many bytes of them: the newest,
    /// in the order of their age.
    pub(super) fn newest(&mut self, room: usize) -> Vec<Position> {
        let mut left = room;
        let mut newest: Vec<Position> = self
            .ages
            .values()
            .rev()
            .take(self.most)
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
        self.stated = newest.len();
        newest
    }

    /// The relay refused the request for its size. Returns whether the next one is smaller.
    pub(super) fn refused(&mut self) -> bool {
        self.most = self.stated / 2;
        self.stated > 0
    }

    /// The relay took the request.
    pub(super) fn taken(&mut self) {
        self.most = (self.most * 2).max(FEW).min(self.limit);
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
