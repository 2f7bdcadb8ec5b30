//! The first process of a container.
//!
//! The system gives orphans to process 1. It must ask for the exit code of each; otherwise they stay as
//! zombies, and the table of processes fills up. A program that also waits for its own commands cannot
//! ask for all. So process 1 runs this program once more, passes signals on to it, and waits for all
//! processes, as tini does.

use std::{
    fs::File,
    io,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Command, ExitCode, ExitStatus},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper};
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Exit;

/// Set to 1, it makes any process do this, such as one under a process 1 that does not wait.
const VARIABLE: &str = "REVEILLE_INIT";
/// The signals that are passed on.
const SIGNALS: [Signal; 6] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

/// Where this is process 1, runs the program as a child and returns its exit code.
pub(crate) fn run() -> Option<ExitCode> {
    let asked = std::env::var_os(VARIABLE).is_some_and(|value| value == "1");
    if std::process::id() != 1 && !asked {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build();
    match runtime.and_then(|runtime| runtime.block_on(supervise())) {
        Ok(status) => Some(Exit::of_command(status).into()),
        // The program runs without it.
        Err(_) => None,
    }
}

async fn supervise() -> io::Result<ExitStatus> {
    if std::process::id() != 1 {
        // Only Linux and FreeBSD have it.
        let _ = set_child_subreaper(Pid::from_raw(1));
    }
    // Before the start, so that no end is missed.
    let mut ends = unix::signal(SignalKind::child())?;
    let (passed_on, mut signals) = tokio::sync::mpsc::unbounded_channel();
    for signal in SIGNALS {
        let mut received = unix::signal(SignalKind::from_raw(signal.as_raw()))?;
        let passed_on = passed_on.clone();
        tokio::spawn(async move {
            while received.recv().await.is_some() && passed_on.send(signal).is_ok() {}
        });
    }
    let child = start()?;
    loop {
        tokio::select! {
            _ = ends.recv() => {
                if let Some(status) = wait_for_all(child) {
                    return Ok(status);
                }
            }
            Some(signal) = signals.recv() => {
                // The terminal sends these to both.
                let is_typed = matches!(signal, Signal::INT | Signal::QUIT);
                if !is_typed || File::open("/dev/tty").is_err() {
                    let _ = kill_process(child, signal);
                }
            }
        }
    }
}

/// Starts this program once more.
fn start() -> io::Result<Pid> {
    let mut arguments = std::env::args_os();
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg0(arguments.next().unwrap_or_default())
        .args(arguments)
        .env_remove(VARIABLE);
    let id = i32::try_from(command.spawn()?.id()).ok();
    id.and_then(Pid::from_raw)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Asks for the exit codes of all processes that have ended; returns the child's.
fn wait_for_all(child: Pid) -> Option<ExitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == child {
            found = Some(ExitStatus::from_raw(status.as_raw()));
        }
    }
    found
}
