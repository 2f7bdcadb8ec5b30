//! One run of the command: writes its input, waits for it, ends it if its message is lost.

use std::{
    ffi::OsString,
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use tokio::{io::AsyncWriteExt as _, process::ChildStdin};

use super::input::Input;
use crate::{
    child::{self, KILL_AFTER, Process, ProcessGroups},
    exit::Failed,
};

/// The command, and its running processes.
#[derive(Debug)]
pub(super) struct Program {
    command: Vec<OsString>,
    running: ProcessGroups,
}

/// How a run ended.
#[derive(Debug)]
pub(super) struct RunOutcome {
    pub(super) status: ExitStatus,
    /// The listener sent it SIGTERM.
    pub(super) terminated: bool,
}

impl Program {
    /// Checks that the command exists, before the first get.
    pub(super) fn find(command: &[OsString]) -> Result<Self, Failed> {
        child::check_exists(command)?;
        Ok(Self {
            command: command.to_vec(),
            running: ProcessGroups::default(),
        })
    }

    /// Lets a guard end the commands if SIGKILL ends this process.
    #[must_use]
    pub(super) fn guarded(self) -> Self {
        let running = ProcessGroups::guarded(KILL_AFTER);
        Self { running, ..self }
    }

    /// Runs the command to its end. Sends it SIGTERM when `lost` resolves.
    ///
    /// # Errors
    /// The command could not be started.
    pub(super) async fn run(
        &self,
        input: &Input,
        lost: impl Future<Output = ()>,
    ) -> io::Result<RunOutcome> {
        let (environment, stdin) = (input.environment.clone(), Stdio::piped());
        let mut process = Process::start(&self.command, environment, stdin, &self.running)?;
        let feed = feed(process.stdin(), &input.body);
        supervise(&mut process, feed, lost).await
    }

    /// Returns the number of running commands.
    pub(super) fn running(&self) -> usize {
        self.running.count()
    }

    /// Kills all running commands; returns their number.
    pub(super) fn kill(&self) -> usize {
        self.running.kill()
    }
}

async fn supervise(
    process: &mut Process,
    feed: impl Future<Output = ()>,
    lost: impl Future<Output = ()>,
) -> io::Result<RunOutcome> {
    tokio::pin!(feed, lost);
    let (mut fed, mut terminated, mut killed) = (false, false, false);
    let kill = tokio::time::sleep(Duration::MAX);
    tokio::pin!(kill);
    loop {
        tokio::select! {
            status = process.wait() => return Ok(RunOutcome { status: status?, terminated }),
            () = &mut feed, if !fed => fed = true,
            () = &mut lost, if !terminated => {
                terminated = true;
                process.signal(Signal::TERM);
                kill.as_mut().reset(tokio::time::Instant::now() + KILL_AFTER);
            }
            () = &mut kill, if terminated && !killed => {
                killed = true;
                process.signal(Signal::KILL);
            }
        }
    }
}

/// Writes the input, then closes it. A command need not read it.
async fn feed(stdin: Option<ChildStdin>, body: &[u8]) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(body).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, os::unix::process::ExitStatusExt as _, path::Path};

    use super::*;

    fn program(script: &str) -> Program {
        Program::find(&["sh", "-c", script].map(OsString::from)).expect("a shell")
    }

    fn input(body: &str) -> Input {
        Input {
            environment: vec![("MESSAGE_ID", "7".to_owned())],
            body: body.as_bytes().to_vec(),
        }
    }

    async fn exists(path: &Path) {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_run_has_its_message_and_its_environment() {
        let program = program("test \"$MESSAGE_ID $(cat)\" = '7 hello'");
        let ran = program.run(&input("hello"), pending()).await.expect("run");
        assert!(ran.status.success() && !ran.terminated);
        assert_eq!(program.running(), 0);
    }

    #[tokio::test]
    async fn a_command_that_does_not_read_its_input_is_no_failure() {
        let body = "x".repeat(1 << 20);
        let ran = program("exit 3").run(&input(&body), pending()).await;
        assert_eq!(ran.expect("run").status.code(), Some(3));
    }

    #[tokio::test]
    async fn a_command_whose_message_is_lost_gets_sigterm_and_so_do_its_children() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = directory.path().join("child");
        let script = format!(
            "sh -c 'trap \"touch {0}; exit\" TERM; touch {0}.up; while :; do sleep 0.05; done' & wait; wait",
            mark.display()
        );
        let up = mark.with_extension("up");
        let ran = program(&script).run(&input(""), exists(&up)).await;
        let ran = ran.expect("run");
        assert!(ran.terminated);
        assert_eq!(ran.status.signal(), Some(15));
        exists(&mark).await;
    }

    #[tokio::test]
    async fn a_command_that_ignores_sigterm_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let up = directory.path().join("up");
        let script = format!(
            "trap '' TERM; touch {}; while :; do sleep 0.05; done",
            up.display()
        );
        let ran = program(&script).run(&input(""), exists(&up)).await;
        let ran = ran.expect("run");
        assert_eq!((ran.terminated, ran.status.signal()), (true, Some(9)));
    }

    #[tokio::test]
    async fn a_run_that_is_dropped_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (up, mark) = (directory.path().join("up"), directory.path().join("mark"));
        let script = format!(
            "touch {}; sleep 0.5; touch {}",
            up.display(),
            mark.display()
        );
        let program = program(&script);
        let input = input("");
        tokio::select! {
            _ = program.run(&input, pending()) => panic!("it sleeps"),
            () = exists(&up) => {}
        }
        assert_eq!(program.running(), 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!mark.exists());
    }
}
