//! The resident memory, without what the allocator holds for nothing.

use std::time::Duration;

use crate::base::{
    clock::{Clock, Tick},
    memory::{self, ResidentMemory},
    task::blocking,
};

/// Reads the resident memory, and lets the allocator give memory back when there is too much of it.
#[derive(Debug)]
pub(super) struct MemoryReader {
    memory: ResidentMemory,
    clock: Clock,
    last: u64,
    pace: Pace,
}

/// When the allocator is asked again.
#[derive(Debug)]
struct Pace {
    next: Tick,
    pause: Duration,
}

/// Shortest and longest time between two requests to the allocator: often where it gives memory back,
/// seldom where all memory is in use.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A pause is at least this many times as long as the request before it.
const COST: u32 = 20;
/// A request that gave back this part of the memory was worth it.
const WORTH: u64 = 64;

impl MemoryReader {
    /// Returns `None` where the memory of a process cannot be read.
    pub(super) fn open(clock: Clock) -> Option<Self> {
        Some(Self {
            memory: ResidentMemory::open()?,
            clock,
            last: 0,
            pace: Pace {
                next: Tick::default(),
                pause: SHORTEST_PAUSE,
            },
        })
    }

    /// Returns the resident memory in bytes. A reading that fails is repeated; until then the last one
    /// counts.
    pub(super) fn read(&mut self) -> u64 {
        self.last = self.memory.read().unwrap_or(self.last);
        self.last
    }

    /// Has the allocator give back what it can, if that is due. Returns the memory after it.
    pub(super) async fn give_back(&mut self) -> u64 {
        let began = self.clock.now();
        if began < self.pace.next {
            return self.last;
        }
        let before = self.last;
        let _ = blocking(memory::give_back).await;
        let given_back = before.saturating_sub(self.read());
        let worth = given_back >= before / WORTH;
        self.pace.note(began, self.clock.now(), worth);
        self.last
    }

    /// Notes that memory becomes free, so that the allocator is asked at the next time.
    pub(super) fn expect_free(&mut self) {
        self.pace.restart();
    }
}

impl Pace {
    fn note(&mut self, began: Tick, now: Tick, worth: bool) {
        let least = (now.since(began) * COST).max(SHORTEST_PAUSE);
        self.pause = match worth {
            true => least,
            false => (self.pause * 2).min(LONGEST_PAUSE).max(least),
        };
        self.next = now + self.pause;
    }

    fn restart(&mut self) {
        self.next = Tick::default();
        self.pause = SHORTEST_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Tick {
        Tick::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn an_allocator_that_gives_nothing_back_is_asked_seldom() {
        let mut pace = Pace {
            next: at(0),
            pause: SHORTEST_PAUSE,
        };
        pace.note(at(0), at(1), true);
        assert_eq!(pace.next, at(51));
        pace.note(at(51), at(52), false);
        assert_eq!(pace.next, at(152));
        for _ in 0..10 {
            let now = pace.next;
            pace.note(now, now, false);
        }
        assert_eq!(pace.pause, LONGEST_PAUSE);
        // Connections were closed: the next request is worth its time.
        pace.restart();
        assert_eq!((pace.next, pace.pause), (at(0), SHORTEST_PAUSE));
        for _ in 0..10 {
            let now = pace.next;
            pace.note(now, now, false);
        }
        // A request that takes long is not repeated soon, whether it gave memory back or not.
        let now = pace.next;
        pace.note(now, now + Duration::from_millis(100), true);
        assert_eq!(pace.pause, Duration::from_secs(2));
    }
}
