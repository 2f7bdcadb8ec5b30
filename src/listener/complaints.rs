//! How often the log hears of an error: the first of a kind at once, then one line for many.

use std::time::Duration;

use super::hooks::Action;
use crate::clock::Tick;

/// What was said of each kind, and how many were not.
#[derive(Debug, Default)]
pub(super) struct Complaints([Option<Said>; Action::COUNT]);

#[derive(Debug, Clone, Copy)]
struct Said {
    at: Tick,
    silent: u64,
}

/// At most one line of a kind in this span.
const EVERY: Duration = Duration::from_secs(10);

impl Complaints {
    /// Counts an error; returns how many before it were not said, where it is to be said itself.
    pub(super) fn count(&mut self, action: Action, now: Tick) -> Option<u64> {
        let said = &mut self.0[action as usize];
        match said {
            Some(said) if now.since(said.at) < EVERY => {
                said.silent += 1;
                None
            }
            _ => {
                let silent = said.map_or(0, |said| said.silent);
                *said = Some(Said { at: now, silent: 0 });
                Some(silent)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_errors_is_one_line_in_ten_seconds() {
        let mut complaints = Complaints::default();
        let start = Tick::default();
        assert_eq!(complaints.count(Action::Get, start), Some(0));
        for second in 1..10 {
            let now = start + Duration::from_secs(second);
            assert_eq!(complaints.count(Action::Get, now), None);
        }
        assert_eq!(
            complaints.count(Action::Delete, start),
            Some(0),
            "of its own"
        );
        let later = start + EVERY;
        assert_eq!(complaints.count(Action::Get, later), Some(9));
    }
}
