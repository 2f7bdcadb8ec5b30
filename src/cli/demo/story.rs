//! The story itself, scene by scene.

use std::path::PathBuf;

use anyhow::Context;
use reveille::{Client, FlagName, Notification, QueueAddress, duration::Span};

use super::{
    FLAG, QUEUE,
    fleet::Process,
    proxy::Proxy,
    stage::{Stage, middle_and_greatest},
};

/// Everything that the story needs, and that ends with it.
struct Scene {
    stage: Stage,
    client: Client,
    queue: QueueAddress,
    fleet: Vec<Process>,
    /// The last of the fleet hears the relay through this.
    proxy: Proxy,
    relay: Process,
    _home: Home,
}

/// A directory for the flag's store, removed at the end.
struct Home(PathBuf);

/// Notifications of each scene.
const SINGLE: u64 = 20;
const BURST: u64 = 50_000;
const MISSED: u64 = 1_000;

/// Tells the story.
pub(super) async fn tell(listeners: u16, json: bool) -> anyhow::Result<()> {
    let mut scene = Scene::open(usize::from(listeners)).await?;
    scene.wake_one_by_one().await?;
    scene.wake_by_a_burst().await?;
    scene.cut_one_off().await?;
    scene.unleash().await?;
    scene.close(json).await
}

impl Scene {
    /// Starts the relay and the fleet, and waits until all are parked.
    async fn open(listeners: usize) -> anyhow::Result<Self> {
        let stage = Stage::new();
        stage.doing("starting a relay");
        let home = Home::new()?;
        let store = format!("sqlite:{}", home.0.join("flags.db").display());
        let mut relay = Process::start("the relay", &["relay", "--store", &store])?;
        let url = relay.line().await?;
        stage.done(&format!("a relay serves on {url}"));
        stage.doing("starting the fleet");
        let proxy = Proxy::start(url.trim_start_matches("http://").to_owned()).await?;
        let mut fleet = Vec::new();
        for number in 1..=listeners {
            let through = if number == listeners {
                proxy.url()
            } else {
                url.clone()
            };
            fleet.push(Process::start_listener(number, &through)?);
        }
        // A first subscription is always asked to look once: what was before is not known.
        for listener in &mut fleet {
            listener.told().await?;
        }
        stage.done(&format!(
            "{listeners} listeners, a process each, looked once and are parked: no dequeue task runs"
        ));
        let client = Client::new(&url)?;
        Ok(Self {
            stage,
            client,
            queue: QUEUE.parse()?,
            fleet,
            proxy,
            relay,
            _home: home,
        })
    }

    /// Notifies, waits for all, and again.
    async fn wake_one_by_one(&mut self) -> anyhow::Result<()> {
        self.stage
            .doing("waking the fleet, one notification at a time");
        let publisher = self.client.publisher("demo");
        let mut latencies = Vec::new();
        for _ in 0..SINGLE {
            publisher
                .notify(Notification::new(self.queue.clone()))
                .await?;
            for listener in &mut self.fleet {
                latencies.extend(listener.woken(1).await?);
            }
        }
        let (wakes, figure) = (latencies.len(), middle_and_greatest(latencies));
        self.stage.done(&format!(
            "{SINGLE} notifications woke all of them: {wakes} wake-ups, {figure}"
        ));
        self.stage
            .row("wake-up, from publisher to listener", figure);
        Ok(())
    }

    /// Notifies far faster than anybody could be woken.
    async fn wake_by_a_burst(&mut self) -> anyhow::Result<()> {
        self.stage.doing("a burst");
        let publisher = self.client.publisher_with(reveille::PublisherOptions {
            name: "demo".to_owned(),
            conflate: false,
            ..reveille::PublisherOptions::default()
        });
        let started = std::time::Instant::now();
        for _ in 0..BURST {
            publisher.post(Notification::new(self.queue.clone()))?;
        }
        publisher.flush().await?;
        let mut wakes = 0;
        for listener in &mut self.fleet {
            wakes += listener.woken(BURST).await?.len();
        }
        let span = Span(started.elapsed());
        let each = wakes / self.fleet.len().max(1);
        self.stage.done(&format!(
            "a burst of {BURST} notifications took {span} and about {each} wake-ups a listener; \
             each was told of exactly {BURST}"
        ));
        self.stage.row(
            &format!("burst of {BURST} notifications, all told exactly"),
            span.to_string(),
        );
        self.stage
            .row("wake-ups of the burst, each listener", each.to_string());
        Ok(())
    }

    /// Cuts the last listener's wire, notifies, and mends it.
    async fn cut_one_off(&mut self) -> anyhow::Result<()> {
        self.stage.doing("cutting one listener off");
        self.proxy.cut();
        let publisher = self.client.publisher("demo");
        for _ in 0..MISSED {
            publisher.post(Notification::new(self.queue.clone()))?;
        }
        publisher.flush().await?;
        let (cut_off, connected) = self
            .fleet
            .split_last_mut()
            .context("the fleet is not empty")?;
        for listener in connected {
            listener.woken(MISSED).await?;
        }
        self.stage.doing("mending its wire");
        self.proxy.mend();
        let mended = std::time::Instant::now();
        let wakes = cut_off.woken(MISSED).await?.len();
        let span = Span(mended.elapsed());
        self.stage.done(&format!(
            "a listener was cut off while {MISSED} notifications came; back again it was told of \
             exactly {MISSED}, in {wakes} wake-up{}",
            if wakes == 1 { "" } else { "s" }
        ));
        self.stage.row(
            "caught up after a cut (reconnects with jitter)",
            span.to_string(),
        );
        Ok(())
    }

    /// Releases the fleet, and then a listener that did not exist yet.
    async fn unleash(&mut self) -> anyhow::Result<()> {
        self.stage.doing("unleashing the fleet");
        let flag = FlagName::new(FLAG)?;
        let options = reveille::UnleashOptions {
            set_by: "demo".to_owned(),
            reason: "the story says so".to_owned(),
            ..reveille::UnleashOptions::default()
        };
        let unleashed = self.client.flags().unleash(&flag, &options).await?;
        let mut latencies = Vec::new();
        for listener in &mut self.fleet {
            latencies.push(listener.released().await?);
        }
        let figure = middle_and_greatest(latencies);
        self.stage.done(&format!(
            "unleash released the {} that were parked: {figure}",
            unleashed.watchers
        ));
        self.stage
            .row("unleash, from the write to the release", figure);
        self.stage.doing("starting a listener too late");
        let started = std::time::Instant::now();
        let mut late = Process::start_listener(self.fleet.len() + 1, self.client.url())?;
        late.released().await?;
        let span = Span(started.elapsed());
        self.stage.done(&format!(
            "one that started only afterwards was released {span} after its start"
        ));
        self.stage.row(
            "a late starter, from its start to its release",
            span.to_string(),
        );
        self.fleet.push(late);
        Ok(())
    }

    async fn close(self, json: bool) -> anyhow::Result<()> {
        self.stage.doing("ending all processes");
        for listener in self.fleet {
            listener.end().await?;
        }
        self.relay.end().await?;
        self.stage.finish(json)
    }
}

impl Process {
    fn start_listener(number: usize, relay: &str) -> anyhow::Result<Self> {
        let id = format!("worker-{number}");
        Self::start(&id, &["listener", "--relay", relay, "--id", &id])
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
