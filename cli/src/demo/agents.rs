//! `reveille demo --agents`: three agents start workers for the same work. No worker runs while there
//! is none.
//!
//! Agents are processes of the verb `scale`, and each of their workers is a process, which ends when
//! the queue is empty. So workers report in a file: a line at their start, and one at their end.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{OpenOptions, read_to_string},
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use futures_util::future::join_all;
use reveille::{Client, duration::Span, queue::WorkQueue as _};
use rustix::process::{Pid, Signal, test_kill_process};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Mode,
    billing::{batch, sum},
    figures::{AgentFigures, FleetFigures, Idle},
    fleet_run::FleetRun,
    home::Home,
    progress::Progress,
    protocol::{ChildEvent, FleetState},
    script,
    worker::Queues,
};
use crate::{
    child::{Process, ProcessGroups},
    exit::Failed,
};

/// The processes of the agents.
pub(super) struct Agents {
    processes: Vec<Process>,
    log: WorkerLog,
}

/// The file in which workers report.
pub(super) struct WorkerLog(PathBuf);

/// Number of agents.
const AGENTS: usize = 3;
/// Messages of the batch that are put one at a time, to measure the start of a process.
pub(super) const ONE_AT_A_TIME: usize = 100;
/// Messages for which an agent starts a worker, and which that gets at once.
pub(super) const PER_WORKER: usize = 10;
/// How long a get hides a message. Each agent looks once, up to 1.5 times as long after its connection.
pub(super) const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_LOOKS: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The pause after a message and its worker.
const PAUSE: Duration = Duration::from_millis(30);
/// Limit of an agent's start and end.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs the demo with agents.
pub(super) async fn run(json: bool) -> anyhow::Result<()> {
    let progress = Progress::new();
    let home = Home::new()?;
    let (relay, client) = script::open_relay(&progress, &home, false).await?;
    let mut run = FleetRun::open(Mode::Agents, 0, &client, home.path()).await?;
    let connected = timeout(TIMEOUT, connected(&client)).await;
    connected.context("the agents do not connect")??;
    progress.done(&format!("{AGENTS} agents wait for work"));
    progress.doing("each agent looks into the queue once");
    sleep(FIRST_LOOKS).await;
    run.wait_idle().await?;
    let (idle, processor) = measure_idle(&mut run).await?;
    progress.done(&format!(
        "idle for {}: {} worker processes, {} storage transactions",
        Span(idle.span),
        idle.tasks,
        idle.transactions
    ));
    let batch = batch();
    let cents = sum(&batch);
    let before = run.state().await?;
    let outcome = run.work(&batch, &progress).await?;
    let after = run.state().await?;
    let started = after.starts - before.starts;
    progress.done(&format!("the agents started {started} worker processes"));
    let fleet = FleetFigures::new(Mode::Agents, AGENTS + 1, idle, &outcome, cents);
    script::show_outcome(&progress, Mode::Agents, &fleet, &outcome);
    let exact = fleet.exact;
    let figures = AgentFigures::new(fleet, &outcome, started, after.tasks, processor);
    progress.doing("ending all processes");
    run.stop().await;
    relay.stop().await;
    progress.clear();
    figures.print(json)?;
    if exact {
        return Ok(());
    }
    Err(Failed("the totals are not exact".to_owned()).into())
}

