//! Waits between retries: exponential back-off with full jitter.
//!
//! The wait before attempt n is uniform in `0..=min(max, base * 2^n)`; "full jitter" of the AWS
//! Architecture Blog, "Exponential Backoff And Jitter" (2015), which spreads a fleet's retries best.
//! Randomness is passed in, so that the simulation replays it.

use std::time::Duration;

use crate::base::clock::nanos;

/// A growing, jittered wait.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    base: Duration,
    max: Duration,
    attempt: u32,
}

impl Backoff {
    /// The first wait is at most `base`; all waits are at most `max`.
    pub(crate) fn new(base: Duration, max: Duration) -> Self {
        Self {
            base,
            max,
            attempt: 0,
        }
    }

    /// Returns the next wait, and grows.
    pub(crate) fn next(&mut self, rng: &mut fastrand::Rng) -> Duration {
        let ceiling = self
            .base
            .saturating_mul(1 << self.attempt.min(20))
            .min(self.max);
        self.attempt = self.attempt.saturating_add(1);
        jitter(ceiling, rng)
    }

    /// Starts again from the smallest wait.
    pub(crate) fn reset(&mut self) {
        self.attempt = 0;
    }
}

/// Returns a uniformly random part of `span`.
pub(crate) fn jitter(span: Duration, rng: &mut fastrand::Rng) -> Duration {
    Duration::from_nanos(rng.u64(0..=nanos(span)))
}

/// Returns `span` with a random change of up to a tenth. Saturates instead of overflowing.
pub(crate) fn about(span: Duration, rng: &mut fastrand::Rng) -> Duration {
    (span - span / 10).saturating_add(jitter(span / 5, rng))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_a_span_is_a_tenth_around_it_however_long_it_is() {
        let mut rng = fastrand::Rng::with_seed(7);
        for span in [Duration::ZERO, Duration::from_secs(1800), Duration::MAX] {
            for _ in 0..500 {
                let about = about(span, &mut rng);
                assert!(about >= span - span / 10, "{span:?}: {about:?}");
                assert!(
                    about <= span.saturating_add(span / 10),
                    "{span:?}: {about:?}"
                );
            }
        }
    }

    #[test]
    fn waits_grow_to_the_maximum_and_start_again_after_a_reset() {
        let (base, max) = (Duration::from_millis(100), Duration::from_secs(5));
        let mut rng = fastrand::Rng::with_seed(7);
        let mut greatest = [Duration::ZERO; 8];
        for _ in 0..500 {
            let mut backoff = Backoff::new(base, max);
            for seen in &mut greatest {
                *seen = backoff.next(&mut rng).max(*seen);
            }
            backoff.reset();
            assert!(backoff.next(&mut rng) <= base);
        }
        for (attempt, seen) in (0u32..).zip(greatest) {
            let ceiling = (base * 2u32.pow(attempt)).min(max);
            assert!(
                seen <= ceiling && seen > ceiling / 2,
                "attempt {attempt}: {seen:?}"
            );
        }
    }
}
