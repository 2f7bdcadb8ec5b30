//! Child processes: the commands that verbs run.
//!
//! [`Process`] is a command in a process group of its own: signalled, killed, never left behind. A Ctrl-C
//! at the terminal reaches only this process, so each verb decides how its command ends. A signal to the
//! group reaches the command's children as well. If SIGKILL ends this process, its `guard` process ends
//! the groups. [`Foreground`] is a command that shares this process's terminal. `init` waits for orphans
//! where this program is the first process of a container.

pub(super) mod guard;
pub(super) mod init;

use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use rustix::process::{
    Pid, Signal as Number, kill_process, kill_process_group, test_kill_process_group,
};
use tokio::process::{Child, ChildStdin, Command};

use self::guard::Guard;
use super::{credential, exit::Failed, signals::Signal};

/// A running command. Killed with its group if it is dropped before its end.
pub(crate) struct Process {
    child: Child,
    group: Option<ProcessGroup>,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// This process sent it SIGTERM.
    pub(crate) terminated: bool,
}

/// The running process groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessGroups(Arc<Mutex<GroupTable>>);

#[derive(Debug, Default)]
struct GroupTable {
    groups: HashSet<Pid>,
    /// The marks of commands that are about to start.
    starting: HashSet<String>,
    /// Number of marks made so far.
    marks: u64,
    /// The guard's time from SIGTERM to SIGKILL; `None`: the groups have no guard.
    grace: Option<Duration>,
    guard: Option<Guard>,
    /// A warning about a missing guard was logged.
    warned: bool,
}

/// A running process group. Killed if it is dropped before its end.
struct ProcessGroup {
    id: Pid,
    groups: ProcessGroups,
}

/// A running command of the foreground. It goes on if this is dropped.
#[derive(Debug)]
pub(crate) struct Foreground(Child);

/// Time from SIGTERM to SIGKILL, where no option states it.
pub(crate) const KILL_AFTER: Duration = Duration::from_secs(5);

/// How often a group is polled for its end after its first process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_POLL_INTERVAL: Duration = Duration::from_millis(320);

/// Checks that the command exists, before the verb does anything for it.
pub(crate) fn check_exists(command: &[OsString]) -> Result<(), Failed> {
    let name = command.first().map(OsString::as_os_str).unwrap_or_default();
    if exists(name) {
        return Ok(());
    }
    let name = name.to_string_lossy();
    Err(Failed(format!("`{name}` cannot be run: no such command")))
}

impl Process {
    /// Starts a command. It is in `groups` until it ends.
    ///
    /// # Errors
    /// The command could not be started.
    pub(crate) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        stdin: Stdio,
        groups: &ProcessGroups,
    ) -> io::Result<Self> {
        Self::start_with(command, environment, (stdin, Stdio::inherit()), groups)
    }

    /// The same with this standard output, and no input.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub(crate) fn start_with_output(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        stdout: Stdio,
        groups: &ProcessGroups,
    ) -> io::Result<Self> {
        Self::start_with(command, environment, (Stdio::null(), stdout), groups)
    }

    fn start_with(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        (stdin, stdout): (Stdio, Stdio),
        groups: &ProcessGroups,
    ) -> io::Result<Self> {
        let Some((name, arguments)) = command.split_first() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut command = Command::new(name);
        command.args(arguments).stdin(stdin).stdout(stdout);
        command.env_remove(credential::VARIABLE).envs(environment);
        command.process_group(0).kill_on_drop(true);
        // Before the start: this process may be killed before it knows the group's number.
        let mark = groups.add_mark();
        if let Some(mark) = &mark {
            command.env(guard::MARK, mark);
        }
        let started = command.spawn();
        let group = started
            .as_ref()
            .ok()
            .and_then(|child| ProcessGroup::of(child, groups));
        if let Some(mark) = mark {
            groups.lock().remove_mark(&mark);
        }
        Ok(Self {
            child: started?,
            group,
        })
    }

    /// Takes the standard input, if that is a pipe.
    pub(crate) fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal to the group, unless it has ended.
    pub(crate) fn signal(&self, number: Number) {
        if let Some(group) = &self.group {
            signal(group.id, number);
        }
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
        let status = match tokio::time::timeout(grace, self.wait()).await {
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

    /// Waits for the command's end. Safe to cancel.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        if let Some(group) = self.group.take() {
            group.set_ended();
        }
        status
    }

    /// Waits for the end of the command and of every process in its group: these act in the
    /// command's name. Safe to cancel.
    pub(crate) async fn wait_for_group(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        let mut pause = POLL_INTERVAL;
        while self.group.as_ref().is_some_and(ProcessGroup::is_alive) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_POLL_INTERVAL);
        }
        if let Some(group) = self.group.take() {
            group.set_ended();
        }
        Ok(status)
    }

    /// Waits for the command's end, then kills the rest of its group. Safe to cancel.
    pub(crate) async fn wait_and_kill_group(&mut self) -> io::Result<ExitStatus> {
        let id = self.group.as_ref().map(|group| group.id);
        let status = self.wait().await;
        if let Some(id) = id {
            // Immediately after the end: while a process of the group lives, the system does not
            // reuse the group's number. If none lives, it would use up all other numbers first.
            signal(id, Number::KILL);
        }
        status
    }
}

