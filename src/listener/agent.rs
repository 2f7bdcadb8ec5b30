//! The agent of a machine: starts workers while there is work for them, and none otherwise.
//!
//! An agent is a member of its queues' group whose capacity is what it can still start. So the relay
//! gives each message to one machine that has room, and a fleet of agents scales without a central
//! decision. What a worker is, a process or a container, is the caller's: see [`Workers`]. `machine`
//! makes all decisions; this module carries them out.
//!
//! Where nodes are started by one place, such as an instance group, a [`CentralAgent`] decides how many
//! there are.

mod central;
mod machine;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::central::{CentralAgent, FleetDecision, FleetLoad, FleetPolicy, FleetStep};
pub(crate) use self::machine::{AgentMachine, AgentReport, Step};
use crate::{
    base::{
        clock::{Clock, Tick},
        text::opaque_debug,
    },
    error::{Error, ErrorKind, Result},
    listener::{scaling::ScalePolicy, shared::in_time},
    queue::WorkQueue,
    types::{
        ConnectionState, GroupName, LinkState, ListenerId, QueueAddress, Report, SubscribeOptions,
        WakeReason, WakeStream, WorkDetected, check_delay,
    },
};

/// How an agent starts and ends workers.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Most workers at one time, for all queues: 1 to 10,000.
    pub max: usize,
    /// Messages for which one worker is started; 1 or more.
    pub per: u32,
    /// `None`: a worker reads its queue until that is empty, and ends. Otherwise a worker serves until it
    /// is told to end, which happens after so long without a wake-up. If messages are left then, it must
    /// end as [`WorkerEnd::Unfinished`], or the depth be readable: otherwise they wait for the next wake-up.
    pub idle: Option<Duration>,
    /// How long a get of a worker hides a message from others; at most 14 days. After a worker failed
    /// the relay is told when its messages are visible again.
    pub visibility_timeout: Duration,
    /// While no relay sends wake-ups, a worker looks into each queue after this time.
    pub poll: Duration,
    /// A look into each queue without a wake-up after this time, for messages that no publisher notified.
    /// The sentinel asks no agent.
    pub check: Option<Duration>,
    /// Workers for a depth, where it can be read; otherwise one for `per` messages.
    pub policy: Option<Arc<dyn ScalePolicy>>,
}

/// A queue of an agent.
#[derive(Debug, Clone)]
pub struct AgentQueue {
    /// Its address.
    pub address: QueueAddress,
    /// Reads its depth. Then a look is a request instead of a worker, a worker that serves ends only when
    /// the queue is empty, and more workers start by depth.
    pub depth: Option<Arc<dyn WorkQueue>>,
}

/// A worker to run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Worker {
    /// The slot that it takes: 0 to below [`AgentConfig::max`]. A slot has one worker at a time.
    pub slot: usize,
    /// The queue that it is to read.
    pub queue: QueueAddress,
    /// The reason of the newest wake-up; unspecified for a look without one.
    pub reason: WakeReason,
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEnd {
    /// It read the queue until that was empty, or served until it was told to end.
    Done,
    /// It ended, and the queue may have messages: the relay wakes a member for them.
    Unfinished,
    /// It failed, was killed, or could not be started, for this reason. Its slot rests, up to 1 s at first
    /// and up to 5 minutes later, and the relay gives the work to another member.
    Failed(String),
}

/// Runs the workers of an agent.
#[async_trait]
pub trait Workers: Send + Sync + 'static {
    /// Runs a worker to its end. It is to end soon after `end` is cancelled. Dropped when the agent is.
    async fn run(&self, worker: Worker, end: CancellationToken) -> WorkerEnd;

    /// Returns why there is no room for another worker; `None` if there is. Asked before a worker starts,
    /// and every 5 s while there is no room. Always room by default.
    async fn no_room(&self) -> Option<String> {
        None
    }

    /// Returns whether [`Workers::no_room`] must be asked at all.
    fn has_signals(&self) -> bool {
        false
    }
}

/// The agent; [`Agent::run`] runs it.
pub struct Agent {
    machine: AgentMachine,
    clock: Clock,
    queues: Vec<AgentQueue>,
    reasons: Vec<WakeReason>,
    workers: Arc<dyn Workers>,
    wakes: Box<dyn WakeStream>,
    link: watch::Receiver<LinkState>,
    /// The stream was refused for good.
    is_refused: bool,
    ends: Vec<CancellationToken>,
    /// The workers, and the calls without an answer.
    running: FuturesUnordered<BoxFuture<'static, Event>>,
    /// Why there was no room.
    no_room: Option<String>,
}

/// The most workers of an agent.
pub const MAX_WORKERS: usize = 10_000;
/// A slower depth query, or report, has failed; slower signals leave no room.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the last reports when the agent ends.
const LAST_REPORTS: Duration = Duration::from_secs(2);
/// Wait before a refused subscription is tried again.
const RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(60);

