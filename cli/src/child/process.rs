//! A child command in a separate process group: signalled, killed, never left behind.
//!
//! A Ctrl-C at the terminal reaches only this process, so each verb decides how its command ends. A
//! signal to the group reaches the command's children as well. If SIGKILL ends this process, its
//! `guard` process ends the groups.

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

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::guard::{self, Guard};
use crate::{credential, exit::Failed};

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

/// Checks that the command exists, before the verb does anything for it.
pub(crate) fn check_exists(command: &[OsString]) -> Result<(), Failed> {
    let name = command.first().map(OsString::as_os_str).unwrap_or_default();
    if exists(name) {
        return Ok(());
    }
    let name = name.to_string_lossy();
    Err(Failed(format!("`{name}` cannot be run: no such command")))
}

/// How often a group is polled for its end after its first process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const LONGEST_POLL_INTERVAL: Duration = Duration::from_millis(320);

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

    /// The same with a pipe as its standard output, and no input.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub(crate) fn start_with_output(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        groups: &ProcessGroups,
    ) -> io::Result<Self> {
        Self::start_with(
            command,
            environment,
            (Stdio::null(), Stdio::piped()),
            groups,
        )
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

    /// Takes the standard output, if that is a pipe.
    pub(crate) fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Sends a signal to the group, unless it has ended.
    pub(crate) fn signal(&self, number: Signal) {
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
            () = end => self.signal(Signal::TERM),
        }
        let status = match tokio::time::timeout(grace, self.wait()).await {
            Ok(status) => status?,
            Err(_) => {
                self.signal(Signal::KILL);
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
            signal(id, Signal::KILL);
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
            signal(*id, Signal::KILL);
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
        table.update_guard(|guard| guard.add_mark(&mark));
        Some(mark)
    }

    fn lock(&self) -> MutexGuard<'_, GroupTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GroupTable {
    fn insert(&mut self, group: Pid) {
        self.groups.insert(group);
        self.update_guard(|guard| guard.add_group(group));
    }

    /// Returns whether the group was in the table.
    fn remove(&mut self, group: Pid) -> bool {
        let removed = self.groups.remove(&group);
        self.update_guard(|guard| guard.remove_group(group));
        removed
    }

    fn remove_mark(&mut self, mark: &str) {
        self.starting.remove(mark);
        self.update_guard(|guard| guard.remove_mark(mark));
    }

    /// Sends an update to the guard. If that fails, starts another guard with the whole state.
    fn update_guard(&mut self, update: impl FnOnce(&mut Guard) -> io::Result<()>) {
        let updated = self.guard.as_mut().map(update);
        if self.grace.is_some() && !matches!(updated, Some(Ok(()))) {
            self.start_guard();
        }
    }

    fn send_all(&self, guard: &mut Guard) -> io::Result<()> {
        for mark in &self.starting {
            guard.add_mark(mark)?;
        }
        let mut groups = self.groups.iter();
        groups.try_for_each(|group| guard.add_group(*group))
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
        super::is_alive(self.id)
    }

    /// Records that the group has ended. The system may reuse its number, so it must get no signal.
    fn set_ended(self) {
        self.groups.lock().remove(self.id);
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if self.groups.lock().remove(self.id) {
            signal(self.id, Signal::KILL);
        }
    }
}

fn signal(group: Pid, number: Signal) {
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
