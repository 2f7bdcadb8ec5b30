//! A process that ends commands whose parent was killed by SIGKILL.
//!
//! `listen` and `lease run` start one guard, not one for each command: a message costs three short
//! writes, and no process of its own. The guard's standard input is a pipe that only the parent
//! holds. The parent writes each process group that begins and ends; the end of the pipe is the
//! end of the parent, and the guard then ends the groups that are left. It needs no `unsafe`, as
//! Linux's PR_SET_PDEATHSIG would, which also is bound to a thread and passes over grandchildren.
//!
//! A group has no number before its command runs, and the parent may be killed between the two.
//! The guard is therefore told a mark before, which is in the command's environment: on Linux it
//! finds by that what the parent could name no more.
//!
//! Not covered: what left its process group.

use std::{
    collections::HashSet,
    fs,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use reveille::duration;
use rustix::process::{Pid, Signal, getpgid, kill_process_group, test_kill_process_group};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};

use super::exit::Exit;

/// End the process groups that standard input names when it ends
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// SIGKILL follows SIGTERM after this
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    grace: Duration,
}

/// A guard that runs, as its parent holds it.
#[derive(Debug)]
pub(super) struct Guard {
    process: Child,
    pipe: ChildStdin,
}

/// What the guard was told.
#[derive(Debug, Default, PartialEq)]
struct Told {
    /// The groups that run.
    groups: HashSet<Pid>,
    /// The marks of commands whose groups were not named yet.
    starting: HashSet<String>,
}

/// The variable in the environment of a command that holds its mark.
pub(super) const MARK: &str = "REVEILLE_RUN";
/// The name of the hidden verb.
pub(super) const VERB: &str = "guard";
/// Between two reads: lines of many commands cost the guard one turn of the processor. The pipe has
/// room for thousands of lines meanwhile.
const PAUSE: Duration = Duration::from_millis(10);
/// How often it is looked whether a group has ended.
const LOOK: Duration = Duration::from_millis(20);

impl Guard {
    /// Starts a guard.
    ///
    /// # Errors
    /// It could not be started.
    pub(super) fn start(grace: Duration) -> io::Result<Self> {
        let mut process = Command::new(this_program()?)
            .arg0("reveille")
            .args([VERB, "--grace", &format!("{}ms", grace.as_millis())])
            // It holds on to nothing of its parent's, and no setting has a say in it.
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            // A pipe of ours that it held would stay open after our end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The terminal's signals are for its parent.
            .process_group(0)
            .spawn()?;
        let pipe = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        // A guard that was stopped must not stop its parent.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self { process, pipe })
    }

    /// Names the mark of a command that is about to start.
    ///
    /// # Errors
    /// The guard is gone, or reads no more: to be given up by [`Guard::abandon`].
    pub(super) fn announce(&mut self, mark: &str) -> io::Result<()> {
        self.tell(format_args!("?{mark}\n"))
    }

    /// The command with this mark has started, or not: it is to be looked for no more.
    ///
    /// # Errors
    /// As for [`Guard::announce`].
    pub(super) fn forget(&mut self, mark: &str) -> io::Result<()> {
        self.tell(format_args!("!{mark}\n"))
    }

    /// Names a group that is to end with this process.
    ///
    /// # Errors
    /// As for [`Guard::announce`].
    pub(super) fn add(&mut self, group: Pid) -> io::Result<()> {
        self.tell(format_args!("+{}\n", group.as_raw_nonzero()))
    }

    /// Names a group that has ended: its number is free for others.
    ///
    /// # Errors
    /// As for [`Guard::announce`].
    pub(super) fn remove(&mut self, group: Pid) -> io::Result<()> {
        self.tell(format_args!("-{}\n", group.as_raw_nonzero()))
    }

