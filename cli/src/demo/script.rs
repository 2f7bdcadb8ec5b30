//! The steps of the demo.

use std::time::Duration;

use reveille::{Client, FlagName, UnleashOptions, duration::Span};
use tokio::time::{Instant, sleep};

use super::{
    FLAG, Mode,
    billing::{ITEMS, TRANSACTIONS, WorkItem, batch, sum},
    figures::{Figures, FleetFigures, Idle, Release, millis, money},
    fleet::{Worker, start_relay},
    fleet_run::{FleetOutcome, FleetRun},
    home::Home,
    progress::Progress,
    protocol::FleetState,
};
use crate::{exit::Failed, subprocess::Subprocess};

/// All processes and files of the demo.
struct Demo {
    progress: Progress,
    client: Client,
    pushed: FleetRun,
    polling: FleetRun,
    /// Number of listeners of each fleet.
    listeners: usize,
    relay: Subprocess,
    /// The URL of the relay's console.
    console: Option<String>,
    home: Home,
}

/// How long fleets are measured while idle.
pub(super) const IDLE: Duration = Duration::from_secs(5);
const COUNT_INTERVAL: Duration = Duration::from_millis(250);

/// The pause between two batches of a demo that goes on.
const PAUSE: Duration = Duration::from_secs(4);

/// Runs the demo; with the console until it is interrupted.
pub(super) async fn run(listeners: u16, json: bool, console: bool) -> anyhow::Result<()> {
    let mut demo = Demo::open(usize::from(listeners), console).await?;
    let mut release = demo.unleash().await?;
    let (pushed, polling) = demo.measure_idle().await?;
    let batch = batch();
    let cents = sum(&batch);
    demo.progress.done(&format!(
        "the initiator splits a batch of {TRANSACTIONS} transactions into {ITEMS} work items"
    ));
    let pushed = demo.work(Mode::Pushed, &batch, cents, pushed).await?;
    let polling = demo.work(Mode::Polling, &batch, cents, polling).await?;
    release.late_starter_ms = millis(demo.start_late().await?);
    let going_on = match console {
        true => Some(demo),
        false => {
            demo.close().await;
            None
        }
    };
    let figures = Figures {
        transactions: TRANSACTIONS,
        work_items: ITEMS,
        cents,
        release,
        pushed,
        polling,
    };
    figures.print(json)?;
    if let Some(demo) = going_on {
        demo.go_on(&batch, cents).await?;
    }
    if figures.exact() {
        return Ok(());
    }
    Err(Failed("the totals are not exact".to_owned()).into())
}

/// Starts the relay.
pub(super) async fn open_relay(
    progress: &Progress,
    home: &Home,
    console: bool,
) -> anyhow::Result<(Subprocess, Client)> {
    progress.doing("starting a relay");
    let store = format!("sqlite:{}", home.path().join("flags.db").display());
    let mut relay = start_relay(&store, console)?;
    let url = relay.line().await?;
    progress.done(&format!("a relay serves on {url}"));
    Ok((relay, Client::new(&url)?))
}

impl Demo {
    /// Starts the relay and both fleets, and waits until all listeners are parked.
    async fn open(listeners: usize, console: bool) -> anyhow::Result<Self> {
        let progress = Progress::new();
        let home = Home::new()?;
        let (mut relay, client) = open_relay(&progress, &home, console).await?;
        let console = match console {
            true => Some(relay.line().await?),
            false => None,
        };
        if let Some(console) = &console {
            progress.done(&format!("its console is at {console}"));
        }
        progress.doing("starting two fleets");
        let (pushed, polling) = tokio::try_join!(
            FleetRun::open(Mode::Pushed, listeners, &client, home.path()),
            FleetRun::open(Mode::Polling, listeners, &client, home.path()),
        )?;
        let mut demo = Self {
            progress,
            client,
            pushed,
            polling,
            listeners,
            relay,
            console,
            home,
        };
        demo.pushed.fleet.wait_parked().await?;
        demo.polling.fleet.wait_parked().await?;
        demo.progress.done(&format!(
            "two fleets of {listeners} listener processes each are parked on a flag"
        ));
        Ok(demo)
    }