impl ProcessGroups {
    /// Makes groups with a guard. If SIGKILL ends this process, the guard sends the groups SIGTERM,
    /// and after the grace SIGKILL.
    pub(crate) fn guarded(grace: Duration) -> Self {
        let groups = Self::default();
        let mut table = groups.lock();
        table.grace = Some(grace);
        table.start_guard();
        drop(table);
        groups
    }

    /// Returns the number of running groups.
    pub(crate) fn count(&self) -> usize {
        self.lock().groups.len()
    }

    /// Kills all running groups; returns their number.
    pub(crate) fn kill(&self) -> usize {
        let table = self.lock();
        for id in &table.groups {
            signal(*id, Number::KILL);
        }
        table.groups.len()
    }

    /// Makes a mark for a command that is about to start, if the groups have a guard.
    fn add_mark(&self) -> Option<String> {
        let mut table = self.lock();
        table.grace?;
        table.marks += 1;
        // An earlier process with this number may have a guard that still searches for its marks.
        let nanoseconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanoseconds = nanoseconds.unwrap_or_default().as_nanos();
        let mark = format!("{}-{nanoseconds}-{}", std::process::id(), table.marks);
        table.starting.insert(mark.clone());
        table.tell_guard(&format!("?{mark}"));
        Some(mark)
    }

    fn lock(&self) -> MutexGuard<'_, GroupTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GroupTable {
    fn insert(&mut self, group: Pid) {
        self.groups.insert(group);
        self.tell_guard(&group_line('+', group));
    }

    /// Returns whether the group was in the table.
    fn remove(&mut self, group: Pid) -> bool {
        let removed = self.groups.remove(&group);
        self.tell_guard(&group_line('-', group));
        removed
    }

    fn remove_mark(&mut self, mark: &str) {
        self.starting.remove(mark);
        self.tell_guard(&format!("!{mark}"));
    }

    /// Sends a line to the guard. If that fails, starts another guard with the whole state.
    fn tell_guard(&mut self, line: &str) {
        let sent = self.guard.as_mut().map(|guard| guard.send(line));
        if self.grace.is_some() && !matches!(sent, Some(Ok(()))) {
            self.start_guard();
        }
    }

    fn send_all(&self, guard: &mut Guard) -> io::Result<()> {
        let marks = self.starting.iter().map(|mark| format!("?{mark}"));
        let groups = self.groups.iter().map(|group| group_line('+', *group));
        marks.chain(groups).try_for_each(|line| guard.send(&line))
    }

    /// Starts a guard, replaces the former one, and sends it all groups and marks.
    #[cold]
    fn start_guard(&mut self) {
        if let Some(before) = self.guard.take() {
            before.abandon();
        }
        let Some(grace) = self.grace else { return };
        let started = Guard::start(grace).and_then(|mut guard| match self.send_all(&mut guard) {
            Ok(()) => Ok(guard),
            Err(error) => {
                guard.abandon();
                Err(error)
            }
        });
        match started {
            Ok(guard) => self.guard = Some(guard),
            Err(error) if !std::mem::replace(&mut self.warned, true) => {
                tracing::warn!(
                    %error,
                    "no guard process: after a SIGKILL of this process its commands keep running"
                );
            }
            Err(_) => {}
        }
    }
}

impl ProcessGroup {
    fn of(child: &Child, groups: &ProcessGroups) -> Option<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw)?;
        groups.lock().insert(id);
        Some(Self {
            id,
            groups: groups.clone(),
        })
    }

    fn is_alive(&self) -> bool {
        is_alive(self.id)
    }

    /// Records that the group has ended. The system may reuse its number, so it must get no signal.
    fn set_ended(self) {
        self.groups.lock().remove(self.id);
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self.groups.lock().remove(self.id) {
            signal(self.id, Number::KILL);
        }
    }
}

fn group_line(sign: char, group: Pid) -> String {
    format!("{sign}{}", group.as_raw_nonzero())
}

fn signal(group: Pid, number: Number) {
    // An error means that the group has ended already.
    let _ = kill_process_group(group, number);
}

fn exists(name: &OsStr) -> bool {
    if name.as_encoded_bytes().contains(&b'/') {
        return is_runnable(Path::new(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    !name.is_empty() && std::env::split_paths(&path).any(|place| is_runnable(&place.join(name)))
}

fn is_runnable(path: &Path) -> bool {
    let runs = |meta: std::fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    path.metadata().is_ok_and(runs)
}

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
            let _ = kill_process(pid, number(signal));
        }
    }
}

/// Returns whether a command cannot be run however often it is tried.
pub(crate) fn is_permanent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error())
}

/// Returns the system's number of a signal.
pub(crate) fn number(signal: Signal) -> Number {
    match signal {
        Signal::Interrupt => Number::INT,
        Signal::Terminate => Number::TERM,
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
    fn a_missing_command_is_reported_before_a_start() {
        for name in ["no-such-command-anywhere", "./no/such/file", "/", ""] {
            let error = check_exists(&[OsString::from(name)]).expect_err(name);
            assert!(error.0.contains(name) && error.0.contains("cannot be run"));
        }
    }

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
