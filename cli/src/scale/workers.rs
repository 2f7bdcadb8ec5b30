//! Runs a worker's command to its end, and asks whether there is room for one.

use std::{ffi::OsString, process::Stdio, time::Duration};

use async_trait::async_trait;
use reveille::agent::{Worker, WorkerEnd, Workers};
use tokio_util::sync::CancellationToken;

use crate::child::{Ended, Process};

/// Runs a command for each worker.
#[derive(Debug)]
pub(super) struct CommandWorkers {
    pub(super) command: Vec<OsString>,
    pub(super) serve: bool,
    pub(super) grace: Duration,
    /// While it fails, there is no room for a worker.
    pub(super) when_cmd: Option<String>,
}

/// The exit code of a worker that leaves messages (EX_TEMPFAIL in sysexits.h).
const UNFINISHED: i32 = 75;

impl CommandWorkers {
    fn judge(&self, ended: &Ended) -> WorkerEnd {
        match ended.status.code() {
            Some(0) => WorkerEnd::Done,
            Some(UNFINISHED) => WorkerEnd::Unfinished,
            _ if ended.terminated && self.serve && ended.died_of_sigterm() => WorkerEnd::Done,
            _ => WorkerEnd::Failed(ended.status.to_string()),
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
        let (stdin, stdout) = (Stdio::null(), Stdio::inherit());
        let started = Process::start(&self.command, environment, stdin, stdout);
        let mut process = match started {
            Ok(process) => process,
            Err(error) => return WorkerEnd::Failed(format!("it cannot be run: {error}")),
        };
        match process.run_until(end.cancelled(), self.grace).await {
            Ok(ended) => self.judge(&ended),
            Err(error) => WorkerEnd::Failed(error.to_string()),
        }
    }

    async fn no_room(&self) -> Option<String> {
        let command = self.when_cmd.as_ref()?;
        let quiet = format!("{{ {command}\n}} >/dev/null 2>&1");
        let shell = ["sh", "-c", &quiet].map(OsString::from);
        // A dropped process ends with its group.
        let (stdin, stdout) = (Stdio::null(), Stdio::inherit());
        let run = async { Process::start(&shell, [], stdin, stdout)?.wait().await };
        match run.await {
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
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    use super::*;

    fn workers(serve: bool, when_cmd: Option<&str>) -> CommandWorkers {
        CommandWorkers {
            command: Vec::new(),
            serve,
            grace: Duration::ZERO,
            when_cmd: when_cmd.map(str::to_owned),
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
        let judge = |serve: bool, status: i32, terminated: bool| {
            let status = ExitStatus::from_raw(status);
            workers(serve, None).judge(&Ended { status, terminated })
        };
        assert_eq!(judge(false, 0, false), WorkerEnd::Done);
        assert_eq!(judge(false, 75 << 8, false), WorkerEnd::Unfinished);
        assert!(matches!(judge(false, 1 << 8, false), WorkerEnd::Failed(_)));
        assert!(matches!(judge(false, 15, true), WorkerEnd::Failed(_)));
        assert_eq!(judge(true, 15, true), WorkerEnd::Done);
        assert!(matches!(judge(true, 15, false), WorkerEnd::Failed(_)));
    }
}