enum Event {
    Link,
    Work(Option<Result<WorkDetected>>),
    Ended(usize, WorkerEnd),
    Depth(usize, Result<u64>),
    Reported(usize, u64, Result<()>),
    Room(Option<String>),
    Elapsed,
}

impl AgentConfig {
    /// Returns the options of an agent's subscription.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a setting out of range, with its name.
    pub fn subscription(
        &self,
        listener_id: ListenerId,
        group: GroupName,
        queues: &[AgentQueue],
    ) -> Result<SubscribeOptions> {
        self.check()?;
        let options = SubscribeOptions {
            group: Some(group),
            capacity: self.nominal(),
            visibility_timeout: self.visibility_timeout,
            agent: true,
            ..SubscribeOptions::new(listener_id, queues.iter().map(|one| one.address.clone()))
        };
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<()> {
        if !(1..=MAX_WORKERS).contains(&self.max) {
            let rule = format_args!("must be 1 to {MAX_WORKERS}, not {}", self.max);
            return Err(Error::invalid("max", rule));
        }
        if self.per == 0 {
            return Err(Error::invalid("per", "must be 1 or more"));
        }
        let poll = Some(self.poll);
        for (name, span) in [("idle", self.idle), ("check", self.check), ("poll", poll)] {
            if span.is_some_and(|span| span.is_zero()) {
                return Err(Error::invalid(name, "must be longer than 0"));
            }
        }
        check_delay("visibility_timeout", self.visibility_timeout)
    }

    /// Returns the capacity of the subscription.
    pub(crate) fn nominal(&self) -> u32 {
        u32::try_from(self.max)
            .unwrap_or(u32::MAX)
            .saturating_mul(self.per)
            .clamp(1, u32::MAX - 1)
    }
}

opaque_debug!(Agent: queues);

impl Agent {
    /// Makes an agent. `wakes` is a subscription with the options of [`AgentConfig::subscription`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a setting out of range, with its name.
    pub fn new(
        config: &AgentConfig,
        queues: Vec<AgentQueue>,
        wakes: impl WakeStream,
        workers: Arc<dyn Workers>,
    ) -> Result<Self> {
        config.check()?;
        let clock = Clock::new();
        let has_depth = queues.iter().all(|one| one.depth.is_some());
        let settings = (has_depth, workers.has_signals());
        let rng = fastrand::Rng::new();
        Ok(Self {
            machine: AgentMachine::new(config.clone(), settings, queues.len(), clock.now(), rng),
            reasons: vec![WakeReason::Unspecified; queues.len()],
            ends: vec![CancellationToken::new(); config.max],
            link: wakes.link(),
            wakes: Box::new(wakes),
            running: FuturesUnordered::new(),
            is_refused: false,
            no_room: None,
            clock,
            queues,
            workers,
        })
    }

