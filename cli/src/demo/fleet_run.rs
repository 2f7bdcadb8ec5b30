//! One fleet of the comparison, the initiator that puts its work, and the controller that adds up
//! its results.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use reveille::{
    Client, Notification, Publisher,
    listener::{Delivery, HandlerResult, Listener, Rejected},
    queue::{WorkQueue, json},
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use super::{
    Mode,
    agents::{Agents, ONE_AT_A_TIME},
    billing::{self, ITEMS, Totals, WorkItem},
    fleet::Fleet,
    progress::Progress,
    protocol::FleetState,
    worker::{self, Queues},
};

/// A fleet with its initiator and controller. The controller is a listener, and counts as one.
pub(super) struct FleetRun {
    pub(super) mode: Mode,
    pub(super) fleet: Fleet,
    /// They start the workers; then the fleet has no listener.
    agents: Option<Agents>,
    listeners: usize,
    queues: Queues,
    publisher: Option<Publisher>,
    controller: Listener,
    totals: watch::Sender<Totals>,
}

/// Measurements of the batch.
pub(super) struct FleetOutcome {
    pub(super) totals: Totals,
    /// Time from the last put to the last result; `None` if results are missing.
    pub(super) drained: Option<Duration>,
    /// Time from the last put until no dequeue task is left.
    pub(super) at_zero: Option<Duration>,
    pub(super) transactions: u64,
    /// Times from the notification of a single message to the first line of its worker.
    pub(super) first_lines: Vec<Duration>,
}

/// What the initiator has measured.
struct Submitted {
    last_put: Instant,
    first_lines: Vec<Duration>,
}

