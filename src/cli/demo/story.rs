//! The story itself, scene by scene.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use reveille::{Client, FlagName, UnleashOptions, duration::Span};
use tokio::time::{Instant, sleep};

use super::{
    FLAG, Way,
    billing::{ITEMS, TRANSACTIONS, WorkItem, batch, sum},
    child::State,
    figures::{Figures, Idle, Measured, Release, millis, money},
    fleet::Process,
    side::Side,
    stage::Stage,
};
use crate::cli::exit::Failed;

/// Everything that the story needs, and that ends with it.
struct Scene {
    stage: Stage,
    client: Client,
    pushed: Side,
    polling: Side,
    /// Of each fleet.
    listeners: usize,
    relay: Process,
    home: Home,
}

/// A directory for queues and flags, removed at the end.
struct Home(PathBuf);

/// How long both fleets stand idle side by side.
const IDLE: Duration = Duration::from_secs(5);
const COUNT_EVERY: Duration = Duration::from_millis(250);

/// Tells the story.
pub(super) async fn tell(listeners: u16, json: bool) -> anyhow::Result<()> {
    let mut scene = Scene::open(usize::from(listeners)).await?;
    let mut release = scene.unleash().await?;
    let (pushed, polling) = scene.stand_idle().await?;
    let batch = batch();
    let cents = sum(&batch);
    scene.stage.done(&format!(
        "the initiator takes a batch of {TRANSACTIONS} transactions and splits it into {ITEMS} \
         work items"
    ));
    let pushed = scene.work(Way::Pushed, &batch, cents, pushed).await?;
    let polling = scene.work(Way::Polling, &batch, cents, polling).await?;
    release.late_starter_ms = millis(scene.start_late().await?);
    scene.close().await?;
    let figures = Figures {
        transactions: TRANSACTIONS,
        work_items: ITEMS,
        cents,
        release,
        pushed,
        polling,
    };
    figures.print(json)?;
    if figures.exact() {
        return Ok(());
    }
    Err(Failed("the totals are not exact".to_owned()).into())
}

impl Scene {
    /// Starts the relay and both fleets, and waits until all are parked.
    async fn open(listeners: usize) -> anyhow::Result<Self> {
        let stage = Stage::new();
        stage.doing("starting a relay");
        let home = Home::new()?;
        let store = format!("sqlite:{}", home.0.join("flags.db").display());
        let mut relay = Process::relay(&store)?;
        let url = relay.line().await?;
        stage.done(&format!("a relay serves on {url}"));
        stage.doing("starting two fleets");
        let client = Client::new(&url)?;
        let (pushed, polling) = tokio::try_join!(
            Side::open(Way::Pushed, listeners, &client, &home.0),
            Side::open(Way::Polling, listeners, &client, &home.0),
        )?;
        let mut scene = Self {
            stage,
            client,
            pushed,
            polling,
            listeners,
            relay,
            home,
        };
        scene.pushed.fleet.parked().await?;
        scene.polling.fleet.parked().await?;
        scene.stage.done(&format!(
            "two fleets of {listeners} listeners, a process each, are parked on a flag"
        ));
        Ok(scene)
    }

    /// Releases both fleets, and waits until they have settled.
    async fn unleash(&mut self) -> anyhow::Result<Release> {
        self.stage.doing("unleashing the fleets");
        let options = UnleashOptions {
            set_by: "demo".to_owned(),
            reason: "the story says so".to_owned(),
            ..UnleashOptions::default()
        };
        let flag = FlagName::new(FLAG)?;
        self.client.flags().unleash(&flag, &options).await?;
        let mut after = self.pushed.fleet.released().await?;
        after.extend(self.polling.fleet.released().await?);
        let last = after.iter().max().copied().unwrap_or_default();
        let release = Release::new(after);
        self.stage.done(&format!(
            "unleash released all {} of them within {}",
            release.listeners,
            Span(last)
        ));
        self.stage.doing("each listener looks once");
        self.pushed.at_rest().await?;
        self.polling.at_rest().await?;
        Ok(release)
    }

    /// Lets both fleets stand without work, and counts what that takes.
    async fn stand_idle(&mut self) -> anyhow::Result<(Idle, Idle)> {
        let began = Instant::now();
        let (pushed, polling) = (self.pushed.state().await?, self.polling.state().await?);
        loop {
            let (span, before) = (began.elapsed(), (pushed, polling));
            let pushed = Idle::since(before.0, self.pushed.state().await?, span);
            let polling = Idle::since(before.1, self.polling.state().await?, span);
            self.stage.doing(&format!(
                "idle for {}: {} storage transactions pushed, {} polling",
                Span(span),
                pushed.transactions,
                polling.transactions
            ));
            if span >= IDLE {
                self.stage.done(&format!(
                    "idle for {}: the pushed fleet stands at {} dequeue tasks and made {} storage \
                     transactions, the pollers made {}",
                    Span(span),
                    pushed.tasks,
                    pushed.transactions,
                    polling.transactions
                ));
                return Ok((pushed, polling));
            }
            sleep(COUNT_EVERY).await;
        }
    }

    /// Has one of the fleets work the batch off.
    async fn work(
        &mut self,
        way: Way,
        batch: &[WorkItem],
        cents: u64,
        idle: Idle,
    ) -> anyhow::Result<Measured> {
        let side = match way {
            Way::Pushed => &mut self.pushed,
            Way::Polling => &mut self.polling,
        };
        let worked = side.work(batch, &self.stage).await?;
        let measured = Measured::new(way, self.listeners + 1, idle, &worked, cents);
        let after = worked.drained.unwrap_or_default();
        self.stage.done(&format!(
            "{}: {} transactions, {}, {} after the last put: {}",
            way.name(),
            measured.transactions,
            money(measured.cents),
            Span(after),
            if measured.exact { "exact" } else { "NOT EXACT" }
        ));
        if let (Way::Pushed, Some(at_zero)) = (way, worked.at_zero) {
            self.stage.done(&format!(
                "pushed: back at 0 dequeue tasks {} after the last put",
                Span(at_zero)
            ));
        }
        Ok(measured)
    }

    /// Starts a listener that did not exist yet when the fleets were released.
    async fn start_late(&mut self) -> anyhow::Result<Duration> {
        self.stage.doing("starting a listener too late");
        let began = Instant::now();
        let number = self.listeners + 1;
        let mut late = Process::worker(Way::Pushed, number, self.client.url(), &self.home.0)?;
        late.released().await?;
        let span = began.elapsed();
        self.stage.done(&format!(
            "a listener that starts only now is released as well, {} after its start",
            Span(span)
        ));
        late.end().await?;
        Ok(span)
    }

    async fn close(self) -> anyhow::Result<()> {
        self.stage.doing("ending all processes");
        tokio::try_join!(self.pushed.end(), self.polling.end())?;
        self.relay.end().await?;
        self.stage.clear();
        Ok(())
    }
}

impl Idle {
    fn since(before: State, now: State, span: Duration) -> Self {
        Self {
            span,
            tasks: now.tasks,
            transactions: now.transactions - before.transactions,
        }
    }
}

impl Home {
    fn new() -> anyhow::Result<Self> {
        let name = reveille::ListenerId::unique("reveille-demo")?;
        let path = std::env::temp_dir().join(name.as_str());
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Nothing else can be done about it at the end.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
