//! The task that runs a listener: receives wake-ups, starts dequeue tasks, reads the depth, reports
//! to the relay. The scaler makes all decisions.

use std::{
    future::pending,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::watch;

use super::{dequeue, hooks::Action, shared::Shared, state::add_to_mean};
use crate::{
    base::{
        clock::{Tick, wall},
        sync::lock,
        task::{self, Scope, TaskOutcome},
    },
    error::{Error, ErrorKind, Result},
    listener::scaling::{ListenerMode, Load, PendingReport, Step, TaskId},
    types::{ConnectionState, LinkState, Report, ReportFuture, WakeStream, WorkDetected},
};

/// Runs a listener until it is dropped. Its dequeue tasks belong to `scope`.
pub(super) struct Supervisor {
    pub(super) shared: Arc<Shared>,
    pub(super) scope: Arc<Scope>,
    pub(super) relay: Option<RelayLink>,
}

/// The wake-ups from the relay and the reports to it.
pub(super) struct RelayLink {
    wakes: Box<dyn WakeStream>,
    link: watch::Receiver<LinkState>,
    report: Option<ReportFuture>,
    /// The stream is closed while the listener is paused.
    paused: bool,
}

/// A slower depth query has failed.
const DEPTH_TIMEOUT: Duration = Duration::from_secs(30);
/// A slower report has failed.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before a dequeue task that panicked, for example in a hook, is replaced.
const RESTART_AFTER_PANIC: Duration = Duration::from_secs(1);
/// Wait before a refused subscription is tried again.
const RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(60);

enum Event {
    Work(Option<Result<WorkDetected>>),
    Link,
    Answered(Result<()>),
    Changed,
}

impl RelayLink {
    pub(super) fn new(wakes: Box<dyn WakeStream>) -> Self {
        let link = wakes.link();
        Self {
            wakes,
            link,
            report: None,
            paused: false,
        }
    }
}

impl Supervisor {
    pub(super) async fn run(mut self) {
        // The link may be connected already.
        self.on_link_changed();
        loop {
            self.follow_pause();
            let wait = self.drive();
            match self.next_event(wait).await {
                Event::Changed => {}
                Event::Link => self.on_link_changed(),
                Event::Work(work) => self.on_work(work),
                Event::Answered(outcome) => self.on_report_answered(outcome),
            }
        }
    }

    /// Runs the scaler's steps until it waits; returns the end of the wait.
    fn drive(&mut self) -> Tick {
        loop {
            let step = self.shared.with_core(|core, now| {
                let chance = core.chance();
                core.scaler.step(now, chance)
            });
            match step {
                Step::Start(id) => self.start(id),
                Step::WakeTask(..) => self.shared.sleep_changed.notify_waiters(),
                Step::QueryDepth => self.scope.spawn(query_depth(Arc::clone(&self.shared))),
                Step::Report(due) => self.report(due),
                Step::Wait(until) => return until,
            }
        }
    }

    /// Closes the stream when the listener is paused and holds no message, so that the relay wakes
    /// other listeners. Opens the next stream when the listener resumes.
    fn follow_pause(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let is_paused = self
            .shared
            .with_core(|core, now| core.scaler.is_pause_complete(now));
        let paused = if relay.paused {
            self.shared.with_core(|core, _| core.scaler.is_paused())
        } else {
            is_paused
        };
        if std::mem::replace(&mut relay.paused, paused) != paused {
            relay.wakes.pause(paused);
            self.on_link_changed();
        }
    }

    async fn next_event(&mut self, until: Tick) -> Event {
        let shared = Arc::clone(&self.shared);
        let elapsed = async {
            match until {
                Tick::NEVER => pending().await,
                until => tokio::time::sleep_until(shared.clock.instant(until)).await,
            }
        };
        let Some(relay) = &mut self.relay else {
            tokio::select! {
                () = shared.changed.notified() => {}
                () = elapsed => {}
            }
            return Event::Changed;
        };
        let answer = report_answer(&mut relay.report);
        tokio::select! {
            biased;
            // A link change comes before the wake-ups of the new stream.
            // After the link's sender is dropped, wake-ups may still come.
            Ok(()) = relay.link.changed() => Event::Link,
            work = relay.wakes.next() => Event::Work(work),
            outcome = answer => Event::Answered(outcome),
            () = shared.changed.notified() => Event::Changed,
            () = elapsed => Event::Changed,
        }
    }

    fn on_link_changed(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let link = relay.link.borrow_and_update().clone();
        self.apply_link(link);
    }

    fn apply_link(&self, link: LinkState) {
        let (woken_early, before, after) = self.shared.with_core(|core, now| {
            let (before, chance) = (core.scaler.mode(), core.chance());
            let woken_early = core.scaler.on_link_changed(&link, now, chance);
            (woken_early, before, core.scaler.mode())
        });
        if woken_early {
            self.shared.sleep_changed.notify_waiters();
        }
        let cause = link.cause.filter(|_| after != ListenerMode::Pushed);
        let known = std::mem::replace(&mut *lock(&self.shared.cause), cause.clone());
        let is_new = cause.is_some() && cause != known;
        if before != after || is_new {
            let (queue, cause) = (&self.shared.queue, cause.as_deref());
            match after {
                ListenerMode::Pushed => tracing::info!(%queue, "pushed: the relay sends wake-ups"),
                _ => tracing::warn!(
                    %queue,
                    cause,
                    "polling: the relay cannot send wake-ups at the moment"
                ),
            }
            self.shared.hooks.on_mode_changed(after, cause);
        }
    }

    fn on_work(&mut self, work: Option<Result<WorkDetected>>) {
        // The wake-up may have come together with its stream's Welcome.
        self.on_link_changed();
        match work {
            Some(Ok(work)) => self.on_wake_up(&work),
            Some(Err(error)) => {
                self.shared.report_error(Action::Listen, None, error);
                let relay = self.relay.as_mut();
                // A proxy may have refused it, and may accept it in a minute.
                if relay.is_some_and(|relay| relay.wakes.ask_again(RETRY_AFTER_REFUSAL)) {
                    return self.on_link_changed();
                }
                self.on_relay_closed();
            }
            None => self.on_relay_closed(),
        }
    }

    /// The relay refused for good, or was shut down: the listener polls from now on.
    fn on_relay_closed(&mut self) {
        self.relay = None;
        tracing::warn!(queue = %self.shared.queue, "polling: the relay will send no more wake-ups");
        let cause = lock(&self.shared.cause).clone();
        self.apply_link(LinkState {
            connection: ConnectionState::Closed,
            cause,
            ..LinkState::default()
        });
    }

    fn on_wake_up(&self, work: &WorkDetected) {
        let shared = &self.shared;
        if !work.queue.matches(shared.queue.address()) {
            return;
        }
        shared.counters.add(|stats| stats.wake_ups += 1);
        if let Some(latency) = work.last_event.published_at.and_then(since) {
            shared
                .counters
                .add(|stats| add_to_mean(&mut stats.mean_wake_latency, latency));
        }
        let woken_early = shared.with_core(|core, now| core.scaler.on_wake_up(work.sequence, now));
        if woken_early {
            shared.sleep_changed.notify_waiters();
        }
        shared.hooks.on_work_detected(Some(work));
    }

    fn start(&self, id: TaskId) {
        let shared = Arc::clone(&self.shared);
        self.scope.spawn(async move {
            let task = dequeue::run(Arc::clone(&shared), id);
            if let TaskOutcome::Panicked(text) = task::spawn_scoped(task).await {
                // Its messages become visible again, and only this listener can report that.
                shared.report_hidden(shared.config.visibility_timeout);
                let text = format!("a dequeue task panicked: {text}");
                shared.report_error(Action::Get, None, Error::new(ErrorKind::Internal, text));
                tokio::time::sleep(RESTART_AFTER_PANIC).await;
            }
            let woken_early = shared.with_core(|core, now| core.scaler.on_task_panicked(id, now));
            shared.notify_changed(woken_early);
        });
    }

    fn report(&mut self, due: PendingReport) {
        let Some(relay) = &mut self.relay else { return };
        let sent = relay.wakes.report(report(&self.shared, due));
        relay.report = Some(Box::pin(async move {
            let late = Error::new(ErrorKind::Timeout, "the report was not answered in time");
            let outcome = tokio::time::timeout(REPORT_TIMEOUT, sent).await;
            outcome.unwrap_or(Err(late))
        }));
    }

    fn on_report_answered(&self, outcome: Result<()>) {
        let kind = outcome.as_ref().err().map(Error::kind);
        self.shared
            .with_core(|core, now| core.scaler.on_report_answered(kind, now));
        // Without a stream the report is repeated after the next Welcome: this is no error.
        if let Err(error) = outcome
            && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable)
        {
            self.shared.report_error(Action::Report, None, error);
        }
    }
}