/// Time-out of each wait, long enough for a slow machine.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A fleet whose state did not change for this long is idle.
const IDLE_AFTER: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl FleetRun {
    /// Creates the queues, and starts the fleet, which parks, and the controller.
    pub(super) async fn open(
        mode: Mode,
        listeners: usize,
        client: &Client,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let queues = Queues::open(home, mode).await?;
        let fleet = Fleet::start(mode, listeners, client.url(), home)?;
        let agents = match mode {
            Mode::Agents => Some(Agents::start(client.url(), home, &queues)?),
            Mode::Pushed | Mode::Polling => None,
        };
        let totals = watch::Sender::new(Totals::default());
        let added_to = totals.clone();
        let handler = move |delivery: Delivery| {
            let added = add_result(&added_to, &delivery);
            async move { added }
        };
        let id = format!("{}-controller", mode.name());
        let builder = worker::listener(mode, &queues.output, client, &id).await?;
        Ok(Self {
            mode,
            fleet,
            agents,
            listeners: listeners + 1,
            publisher: mode.publisher(client, "initiator"),
            controller: builder.start(handler).await?,
            queues,
            totals,
        })
    }

    /// Returns the sum of the states of the fleet and the controller.
    pub(super) async fn state(&mut self) -> anyhow::Result<FleetState> {
        let controller = FleetState::of(self.mode, &self.controller.state());
        let own = controller.with_usage(&self.queues.input.usage());
        let own = own.with_usage(&self.queues.output.usage());
        let of_workers = self.agents.as_ref().map(Agents::state).transpose()?;
        let own = own.plus(of_workers.unwrap_or_default());
        Ok(own.plus(self.fleet.state().await?))
    }

    /// Waits until all listeners are ready and all messages are deleted. A pushed fleet must also
    /// have no dequeue task left. Returns the time at which this state began.
    pub(super) async fn wait_idle(&mut self) -> anyhow::Result<Instant> {
        let began = Instant::now();
        let rest = match self.mode {
            Mode::Pushed | Mode::Agents => IDLE_AFTER,
            Mode::Polling => Duration::ZERO,
        };
        let (mut last, mut since) = (None, began);
        while began.elapsed() < TIMEOUT {
            let state = self.state().await?;
            let idle = self.mode == Mode::Polling || state.tasks == 0;
            let settled = idle && state.ready == self.listeners && state.deletes >= state.puts;
            if !settled || last != Some(state) {
                (last, since) = (settled.then_some(state), Instant::now());
            }
            if settled && since.elapsed() >= rest {
                return Ok(since);
            }
            sleep(POLL_INTERVAL).await;
        }
        bail!("the {} fleet does not become idle", self.mode.name());
    }

    /// Puts the batch, and waits until all results have arrived or the wait times out.
    pub(super) async fn work(
        &mut self,
        batch: &[WorkItem],
        progress: &Progress,
    ) -> anyhow::Result<FleetOutcome> {
        self.totals.send_replace(Totals::default());
        let before = self.state().await?;
        let submitted = {
            let submit = self.submit(batch);
            tokio::pin!(submit);
            loop {
                tokio::select! {
                    submitted = &mut submit => break submitted?,
                    () = sleep(POLL_INTERVAL) => self.show(progress),
                }
            }
        };
        let mut totals = self.totals.subscribe();
        let complete = totals.wait_for(|totals| totals.items() == ITEMS);
        let drained = timeout(TIMEOUT, complete).await.is_ok();
        let last_put = submitted.last_put;
        let drained = drained.then(|| last_put.elapsed());
        let mut at_zero = None;
        if drained.is_some() {
            let idle_since = self.wait_idle().await?;
            at_zero = Some(idle_since.saturating_duration_since(last_put));
        }
        let totals = self.totals.borrow().clone();
        let transactions = self.state().await?.transactions - before.transactions;
        Ok(FleetOutcome {
            totals,
            drained,
            at_zero,
            transactions,
            first_lines: submitted.first_lines,
        })
    }

    /// Returns the processor time of the agents so far.
    pub(super) fn processor(&self) -> Option<Duration> {
        self.agents.as_ref()?.processor()
    }

    /// Ends the controller and the fleet.
    pub(super) async fn stop(self) {
        self.controller.shutdown().await;
        self.fleet.stop().await;
        if let Some(agents) = self.agents {
            agents.stop().await;
        }
    }

    /// Acts as the initiator: puts the batch in parts, and notifies after each. For agents the first
    /// messages come one at a time.
    async fn submit(&self, batch: &[WorkItem]) -> anyhow::Result<Submitted> {
        let mut submitted = Submitted {
            last_put: Instant::now(),
            first_lines: Vec::new(),
        };
        let mut rest = batch;
        if let Some(agents) = &self.agents {
            let (single, bursts) = batch.split_at(ONE_AT_A_TIME);
            submitted.first_lines = self.submit_singly(single, agents).await?;
            rest = bursts;
        }
        let (items_per_put, interval_of_puts) = self.mode.pace();
        let mut ticks = interval(interval_of_puts);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for items in rest.chunks(items_per_put) {
            ticks.tick().await;
            submitted.last_put = self.put(items).await?;
        }
        Ok(submitted)
    }

    /// Puts each work item when no worker runs. Returns the times from a notification to the first line
    /// of the worker that it started.
    async fn submit_singly(
        &self,
        items: &[WorkItem],
        agents: &Agents,
    ) -> anyhow::Result<Vec<Duration>> {
        let (mut first_lines, mut totals) = (Vec::new(), self.totals.subscribe());
        for (number, item) in (1..).zip(items) {
            let put_at = self.put(std::slice::from_ref(item)).await?;
            let complete = totals.wait_for(|totals| totals.items() >= number);
            let complete = timeout(TIMEOUT, complete).await;
            complete.context("a message is missing")??;
            let notified = SystemTime::now() - put_at.elapsed();
            first_lines.extend(agents.first_line_after(notified)?);
            let ended = timeout(TIMEOUT, agents.wait_for_no_worker()).await;
            ended.context("a worker does not end")??;
        }
        Ok(first_lines)
    }

    /// Puts work items, and notifies. Returns the time of the put.
    async fn put(&self, items: &[WorkItem]) -> anyhow::Result<Instant> {
        let messages: Result<Vec<_>, _> = items.iter().map(json::encode).collect();
        let messages = messages?;
        let payload_size = messages.iter().map(|message| message.body.len() as u64);
        let notification = Notification {
            payload_size: payload_size.sum(),
            messages: messages.len() as u64,
            ..Notification::new(self.queues.input.address().clone())
        };
        self.queues.input.put(messages).await?;
        // Before the notification, which is measured with what it starts.
        let put_at = Instant::now();
        if let Some(publisher) = &self.publisher {
            publisher.notify(notification).await?;
        }
        Ok(put_at)
    }

    fn show(&self, progress: &Progress) {
        let totals = self.totals.borrow();
        progress.doing(&format!(
            "{}: {} of {ITEMS} results, {} of {} transactions",
            self.mode.name(),
            totals.items(),
            totals.transactions,
            billing::TRANSACTIONS,
        ));
    }
}

impl Mode {
    /// Returns the work items of one put, and the interval between puts: a real batch is read from a
    /// file over time, and latency is meaningful only without a backlog in the queue. The workers of
    /// agents end in each pause, and start from zero.
    fn pace(self) -> (usize, Duration) {
        match self {
            Self::Pushed | Self::Polling => (20, Duration::from_millis(200)),
            Self::Agents => (30, Duration::from_millis(1_200)),
        }
    }
}

/// Acts as the controller: adds a result to the totals.
fn add_result(totals: &watch::Sender<Totals>, delivery: &Delivery) -> HandlerResult {
    let rated = json::decode(&delivery.message.body).map_err(Rejected::because)?;
    totals.send_modify(|totals| totals.add(&rated));
    Ok(())
}
