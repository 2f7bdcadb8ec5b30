//! A command in this process's group: it reads from the terminal, and the terminal signals it.

use std::{
    ffi::OsString,
    io,
    process::{ExitStatus, Stdio},
};

use rustix::process::Pid;
use tokio::process::{Child, Command};

use crate::{credential, signals::Signal};

/// A running command of the foreground. It goes on if this is dropped.
#[derive(Debug)]
pub(crate) struct Foreground(Child);

impl Foreground {
    /// Starts a command that inherits the standard streams.
    ///
    /// # Errors
    /// The command could not be started.
    pub(crate) fn start(command: &[OsString]) -> io::Result<Self> {
        let Some((name, arguments)) = command.split_first() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut command = Command::new(name);
        command.args(arguments).stdin(Stdio::inherit());
        command.env_remove(credential::VARIABLE);
        command.spawn().map(Self)
    }

    /// Waits for the command's end. Safe to cancel.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait().await
    }

    /// Forwards the signal, unless the terminal has sent it to the command as well.
    pub(crate) fn forward(&self, signal: Signal) {
        let pid = self.0.id().and_then(|id| i32::try_from(id).ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            return;
        };
        if signal == Signal::Terminate {
            // An error means that the command has ended already.
            let _ = rustix::process::kill_process(pid, super::number(signal));
        }
    }
}
