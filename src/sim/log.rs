//! The events of a run, as a hash, and as text when a seed is replayed.

use crate::base::clock::Tick;

/// The event log.
#[derive(Debug)]
pub(super) struct Log {
    hash: u64,
    print: bool,
}

impl Log {
    pub(super) fn new(print: bool) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            print,
        }
    }

    /// Records an event and the numbers that identify it.
    pub(super) fn note(&mut self, now: Tick, what: &str, numbers: &[u64]) {
        let bytes = what.bytes().map(u64::from);
        for word in bytes.chain([now.as_nanos()]).chain(numbers.iter().copied()) {
            // FNV-1a, by words.
            self.hash = (self.hash ^ word).wrapping_mul(0x0100_0000_01b3);
        }
        if self.print {
            let millis = now.as_nanos() / 1_000_000;
            println!(
                "{:>4}.{:03} {what} {numbers:?}",
                millis / 1000,
                millis % 1000
            );
        }
    }

    /// Prints a line, if the run is printed.
    pub(super) fn say(&self, words: impl FnOnce() -> String) {
        if self.print {
            println!("         {}", words());
        }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}
