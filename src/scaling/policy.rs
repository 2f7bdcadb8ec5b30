//! How many dequeue tasks a queue should have.
//!
//! Pure: depth and times come in, counts go out. Knows neither queues nor tasks: the listener asks,
//! and starts only the difference to those that are active.

use std::{fmt::Debug, time::Duration};

use crate::error::{Error, Result};

/// Decides how many dequeue tasks a queue should have.
pub trait ScalePolicy: Debug + Send + Sync + 'static {
    /// Returns the tasks that such a load needs, those that are active included. A wake-up always
    /// ends in at least one get, so 0 counts as 1 where there was one.
    fn tasks(&self, load: &Load) -> usize;
}

/// What is known of a queue when it is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// About how many messages are in it.
    pub depth: u64,
    /// Messages that one task handles at the same time; 0 counts as 1.
    pub concurrency: usize,
    /// How long the handling of one took lately; `None` before the first.
    pub handling_time: Option<Duration>,
}

/// A number of tasks for each range of depths.
///
/// By default, as the queue's contract has it: 10 tasks below 100 messages, 50 below 1,000, and
/// else 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPolicy {
    /// Ascending: below so many messages, so many tasks.
    steps: Vec<(u64, usize)>,
    /// Tasks from the last step on.
    most: usize,
}

/// As many tasks as empty the queue within a span, by how long the handling took lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetLatencyPolicy {
    /// The last message that is there now is to be handled within this.
    pub target: Duration,
    /// What handling is taken to last before the first was measured.
    pub assumed: Duration,
    /// Tasks at most.
    pub most: usize,
}

impl StepPolicy {
    /// Makes a policy of steps, each "below so many messages, so many tasks", and the tasks from
    /// the last of them on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where the steps do not ascend, or one of
    /// them has no task.
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

impl Default for TargetLatencyPolicy {
    /// Ten seconds for all that is there: soon for a batch, and few tasks for little work.
    fn default() -> Self {
        Self {
            target: Duration::from_secs(10),
            assumed: Duration::from_millis(100),
            most: 100,
        }
    }
}

impl ScalePolicy for TargetLatencyPolicy {
    fn tasks(&self, load: &Load) -> usize {
        let each = load.handling_time.unwrap_or(self.assumed).as_nanos();
        let work = u128::from(load.depth).saturating_mul(each);
        let one_task = self.target.as_nanos().max(1);
        let one_task = one_task.saturating_mul(load.concurrency.max(1) as u128);
        let tasks = usize::try_from(work.div_ceil(one_task)).unwrap_or(usize::MAX);
        tasks.clamp(1, self.most.max(1))
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

    #[test]
    fn a_target_needs_as_many_tasks_as_finish_in_time() {
        let policy = TargetLatencyPolicy {
            target: Duration::from_secs(10),
            ..TargetLatencyPolicy::default()
        };
        let measured = |depth, millis, concurrency| Load {
            depth,
            concurrency,
            handling_time: Some(Duration::from_millis(millis)),
        };
        for (load, tasks) in [
            (load(0), 1),
            (load(1_000), 10),
            (measured(1_000, 1_000, 1), 100),
            (measured(1_000, 1_000, 10), 10),
            (measured(1_001, 100, 10), 2),
            (measured(1_000_000, 1_000, 1), 100),
            (measured(u64::MAX, u64::MAX, 0), 100),
            (measured(1_000, 0, 1), 1),
            (measured(1_000, 1_000, usize::MAX), 1),
        ] {
            assert_eq!(policy.tasks(&load), tasks, "{load:?}");
        }
    }

    #[test]
    fn a_target_without_an_end_needs_one_task() {
        let policy = TargetLatencyPolicy {
            target: Duration::MAX,
            ..TargetLatencyPolicy::default()
        };
        let load = Load {
            concurrency: usize::MAX,
            ..load(u64::MAX)
        };
        assert_eq!(policy.tasks(&load), 1);
    }
}
