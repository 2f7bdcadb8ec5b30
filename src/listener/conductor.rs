//! The task that runs a listener's machine: hears wake-ups, starts dequeue tasks, asks for the
//! depth, reports.

use std::{
    future::pending,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use tokio::sync::watch;

use super::{
    dequeue,
    hooks::Action,
    shared::{Shared, count},
};
use crate::{
    clock::{Tick, wall},
    error::{Error, ErrorKind, Result},
    scaling::{Due, ListenerMode, Load, Step, TaskId},
    task::{self, Scope, TaskOutcome},
    words::{ConnectionState, LinkState, Report, Reported, Wakes, WorkDetected},
};

/// Runs a listener until it is dropped; its dequeue tasks belong to `scope`.
pub(super) struct Conductor {
    pub(super) shared: Arc<Shared>,
    pub(super) scope: Arc<Scope>,
    pub(super) relay: Option<Hearing>,
}

/// The way from and to the relay.
pub(super) struct Hearing {
    wakes: Box<dyn Wakes>,
    link: watch::Receiver<LinkState>,
    report: Option<Reported>,
    /// The stream is ended for as long as the listener is paused.
    paused: bool,
}

/// A depth that takes longer is none.
const DEPTH_TIMEOUT: Duration = Duration::from_secs(30);
/// A report that takes longer has failed.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// A dequeue task that panics, by a hook say, is not replaced sooner.
const PANICKED: Duration = Duration::from_secs(1);

/// A subscription that was refused asks again after this.
const REFUSED: Duration = Duration::from_secs(60);

/// What happened.
enum Heard {
    Work(Option<Result<WorkDetected>>),
    Link,
    Answered(Result<()>),
    Stirred,
}

impl Hearing {
    pub(super) fn new(wakes: Box<dyn Wakes>) -> Self {
        let link = wakes.link();
        Self {
            wakes,
            link,
            report: None,
            paused: false,
        }
    }
}

impl Conductor {
    pub(super) async fn run(mut self) {
        // It may be connected already.
        self.linked();
        loop {
            self.follow_pause();
            let wait = self.drive();
            match self.hear(wait).await {
                Heard::Stirred => {}
                Heard::Link => self.linked(),
                Heard::Work(work) => self.work(work),
                Heard::Answered(outcome) => self.answered(outcome),
            }
        }
    }

    /// Does what the machine says until it waits; returns until when.
    fn drive(&mut self) -> Tick {
        loop {
            let step = self.shared.ask(|core, now| {
                let chance = core.chance();
                core.scaler.step(now, chance)
            });
            match step {
                Step::Start(id) => self.start(id),
                Step::Appoint(..) => self.shared.roused.notify_waiters(),
                Step::AskDepth => self.scope.spawn(scale(Arc::clone(&self.shared))),
                Step::Report(due) => self.report(due),
                Step::Wait(until) => return until,
            }
        }
    }

    /// Ends the stream where the listener is paused and done with all that it held, so that the relay
    /// counts on others; has the next one opened when it goes on.
    fn follow_pause(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let rests = self.shared.ask(|core, now| core.scaler.is_at_rest(now));
        let paused = match relay.paused {
            true => self.shared.ask(|core, _| core.scaler.is_paused()),
            false => rests,
        };
        if std::mem::replace(&mut relay.paused, paused) != paused {
            relay.wakes.pause(paused);
            self.linked();
        }
    }

    async fn hear(&mut self, until: Tick) -> Heard {
        let shared = Arc::clone(&self.shared);
        let elapsed = async {
            match until {
                Tick::NEVER => pending().await,
                until => tokio::time::sleep_until(shared.clock.instant(until)).await,
            }
        };
        let Some(relay) = &mut self.relay else {
            tokio::select! {
                () = shared.stirred.notified() => {}
                () = elapsed => {}
            }
            return Heard::Stirred;
        };
        let answer = answered(&mut relay.report);
        tokio::select! {
            biased;
            // A new stream is heard of before what it tells.
            // Whoever tells no more of its link may still tell of work.
            Ok(()) = relay.link.changed() => Heard::Link,
            work = relay.wakes.next() => Heard::Work(work),
            outcome = answer => Heard::Answered(outcome),
            () = shared.stirred.notified() => Heard::Stirred,
            () = elapsed => Heard::Stirred,
        }
    }

    fn linked(&mut self) {
        let Some(relay) = &mut self.relay else { return };
        let link = *relay.link.borrow_and_update();
        let (roused, before, after) = self.shared.ask(|core, now| {
            let (before, chance) = (core.scaler.mode(), core.chance());
            let roused = core.scaler.linked(link, now, chance);
            (roused, before, core.scaler.mode())
        });
        if roused {
            self.shared.roused.notify_waiters();
        }
        if before != after {
            let queue = &self.shared.queue;
            match after {
                ListenerMode::Pushed => tracing::info!(%queue, "pushed: the relay tells of work"),
                _ => tracing::warn!(%queue, "polling: the relay cannot tell of work just now"),
            }
            self.shared.hooks.on_mode_changed(after);
        }
    }

    fn work(&mut self, work: Option<Result<WorkDetected>>) {
        // It may have come with its stream's welcome.
        self.linked();
        match work {
            Some(Ok(work)) => self.woken(&work),
            Some(Err(error)) => {
                self.shared.complain(Action::Listen, None, error);
                let relay = self.relay.as_mut();
                // Something in between may have said so, and may say otherwise in a minute.
                if relay.is_some_and(|relay| relay.wakes.ask_again(REFUSED)) {
                    return self.linked();
                }
                self.deaf();
            }
            None => self.deaf(),
        }
    }

    /// The relay has refused for good, or was shut down: from now on it is polled.
    fn deaf(&mut self) {
        self.relay = None;
        let link = LinkState {
            connection: ConnectionState::Closed,
            ..LinkState::default()
        };
        let (roused, before, after) = self.shared.ask(|core, now| {
            let (before, chance) = (core.scaler.mode(), core.chance());
            let roused = core.scaler.linked(link, now, chance);
            (roused, before, core.scaler.mode())
        });
        self.shared.stir(roused);
        tracing::warn!(queue = %self.shared.queue, "polling: the relay will tell of no work any more");
        if before != after {
            self.shared.hooks.on_mode_changed(after);
        }
    }

    fn woken(&self, work: &WorkDetected) {
        let shared = &self.shared;
        if !work.queue.matches(shared.queue.address()) {
            return;
        }
        count(&shared.counters.wake_ups);
        if let Some(latency) = work.published_at.and_then(since) {
            shared.counters.wake_latency.add(latency);
        }
        let roused = shared.ask(|core, now| core.scaler.woken(work.sequence, now));
        if roused {
            shared.roused.notify_waiters();
        }
        shared.hooks.on_work_detected(Some(work));
    }

    fn start(&self, id: TaskId) {
        let shared = Arc::clone(&self.shared);
        self.scope.spawn(async move {
            let task = dequeue::run(Arc::clone(&shared), id);
            if let TaskOutcome::Panicked(text) = task::spawn_scoped(task).await {
                // Whatever it held comes back, and nobody else says so.
                shared.hidden(shared.config.visibility_timeout);
                let text = format!("a dequeue task panicked: {text}");
                shared.complain(Action::Get, None, Error::new(ErrorKind::Internal, text));
                tokio::time::sleep(PANICKED).await;
            }
            let roused = shared.ask(|core, now| core.scaler.vanished(id, now));
            shared.stir(roused);
        });
    }

    fn report(&mut self, due: Due) {
        let Some(relay) = &mut self.relay else { return };
        let sent = relay.wakes.report(report(&self.shared, due));
        relay.report = Some(Box::pin(async move {
            let late = Error::new(ErrorKind::Timeout, "the report was not answered in time");
            let outcome = tokio::time::timeout(REPORT_TIMEOUT, sent).await;
            outcome.unwrap_or(Err(late))
        }));
    }

    fn answered(&self, outcome: Result<()>) {
        let kind = outcome.as_ref().err().map(Error::kind);
        self.shared.ask(|core, now| core.scaler.answered(kind, now));
        // Without a stream it is said again after the next welcome: nothing is wrong.
        if let Err(error) = outcome
            && !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable)
        {
            self.shared.complain(Action::Report, None, error);
        }
    }
}

