//! Runs a worker's command to its end, and reads the signals of the machine.

use std::{
    ffi::OsString,
    os::unix::process::ExitStatusExt as _,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use async_trait::async_trait;
use reveille::agent::{Worker, WorkerEnd, Workers};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::child::{Process, ProcessGroups};

/// Runs a command for each worker.
#[derive(Debug)]
pub(super) struct CommandWorkers {
    pub(super) command: Vec<OsString>,
    pub(super) serve: bool,
    pub(super) grace: Duration,
    /// While it fails, there is no room for a worker.
    pub(super) when_cmd: Option<String>,
    pub(super) groups: ProcessGroups,
}

/// The exit code of a worker that leaves messages (EX_TEMPFAIL in sysexits.h).
const UNFINISHED: i32 = 75;

impl CommandWorkers {
    /// Waits for the end of a worker; returns whether it was told to end.
    async fn supervise(
        &self,
        process: &mut Process,
        end: &CancellationToken,
    ) -> std::io::Result<(ExitStatus, bool)> {
        tokio::select! {
            status = process.wait_and_kill_group() => return Ok((status?, false)),
            () = end.cancelled() => process.signal(Signal::TERM),
        }
        tokio::select! {
            status = process.wait_and_kill_group() => return Ok((status?, true)),
            () = tokio::time::sleep(self.grace) => process.signal(Signal::KILL),
        }
        Ok((process.wait_and_kill_group().await?, true))
    }

    fn judge(&self, status: ExitStatus, was_ended: bool) -> WorkerEnd {
        let died_of_sigterm = status.signal() == Some(Signal::TERM.as_raw())
            || status.code() == Some(128 + Signal::TERM.as_raw());
        match status.code() {
            Some(0) => WorkerEnd::Done,
            Some(UNFINISHED) => WorkerEnd::Unfinished,
            _ if was_ended && self.serve && died_of_sigterm => WorkerEnd::Done,
            _ => WorkerEnd::Failed(status.to_string()),
        }
    }
}

#[async_trait]
impl Workers for CommandWorkers {
    async fn run(&self, worker: Worker, end: CancellationToken) -> WorkerEnd {
        let environment = [
            ("WAKE_ACCOUNT", worker.queue.storage_account().to_owned()),
            ("WAKE_QUEUE", worker.queue.queue_name().to_owned()),
            ("WAKE_SELECTOR", worker.queue.to_string()),
            ("WAKE_REASON", worker.reason.to_string()),
            ("WAKE_SLOT", worker.slot.to_string()),
        ];
        let started = Process::start(&self.command, environment, Stdio::null(), &self.groups);
        let mut process = match started {
            Ok(process) => process,
            Err(error) => return WorkerEnd::Failed(format!("it cannot be run: {error}")),
        };
        match self.supervise(&mut process, &end).await {
            Ok((status, was_ended)) => self.judge(status, was_ended),
            Err(error) => WorkerEnd::Failed(error.to_string()),
        }
    }

    async fn no_room(&self) -> Option<String> {
        let command = self.when_cmd.as_ref()?;
        let quiet = format!("{{ {command}\n}} >/dev/null 2>&1");
        let shell = ["sh", "-c", &quiet].map(OsString::from);
        // A dropped process ends with its group.
        let started = Process::start(&shell, [], Stdio::null(), &ProcessGroups::default());
        let status = match started {
            Ok(mut process) => process.wait_and_kill_group().await,
            Err(error) => Err(error),
        };
        match status {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("--when-cmd: {status}")),
            Err(error) => Some(format!("--when-cmd: {error}")),
        }
    }

    fn has_signals(&self) -> bool {
        self.when_cmd.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(serve: bool, when_cmd: Option<&str>) -> CommandWorkers {
        CommandWorkers {
            command: Vec::new(),
            serve,
            grace: Duration::ZERO,
            when_cmd: when_cmd.map(str::to_owned),
            groups: ProcessGroups::default(),
        }
    }

    #[tokio::test]
    async fn a_command_that_fails_leaves_no_room() {
        for (command, has_room) in [(None, true), (Some("true"), true), (Some("exit 3"), false)] {
            let why = workers(false, command).no_room().await;
            assert_eq!(why.is_none(), has_room, "{command:?}: {why:?}");
        }
    }

    #[test]
    fn an_exit_code_says_how_a_worker_ended() {
        let code = |code: i32| ExitStatus::from_raw(code << 8);
        let term = ExitStatus::from_raw(15);
        let drains = workers(false, None);
        assert_eq!(drains.judge(code(0), false), WorkerEnd::Done);
        assert_eq!(drains.judge(code(75), false), WorkerEnd::Unfinished);
        assert!(matches!(drains.judge(code(1), false), WorkerEnd::Failed(_)));
        assert!(matches!(drains.judge(term, true), WorkerEnd::Failed(_)));
        assert_eq!(workers(true, None).judge(term, true), WorkerEnd::Done);
        assert!(matches!(
            workers(true, None).judge(term, false),
            WorkerEnd::Failed(_)
        ));
    }
}
