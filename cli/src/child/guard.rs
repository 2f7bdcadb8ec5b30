//! A process that ends commands whose parent was killed by SIGKILL.
//!
//! `listen`, `lease run` and `subscribe` start one guard, not one for each command: a message costs four short
//! writes and no further process. The guard's standard input is a pipe that only the parent holds.
//! The parent writes a line when a process group starts and when it ends. When the pipe closes, the
//! parent is gone, and the guard ends the remaining groups. Linux's PR_SET_PDEATHSIG would need
//! `unsafe`, is bound to a thread, and does not reach grandchildren.
//!
//! A group has no number before its command starts, and the parent may be killed between the two.
//! So the parent first sends a mark, which is also in the command's environment. On Linux the guard
//! finds the process by this mark if the parent could not send the group's number.
//!
//! Not covered: processes that left their process group.

use std::{
    collections::HashSet,
    fs,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use reveille::duration;
use rustix::process::{Pid, Signal, getpgid, kill_process_group};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use super::is_alive;
use crate::exit::Exit;

/// End the process groups that standard input names when it ends
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// SIGKILL follows SIGTERM after this
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    grace: Duration,
}

/// The parent's handle of a running guard.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    pipe: ChildStdin,
}

/// The groups and marks that the guard has read.
#[derive(Debug, Default, PartialEq)]
struct Guarded {
    /// The running groups.
    groups: HashSet<Pid>,
    /// The marks of commands whose group numbers were not sent yet.
    starting: HashSet<String>,
}

/// The variable in the environment of a command that holds its mark.
pub(crate) const MARK: &str = "REVEILLE_RUN";
/// The name of the hidden verb.
pub(crate) const VERB: &str = "guard";
/// Pause between two reads, so that the guard wakes once for lines of many commands. The pipe has
/// room for thousands of lines in this time.
const PAUSE: Duration = Duration::from_millis(10);
/// How often the guard polls whether a group has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Guard {
    /// Starts a guard process.
    ///
    /// # Errors
    /// The process could not be started.
    pub(crate) fn start(grace: Duration) -> io::Result<Self> {
        let mut process = Command::new(this_program()?)
            .arg0("reveille")
            .args([VERB, "--grace", &format!("{}ms", grace.as_millis())])
            // The guard inherits no setting, and keeps no directory of its parent in use.
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            // Otherwise the guard would keep the parent's output pipes open after the parent's end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The terminal's signals are for the parent only.
            .process_group(0)
            .spawn()?;
        let pipe = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // Non-blocking: a stopped guard must not block its parent.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self { process, pipe })
    }

    /// Kills the guard, and no command. Closing the pipe alone would end the commands.
    pub(crate) fn abandon(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Sends a line: `?MARK` of a command that is about to start, `!MARK` after its start has succeeded
    /// or failed, `+GROUP` of a group that must end with this process, `-GROUP` of one that has ended,
    /// because the system may reuse its number.
    ///
    /// # Errors
    /// The guard has ended or no longer reads. The caller calls [`Guard::abandon`].
    pub(crate) fn send(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        // One write: a pipe takes a line this short whole or not at all.
        match self.pipe.write(line.as_bytes()) {
            Ok(written) if written == line.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(error),
        }
    }
}

impl Args {
    /// Reads groups until the parent is gone, then ends them.
    pub(crate) async fn run(self) -> anyhow::Result<Exit> {
        // A service manager signals all processes of a service. The guard must outlive the
        // commands.
        let mut ignored = Vec::new();
        for kind in [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::hangup(),
        ] {
            ignored.push(signal(kind)?);
        }
        let left = tokio::task::spawn_blocking(|| read(&mut io::stdin().lock())).await??;
        end(left, self.grace).await;
        Ok(Exit::OK)
    }
}

