//! Signals that end the process, and its limit on open files.

use std::io::{self, IsTerminal as _};

use rustix::process::{Resource, Rlimit, Signal as Number};
use tokio::signal::unix::{self, SignalKind};

use super::exit::Exit;

/// The signals that ask the program to end.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    quit: unix::Signal,
    /// The terminal has closed; `None` if the process was started with SIGHUP ignored (`nohup`), or is
    /// a service.
    hangup: Option<unix::Signal>,
}

/// A signal that asks the program to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ctrl-C: the terminal sends it to child processes as well.
    Interrupt,
    /// Sent to this process only.
    Terminate,
}

/// Lets a write beyond the limit on the size of a file (`ulimit -f`) fail, instead of ending the
/// process. In force until the returned value is dropped, and needs a runtime.
pub(crate) fn outlive_file_limit() -> io::Result<unix::Signal> {
    unix::signal(SignalKind::from_raw(Number::XFSZ.as_raw()))
}

impl Interrupts {
    pub(crate) fn listen() -> io::Result<Self> {
        Self::ended_by_hangup(!ignores_hangup())
    }

    /// As [`Interrupts::listen`], for a service: SIGHUP means "read your files again", and ends only
    /// one that does not and that has a terminal, which has closed.
    pub(crate) fn of_service(reloads: bool) -> io::Result<Self> {
        let ends = !reloads && io::stdin().is_terminal() && !ignores_hangup();
        // The handler stays when the value is dropped.
        drop(unix::signal(SignalKind::hangup())?);
        Self::ended_by_hangup(ends)
    }

    fn ended_by_hangup(ends: bool) -> io::Result<Self> {
        let hangup = ends.then(|| unix::signal(SignalKind::hangup()));
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            quit: unix::signal(SignalKind::quit())?,
            hangup: hangup.transpose()?,
        })
    }

    /// Waits for the next signal. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            // A command in a separate process group does not get these from the terminal.
            _ = self.quit.recv() => Signal::Terminate,
            () = hang_up(&mut self.hangup) => Signal::Terminate,
        }
    }
}

/// Waits for the next SIGHUP, if the process listens to it. Safe to cancel.
pub(crate) async fn hang_up(hangup: &mut Option<unix::Signal>) {
    match hangup {
        Some(hangup) => hangup.recv().await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

/// Returns whether this process was started with SIGHUP ignored. Known on Linux only.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

impl Signal {
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::INTERRUPTED,
            Self::Terminate => Exit::TERMINATED,
        }
    }

    pub(crate) const fn number(self) -> Number {
        match self {
            Self::Interrupt => Number::INT,
            Self::Terminate => Number::TERM,
        }
    }
}

/// Raises the soft limit on open files to the hard limit, and returns the limit: each connection is
/// an open file.
pub(crate) fn raise_open_files() -> Option<u64> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(_) => limit.current,
    }
}
