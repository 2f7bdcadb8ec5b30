//! The back-off of an idle dequeue task: when it polls again, and when it ends.
//!
//! Randomized and exponential, from 100 ms to about 1 s, as the queue's contract requires. `chance`
//! is an argument, a random number from 0 to 1.

use std::time::Duration;

/// The back-off of an idle dequeue task: when it polls again, and when it ends.
///
/// After n empty gets in a row the task sleeps for `least` + (2^n - 1) x random(0.8..1.2) x `step`.
/// When that reaches `most`, the task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleBackoff {
    /// The shortest sleep.
    pub least: Duration,
    /// The part that grows exponentially.
    pub step: Duration,
    /// The longest sleep; a task that would sleep this long may end instead.
    pub most: Duration,
}

/// The next action of an idle task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Sleep, then poll again.
    Sleep(Duration),
    /// End. The last task of a listener that polls stays instead, and sleeps for about the longest
    /// time.
    Stop,
}

impl Default for IdleBackoff {
    /// From 100 ms to about a second, as the queue's contract requires.
    fn default() -> Self {
        Self {
            least: Duration::from_millis(100),
            step: Duration::from_millis(100),
            most: Duration::from_secs(1),
        }
    }
}

impl IdleBackoff {
    /// Returns the action after `idle_count` empty gets in a row; `chance` is uniform in 0..1.
    pub fn after(&self, idle_count: u32, chance: f64) -> Idle {
        let factor = 2_f64.powi(i32::try_from(idle_count).unwrap_or(i32::MAX)) - 1.0;
        let delta = factor * spread(chance) * self.step.as_secs_f64();
        // A value that overflows a `Duration` exceeds any `most`.
        let delta = Duration::try_from_secs_f64(delta).unwrap_or(Duration::MAX);
        match self.least.saturating_add(delta) {
            sleep if sleep < self.most => Idle::Sleep(sleep),
            _ => Idle::Stop,
        }
    }

    /// Returns the sleep of a task that must stay: `most` +/- 20%, so that a fleet does not poll
    /// all at once.
    pub fn longest(&self, chance: f64) -> Duration {
        let longest = self.most.as_secs_f64() * spread(chance);
        Duration::try_from_secs_f64(longest).unwrap_or(self.most)
    }
}

/// Returns the random factor of a sleep: 0.8 to 1.2.
fn spread(chance: f64) -> f64 {
    0.8 + 0.4 * chance.clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_task_sleeps_longer_each_time_and_then_ends() {
        let backoff = IdleBackoff::default();
        for (idle_count, least, most) in
            [(0, 100, 100), (1, 180, 220), (2, 340, 460), (3, 660, 940)]
        {
            let sleep = |chance| backoff.after(idle_count, chance);
            let millis = |millis| Idle::Sleep(Duration::from_millis(millis));
            assert_eq!(sleep(0.0), millis(least), "{idle_count}");
            assert_eq!(sleep(0.5), millis((least + most) / 2), "{idle_count}");
            assert_eq!(sleep(1.0), millis(most), "{idle_count}");
        }
        for idle_count in [4, 5, 1_000, u32::MAX] {
            for chance in [0.0, 1.0, f64::NAN] {
                let idle = backoff.after(idle_count, chance);
                assert_eq!(idle, Idle::Stop, "{idle_count}");
            }
        }
    }

    #[test]
    fn a_task_that_stays_sleeps_for_about_the_longest_time() {
        let backoff = IdleBackoff {
            most: Duration::from_secs(30),
            ..IdleBackoff::default()
        };
        assert_eq!(backoff.longest(0.0), Duration::from_secs(24));
        assert_eq!(backoff.longest(1.0), Duration::from_secs(36));
        let endless = IdleBackoff {
            most: Duration::MAX,
            ..backoff
        };
        assert_eq!(endless.longest(1.0), Duration::MAX);
    }
}
