//! One listener of a fleet: parked until it is released, then it rates what comes.
//!
//! Both ways run the same listener with one dequeue task at most, so that they differ in nothing but
//! in how they hear of work.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use reveille::{
    Client, FlagName, FlagWatch, ListenerId, Notification, Publisher,
    listener::{
        Delivery, HandlerResult, Hooks, Listener, ListenerBuilder, ListenerConfig, Rejected,
    },
    queue::{Metered, SqliteQueue, WorkQueue, json},
    scaling::Idle,
};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{
    FLAG, Way, WorkerArgs,
    billing::WorkItem,
    child::{State, Told, tell},
};

/// A queue of the story: every storage transaction on it is counted.
pub(super) type Queue = Metered<SqliteQueue>;

/// The two queues of a fleet.
#[derive(Debug, Clone)]
pub(super) struct Queues {
    /// Work items.
    pub(super) input: Queue,
    /// What became of them.
    pub(super) output: Queue,
}

/// Handles work items.
struct Desk {
    output: Queue,
    publisher: Option<Publisher>,
}

/// A poller's habit.
struct EverySecond;

const SECOND: Duration = Duration::from_secs(1);

/// Plays the listener.
pub(super) async fn run(args: WorkerArgs) -> anyhow::Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let client = Client::new(&args.relay)?;
    let queues = Queues::open(&args.home, args.way).await?;
    tokio::select! {
        released = parked(&client, &args.id) => released?,
        _ = lines.next_line() => return Ok(()),
    }
    let desk = Arc::new(Desk {
        output: queues.output.clone(),
        publisher: args.way.publisher(&client, &args.id),
    });
    let handler = move |delivery| {
        let desk = Arc::clone(&desk);
        async move { desk.handle(&delivery).await }
    };
    let builder = listener(args.way, &queues.input, &client, &args.id).await?;
    let listener = builder.start(handler).await?;
    while lines.next_line().await?.is_some() {
        let state = State::of(args.way, &listener.state());
        let state = state.with(&queues.input.usage());
        tell(&Told::State(state.with(&queues.output.usage())))?;
    }
    listener.shutdown().await;
    Ok(())
}

/// Makes a listener that hears of work in this way.
pub(super) async fn listener(
    way: Way,
    queue: &Queue,
    client: &Client,
    id: &str,
) -> anyhow::Result<ListenerBuilder> {
    let config = ListenerConfig {
        max_tasks: 1,
        grace: Duration::from_secs(1),
        ..ListenerConfig::default()
    };
    let builder = Listener::builder(Arc::new(queue.clone()));
    Ok(match way {
        Way::Pushed => {
            let options = config.subscription(ListenerId::new(id)?, queue);
            builder.wakes(client.subscribe(options)?).config(config)
        }
        Way::Polling => {
            // Pollers begin whenever they begin, not all at the same moment.
            tokio::time::sleep(SECOND.mul_f64(fastrand::f64())).await;
            builder.hooks(EverySecond).config(config)
        }
    })
}

/// Waits for the flag, which may have been set long ago.
async fn parked(client: &Client, id: &str) -> anyhow::Result<()> {
    let mut watch = client.watch_flag(FlagName::new(FLAG)?, ListenerId::new(id)?);
    loop {
        let state = FlagWatch::next(&mut watch).await;
        let state = state.context("the watch ended")??;
        if state.set {
            let after_us = since(state.set_at);
            watch.ack(state.generation).await?;
            // Last: from now on the parent asks, and is answered by the listener.
            return tell(&Told::Released { after_us });
        }
        tell(&Told::Parked)?;
    }
}

fn since(at: Option<SystemTime>) -> u64 {
    let span = at.and_then(|at| at.elapsed().ok()).unwrap_or_default();
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Way {
    /// Returns who notifies: pollers need nobody to.
    pub(super) fn publisher(self, client: &Client, name: &str) -> Option<Publisher> {
        (self == Self::Pushed).then(|| client.publisher(name))
    }
}

impl Queues {
    /// Opens the queues of a fleet, each in a file of its own, and makes them where they are missing.
    pub(super) async fn open(home: &Path, way: Way) -> anyhow::Result<Self> {
        let open = async |queue: &str| {
            let file = home.join(format!("{}-{queue}.db", way.name()));
            let queue = SqliteQueue::open(file, format!("billing/{queue}").parse()?).await?;
            queue.create().await?;
            anyhow::Ok(Metered::new(queue))
        };
        Ok(Self {
            input: open("input").await?,
            output: open("output").await?,
        })
    }
}

impl Desk {
    /// Rates a work item, puts what comes of it, and says so.
    async fn handle(&self, delivery: &Delivery) -> HandlerResult {
        let waited = delivery.message.inserted_at.elapsed().unwrap_or_default();
        let item: WorkItem = json::decode(&delivery.message.body).map_err(Rejected::because)?;
        let rated = json::encode(&item.rate(waited))?;
        self.output.put(vec![rated]).await?;
        if let Some(publisher) = &self.publisher {
            let notification = Notification::new(self.output.address().clone());
            publisher.notify(notification).await?;
        }
        Ok(())
    }
}

impl Hooks for EverySecond {
    fn on_queue_empty(&self, _idle_count: u32, _proposed: Idle) -> Idle {
        Idle::Sleep(SECOND)
    }
}
