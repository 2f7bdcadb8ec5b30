//! Child processes: the commands that verbs run.
//!
//! `process` starts a command in a process group of its own, and ends it with all that it started.
//! `guard` does so after a SIGKILL of this process. `init` waits for orphans where this program is the
//! first process of a container. `foreground` is a command that shares this process's terminal.

mod foreground;
pub(super) mod guard;
pub(super) mod init;
mod process;

pub(super) use self::{
    foreground::Foreground,
    process::{Ended, Process, ProcessGroups, check_exists},
};
use std::io;

use rustix::process::{Pid, test_kill_process_group};

use super::signals::Signal;

/// Time from SIGTERM to SIGKILL, where no option states it.
pub(super) const KILL_AFTER: std::time::Duration = std::time::Duration::from_secs(5);

/// Returns whether a command cannot be run however often it is tried.
pub(super) fn is_permanent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error())
}

/// Returns the system's number of a signal.
pub(super) fn number(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::Interrupt => rustix::process::Signal::INT,
        Signal::Terminate => rustix::process::Signal::TERM,
    }
}

/// Returns whether a process of the group runs. A zombie does not: it waits only until its parent asks
/// for its exit code, and some first processes of containers never ask.
fn is_alive(group: Pid) -> bool {
    test_kill_process_group(group).is_ok() && has_running_process(group).unwrap_or(true)
}

/// `None` where the folder does not show this process's numbers: only Linux has it, and it may be that of
/// another container.
fn has_running_process(group: Pid) -> Option<bool> {
    let shown = std::fs::read_link("/proc/self").ok()?;
    if shown.to_str()? != std::process::id().to_string() {
        return None;
    }
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut stats =
        processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    Some(stats.any(|stat| runs_in(&stat, group)))
}

/// Reads `PID (NAME) STATE PARENT GROUP ...`; a name may contain any of these characters.
fn runs_in(stat: &str, group: Pid) -> bool {
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let mut fields = fields.unwrap_or_default().split_whitespace();
    let (state, number) = (fields.next(), fields.nth(1));
    let number = number.and_then(|number| number.parse().ok());
    number.and_then(Pid::from_raw) == Some(group) && !matches!(state, Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_does_not_run() {
        let group = Pid::from_raw(7).expect("a number");
        for (stat, runs) in [
            ("9 (sh) S 1 7 7 0", true),
            ("9 (a) Z 1 9) R 1 7 7 0", true),
            ("9 (sh) Z 1 7 7 0", false),
            ("7 (sh) S 1 8 7 0", false),
            ("", false),
        ] {
            assert_eq!(runs_in(stat, group), runs, "{stat}");
        }
        assert!(is_alive(rustix::process::getpgrp()));
    }
}