    /// Releases both fleets, and waits until they are idle.
    async fn unleash(&mut self) -> anyhow::Result<Release> {
        self.progress.doing("unleashing the fleets");
        let options = UnleashOptions {
            set_by: "demo".to_owned(),
            reason: "the start of the demo".to_owned(),
            ..UnleashOptions::default()
        };
        let flag = FlagName::new(FLAG)?;
        self.client.flags().unleash(&flag, &options).await?;
        let mut after = self.pushed.fleet.wait_released().await?;
        after.extend(self.polling.fleet.wait_released().await?);
        let last = after.iter().max().copied().unwrap_or_default();
        let release = Release::new(after);
        self.progress.done(&format!(
            "unleash released all {} listeners within {}",
            release.listeners,
            Span(last)
        ));
        self.progress.doing("each listener checks its queue once");
        self.pushed.wait_idle().await?;
        self.polling.wait_idle().await?;
        Ok(release)
    }

    /// Counts the storage transactions of both fleets without work.
    async fn measure_idle(&mut self) -> anyhow::Result<(Idle, Idle)> {
        let began = Instant::now();
        let (pushed, polling) = (self.pushed.state().await?, self.polling.state().await?);
        loop {
            let (span, before) = (began.elapsed(), (pushed, polling));
            let pushed = Idle::since(before.0, self.pushed.state().await?, span);
            let polling = Idle::since(before.1, self.polling.state().await?, span);
            self.progress.doing(&format!(
                "idle for {}: {} storage transactions pushed, {} polling",
                Span(span),
                pushed.transactions,
                polling.transactions
            ));
            if span >= IDLE {
                self.progress.done(&format!(
                    "idle for {}: the pushed fleet has {} dequeue tasks and made {} storage \
                     transactions, the polling fleet made {}",
                    Span(span),
                    pushed.tasks,
                    pushed.transactions,
                    polling.transactions
                ));
                return Ok((pushed, polling));
            }
            sleep(COUNT_INTERVAL).await;
        }
    }

    /// Lets one of the fleets handle the batch.
    async fn work(
        &mut self,
        mode: Mode,
        batch: &[WorkItem],
        cents: u64,
        idle: Idle,
    ) -> anyhow::Result<FleetFigures> {
        let run = match mode {
            Mode::Polling => &mut self.polling,
            _ => &mut self.pushed,
        };
        let outcome = run.work(batch, &self.progress).await?;
        let measured = FleetFigures::new(mode, self.listeners + 1, idle, &outcome, cents);
        show_outcome(&self.progress, mode, &measured, &outcome);
        Ok(measured)
    }

    /// Starts a listener after the release of the fleets.
    async fn start_late(&mut self) -> anyhow::Result<Duration> {
        self.progress.doing("starting a late listener");
        let began = Instant::now();
        let number = self.listeners + 1;
        let mut late = Worker::start(Mode::Pushed, number, self.client.url(), self.home.path())?;
        late.wait_released().await?;
        let span = began.elapsed();
        self.progress.done(&format!(
            "a listener that starts now is released as well, {} after its start",
            Span(span)
        ));
        late.stop().await;
        Ok(span)
    }

    /// Lets the woken fleet handle one batch after another. Ends with an error only.
    async fn go_on(mut self, batch: &[WorkItem], cents: u64) -> anyhow::Result<()> {
        let console = self.console.clone().unwrap_or_default();
        for round in 2_u64.. {
            self.progress.doing(&format!(
                "batch {round} comes soon; the console is at {console}; Ctrl-C ends the demo"
            ));
            sleep(PAUSE).await;
            let outcome = self.pushed.work(batch, &self.progress).await?;
            if outcome.totals.cents != cents {
                return Err(Failed(format!("the totals of batch {round} are not exact")).into());
            }
        }
        self.close().await;
        Ok(())
    }

    async fn close(self) {
        self.progress.doing("ending all processes");
        tokio::join!(self.pushed.stop(), self.polling.stop());
        self.relay.stop().await;
        self.progress.clear();
    }
}

/// Prints what a fleet has done.
pub(super) fn show_outcome(
    progress: &Progress,
    mode: Mode,
    measured: &FleetFigures,
    outcome: &FleetOutcome,
) {
    let name = mode.name();
    progress.done(&format!(
        "{name}: {} transactions, {}, {} after the last put: {}",
        measured.transactions,
        money(measured.cents),
        Span(outcome.drained.unwrap_or_default()),
        if measured.exact { "exact" } else { "NOT EXACT" }
    ));
    if let (true, Some(at_zero)) = (mode != Mode::Polling, outcome.at_zero) {
        progress.done(&format!(
            "{name}: back at 0 dequeue tasks {} after the last put",
            Span(at_zero)
        ));
    }
}

impl Idle {
    pub(super) fn since(before: FleetState, now: FleetState, span: Duration) -> Self {
        Self {
            span,
            tasks: now.tasks,
            transactions: now.transactions - before.transactions,
        }
    }
}
