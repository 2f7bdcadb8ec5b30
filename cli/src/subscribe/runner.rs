//! `-- CMD`: one command at a time. Wake-ups that arrive during a run are conflated
//! into one run per queue. A command that failed is run again soon: the relay does not know of it.

use std::{
    collections::VecDeque,
    ffi::OsString,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use reveille::WorkDetected;
use tokio::time::Instant;

use crate::{
    child::{self, Process},
    exit::Failed,
    output,
    signals::Signal,
};

/// Runs a command on wake-ups; without a command it does nothing.
pub(super) struct Runner {
    command: Vec<OsString>,
    /// At most one wake-up of each queue, in order of arrival.
    waiting: VecDeque<WorkDetected>,
    running: Option<(WorkDetected, Process)>,
    /// The queues whose newest run failed and has no successor in `waiting`, and when they run again.
    failing: Vec<(WorkDetected, Instant)>,
}

/// The pause after a run that failed.
const PAUSE: Duration = Duration::from_secs(5);

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) work: WorkDetected,
    pub(super) status: ExitStatus,
}

impl Runner {
    pub(super) fn new(command: Vec<OsString>) -> Self {
        Self {
            command,
            waiting: VecDeque::new(),
            running: None,
            failing: Vec::new(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// Returns whether the newest run of a queue failed, or could not start.
    pub(super) fn has_failed(&self) -> bool {
        !self.failing.is_empty()
    }

    /// Returns the wake-up of the running command.
    pub(super) fn running(&self) -> Option<&WorkDetected> {
        self.running.as_ref().map(|(work, _)| work)
    }

    /// Returns when the next run that failed is to be tried again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.failing.iter().map(|(_, at)| *at).min()
    }

    /// Adds the runs whose pause has ended to the waiting ones.
    pub(super) fn enqueue_retries(&mut self, now: Instant) {
        let due = self.failing.extract_if(.., |(_, at)| *at <= now);
        self.waiting.extend(due.map(|(work, _)| work));
    }

    /// A run of the queue has failed.
    pub(super) fn failed(&mut self, work: WorkDetected) {
        // A wake-up that came meanwhile starts the next run at once.
        if !self.waiting.iter().any(|of| of.queue == work.queue) {
            self.failing.push((work, Instant::now() + PAUSE));
        }
    }

    /// Adds a wake-up to the waiting ones.
    pub(super) fn enqueue(&mut self, work: &WorkDetected) {
        if self.command.is_empty() {
            return;
        }
        self.failing.retain(|(of, _)| of.queue != work.queue);
        let mut waiting = self.waiting.iter_mut();
        match waiting.find(|waiting| waiting.queue == work.queue) {
            Some(waiting) => conflate(waiting, work),
            None => self.waiting.push_back(work.clone()),
        }
    }

    /// Adds a run for a poll. A run that waits already reads the queue as well, and covers a wake-up.
    pub(super) fn enqueue_poll(&mut self, work: WorkDetected) {
        let failing = self.failing.iter().map(|(of, _)| of);
        let mut known = self.waiting.iter().chain(failing);
        if !known.any(|known| known.queue == work.queue) {
            self.waiting.push_back(work);
        }
    }

    /// Starts a command for the next waiting wake-up, if none runs, and returns that wake-up.
    pub(super) fn start(&mut self) -> Result<Option<&WorkDetected>, Failed> {
        if self.running.is_some() {
            return Ok(None);
        }
        let Some(work) = self.waiting.pop_front() else {
            return Ok(None);
        };
        let environment = environment(&work);
        match Process::start(&self.command, environment, Stdio::null(), Stdio::inherit()) {
            Ok(process) => {
                self.running = Some((work, process));
                Ok(self.running())
            }
            Err(error) => {
                let failed = child::cannot_run(&self.command, &error);
                if child::is_permanent(&error) {
                    return Err(failed);
                }
                output::note(format_args!("{}: {failed}", work.queue));
                self.failed(work);
                Ok(None)
            }
        }
    }

    pub(super) fn forward(&self, signal: Signal) {
        if let Some((_, process)) = &self.running {
            process.signal(signal.number());
        }
    }

    /// Waits for the running command; never returns if none runs. Safe to cancel.
    pub(super) async fn finished(&mut self) -> Finished {
        let Some((_, process)) = &mut self.running else {
            return std::future::pending().await;
        };
        let status = process.wait().await;
        match (status, self.running.take()) {
            (Ok(status), Some((work, _))) => Finished { work, status },
            // Waiting for a child process fails only if other code has reaped it.
            _ => std::future::pending().await,
        }
    }
}

/// Returns the command's environment. A catch-up of a whole pattern has no queue: its names are
/// empty, so that a script does not take `*` for a name.
fn environment(work: &WorkDetected) -> [(&'static str, String); 8] {
    let queue = work.queue.as_address();
    let (account, name) = match &queue {
        Some(queue) => (queue.storage_account(), queue.queue_name()),
        None => ("", ""),
    };
    [
        ("WAKE_SELECTOR", work.queue.to_string()),
        ("WAKE_ACCOUNT", account.to_owned()),
        ("WAKE_QUEUE", name.to_owned()),
        ("WAKE_REASON", work.reason.to_string()),
        ("WAKE_SEQUENCE", work.sequence.to_string()),
        ("WAKE_NOTIFICATIONS", work.notifications.to_string()),
        ("WAKE_MESSAGES", work.messages.to_string()),
        ("WAKE_PAYLOAD_SIZE", work.payload_size.to_string()),
    ]
}

/// Merges a later wake-up of the same queue into a waiting one.
fn conflate(waiting: &mut WorkDetected, later: &WorkDetected) {
    *waiting = WorkDetected {
        reason: waiting.reason.max(later.reason),
        notifications: waiting.notifications.saturating_add(later.notifications),
        payload_size: waiting.payload_size.saturating_add(later.payload_size),
        messages: waiting.messages.saturating_add(later.messages),
        ..later.clone()
    };
}

#[cfg(test)]
mod tests {
    use reveille::{LastEvent, WakeReason};

    use super::*;

    fn shell(script: &str) -> Runner {
        let command = ["sh", "-c", script].map(OsString::from);
        Runner::new(command.to_vec())
    }

    fn work(queue: &str, sequence: u64, reason: WakeReason) -> WorkDetected {
        WorkDetected {
            queue: queue.parse().expect(queue),
            reason,
            sequence,
            notifications: 1,
            payload_size: 10,
            messages: 2,
            last_event: LastEvent::default(),
        }
    }

    #[test]
    fn wake_ups_that_wait_conflate_into_one_run_per_queue() {
        let mut runner = shell("true");
        runner.enqueue(&work("a/q", 1, WakeReason::Notified));
        runner.enqueue(&work("a/r", 1, WakeReason::Notified));
        runner.enqueue(&work("a/q", 2, WakeReason::Timed));
        let first = &runner.waiting[0];
        assert_eq!(runner.waiting.len(), 2);
        assert_eq!(
            (first.sequence, first.notifications, first.payload_size),
            (2, 2, 20)
        );
        assert_eq!(first.reason, WakeReason::Notified);
    }

    #[tokio::test]
    async fn one_command_runs_at_a_time_and_gets_its_wake_up() {
        let mut runner = shell("test \"$WAKE_QUEUE $WAKE_SEQUENCE\" = 'q 1'");
        runner.enqueue(&work("a/q", 1, WakeReason::Notified));
        assert!(runner.start().expect("sh").is_some());
        runner.enqueue(&work("a/q", 2, WakeReason::Notified));
        assert!(runner.start().expect("sh").is_none());
        assert!(runner.finished().await.status.success());
        assert!(runner.start().expect("sh").is_some());
        assert!(!runner.finished().await.status.success());
        assert!(runner.is_idle());
    }

    #[tokio::test]
    async fn a_program_runs_with_its_arguments_and_gets_the_number_of_messages() {
        let typed = [
            "sh",
            "-c",
            "test \"$1 $WAKE_MESSAGES\" = 'a b 2'",
            "sh",
            "a b",
        ];
        let mut runner = Runner::new(typed.map(OsString::from).to_vec());
        runner.enqueue(&work("a/q", 1, WakeReason::Notified));
        runner.start().expect("sh");
        assert!(runner.finished().await.status.success());
        let mut runner = Runner::new(vec!["/no/such/program".into()]);
        runner.enqueue(&work("a/q", 1, WakeReason::Notified));
        let error = runner.start().expect_err("no program").to_string();
        assert!(
            error.contains("`/no/such/program` cannot be run"),
            "{error}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_failed_is_tried_again_after_a_pause_or_with_the_next_wake_up() {
        let mut runner = shell("true");
        let failed = work("a/q", 1, WakeReason::Notified);
        runner.failed(failed.clone());
        let at = runner.retry_at().expect("a time");
        assert_eq!(at, Instant::now() + PAUSE);
        runner.enqueue_poll(work("a/q", 0, WakeReason::CatchUp));
        assert!(runner.is_idle(), "its own run covers a wake-up");
        runner.enqueue_retries(at - Duration::from_millis(1));
        assert!(runner.is_idle(), "too early");
        runner.enqueue_retries(at);
        assert_eq!((runner.waiting.len(), runner.has_failed()), (1, false));
        runner.failed(failed.clone());
        assert_eq!(runner.retry_at(), None, "a wake-up came during the run");
        runner.waiting.clear();
        runner.failed(failed.clone());
        runner.enqueue(&failed);
        assert_eq!((runner.waiting.len(), runner.retry_at()), (1, None));
    }

    #[test]
    fn a_catch_up_of_a_pattern_names_no_queue() {
        let named = |queue: &str| {
            let environment = environment(&work(queue, 1, WakeReason::CatchUp));
            let find = |name| environment.iter().find(|(known, _)| *known == name);
            ["WAKE_SELECTOR", "WAKE_ACCOUNT", "WAKE_QUEUE"]
                .map(|name| find(name).expect("a variable").1.clone())
        };
        assert_eq!(named("acct/*"), ["acct/*", "", ""]);
        assert_eq!(named("acct/orders"), ["acct/orders", "acct", "orders"]);
    }
}
