//! The arguments as a listener's configuration.

use std::{num::NonZero, sync::Arc, thread, time::Duration};

use reveille::{
    Error,
    listener::{ListenerConfig, PolicyFile},
    queue,
};

use super::Args;
use crate::child::KILL_AFTER;

/// Where messages go after too many failed attempts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PoisonQueue {
    None,
    Url(String),
}

const POISON_SUFFIX: &str = "-poison";
/// With a policy file the policy decides. This cap bounds a mistake in the file.
const MAX_POLICY_TASKS: usize = 1_000;
/// Default size of a get with --batch: half of the maximum. Without --batch each message costs a
/// process, far more than its get, so a larger get would only withhold messages from other
/// machines.
const BATCH_SIZE: usize = 16;

impl Args {
    pub(super) fn config(&self) -> reveille::Result<ListenerConfig> {
        let concurrency = self.concurrency.unwrap_or(1);
        let mut config = ListenerConfig {
            concurrency,
            dequeue_batch_size: if self.batch { BATCH_SIZE } else { concurrency },
            max_tasks: self.max_tasks(),
            visibility_timeout: self.visibility_timeout,
            max_handling_time: self.max_handling_time,
            max_dequeue_count: self.max_dequeue_count,
            grace: self.grace,
            wind_down: KILL_AFTER + Duration::from_secs(2),
            ..ListenerConfig::default()
        };
        if let Some(file) = &self.policy {
            config.policy = Arc::new(PolicyFile::open(file)?);
        }
        if let Some(poll) = self.poll {
            (config.idle.most, config.away) = (poll, poll);
        }
        if let Some(count) = self.count {
            cap_to_count(&mut config, count);
        }
        Ok(config)
    }

    fn max_tasks(&self) -> usize {
        match (self.max_tasks, &self.policy) {
            (Some(most), _) => most,
            (None, Some(_)) => MAX_POLICY_TASKS,
            (None, None) => thread::available_parallelism().map_or(1, NonZero::get),
        }
    }

    pub(super) fn poison(&self) -> reveille::Result<PoisonQueue> {
        if self.no_poison {
            return Ok(PoisonQueue::None);
        }
        if let Some(url) = &self.poison {
            return Ok(PoisonQueue::Url(url.clone()));
        }
        // A poison queue has no poison queue.
        if queue::address(&self.url)?
            .queue_name()
            .ends_with(POISON_SUFFIX)
        {
            return Ok(PoisonQueue::None);
        }
        let url = queue::with_suffix(&self.url, POISON_SUFFIX).map_err(|error| {
            // The queue's own name was checked before.
            let rule = format!(
                "the default, the queue's name with `{POISON_SUFFIX}`, breaks a rule ({error}): name \
                 the poison queue with --poison, or pass --no-poison"
            );
            Error::invalid("--poison", rule)
        })?;
        Ok(PoisonQueue::Url(url))
    }
}

/// Bounds batch size and task count, so that the listener gets few messages beyond `count`.
fn cap_to_count(config: &mut ListenerConfig, count: u64) {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    config.dequeue_batch_size = config.dequeue_batch_size.min(count);
    let gets = count.div_ceil(config.dequeue_batch_size);
    config.max_tasks = config.max_tasks.min(gets);
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use reveille::scaling::Load;

    use super::*;
    use crate::{Cli, Verb};

    fn args(typed: &[&str]) -> Args {
        let typed = ["reveille", "listen"].iter().chain(typed);
        let cli = Cli::try_parse_from(typed.chain(&["--", "true"])).expect("parsed");
        let Verb::Listen(args) = cli.verb else {
            panic!("another verb")
        };
        args
    }

    #[test]
    fn a_get_takes_what_is_handled_at_once_and_no_more_than_is_counted() {
        for (typed, batch, concurrency) in [
            (&["memory:q"][..], 1, 1),
            (&["memory:q", "--concurrency", "8"], 8, 8),
            (&["memory:q", "--batch"], 16, 1),
            (&["memory:q", "--batch", "--count", "3"], 3, 1),
        ] {
            let config = args(typed).config().expect("sound");
            let sizes = (config.dequeue_batch_size, config.concurrency);
            assert_eq!(sizes, (batch, concurrency), "{typed:?}");
        }
        let typed = ["memory:q", "--max-tasks", "50", "--count", "3"];
        assert_eq!(args(&typed).config().expect("sound").max_tasks, 3);
    }

    #[test]
    fn a_policy_decides_alone_unless_there_is_a_cap() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("policy.toml");
        std::fs::write(&file, "policy = \"steps\"\nsteps = []\nmost = 7").expect("written");
        let file = file.to_str().expect("a plain path");
        let config = args(&["memory:q", "--policy", file])
            .config()
            .expect("sound");
        assert_eq!(config.policy.tasks(&Load::default()), 7);
        assert!(config.max_tasks > 7);
        let capped = args(&["memory:q", "--policy", file, "--max-tasks", "2"]).config();
        assert_eq!(capped.expect("sound").max_tasks, 2);
    }

    #[test]
    fn the_poison_queue_stands_beside_its_queue_unless_it_is_one() {
        let queue = |url: &str| PoisonQueue::Url(url.to_owned());
        for (typed, poison) in [
            (&["memory:q"][..], queue("memory:q-poison")),
            (&["memory:q", "--poison", "memory:bad"], queue("memory:bad")),
            (&["memory:q", "--no-poison"], PoisonQueue::None),
            (&["memory:q-poison"], PoisonQueue::None),
        ] {
            assert_eq!(args(typed).poison().expect("a queue"), poison, "{typed:?}");
        }
    }
}