    /// Runs until `stop` is cancelled. Then it ends its workers, and returns when they have ended and the
    /// relay knows of it. If it is dropped, so are its workers.
    ///
    /// # Errors
    /// A final refusal of the subscription before its first stream.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        self.follow_link();
        let mut stopping = false;
        // The last reports have this time once no worker runs.
        let mut last_reports = None;
        loop {
            let until = self.drive();
            if stopping && !self.machine.is_at_work(self.clock.now()) {
                return Ok(());
            }
            if stopping && self.machine.active() == 0 {
                last_reports.get_or_insert_with(|| Instant::now() + LAST_REPORTS);
            }
            let over = tokio::time::sleep_until(last_reports.unwrap_or_else(Instant::now));
            let event = tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    self.machine.stop();
                    continue;
                }
                () = over, if last_reports.is_some() => return Ok(()),
                event = self.next_event(until) => event,
            };
            self.on_event(event)?;
        }
    }

    async fn next_event(&mut self, until: Tick) -> Event {
        tokio::select! {
            biased;
            Ok(()) = self.link.changed() => Event::Link,
            work = self.wakes.next(), if !self.is_refused => Event::Work(work),
            Some(event) = self.running.next() => event,
            () = tokio::time::sleep_until(self.clock.instant(until)) => Event::Elapsed,
        }
    }

    fn on_event(&mut self, event: Event) -> Result<()> {
        let now = self.clock.now();
        match event {
            Event::Link => self.follow_link(),
            Event::Work(work) => return self.on_work(work),
            Event::Ended(slot, end) => {
                if let WorkerEnd::Failed(why) = &end {
                    tracing::warn!(slot, why, "a worker failed; its slot rests");
                }
                self.machine.on_ended(slot, &end, now);
                tracing::info!(slot, running = self.machine.active(), "a worker ended");
            }
            Event::Depth(queue, depth) => {
                let address = &self.queues[queue].address;
                if let Err(error) = &depth {
                    tracing::warn!(queue = %address, %error, "the depth cannot be read");
                }
                self.machine.on_depth(queue, depth.ok(), now);
            }
            Event::Reported(queue, stream, answer) => {
                let kind = answer.as_ref().err().map(Error::kind);
                if let Err(error) = &answer
                    && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable)
                {
                    let queue = &self.queues[queue].address;
                    tracing::warn!(%queue, %error, "the relay refused a report");
                }
                self.machine.on_answered(queue, stream, kind, now);
            }
            Event::Room(why) => {
                match (&why, &self.no_room) {
                    (Some(why), None) => {
                        tracing::warn!(why, "no room for a worker: others get the work");
                    }
                    (None, Some(_)) => tracing::info!("there is room for workers again"),
                    _ => {}
                }
                self.machine.on_room(why.is_none(), now);
                self.no_room = why;
            }
            Event::Elapsed => {}
        }
        Ok(())
    }

    fn on_work(&mut self, work: Option<Result<WorkDetected>>) -> Result<()> {
        // The wake-up may have come together with its stream's Welcome.
        if self.link.has_changed().unwrap_or_default() {
            self.follow_link();
        }
        match work {
            Some(Ok(work)) => {
                let known = |one: &AgentQueue| work.queue.matches(&one.address);
                if let Some(queue) = self.queues.iter().position(known) {
                    let now = self.clock.now();
                    self.reasons[queue] = work.reason;
                    let messages = work.messages.max(work.notifications);
                    self.machine.on_wake_up(queue, work.sequence, messages, now);
                }
            }
            Some(Err(error)) if self.link.borrow().welcomes == 0 => return Err(error),
            Some(Err(error)) if self.wakes.ask_again(RETRY_AFTER_REFUSAL) => {
                tracing::warn!(%error, "the relay refuses the subscription; it is tried again");
            }
            Some(Err(error)) => {
                tracing::error!(%error, "the relay refuses the subscription");
                self.close();
            }
            None => self.close(),
        }
        Ok(())
    }

    /// No more wake-ups will come.
    fn close(&mut self) {
        self.is_refused = true;
        let closed = LinkState {
            connection: ConnectionState::Closed,
            ..LinkState::default()
        };
        self.machine.on_link(&closed, self.clock.now());
    }

    fn follow_link(&mut self) {
        let link = self.link.borrow_and_update().clone();
        if link.cause.is_some() && !link.is_pushed() && !link.announced {
            tracing::warn!(cause = link.cause.as_deref(), "no wake-ups from the relay");
        }
        self.machine.on_link(&link, self.clock.now());
    }

    /// Runs the machine's steps until it waits; returns the end of the wait.
    fn drive(&mut self) -> Tick {
        loop {
            match self.machine.step(self.clock.now()) {
                Step::Start { slot, queue } => self.start(slot, queue),
                Step::End { slot } => self.ends[slot].cancel(),
                Step::AskRoom => {
                    let workers = Arc::clone(&self.workers);
                    self.running.push(Box::pin(async move {
                        let asked = tokio::time::timeout(CALL_TIMEOUT, workers.no_room()).await;
                        let late = |_| Some("the signals took too long".to_owned());
                        Event::Room(asked.unwrap_or_else(late))
                    }));
                }
                Step::QueryDepth { queue } => {
                    let of = self.queues[queue].depth.clone();
                    let of = of.expect("the machine knows that it can be read");
                    self.running.push(Box::pin(async move {
                        let depth = in_time(CALL_TIMEOUT, "the depth query", of.depth()).await;
                        Event::Depth(queue, depth)
                    }));
                }
                Step::Report { queue, report } => self.report(queue, &report),
                Step::Wait(until) => return until,
            }
        }
    }

    fn start(&mut self, slot: usize, queue: usize) {
        let end = CancellationToken::new();
        self.ends[slot] = end.clone();
        let worker = Worker {
            slot,
            queue: self.queues[queue].address.clone(),
            reason: self.reasons[queue],
        };
        let running = self.machine.active();
        tracing::info!(slot, queue = %worker.queue, reason = ?worker.reason, running, "a worker starts");
        let workers = Arc::clone(&self.workers);
        self.running.push(Box::pin(async move {
            Event::Ended(slot, workers.run(worker, end).await)
        }));
    }

    fn report(&mut self, queue: usize, report: &AgentReport) {
        let now = self.clock.now();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let stream = report.stream;
        let message = Report {
            state: report.pending.state,
            sequence: report.pending.sequence,
            visible_in: report.pending.visible_in,
            capacity: Some(report.capacity),
            current_queue_depth: report.depth.map_or(0, |(depth, _)| depth),
            depth_age: report.depth.map(|(_, at)| now.since(at)),
            active_dequeue_tasks: count(report.running),
            total_dequeue_tasks: count(report.slots),
            busy_for: report.since.map(|at| now.since(at)),
            ..Report::new(self.queues[queue].address.clone())
        };
        let sent = in_time(CALL_TIMEOUT, "the report", self.wakes.report(message));
        let sent = sent.map(move |answer| Event::Reported(queue, stream, answer));
        self.running.push(Box::pin(sent));
    }
}
