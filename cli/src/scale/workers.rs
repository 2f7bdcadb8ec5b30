//! Runs a worker's command to its end, and reads the signals of the machine.

use std::{
    ffi::OsString,
    os::unix::process::ExitStatusExt as _,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use async_trait::async_trait;
use reveille::agent::{Worker, WorkerEnd, Workers};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::child::{Process, ProcessGroups};

/// Runs a command for each worker.
#[derive(Debug)]
pub(super) struct CommandWorkers {
    command: Vec<OsString>,
    serve: bool,
    grace: Duration,
    signals: Signals,
    groups: ProcessGroups,
}

/// What leaves no room for a worker.
#[derive(Debug)]
pub(super) struct Signals {
    /// The load for each CPU.
    pub(super) max_load: Option<f64>,
    /// Bytes of memory.
    pub(super) min_free: Option<u64>,
    pub(super) when_cmd: Option<String>,
}

/// The exit code of a worker that leaves messages (EX_TEMPFAIL in sysexits.h).
const UNFINISHED: i32 = 75;

impl CommandWorkers {
    pub(super) fn new(
        command: Vec<OsString>,
        serve: bool,
        grace: Duration,
        signals: Signals,
    ) -> Self {
        Self {
            command,
            serve,
            grace,
            signals,
            groups: ProcessGroups::guarded(grace),
        }
    }

    /// Returns the number of running workers.
    pub(super) fn running(&self) -> usize {
        self.groups.count()
    }

    /// Waits for the end of a worker; returns whether it was told to end.
    async fn supervise(
        &self,
        process: &mut Process,
        end: &CancellationToken,
    ) -> std::io::Result<(ExitStatus, bool)> {
        tokio::select! {
            status = process.wait_and_kill_group() => return Ok((status?, false)),
            () = end.cancelled() => process.signal(Signal::TERM),
        }
        tokio::select! {
            status = process.wait_and_kill_group() => return Ok((status?, true)),
            () = tokio::time::sleep(self.grace) => process.signal(Signal::KILL),
        }
        Ok((process.wait_and_kill_group().await?, true))
    }

    fn judge(&self, status: ExitStatus, was_ended: bool) -> WorkerEnd {
        let died_of_sigterm = status.signal() == Some(Signal::TERM.as_raw())
            || status.code() == Some(128 + Signal::TERM.as_raw());
        match status.code() {
            Some(0) => WorkerEnd::Done,
            Some(UNFINISHED) => WorkerEnd::Unfinished,
            _ if was_ended && self.serve && died_of_sigterm => WorkerEnd::Done,
            _ => WorkerEnd::Failed(status.to_string()),
        }
    }
}

#[async_trait]
impl Workers for CommandWorkers {
    async fn run(&self, worker: Worker, end: CancellationToken) -> WorkerEnd {
        let environment = [
            ("WAKE_ACCOUNT", worker.queue.storage_account().to_owned()),
            ("WAKE_QUEUE", worker.queue.queue_name().to_owned()),
            ("WAKE_SELECTOR", worker.queue.to_string()),
            ("WAKE_REASON", worker.reason.to_string()),
            ("WAKE_SLOT", worker.slot.to_string()),
        ];
        let started = Process::start(&self.command, environment, Stdio::null(), &self.groups);
        let mut process = match started {
            Ok(process) => process,
            Err(error) => return WorkerEnd::Failed(format!("it cannot be run: {error}")),
        };
        match self.supervise(&mut process, &end).await {
            Ok((status, was_ended)) => self.judge(status, was_ended),
            Err(error) => WorkerEnd::Failed(error.to_string()),
        }
    }

    async fn no_room(&self) -> Option<String> {
        self.signals.no_room().await
    }

    fn has_signals(&self) -> bool {
        self.signals.are_some()
    }
}

impl Signals {
    fn are_some(&self) -> bool {
        self.max_load.is_some() || self.min_free.is_some() || self.when_cmd.is_some()
    }

    async fn no_room(&self) -> Option<String> {
        if let Some(most) = self.max_load {
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            match load_of(&read("/proc/loadavg")) {
                Some(load) if load / cpus as f64 <= most => {}
                Some(load) => {
                    let each = load / cpus as f64;
                    return Some(format!("the load is {each:.2} for each CPU, above {most}"));
                }
                None => return Some("the load cannot be read".to_owned()),
            }
        }
        if let Some(least) = self.min_free {
            match free_of(&read("/proc/meminfo")) {
                Some(free) if free >= least => {}
                Some(free) => {
                    let (free, least) = (free >> 20, least >> 20);
                    return Some(format!("{free} MiB of memory are free, below {least} MiB"));
                }
                None => return Some("the free memory cannot be read".to_owned()),
            }
        }
        let command = self.when_cmd.as_ref()?;
        let quiet = format!("{{ {command}\n}} >/dev/null 2>&1");
        let shell = ["sh", "-c", &quiet].map(OsString::from);
        // A dropped process ends with its group.
        let started = Process::start(&shell, [], Stdio::null(), &ProcessGroups::default());
        let status = match started {
            Ok(mut process) => process.wait_and_kill_group().await,
            Err(error) => Err(error),
        };
        match status {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("--when-cmd: {status}")),
            Err(error) => Some(format!("--when-cmd: {error}")),
        }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the load of the last minute.
fn load_of(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

/// Returns the memory that programs can get without swapping, in bytes.
fn free_of(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_parsed() {
        assert_eq!(load_of("1.25 0.70 0.40 2/345 6789\n"), Some(1.25));
        let meminfo = "MemTotal:  100 kB\nMemAvailable:     20 kB\n";
        assert_eq!(free_of(meminfo), Some(20 * 1024));
        assert_eq!((load_of(""), free_of("")), (None, None));
    }

    #[tokio::test]
    async fn each_signal_says_why_there_is_no_room() {
        let none = || Signals {
            max_load: None,
            min_free: None,
            when_cmd: None,
        };
        assert_eq!(none().no_room().await, None);
        let memory = Signals {
            min_free: Some(u64::MAX),
            ..none()
        };
        let why = memory.no_room().await.expect("no machine has it");
        assert!(why.contains("MiB of memory are free"), "{why}");
        for (command, has_room) in [("true", true), ("exit 3", false)] {
            let signals = Signals {
                max_load: Some(1e9),
                min_free: Some(0),
                when_cmd: Some(command.to_owned()),
            };
            assert_eq!(signals.no_room().await.is_none(), has_room, "{command}");
        }
    }

    #[test]
    fn an_exit_code_says_how_a_worker_ended() {
        let workers = |serve| {
            let signals = Signals {
                max_load: None,
                min_free: None,
                when_cmd: None,
            };
            CommandWorkers {
                command: Vec::new(),
                serve,
                grace: Duration::ZERO,
                signals,
                groups: ProcessGroups::default(),
            }
        };
        let code = |code: i32| ExitStatus::from_raw(code << 8);
        let term = ExitStatus::from_raw(15);
        let drains = workers(false);
        assert_eq!(drains.judge(code(0), false), WorkerEnd::Done);
        assert_eq!(drains.judge(code(75), false), WorkerEnd::Unfinished);
        assert!(matches!(drains.judge(code(1), false), WorkerEnd::Failed(_)));
        assert!(matches!(drains.judge(term, true), WorkerEnd::Failed(_)));
        assert_eq!(workers(true).judge(term, true), WorkerEnd::Done);
        assert!(matches!(
            workers(true).judge(term, false),
            WorkerEnd::Failed(_)
        ));
    }
}