/// Makes the message of a report.
fn report(shared: &Shared, due: PendingReport) -> Report {
    let (active, total) = shared.core().scaler.active();
    let now = shared.clock.now();
    let counters = &shared.counters;
    let depth = *lock(&counters.depth);
    let stats = *lock(&counters.stats);
    let count = |tasks: usize| u32::try_from(tasks).unwrap_or(u32::MAX);
    Report {
        state: due.state,
        sequence: due.sequence,
        visible_in: due.visible_in,
        current_queue_depth: depth.map_or(0, |(depth, _)| depth),
        depth_age: depth.map(|(_, read_at)| now.since(read_at)),
        active_dequeue_tasks: count(active),
        total_dequeue_tasks: count(total),
        mean_wake_latency: stats.mean_wake_latency.unwrap_or_default(),
        busy_for: counters.handlings.oldest().map(|began| now.since(began)),
        ..Report::new(shared.queue.address().clone())
    }
}

/// Waits for the answer to the report in flight; for ever without one.
async fn report_answer(report: &mut Option<ReportFuture>) -> Result<()> {
    let Some(sent) = report else {
        return pending().await;
    };
    let outcome = sent.await;
    *report = None;
    outcome
}

/// Reads the depth and asks the policy for a number of tasks. In every case, also after a panic,
/// the scaler learns that the query ended and can start another one.
async fn query_depth(shared: Arc<Shared>) {
    let query = task::spawn_scoped(wanted_tasks(Arc::clone(&shared)));
    let tasks = tokio::select! {
        ended = query => match ended {
            TaskOutcome::Done(tasks) => tasks,
            TaskOutcome::Panicked(text) => {
                let text = format!("the depth or the policy panicked: {text}");
                shared.report_error(Action::Depth, None, Error::new(ErrorKind::Internal, text));
                None
            }
        },
        () = shared.stopping.cancelled() => None,
    };
    shared.with_core(|core, now| {
        if let Some((_, most)) = tasks {
            core.scaler.set_policy_limit(most);
        }
        core.scaler.on_depth(tasks.map(|(tasks, _)| tasks), now);
    });
    shared.changed.notify_one();
}

/// Returns how many tasks the depth needs, and the policy's own number.
async fn wanted_tasks(shared: Arc<Shared>) -> Option<(usize, usize)> {
    let depth = tokio::time::timeout(DEPTH_TIMEOUT, shared.queue.depth()).await;
    let late = Error::new(ErrorKind::Timeout, "the depth was not read in time");
    match depth.unwrap_or(Err(late)) {
        Ok(depth) => {
            shared.note_depth(depth);
            let load = Load {
                depth,
                concurrency: shared.config.handled_at_once(),
                handling_time: lock(&shared.counters.stats).mean_handling_time,
            };
            // A task beyond the number of batches would get nothing, and cost a transaction.
            let batches = depth
                .div_ceil(shared.config.dequeue_batch_size as u64)
                .max(1);
            let batches = usize::try_from(batches).unwrap_or(usize::MAX);
            let most = shared.config.policy.tasks(&load);
            Some((most.min(batches), most))
        }
        Err(error) => {
            shared.report_error(Action::Depth, None, error);
            None
        }
    }
}

/// Returns the age of `published_at`, or `None` if it is in the future by this machine's clock.
fn since(published_at: SystemTime) -> Option<Duration> {
    wall().duration_since(published_at).ok()
}