/// Makes the report that is due.
fn report(shared: &Shared, due: Due) -> Report {
    let (active, total) = shared.core().scaler.active();
    let counters = &shared.counters;
    let count = |tasks: usize| u32::try_from(tasks).unwrap_or(u32::MAX);
    Report {
        state: due.state,
        sequence: due.sequence,
        visible_in: due.visible_in,
        current_queue_depth: counters.depth.load(Ordering::Relaxed),
        active_dequeue_tasks: count(active),
        total_dequeue_tasks: count(total),
        mean_handling_time: counters.handling.get().unwrap_or_default(),
        mean_wake_latency: counters.wake_latency.get().unwrap_or_default(),
        ..Report::new(shared.queue.address().clone())
    }
}

/// Waits for the answer to the report on its way, for ever where there is none.
async fn answered(report: &mut Option<Reported>) -> Result<()> {
    let Some(sent) = report else {
        return pending().await;
    };
    let outcome = sent.await;
    *report = None;
    outcome
}

/// Asks for the depth, and the policy for a number of tasks; whatever comes of it, it is asked again
/// another time.
async fn scale(shared: Arc<Shared>) {
    let asking = task::spawn_scoped(wanted(Arc::clone(&shared)));
    let tasks = tokio::select! {
        ended = asking => match ended {
            TaskOutcome::Done(tasks) => tasks,
            TaskOutcome::Panicked(text) => {
                let text = format!("the depth or the policy panicked: {text}");
                shared.complain(Action::Depth, None, Error::new(ErrorKind::Internal, text));
                None
            }
        },
        () = shared.stopping.cancelled() => None,
    };
    shared.ask(|core, now| {
        if let Some((_, most)) = tasks {
            core.scaler.allow(most);
        }
        core.scaler.scaled(tasks.map(|(tasks, _)| tasks), now);
    });
    shared.stirred.notify_one();
}

/// Returns how many tasks the depth needs, and how many the policy had at most.
async fn wanted(shared: Arc<Shared>) -> Option<(usize, usize)> {
    let depth = tokio::time::timeout(DEPTH_TIMEOUT, shared.queue.depth()).await;
    let late = Error::new(ErrorKind::Timeout, "the depth was not told in time");
    match depth.unwrap_or(Err(late)) {
        Ok(depth) => {
            shared.counters.depth.store(depth, Ordering::Relaxed);
            let load = Load {
                depth,
                concurrency: shared.config.handled_at_once(),
                handling_time: shared.counters.handling.get(),
            };
            // A task more than there are batches would get nothing, and cost a transaction.
            let batches = depth
                .div_ceil(shared.config.dequeue_batch_size as u64)
                .max(1);
            let batches = usize::try_from(batches).unwrap_or(usize::MAX);
            let most = shared.config.policy.tasks(&load);
            Some((most.min(batches), most))
        }
        Err(error) => {
            shared.complain(Action::Depth, None, error);
            None
        }
    }
}

/// Returns how long ago that was, or `None` where it lies ahead by our clock.
fn since(published_at: SystemTime) -> Option<Duration> {
    wall().duration_since(published_at).ok()
}
