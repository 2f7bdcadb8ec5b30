//! The task that runs a listener: receives wake-ups, starts dequeue tasks, reads the depth, reports
//! to the relay. The scaler makes all decisions.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::{Fuse, FutureExt as _};
use tokio::sync::watch;

use super::{
    dequeue,
    hooks::Action,
    shared::{Shared, add_to_mean, in_time},
};
use crate::{
    base::{
        clock::{Tick, wall},
        sync::lock,
        task::{self, Scope, TaskOutcome},
    },
    error::{Error, ErrorKind, Result},
    listener::scaling::{ListenerMode, Load, PendingReport, Scaler, Step, TaskId},
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
    report: Fuse<ReportFuture>,
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
            report: Fuse::terminated(),
        }
    }
}

impl Supervisor {
    pub(super) async fn run(mut self) {
        // The link may be connected already.
        self.on_link_changed();
        loop {
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
            match self.shared.scaler(Scaler::step) {
                Step::Start(id) => self.start(id),
                Step::WakeTask(..) => self.shared.sleep_changed.notify_waiters(),
                Step::QueryDepth => self.scope.spawn(query_depth(Arc::clone(&self.shared))),
                Step::Report(due) => self.report(due),
                Step::Wait(until) => return until,
            }
        }
    }

    async fn next_event(&mut self, until: Tick) -> Event {
        let Self { shared, relay, .. } = self;
        let from_relay = async {
            let Some(relay) = relay else {
                return pending().await;
            };
            tokio::select! {
                biased;
                // A link change comes before the wake-ups of the new stream.
                // After the link's sender is dropped, wake-ups may still come.
                Ok(()) = relay.link.changed() => Event::Link,
                work = relay.wakes.next() => Event::Work(work),
                outcome = &mut relay.report => Event::Answered(outcome),
            }
        };
        tokio::select! {
            biased;
            event = from_relay => event,
            () = shared.changed.notified() => Event::Changed,
            () = tokio::time::sleep_until(shared.clock.instant(until)) => Event::Changed,
        }
    }

    fn on_link_changed(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let link = relay.link.borrow_and_update().clone();
        self.apply_link(link);
    }

    fn apply_link(&self, link: LinkState) {
        let (woken_early, before, after) = self.shared.scaler(|scaler, now, chance| {
            let before = scaler.mode();
            let woken_early = scaler.on_link_changed(&link, now, chance);
            (woken_early, before, scaler.mode())
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
            self.shared
                .hook((), |hooks| hooks.on_mode_changed(after, cause));
        }
    }

    fn on_work(&mut self, work: Option<Result<WorkDetected>>) {
        // The wake-up may have come together with its stream's Welcome.
        self.on_link_changed();
        match work {
            Some(Ok(work)) => self.on_wake_up(&work),
            Some(Err(error)) => {
                self.shared.report_error(Action::Listen, None, &error);
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
        // `None`: it is in the future by this machine's clock.
        let published_at = work.last_event.published_at;
        let latency = published_at.and_then(|at| wall().duration_since(at).ok());
        shared.count(|stats| {
            stats.wake_ups += 1;
            if let Some(latency) = latency {
                add_to_mean(&mut stats.mean_wake_latency, latency);
            }
        });
        shared.change(|scaler, now, _| scaler.on_wake_up(work.sequence, now));
        shared.hook((), |hooks| hooks.on_work_detected(Some(work)));
    }

    fn start(&self, id: TaskId) {
        let shared = Arc::clone(&self.shared);
        self.scope.spawn(async move {
            let task = dequeue::run(Arc::clone(&shared), id);
            if let TaskOutcome::Panicked(text) = task::spawn_scoped(task).await {
                // Its messages become visible again, and only this listener can report that.
                shared.report_hidden(shared.config.visibility_timeout);
                let text = format!("a dequeue task panicked: {text}");
                shared.report_error(Action::Get, None, &Error::new(ErrorKind::Internal, text));
                tokio::time::sleep(RESTART_AFTER_PANIC).await;
            }
            shared.change(|scaler, now, _| scaler.on_task_panicked(id, now));
        });
    }

    fn report(&mut self, due: PendingReport) {
        let Some(relay) = &mut self.relay else { return };
        let sent = relay.wakes.report(report(&self.shared, due));
        let sent: ReportFuture = Box::pin(in_time(REPORT_TIMEOUT, "the report", sent));
        relay.report = sent.fuse();
    }

    fn on_report_answered(&self, outcome: Result<()>) {
        let kind = outcome.as_ref().err().map(Error::kind);
        self.shared
            .scaler(|scaler, now, _| scaler.reporter.on_answered(kind, now));
        // Without a stream the report is repeated after the next Welcome: this is no error.
        if let Err(error) = outcome
            && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable)
        {
            self.shared.report_error(Action::Report, None, &error);
        }
    }
}

/// Makes the message of a report.
fn report(shared: &Shared, due: PendingReport) -> Report {
    let (active, total) = shared.core().scaler.active();
    let now = shared.clock.now();
    let depth = *lock(&shared.depth);
    let mean_wake_latency = lock(&shared.stats).mean_wake_latency;
    let count = |tasks: usize| u32::try_from(tasks).unwrap_or(u32::MAX);
    Report {
        state: due.state,
        sequence: due.sequence,
        visible_in: due.visible_in,
        current_queue_depth: depth.map_or(0, |(depth, _)| depth),
        depth_age: depth.map(|(_, read_at)| now.since(read_at)),
        active_dequeue_tasks: count(active),
        total_dequeue_tasks: count(total),
        mean_wake_latency: mean_wake_latency.unwrap_or_default(),
        busy_for: shared.handlings.oldest().map(|began| now.since(began)),
        ..Report::new(shared.queue.address().clone())
    }
}

/// Reads the depth and asks the policy for a number of tasks. After an error or a panic, too, the
/// scaler learns that the query ended and can start another one.
async fn query_depth(shared: Arc<Shared>) {
    let wanted = tokio::select! {
        ended = task::spawn_scoped(wanted_tasks(Arc::clone(&shared))) => match ended {
            TaskOutcome::Done(wanted) => wanted,
            TaskOutcome::Panicked(text) => {
                let text = format!("the depth or the policy panicked: {text}");
                Err(Error::new(ErrorKind::Internal, text))
            }
        },
        () = shared.stopping.cancelled() => return,
    };
    let wanted = wanted.map_err(|error| shared.report_error(Action::Depth, None, &error));
    shared.scaler(|scaler, now, _| scaler.on_depth(wanted.ok(), now));
    shared.changed.notify_one();
}

/// Returns how many tasks the depth needs, and the policy's own number.
async fn wanted_tasks(shared: Arc<Shared>) -> Result<(usize, usize)> {
    let depth = in_time(DEPTH_TIMEOUT, "the depth query", shared.queue.depth()).await?;
    shared.note_depth(depth);
    let most = shared.config.policy.tasks(&Load {
        depth,
        concurrency: shared.config.handled_at_once(),
        handling_time: lock(&shared.stats).mean_handling_time,
    });
    // A task beyond the number of batches would get nothing, and cost a transaction.
    let batches = depth.div_ceil(shared.config.dequeue_batch_size as u64);
    let batches = usize::try_from(batches.max(1)).unwrap_or(usize::MAX);
    Ok((most.min(batches), most))
}
