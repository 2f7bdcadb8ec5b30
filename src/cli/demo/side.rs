//! One side of the comparison: a fleet, the initiator that gives it work, and the controller that
//! adds up what comes of it.

use std::{path::Path, time::Duration};

use anyhow::bail;
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
    Way,
    billing::{self, ITEMS, Totals, WorkItem},
    child::State,
    fleet::Fleet,
    stage::Stage,
    worker::{self, Queues},
};

/// A fleet and those around it. The controller is a listener as well, and counted among them.
pub(super) struct Side {
    pub(super) way: Way,
    pub(super) fleet: Fleet,
    listeners: usize,
    queues: Queues,
    publisher: Option<Publisher>,
    controller: Listener,
    totals: watch::Receiver<Totals>,
}

/// What the work took.
pub(super) struct Worked {
    pub(super) totals: Totals,
    /// From the last put to the last result's arrival; `None` where results are missing.
    pub(super) drained: Option<Duration>,
    /// Until no dequeue task was left.
    pub(super) at_zero: Option<Duration>,
    pub(super) transactions: u64,
}

/// Work items of one put, and the time from one to the next: a batch of this size is read, not
/// there at once, and latency is worth measuring only where the queue is no backlog.
const PUT: usize = 20;
const PUT_EVERY: Duration = Duration::from_millis(200);
/// Longer than any of it takes, on however slow a machine.
const PATIENCE: Duration = Duration::from_secs(15);
/// A fleet that did nothing for so long is at rest.
const REST: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(50);

impl Side {
    /// Makes the queues, starts the fleet and the controller. The fleet is parked.
    pub(super) async fn open(
        way: Way,
        listeners: usize,
        client: &Client,
        home: &Path,
    ) -> anyhow::Result<Self> {
        let queues = Queues::open(home, way).await?;
        let fleet = Fleet::start(way, listeners, client.url(), home)?;
        let (add, totals) = watch::channel(Totals::default());
        let handler = move |delivery: Delivery| {
            let added = added(&add, &delivery);
            async move { added }
        };
        let id = format!("{}-controller", way.name());
        let builder = worker::listener(way, &queues.output, client, &id).await?;
        Ok(Self {
            way,
            fleet,
            listeners: listeners + 1,
            publisher: way.publisher(client, "initiator"),
            controller: builder.start(handler).await?,
            queues,
            totals,
        })
    }

    /// Returns what all of them do.
    pub(super) async fn state(&mut self) -> anyhow::Result<State> {
        let controller = State::of(self.way, &self.controller.state());
        let own = controller.with(&self.queues.input.usage());
        let own = own.with(&self.queues.output.usage());
        Ok(own.and(self.fleet.state().await?))
    }

    /// Waits until all listeners are pushed, or poll and have looked once, all that was put is deleted,
    /// and, where they are pushed, no dequeue task is left; returns since when that is so.
    pub(super) async fn at_rest(&mut self) -> anyhow::Result<Instant> {
        let began = Instant::now();
        let rest = match self.way {
            Way::Pushed => REST,
            Way::Polling => Duration::ZERO,
        };
        let (mut last, mut since) = (None, began);
        while began.elapsed() < PATIENCE {
            let state = self.state().await?;
            let idle = self.way == Way::Polling || state.tasks == 0;
            let settled = idle && state.ready == self.listeners && state.deletes >= state.puts;
            if !settled || last != Some(state) {
                (last, since) = (settled.then_some(state), Instant::now());
            }
            if settled && since.elapsed() >= rest {
                return Ok(since);
            }
            sleep(LOOK).await;
        }
        bail!("the {} fleet does not come to rest", self.way.name());
    }

    /// Has the batch worked off, and waits until the results are there or will not come any more.
    pub(super) async fn work(
        &mut self,
        batch: &[WorkItem],
        stage: &Stage,
    ) -> anyhow::Result<Worked> {
        let before = self.state().await?;
        let last_put = {
            let submit = self.submit(batch);
            tokio::pin!(submit);
            loop {
                tokio::select! {
                    last_put = &mut submit => break last_put?,
                    () = sleep(LOOK) => self.show(stage),
                }
            }
        };
        let mut totals = self.totals.clone();
        let complete = totals.wait_for(|totals| totals.items() == ITEMS);
        let drained = timeout(PATIENCE, complete).await.is_ok();
        let drained = drained.then(|| last_put.elapsed());
        let mut at_zero = None;
        if drained.is_some() {
            let rest = self.at_rest().await?;
            at_zero = Some(rest.saturating_duration_since(last_put));
        }
        let totals = self.totals.borrow().clone();
        let transactions = self.state().await?.transactions - before.transactions;
        Ok(Worked {
            totals,
            drained,
            at_zero,
            transactions,
        })
    }

    /// Ends all of them.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        self.controller.shutdown().await;
        self.fleet.end().await
    }

    /// Plays the initiator: puts the batch, some work items at a time, and says so each time.
    /// Returns when the last of it was put.
    async fn submit(&self, batch: &[WorkItem]) -> anyhow::Result<Instant> {
        let mut turns = interval(PUT_EVERY);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_put = Instant::now();
        for items in batch.chunks(PUT) {
            turns.tick().await;
            let messages: Result<Vec<_>, _> = items.iter().map(json::encode).collect();
            let messages = messages?;
            let payload_size = messages.iter().map(|message| message.body.len() as u64);
            let notification = Notification {
                payload_size: payload_size.sum(),
                messages: messages.len() as u64,
                ..Notification::new(self.queues.input.address().clone())
            };
            self.queues.input.put(messages).await?;
            last_put = Instant::now();
            if let Some(publisher) = &self.publisher {
                publisher.notify(notification).await?;
            }
        }
        Ok(last_put)
    }

    fn show(&self, stage: &Stage) {
        let totals = self.totals.borrow();
        stage.doing(&format!(
            "{}: {} of {ITEMS} results, {} of {} transactions added up",
            self.way.name(),
            totals.items(),
            totals.transactions,
            billing::TRANSACTIONS,
        ));
    }
}

/// Plays the controller: adds a result up.
fn added(totals: &watch::Sender<Totals>, delivery: &Delivery) -> HandlerResult {
    let rated = json::decode(&delivery.message.body).map_err(Rejected::because)?;
    totals.send_modify(|totals| totals.add(&rated));
    Ok(())
}
