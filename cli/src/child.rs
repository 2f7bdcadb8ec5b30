//! Child processes: the commands that verbs run.
//!
//! A [`Process`] is in a process group of its own: signalled and killed with its children, and never left
//! behind, except after a SIGKILL of this process. A Ctrl-C at the terminal reaches only this process, so
//! each verb decides how its command ends.

use std::{
    ffi::OsString,
    fmt::Display,
    io,
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal as Number, kill_process_group, test_kill_process_group};
use tokio::process::{Child, ChildStdin, Command};

use super::{credential, exit::Failed};

/// A command and its process group. The group is killed when this is dropped, also after the command's
/// end.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    group: Pid,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// This process sent it SIGTERM.
    pub(crate) terminated: bool,
}

/// Time from SIGTERM to SIGKILL, where no option states it.
pub(crate) const KILL_AFTER: Duration = Duration::from_secs(5);

/// How often a group is polled for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Checks that the command exists, before the verb does anything for it.
pub(crate) fn check_exists(command: &[OsString]) -> Result<(), Failed> {
    let name = command.first().map(OsString::as_os_str).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let exists = match name.as_encoded_bytes().contains(&b'/') {
        true => is_runnable(Path::new(name)),
        false => {
            !name.is_empty() && std::env::split_paths(&path).any(|at| is_runnable(&at.join(name)))
        }
    };
    match exists {
        true => Ok(()),
        false => Err(cannot_run(command, "no such command")),
    }
}

/// Returns the error of a command that was not started.
pub(crate) fn cannot_run(command: &[OsString], why: impl Display) -> Failed {
    let name = command.first().map(|name| name.to_string_lossy());
    let name = name.unwrap_or_default();
    Failed(format!("`{name}` cannot be run: {why}"))
}

/// Returns a command without this program's token.
pub(crate) fn without_token(command: &[OsString]) -> std::process::Command {
    let (name, arguments) = command.split_first().expect("clap requires a command");
    let mut command = std::process::Command::new(name);
    command.args(arguments).env_remove(credential::VARIABLE);
    command
}

impl Ended {
    /// Returns whether SIGTERM killed the command, or the command of a shell.
    pub(crate) fn died_of_sigterm(&self) -> bool {
        const TERM: i32 = Number::TERM.as_raw();
        self.status.signal() == Some(TERM) || self.status.code() == Some(128 + TERM)
    }
}

impl Process {
    /// Starts a command.
    ///
    /// # Errors
    /// The command could not be started.
    pub(crate) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        stdin: Stdio,
        stdout: Stdio,
    ) -> io::Result<Self> {
        let mut command = Command::from(without_token(command));
        command.envs(environment).stdin(stdin).stdout(stdout);
        let child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw).expect("it was not awaited");
        Ok(Self { child, group })
    }

    /// Takes the standard input, if that is a pipe.
    pub(crate) fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal to the group.
    pub(crate) fn signal(&self, number: Number) {
        // An error means that the group has ended already.
        let _ = kill_process_group(self.group, number);
    }

    /// Waits for the command's end. Sends it SIGTERM when `end` resolves, and SIGKILL after the grace.
    pub(crate) async fn run_until(
        &mut self,
        end: impl Future<Output = ()>,
        grace: Duration,
    ) -> io::Result<Ended> {
        tokio::select! {
            status = self.wait() => return Ok(Ended { status: status?, terminated: false }),
            () = end => self.signal(Number::TERM),
        }
        // The command's children have the same time to end.
        let ended = async {
            let status = self.child.wait().await;
            self.wait_for_group().await;
            status
        };
        let status = match tokio::time::timeout(grace, ended).await {
            Ok(status) => status?,
            Err(_) => {
                self.signal(Number::KILL);
                self.wait().await?
            }
        };
        Ok(Ended {
            status,
            terminated: true,
        })
    }

    /// Waits for the command's end. The caller drops this soon after it: while a process of the group
    /// lives, the system does not reuse the group's number, and then it uses up all other numbers first.
    /// Safe to cancel.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Waits for the end of every process in the group, after the command's end. Safe to cancel.
    pub(crate) async fn wait_for_group(&self) {
        while test_kill_process_group(self.group).is_ok() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Number::KILL);
    }
}

fn is_runnable(path: &Path) -> bool {
    let runs = |meta: std::fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    path.metadata().is_ok_and(runs)
}

/// Returns whether a command cannot be run however often it is tried.
pub(crate) fn is_permanent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_command_is_reported_before_a_start() {
        for name in ["no-such-command-anywhere", "./no/such/file", "/", ""] {
            let error = check_exists(&[OsString::from(name)]).expect_err(name);
            assert!(error.0.contains(name) && error.0.contains("cannot be run"));
        }
    }
}
