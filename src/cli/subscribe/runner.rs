//! `--exec` and `-- CMD`: one command at a time; what comes meanwhile conflates into one run per queue.

use std::{
    collections::VecDeque,
    ffi::OsString,
    process::{ExitStatus, Stdio},
};

use reveille::WorkDetected;
use tokio::process::{Child, Command};

use crate::cli::{exit::Failed, signals::Signal};

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Program {
    /// By `sh -c`.
    Shell(String),
    /// A program and its arguments.
    Direct(Vec<OsString>),
}

/// Runs a command on wake-ups.
#[derive(Debug)]
pub(super) struct Runner {
    program: Program,
    /// At most one of each queue, in the order of their first.
    waiting: VecDeque<WorkDetected>,
    running: Option<(WorkDetected, Child)>,
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) work: WorkDetected,
    pub(super) status: ExitStatus,
}

impl Runner {
    pub(super) fn new(program: Program) -> Self {
        Self {
            program,
            waiting: VecDeque::new(),
            running: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// Returns what the command that runs was started for.
    pub(super) fn running(&self) -> Option<&WorkDetected> {
        self.running.as_ref().map(|(work, _)| work)
    }

    /// Takes a wake-up to be run for.
    pub(super) fn offer(&mut self, work: &WorkDetected) {
        match self.waiting.iter_mut().find(|one| one.queue == work.queue) {
            Some(waiting) => conflate(waiting, work),
            None => self.waiting.push_back(work.clone()),
        }
    }

    /// Starts the next command, where none runs and one is wanted. Returns what for.
    pub(super) fn start(&mut self) -> Result<Option<&WorkDetected>, Failed> {
        if self.running.is_some() {
            return Ok(None);
        }
        let Some(work) = self.waiting.pop_front() else {
            return Ok(None);
        };
        let mut command = self.program.command();
        let child = command
            .envs(environment(&work))
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| {
                let program = command.as_std().get_program().to_string_lossy();
                Failed(format!("`{program}` cannot be run: {error}"))
            })?;
        self.running = Some((work, child));
        Ok(self.running())
    }

    pub(super) fn forward(&self, signal: Signal) {
        if let Some((_, child)) = &self.running {
            signal.forward(child);
        }
    }

    async fn finished(&mut self) -> Finished {
        let Some((_, child)) = &mut self.running else {
            return std::future::pending().await;
        };
        let status = child.wait().await;
        match (status, self.running.take()) {
            (Ok(status), Some((work, _))) => Finished { work, status },
            // Waiting for a child of one's own fails only where somebody else has reaped it.
            _ => std::future::pending().await,
        }
    }
}

impl Program {
    fn command(&self) -> Command {
        match self {
            Self::Shell(script) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(script);
                command
            }
            Self::Direct(words) => {
                let mut words = words.iter();
                let mut command =
                    Command::new(words.next().map_or_else(OsString::new, Clone::clone));
                command.args(words);
                command
            }
        }
    }
}

/// Waits for the command that runs, for ever where none does. Safe to cancel.
pub(super) async fn finished(runner: &mut Option<Runner>) -> Finished {
    match runner {
        Some(runner) => runner.finished().await,
        None => std::future::pending().await,
    }
}

/// Tells the command what it is run for. A catch-up of a whole pattern is of no queue: its names are
/// empty, as a script must not take `*` for one.
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

/// Adds a later wake-up of the same queue to one that waits.
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
    use reveille::{Token, WakeReason};

    use super::*;

    fn shell(script: &str) -> Runner {
        Runner::new(Program::Shell(script.to_owned()))
    }

    fn work(queue: &str, sequence: u64, reason: WakeReason) -> WorkDetected {
        WorkDetected {
            queue: queue.parse().expect(queue),
            reason,
            sequence,
            notifications: 1,
            payload_size: 10,
            messages: 2,
            publisher: "".into(),
            published_at: None,
            traceparent: "".into(),
            token: Token::default(),
        }
    }

    #[test]
    fn wake_ups_that_wait_conflate_into_one_run_per_queue() {
        let mut runner = shell("true");
        runner.offer(&work("a/q", 1, WakeReason::Notified));
        runner.offer(&work("a/r", 1, WakeReason::Notified));
        runner.offer(&work("a/q", 2, WakeReason::Timed));
        let one = &runner.waiting[0];
        assert_eq!(runner.waiting.len(), 2);
        assert_eq!(
            (one.sequence, one.notifications, one.payload_size),
            (2, 2, 20)
        );
        assert_eq!(one.reason, WakeReason::Notified);
    }

    #[tokio::test]
    async fn one_command_runs_at_a_time_and_is_told_its_wake_up() {
        let mut runner = shell("test \"$WAKE_QUEUE $WAKE_SEQUENCE\" = 'q 1'");
        runner.offer(&work("a/q", 1, WakeReason::Notified));
        assert!(runner.start().expect("sh").is_some());
        runner.offer(&work("a/q", 2, WakeReason::Notified));
        assert!(runner.start().expect("sh").is_none());
        assert!(runner.finished().await.status.success());
        assert!(runner.start().expect("sh").is_some());
        assert!(!runner.finished().await.status.success());
        assert!(runner.is_idle());
    }

    #[tokio::test]
    async fn a_program_is_run_as_it_was_typed_and_told_how_many_messages_there_are() {
        let typed = [
            "sh",
            "-c",
            "test \"$1 $WAKE_MESSAGES\" = 'a b 2'",
            "sh",
            "a b",
        ];
        let mut runner = Runner::new(Program::Direct(typed.map(OsString::from).to_vec()));
        runner.offer(&work("a/q", 1, WakeReason::Notified));
        runner.start().expect("sh");
        assert!(runner.finished().await.status.success());
        let mut runner = Runner::new(Program::Direct(vec!["/no/such/program".into()]));
        runner.offer(&work("a/q", 1, WakeReason::Notified));
        let error = runner.start().expect_err("no program").to_string();
        assert!(
            error.contains("`/no/such/program` cannot be run"),
            "{error}"
        );
    }

    #[test]
    fn a_catch_up_of_a_pattern_names_no_queue() {
        let named = |queue: &str| {
            let environment = environment(&work(queue, 1, WakeReason::CatchUp));
            let find = |name| environment.iter().find(|(known, _)| *known == name);
            ["WAKE_SELECTOR", "WAKE_ACCOUNT", "WAKE_QUEUE"]
                .map(|name| find(name).expect("told").1.clone())
        };
        assert_eq!(named("acct/*"), ["acct/*", "", ""]);
        assert_eq!(named("acct/orders"), ["acct/orders", "acct", "orders"]);
    }
}