    /// Ends the guard, and no command: an end of the pipe alone would end them.
    pub(super) fn abandon(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn tell(&mut self, line: std::fmt::Arguments<'_>) -> io::Result<()> {
        let line = line.to_string();
        // One write: a pipe takes so few bytes whole or not at all.
        match self.pipe.write(line.as_bytes()) {
            Ok(written) if written == line.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => Err(error),
        }
    }
}

impl Args {
    /// Reads groups until the parent is gone, then ends them.
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        // A manager that ends a whole service must not end the guard before the commands.
        let mut ignored = Vec::new();
        for kind in [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::hangup(),
        ] {
            ignored.push(signal(kind)?);
        }
        let told = tokio::task::spawn_blocking(|| read(&mut io::stdin().lock())).await??;
        end(told, self.grace).await;
        Ok(Exit::OK)
    }
}

/// Reads until the end, and returns what is left.
fn read(input: &mut impl io::Read) -> io::Result<Told> {
    let (mut told, mut unread) = (Told::default(), Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = match input.read(&mut buffer) {
            Ok(0) => return Ok(told),
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
            told.note(line);
        }
        unread.drain(..whole);
        std::thread::sleep(PAUSE);
    }
}

impl Told {
    fn note(&mut self, line: &str) {
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

/// Ends what is left: by SIGTERM, and by SIGKILL after the grace.
async fn end(told: Told, grace: Duration) {
    let Told {
        mut groups,
        mut starting,
    } = told;
    for group in &groups {
        let _ = kill_process_group(*group, Signal::TERM);
    }
    let until = Instant::now() + grace;
    while Instant::now() < until {
        // Again and again: a process has its mark only when it runs the command.
        for group in take_marked(&mut starting) {
            let _ = kill_process_group(group, Signal::TERM);
            groups.insert(group);
        }
        groups.retain(|group| test_kill_process_group(*group).is_ok());
        if groups.is_empty() && starting.is_empty() {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    for group in groups {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Takes the marks that processes have, and returns the groups of these.
fn take_marked(marks: &mut HashSet<String>) -> Vec<Pid> {
    if marks.is_empty() {
        return Vec::new();
    }
    // Elsewhere than on Linux there is no such folder, and nothing is found.
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
        // Those of other users cannot be read, and are none of ours.
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

/// Returns the mark in an environment: texts that each end with a zero byte.
fn mark_in(environment: &[u8]) -> Option<String> {
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

/// Returns the path of this program; on Linux one that holds also after the file was replaced.
fn this_program() -> io::Result<std::path::PathBuf> {
    match cfg!(target_os = "linux") {
        true => Ok("/proc/self/exe".into()),
        false => std::env::current_exe(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out a byte a time.
    struct Trickle<'a>(&'a [u8]);

    impl io::Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let size = buffer.len().min(1);
            self.0.read(&mut buffer[..size])
        }
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        let left = read(&mut Trickle(b"+71\n+82\n-71\n?1-a\n?1-b\n!1-a\n+9")).expect("read");
        assert_eq!(
            numbers(&left),
            [82],
            "a line that was cut off names no group"
        );
        assert!(left.starting.iter().eq(["1-b"]));
    }

    #[test]
    fn what_is_no_group_of_a_command_is_never_signalled() {
        let mut told = Told::default();
        for line in [
            "+7", "+8", "-7", "+1", "+0", "+-1", "-9", "+x", "", "8", "?",
        ] {
            told.note(line);
        }
        assert_eq!(numbers(&told), [8]);
        assert!(told.starting.is_empty());
    }

    #[test]
    fn a_mark_is_a_whole_variable() {
        let mark = |text: &str| mark_in(text.as_bytes());
        assert_eq!(mark("A=1\0REVEILLE_RUN=7-8\0B=2\0"), Some("7-8".to_owned()));
        assert_eq!(mark("A=REVEILLE_RUN=7-8\0REVEILLE_RUNS=9\0"), None);
        assert_eq!(mark(""), None);
    }

    fn numbers(told: &Told) -> Vec<i32> {
        let groups = told.groups.iter();
        groups.map(|group| group.as_raw_nonzero().get()).collect()
    }
}