/// Waits until the relay lists all agents.
async fn connected(client: &Client) -> anyhow::Result<()> {
    loop {
        let listed = client.listeners().await?;
        if listed.entries.iter().filter(|one| one.agent).count() == AGENTS {
            return Ok(());
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Measures the idle agents; the second value is their processor time.
async fn measure_idle(run: &mut FleetRun) -> anyhow::Result<(Idle, Option<Duration>)> {
    let (began, before) = (Instant::now(), run.state().await?);
    let used_before = run.processor();
    sleep(script::IDLE).await;
    let used = run.processor().zip(used_before);
    let used = used.map(|(now, before)| now.saturating_sub(before));
    let idle = Idle::since(before, run.state().await?, began.elapsed());
    Ok((idle, used))
}

impl Agents {
    /// Starts the agents: `reveille scale` with a worker that reads its queue until it is empty.
    pub(super) fn start(relay: &str, home: &Path, queues: &Queues) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let queue = queues.input.address().to_string();
        let (per, visible) = (PER_WORKER.to_string(), Span(VISIBILITY_TIMEOUT).to_string());
        // If the demo is killed, a guard ends the agents.
        let groups = ProcessGroups::guarded(Duration::from_secs(1));
        let start = |number: usize| {
            let id = format!("agent-{number}");
            let scale = ["scale", &queue, "--relay", relay, "--id", &id, "--max", "8"];
            let options = ["--per", &per, "--visibility-timeout", &visible, "--"];
            let worker = ["demo", "worker", "--mode", "agents", "--relay", relay];
            let mut command = vec![OsString::from(&program)];
            command.extend(scale.into_iter().chain(options).map(OsString::from));
            command.push(OsString::from(&program));
            command.extend(worker.map(OsString::from));
            command.extend(["--id", &id, "--home"].map(OsString::from));
            command.push(home.into());
            let quiet = [("RUST_LOG", "error".to_owned())];
            Process::start(&command, quiet, Stdio::null(), &groups)
        };
        let processes: Result<_, _> = (1..=AGENTS).map(start).collect();
        Ok(Self {
            processes: processes.context("an agent cannot be started")?,
            log: WorkerLog::of(home),
        })
    }

    /// Counts the workers, and sums up the transactions of those that ended.
    pub(super) fn state(&self) -> anyhow::Result<FleetState> {
        let (mut state, mut open) = (FleetState::default(), BTreeSet::new());
        for event in self.log.events()? {
            match event {
                ChildEvent::Started { pid, .. } => {
                    state.starts += 1;
                    open.insert(pid);
                }
                ChildEvent::Ended {
                    pid,
                    state: of_worker,
                } => {
                    // The system may reuse its number.
                    open.remove(&pid);
                    state = state.plus(of_worker);
                }
                ChildEvent::State(_) | ChildEvent::Parked | ChildEvent::Released { .. } => {}
            }
        }
        state.tasks += open.into_iter().filter(|pid| runs(*pid)).count();
        Ok(state)
    }

    /// Returns the time from a notification to the first line of a worker after it.
    pub(super) fn first_line_after(
        &self,
        notified: SystemTime,
    ) -> anyhow::Result<Option<Duration>> {
        let events = self.log.events()?.into_iter();
        let after = |event| match event {
            ChildEvent::Started { at_us, .. } => {
                let at = SystemTime::UNIX_EPOCH + Duration::from_micros(at_us);
                at.duration_since(notified).ok()
            }
            _ => None,
        };
        Ok(events.filter_map(after).min())
    }

    /// Waits until no worker runs.
    pub(super) async fn wait_for_no_worker(&self) -> anyhow::Result<()> {
        while self.state()?.tasks > 0 {
            sleep(POLL_INTERVAL).await;
        }
        sleep(PAUSE).await;
        Ok(())
    }

    /// Returns the processor time of the agents so far, without their workers; `None` where the system
    /// does not show it.
    pub(super) fn processor(&self) -> Option<Duration> {
        self.processes.iter().map(|one| processor(one.id()?)).sum()
    }

    /// Ends all agents.
    pub(super) async fn stop(mut self) {
        for process in &self.processes {
            process.signal(Signal::TERM);
        }
        // An agent that does not end is killed when it is dropped.
        let ends = join_all(self.processes.iter_mut().map(Process::wait));
        let _ = timeout(TIMEOUT, ends).await;
    }
}

/// Returns whether a process of this id runs.
fn runs(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Returns the processor time of all threads of a process. Only Linux has these files.
fn processor(pid: u32) -> Option<Duration> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let nanoseconds = |stat: String| stat.split(' ').next()?.parse().ok();
    let of_thread = |path: PathBuf| read_to_string(path.join("schedstat")).ok();
    threads
        .map(|thread| nanoseconds(of_thread(thread.ok()?.path())?).map(Duration::from_nanos))
        .sum()
}

impl WorkerLog {
    pub(super) fn of(home: &Path) -> Self {
        Self(home.join("workers.jsonl"))
    }

    /// Adds a line in one write, so that lines of several workers do not mix.
    pub(super) fn append(&self, event: &ChildEvent) -> anyhow::Result<()> {
        let line = format!("{}\n", serde_json::to_string(event)?);
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        Ok(file.write_all(line.as_bytes())?)
    }

    fn events(&self) -> anyhow::Result<Vec<ChildEvent>> {
        if !self.0.exists() {
            return Ok(Vec::new());
        }
        let text = read_to_string(&self.0)?;
        // A worker may be writing the last line.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let events = whole.lines().map(serde_json::from_str);
        Ok(events.collect::<Result<_, _>>()?)
    }
}
