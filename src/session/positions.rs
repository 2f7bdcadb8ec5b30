//! The newest tokens that a subscriber holds, to resume with.
//!
//! Bounded: beyond the protocol's 4,096 the oldest is dropped, which costs one CATCH_UP and is
//! never wrong.

use std::collections::{BTreeMap, HashMap};

use crate::words::{Limits, Position, Selector, Token, WorkDetected};

/// Tokens by queue, and their order of age.
#[derive(Debug, Default)]
pub(super) struct Positions {
    tokens: HashMap<Selector, (u64, Token)>,
    ages: BTreeMap<u64, Selector>,
    next: u64,
}

impl Positions {
    /// Keeps the place after a wake-up that was handed to the application.
    pub(super) fn keep(&mut self, work: &WorkDetected) {
        if work.token.is_empty() || work.token.0.len() > Limits::TOKEN {
            return;
        }
        self.insert(&work.queue, &work.token);
    }

    /// Starts with what the application kept from another life.
    pub(super) fn starting_with(positions: &[Position]) -> Self {
        let mut kept = Self::default();
        for position in positions {
            kept.insert(&position.queue, &position.token);
        }
        kept
    }

    fn insert(&mut self, queue: &Selector, token: &Token) {
        self.next += 1;
        let entry = (self.next, token.clone());
        if let Some((old, _)) = self.tokens.insert(queue.clone(), entry) {
            self.ages.remove(&old);
        }
        self.ages.insert(self.next, queue.clone());
        if self.ages.len() > Limits::POSITIONS
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.tokens.remove(&oldest);
        }
    }

    /// Returns what a subscribe request states.
    pub(super) fn all(&self) -> Vec<Position> {
        let position = |queue: &Selector| {
            let (_, token) = self.tokens.get(queue)?;
            Some(Position {
                queue: queue.clone(),
                token: token.clone(),
            })
        };
        self.ages.values().filter_map(position).collect()
    }
}
