//! A command as a process group of its own: told, killed, and never left behind.
//!
//! A Ctrl-C at the terminal reaches only us, so that the command comes to its end in the way that
//! its verb has; and where it is to be ended, its children are, too. Where this process is killed by
//! SIGKILL, its `guard` ends them.

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
use tokio::process::{Child, ChildStdin, Command};

use super::{
    exit::Failed,
    guard::{self, Guard},
};

/// A command that runs. Killed with its group when it is dropped before its end.
pub(super) struct Process {
    child: Child,
    group: Option<Group>,
}

/// The process groups that run.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups(Arc<Mutex<Running>>);

#[derive(Debug, Default)]
struct Running {
    groups: HashSet<Pid>,
    /// The marks of commands that are about to start.
    starting: HashSet<String>,
    /// How many marks were made.
    marks: u64,
    /// How a guard ends them; `None`: there is none.
    grace: Option<Duration>,
    guard: Option<Guard>,
    /// That there is no guard was said.
    unguarded: bool,
}

/// One of them. Killed when it is dropped before its end.
struct Group {
    id: Pid,
    groups: Groups,
}

/// Checks that there is something to run, before anything is done for it.
pub(super) fn find(command: &[OsString]) -> Result<(), Failed> {
    let name = command.first().map(OsString::as_os_str).unwrap_or_default();
    if is_there(name) {
        return Ok(());
    }
    let name = name.to_string_lossy();
    Err(Failed(format!("`{name}` cannot be run: no such command")))
}

/// How often it is looked whether a group lives whose first process has ended.
const LOOK: Duration = Duration::from_millis(20);

impl Process {
    /// Starts a command, which is in `groups` until it ends.
    ///
    /// # Errors
    /// It could not be started.
    pub(super) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        stdin: Stdio,
        groups: &Groups,
    ) -> io::Result<Self> {
        let Some((name, arguments)) = command.split_first() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut command = Command::new(name);
        command.args(arguments).envs(environment).stdin(stdin);
        command.process_group(0).kill_on_drop(true);
        // Before the command runs: this process may be killed before it can name the group.
        let mark = groups.announce();
        if let Some(mark) = &mark {
            command.env(guard::MARK, mark);
        }
        let started = command.spawn();
        let group = started
            .as_ref()
            .ok()
            .and_then(|child| Group::of(child, groups));
        if let Some(mark) = mark {
            groups.lock().forget(&mark);
        }
        Ok(Self {
            child: started?,
            group,
        })
    }

    /// Takes its standard input, where that is a pipe.
    pub(super) fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal to its group, unless it has ended.
    pub(super) fn tell(&self, number: Signal) {
        if let Some(group) = &self.group {
            signal(group.id, number);
        }
    }

    /// Waits for its end. Safe to cancel.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        if let Some(group) = self.group.take() {
            group.ended();
        }
        status
    }

    /// Waits for its end, and for that of all it has started and left in its group: what they do is
    /// done in its name. Safe to cancel.
    pub(super) async fn wait_for_group(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        while self.group.as_ref().is_some_and(Group::is_alive) {
            tokio::time::sleep(LOOK).await;
        }
        if let Some(group) = self.group.take() {
            group.ended();
        }
        Ok(status)
    }

    /// Waits for its end, and kills what is left of its group then. Safe to cancel.
    pub(super) async fn wait_for_all(&mut self) -> io::Result<ExitStatus> {
        let id = self.group.as_ref().map(|group| group.id);
        let status = self.wait().await;
        if let Some(id) = id {
            // At once: as long as one of the group lives its number is nobody else's, and before it
            // could be given out anew all others would have to be.
            signal(id, Signal::KILL);
        }
        status
    }
}

impl Groups {
    /// Makes groups that are ended also where this process is killed by SIGKILL: by SIGTERM, and
    /// after the grace by SIGKILL.
    pub(super) fn guarded(grace: Duration) -> Self {
        let groups = Self::default();
        let mut running = groups.lock();
        running.grace = Some(grace);
        running.start_guard();
        drop(running);
        groups
    }

    /// Returns how many run.
    pub(super) fn count(&self) -> usize {
        self.lock().groups.len()
    }

    /// Kills all that run; returns how many.
    pub(super) fn kill(&self) -> usize {
        let running = self.lock();
        for id in &running.groups {
            signal(*id, Signal::KILL);
        }
        running.groups.len()
    }

    /// Makes a mark for a command that is about to start, where there is a guard to find it.
    fn announce(&self) -> Option<String> {
        let mut running = self.lock();
        running.grace?;
        running.marks += 1;
        // Another process of this number may have had a guard that still looks.
        let nanoseconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanoseconds = nanoseconds.unwrap_or_default().as_nanos();
        let mark = format!("{}-{nanoseconds}-{}", std::process::id(), running.marks);
        running.starting.insert(mark.clone());
        running.tell(|guard| guard.announce(&mark));
        Some(mark)
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn insert(&mut self, group: Pid) {
        self.groups.insert(group);
        self.tell(|guard| guard.add(group));
    }

    /// Returns whether it was there.
    fn remove(&mut self, group: Pid) -> bool {
        let removed = self.groups.remove(&group);
        self.tell(|guard| guard.remove(group));
        removed
    }

    fn forget(&mut self, mark: &str) {
        self.starting.remove(mark);
        self.tell(|guard| guard.forget(mark));
    }

    /// Tells the guard, or another one in its place.
    fn tell(&mut self, what: impl FnOnce(&mut Guard) -> io::Result<()>) {
        let told = self.guard.as_mut().map(what);
        if self.grace.is_some() && !matches!(told, Some(Ok(()))) {
            self.start_guard();
        }
    }

    fn brief(&self, guard: &mut Guard) -> io::Result<()> {
        for mark in &self.starting {
            guard.announce(mark)?;
        }
        self.groups.iter().try_for_each(|group| guard.add(*group))
    }

    /// Starts a guard in the place of the one before, and tells it all that the other one knew.
    #[cold]
    fn start_guard(&mut self) {
        if let Some(before) = self.guard.take() {
            before.abandon();
        }
        let Some(grace) = self.grace else { return };
        let started = Guard::start(grace).and_then(|mut guard| match self.brief(&mut guard) {
            Ok(()) => Ok(guard),
            Err(error) => {
                guard.abandon();
                Err(error)
            }
        });
        match started {
            Ok(guard) => self.guard = Some(guard),
            Err(error) if !std::mem::replace(&mut self.unguarded, true) => {
                tracing::warn!(%error, "a SIGKILL of this process would leave its commands");
            }
            Err(_) => {}
        }
    }
}

impl Group {
    fn of(child: &Child, groups: &Groups) -> Option<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw)?;
        groups.lock().insert(id);
        Some(Self {
            id,
            groups: groups.clone(),
        })
    }

    fn is_alive(&self) -> bool {
        rustix::process::test_kill_process_group(self.id).is_ok()
    }

    /// It has ended by itself: its number is free for others, and must not be signalled.
    fn ended(self) {
        self.groups.lock().remove(self.id);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.groups.lock().remove(self.id) {
            signal(self.id, Signal::KILL);
        }
    }
}

fn signal(group: Pid, number: Signal) {
    // It may have ended already, and that is all right.
    let _ = kill_process_group(group, number);
}

fn is_there(name: &OsStr) -> bool {
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
    fn what_cannot_be_run_is_said_before() {
        for name in ["no-such-command-anywhere", "./no/such/file", "/", ""] {
            let error = find(&[OsString::from(name)]).expect_err(name);
            assert!(error.0.contains(name) && error.0.contains("cannot be run"));
        }
    }
}
