//! Why a relay does not serve a verb: a line for each cause.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::output;

/// The causes that a verb has printed since its relay last served it.
#[derive(Debug, Default)]
pub(crate) struct Causes(VecDeque<(String, Instant)>);

/// The relays of a list may fail in turn, each for a reason of its own.
const REPEAT_AFTER: Duration = Duration::from_secs(60);
/// Causes to remember.
const KEPT: usize = 8;

impl Causes {
    /// Prints a cause that is new.
    pub(crate) fn note(&mut self, cause: &str) {
        if self.is_new(cause, Instant::now()) {
            output::note(format_args!("{cause}; still trying"));
        }
    }

    /// Returns whether the cause is to be printed, and remembers it.
    pub(crate) fn is_new(&mut self, cause: &str, now: Instant) -> bool {
        self.0
            .retain(|(_, printed_at)| now.duration_since(*printed_at) < REPEAT_AFTER);
        if self.0.iter().any(|(known, _)| known == cause) {
            return false;
        }
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back((cause.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_several_relays_in_turn_are_each_printed_once_a_minute() {
        let (mut causes, start) = (Causes::default(), Instant::now());
        let mut printed = 0;
        for second in 0..120 {
            let now = start + Duration::from_secs(second);
            for relay in ["a", "b", "c"] {
                printed += usize::from(causes.is_new(relay, now));
            }
        }
        assert_eq!(printed, 6);
    }
}
