//! One run of the command: fed, waited for, ended where nobody wants it any more.
//!
//! Each run is a process group of its own. A Ctrl-C at the terminal reaches only us, so that the
//! command comes to its end; and where it is to be ended, its children are, too.

use std::{
    collections::HashSet,
    ffi::{OsStr, OsString},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStdin, Command},
};

use super::input::Input;
use crate::cli::exit::Failed;

/// A command that was told to end is killed after this.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(5);

/// What is run.
#[derive(Debug)]
pub(super) struct Program {
    command: Vec<OsString>,
    running: Running,
}

/// How a run ended.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) status: ExitStatus,
    /// It was told to end.
    pub(super) told: bool,
}

/// The process groups that run.
#[derive(Debug, Clone, Default)]
struct Running(Arc<Mutex<HashSet<Pid>>>);

/// One of them. Killed when it is dropped before its end.
struct Group {
    id: Pid,
    running: Running,
}

impl Program {
    /// Checks that there is something to run, before a message is got for it.
    pub(super) fn find(command: &[OsString]) -> Result<Self, Failed> {
        let name = command.first().map(OsString::as_os_str).unwrap_or_default();
        if !is_there(name) {
            let name = name.to_string_lossy();
            return Err(Failed(format!("`{name}` cannot be run: no such command")));
        }
        Ok(Self {
            command: command.to_vec(),
            running: Running::default(),
        })
    }

    /// Runs the command to its end; tells it to end when `lost` says so.
    ///
    /// # Errors
    /// It could not be started.
    pub(super) async fn run(
        &self,
        input: Input,
        lost: impl Future<Output = ()>,
    ) -> io::Result<Ran> {
        let Some((name, arguments)) = self.command.split_first() else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut child = Command::new(name)
            .args(arguments)
            .envs(input.environment)
            .stdin(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let group = Group::of(&child, &self.running);
        let feed = feed(child.stdin.take(), input.body);
        let ran = attend(&mut child, group.as_ref(), feed, lost).await;
        if let Some(group) = group {
            group.ended();
        }
        ran
    }

    /// Returns how many run.
    pub(super) fn running(&self) -> usize {
        self.running.lock().len()
    }

    /// Kills all that run; returns how many.
    pub(super) fn kill(&self) -> usize {
        let running = self.running.lock();
        for id in &*running {
            signal(*id, Signal::KILL);
        }
        running.len()
    }
}

async fn attend(
    child: &mut Child,
    group: Option<&Group>,
    feed: impl Future<Output = ()>,
    lost: impl Future<Output = ()>,
) -> io::Result<Ran> {
    let tell = |number| {
        if let Some(group) = group {
            signal(group.id, number);
        }
    };
    tokio::pin!(feed, lost);
    let (mut fed, mut told, mut killed) = (false, false, false);
    let kill = tokio::time::sleep(Duration::MAX);
    tokio::pin!(kill);
    loop {
        tokio::select! {
            status = child.wait() => return Ok(Ran { status: status?, told }),
            () = &mut feed, if !fed => fed = true,
            () = &mut lost, if !told => {
                told = true;
                tell(Signal::TERM);
                kill.as_mut().reset(tokio::time::Instant::now() + KILL_AFTER);
            }
            () = &mut kill, if told && !killed => {
                killed = true;
                tell(Signal::KILL);
            }
        }
    }
}

/// Writes the input, then closes it. A command need not read it.
async fn feed(stdin: Option<ChildStdin>, body: Vec<u8>) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(&body).await;
    }
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    fn of(child: &Child, running: &Running) -> Option<Self> {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw)?;
        running.lock().insert(id);
        Some(Self {
            id,
            running: running.clone(),
        })
    }

    /// It has ended by itself: its number is free for others, and must not be signalled.
    fn ended(self) {
        self.running.lock().remove(&self.id);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.running.lock().remove(&self.id) {
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
    use std::{future::pending, os::unix::process::ExitStatusExt as _};

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

    #[tokio::test]
    async fn a_run_has_its_message_and_its_environment() {
        let program = program("test \"$MESSAGE_ID $(cat)\" = '7 hello'");
        let ran = program.run(input("hello"), pending()).await.expect("run");
        assert!(ran.status.success() && !ran.told);
        assert_eq!(program.running(), 0);
    }

    #[tokio::test]
    async fn a_command_that_does_not_read_its_input_is_no_failure() {
        let body = "x".repeat(1 << 20);
        let ran = program("exit 3").run(input(&body), pending()).await;
        assert_eq!(ran.expect("run").status.code(), Some(3));
    }

    #[tokio::test]
    async fn who_is_lost_is_told_and_its_children_are() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = directory.path().join("child");
        let script = format!(
            "sh -c 'trap \"touch {0}; exit\" TERM; touch {0}.up; while :; do sleep 0.05; done' & wait; wait",
            mark.display()
        );
        let up = mark.with_extension("up");
        let lost = async {
            while !up.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ran = program(&script).run(input(""), lost).await.expect("run");
        assert!(ran.told);
        assert_eq!(ran.status.signal(), Some(15));
        while !mark.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn whoever_does_not_end_is_killed() {
        let ran = program("trap '' TERM; while :; do sleep 0.05; done");
        let ran = ran.run(input(""), tokio::time::sleep(Duration::from_millis(300)));
        let ran = ran.await.expect("run");
        assert_eq!((ran.told, ran.status.signal()), (true, Some(9)));
    }

    #[tokio::test]
    async fn a_run_that_nobody_waits_for_any_more_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (up, mark) = (directory.path().join("up"), directory.path().join("mark"));
        let script = format!(
            "touch {}; sleep 0.5; touch {}",
            up.display(),
            mark.display()
        );
        let program = program(&script);
        tokio::select! {
            _ = program.run(input(""), pending()) => panic!("it sleeps"),
            () = async { while !up.exists() { tokio::task::yield_now().await } } => {}
        }
        assert_eq!(program.running(), 0);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!mark.exists());
    }

    #[test]
    fn what_cannot_be_run_is_said_before() {
        for name in ["no-such-command-anywhere", "./no/such/file", "/", ""] {
            let error = Program::find(&[OsString::from(name)]).expect_err(name);
            assert!(error.0.contains(name) && error.0.contains("cannot be run"));
        }
    }
}
