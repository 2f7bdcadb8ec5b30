//! How many dequeue tasks a queue should have.
//!
//! Pure: takes depth and times, returns counts. It knows neither queues nor tasks: the listener
//! calls it, and starts only the tasks that are missing.

use std::{fmt::Debug, time::Duration};

use crate::error::{Error, Result};

/// Decides how many dequeue tasks a queue should have.
pub trait ScalePolicy: Debug + Send + Sync + 'static {
    /// Returns how many tasks this load needs, active ones included. A wake-up always leads to at
    /// least one get, so after a wake-up 0 counts as 1.
    fn tasks(&self, load: &Load) -> usize;
}

/// The load of a queue, as a policy sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// The approximate number of messages in the queue.
    pub depth: u64,
    /// Messages that one task handles at the same time; 0 counts as 1.
    pub concurrency: usize,
    /// The recent mean handling time of a message; `None` before the first.
    pub handling_time: Option<Duration>,
}

/// A number of tasks for each range of depths.
///
/// The default is that of the queue's contract: 10 tasks below 100 messages, 50 below 1,000, and
/// 100 from there on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPolicy {
    /// Pairs of a depth (exclusive upper bound) and a number of tasks, ascending.
    steps: Vec<(u64, usize)>,
    /// Tasks from the last step on.
    most: usize,
}

impl StepPolicy {
    /// Makes a policy of steps, each "below this depth, this many tasks", and the number of tasks
    /// from the last step on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where the steps do not ascend, or a step
    /// has no task.
    pub fn new(steps: impl Into<Vec<(u64, usize)>>, most: usize) -> Result<Self> {
        let steps = steps.into();
        if !steps.is_sorted_by(|one, next| one.0 < next.0) {
            return Err(Error::invalid("steps", "must ascend by their depths"));
        }
        if steps.iter().any(|(_, tasks)| *tasks == 0) || most == 0 {
            return Err(Error::invalid("steps", "must have at least one task each"));
        }
        Ok(Self { steps, most })
    }
}

impl Default for StepPolicy {
    fn default() -> Self {
        Self {
            steps: vec![(100, 10), (1_000, 50)],
            most: 100,
        }
    }
}

impl ScalePolicy for StepPolicy {
    fn tasks(&self, load: &Load) -> usize {
        let step = self.steps.iter().find(|(depth, _)| load.depth < *depth);
        step.map_or(self.most, |(_, tasks)| *tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(depth: u64) -> Load {
        Load {
            depth,
            ..Load::default()
        }
    }

    #[test]
    fn the_steps_are_those_of_the_contract() {
        let policy = StepPolicy::default();
        for (depth, tasks) in [
            (0, 10),
            (99, 10),
            (100, 50),
            (999, 50),
            (1_000, 100),
            (u64::MAX, 100),
        ] {
            assert_eq!(policy.tasks(&load(depth)), tasks, "{depth}");
        }
    }

    #[test]
    fn steps_that_make_no_sense_are_refused() {
        for (steps, most) in [
            (vec![(100, 10), (100, 20)], 1),
            (vec![(100, 10), (50, 20)], 1),
            (vec![(100, 0)], 1),
            (vec![(100, 1)], 0),
        ] {
            let error = StepPolicy::new(steps, most).expect_err("refused");
            assert!(error.message().starts_with("steps: "), "{error}");
        }
        let flat = StepPolicy::new([], 7).expect("always seven");
        assert_eq!(flat.tasks(&load(5)), 7);
    }
}