/// Reads lines until the pipe closes, and returns the groups and marks that are left.
fn read(input: &mut impl io::Read) -> io::Result<Guarded> {
    let (mut guarded, mut unread) = (Guarded::default(), Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = match input.read(&mut buffer) {
            Ok(0) => return Ok(guarded),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        unread.extend_from_slice(&buffer[..count]);
        let whole = unread
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in String::from_utf8_lossy(&unread[..whole]).lines() {
            guarded.apply(line);
        }
        unread.drain(..whole);
        std::thread::sleep(PAUSE);
    }
}

impl Guarded {
    fn apply(&mut self, line: &str) {
        let group = |text: &str| {
            let id = text.parse::<u32>().ok()?;
            Pid::from_raw(i32::try_from(id).ok()?).filter(|id| !id.is_init())
        };
        if let Some(mark) = line.strip_prefix('?').filter(|mark| !mark.is_empty()) {
            self.starting.insert(mark.to_owned());
        } else if let Some(mark) = line.strip_prefix('!') {
            self.starting.remove(mark);
        } else if let Some(group) = line.strip_prefix('+').and_then(group) {
            self.groups.insert(group);
        } else if let Some(group) = line.strip_prefix('-').and_then(group) {
            self.groups.remove(&group);
        }
    }
}

/// Ends the remaining groups: by SIGTERM, and by SIGKILL after the grace.
async fn end(left: Guarded, grace: Duration) {
    let Guarded {
        mut groups,
        mut starting,
    } = left;
    for group in &groups {
        let _ = kill_process_group(*group, Signal::TERM);
    }
    let until = Instant::now() + grace;
    while Instant::now() < until {
        // Repeated: a process has its mark only after it has executed the command.
        for group in take_marked(&mut starting) {
            let _ = kill_process_group(group, Signal::TERM);
            groups.insert(group);
        }
        groups.retain(|group| is_alive(*group));
        if groups.is_empty() && starting.is_empty() {
            return;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    for group in groups {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Removes each mark that a process has, and returns the groups of these processes.
fn take_marked(marks: &mut HashSet<String>) -> Vec<Pid> {
    if marks.is_empty() {
        return Vec::new();
    }
    // Only Linux has this folder. Other systems find no process.
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut groups = Vec::new();
    for entry in processes {
        let process = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(process) = process.and_then(Pid::from_raw) else {
            continue;
        };
        // Processes of other users cannot be read, and have none of the marks.
        let Some(mark) = mark_in(&fs::read(entry.path().join("environ")).unwrap_or_default())
        else {
            continue;
        };
        if let (true, Ok(group)) = (marks.remove(&mark), getpgid(Some(process))) {
            groups.push(group);
        }
    }
    groups
}

/// Returns the mark in an environment block: variables that each end with a zero byte.
fn mark_in(environment: &[u8]) -> Option<String> {
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

/// Returns the path of this program. On Linux it stays valid after the file was replaced.
pub(super) fn this_program() -> io::Result<std::path::PathBuf> {
    match cfg!(target_os = "linux") {
        true => Ok("/proc/self/exe".into()),
        false => std::env::current_exe(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte for each read.
    struct Trickle<'a>(&'a [u8]);

    impl io::Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let size = buffer.len().min(1);
            self.0.read(&mut buffer[..size])
        }
    }

    #[test]
    fn lines_are_read_whole_in_reads_of_any_size() {
        let left = read(&mut Trickle(b"+71\n+82\n-71\n?1-a\n?1-b\n!1-a\n+9")).expect("read");
        assert_eq!(numbers(&left), [82], "an incomplete line adds no group");
        assert!(left.starting.iter().eq(["1-b"]));
    }

    #[test]
    fn a_line_without_a_valid_group_number_is_ignored() {
        let mut guarded = Guarded::default();
        for line in [
            "+7", "+8", "-7", "+1", "+0", "+-1", "-9", "+x", "", "8", "?",
        ] {
            guarded.apply(line);
        }
        assert_eq!(numbers(&guarded), [8]);
        assert!(guarded.starting.is_empty());
    }

    #[test]
    fn a_mark_is_a_whole_variable() {
        let mark = |text: &str| mark_in(text.as_bytes());
        assert_eq!(mark("A=1\0REVEILLE_RUN=7-8\0B=2\0"), Some("7-8".to_owned()));
        assert_eq!(mark("A=REVEILLE_RUN=7-8\0REVEILLE_RUNS=9\0"), None);
        assert_eq!(mark(""), None);
    }

    fn numbers(guarded: &Guarded) -> Vec<i32> {
        let groups = guarded.groups.iter();
        groups.map(|group| group.as_raw_nonzero().get()).collect()
    }
}
