//! One listener of a fleet: it is parked until its release, then it rates work items.
//!
//! Both modes run the same listener with at most one dequeue task. They differ only in how they
//! find work. A worker of an agent rates work items until its queue is empty, and ends.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use futures_util::future::try_join_all;
use reveille::{
    Client, FlagName, FlagWatch, ListenerId, Notification, Publisher,
    listener::{
        Delivery, HandlerError, HandlerResult, Hooks, Listener, ListenerBuilder, ListenerConfig,
        Rejected,
    },
    queue::{Message, SqliteQueue, WorkQueue, json},
    scaling::Idle,
    testing::Metered,
};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{
    FLAG, Mode, WorkerArgs,
    agents::{PER_WORKER, VISIBILITY_TIMEOUT, WorkerLog},
    billing::WorkItem,
    protocol::{ChildEvent, FleetState, send},
};

/// A queue of the demo, which counts every storage transaction.
pub(super) type Queue = Metered<SqliteQueue>;

/// The two queues of a fleet.
#[derive(Debug, Clone)]
pub(super) struct Queues {
    /// Work items.
    pub(super) input: Queue,
    /// Rated work items.
    pub(super) output: Queue,
}

/// The handler of work items.
struct Handler {
    output: Queue,
    publisher: Option<Publisher>,
}

/// Hooks of a polling listener: sleep one second after an empty get.
struct PollEverySecond;

const SECOND: Duration = Duration::from_secs(1);

/// Runs the listener's process.
pub(super) async fn run(args: WorkerArgs) -> anyhow::Result<()> {
    if args.mode == Mode::Agents {
        return run_to_empty(&args).await;
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let client = Client::new(&args.relay)?;
    let queues = Queues::open(&args.home, args.mode).await?;
    tokio::select! {
        released = parked(&client, &args.id) => released?,
        _ = lines.next_line() => return Ok(()),
    }
    let handler = Arc::new(Handler::new(&args, &client, &queues));
    let handle = move |delivery: Delivery| {
        let handler = Arc::clone(&handler);
        async move { handler.handle(&delivery.message).await }
    };
    let builder = listener(args.mode, &queues.input, &client, &args.id).await?;
    let listener = builder.start(handle).await?;
    while lines.next_line().await?.is_some() {
        let state = FleetState::of(args.mode, &listener.state());
        let state = state.with_usage(&queues.input.usage());
        let state = state.with_usage(&queues.output.usage());
        send(&ChildEvent::State(state))?;
    }
    listener.shutdown().await;
    Ok(())
}

/// Runs a worker of an agent: its exit code 0 says that the queue was empty.
async fn run_to_empty(args: &WorkerArgs) -> anyhow::Result<()> {
    let log = WorkerLog::of(&args.home);
    log.append(&ChildEvent::started())?;
    let client = Client::new(&args.relay)?;
    let queues = Queues::open(&args.home, args.mode).await?;
    let handler = Handler::new(args, &client, &queues);
    let emptied = handler.empty(&queues.input).await;
    let state = FleetState::default().with_usage(&queues.input.usage());
    log.append(&ChildEvent::Ended {
        pid: std::process::id(),
        state: state.with_usage(&queues.output.usage()),
    })?;
    emptied.map_err(anyhow::Error::from_boxed)
}

/// Returns the builder of a listener with this mode.
pub(super) async fn listener(
    mode: Mode,
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
    Ok(match mode {
        Mode::Pushed | Mode::Agents => {
            let options = config.subscription(ListenerId::new(id)?, queue);
            builder.wakes(client.subscribe(options)?).config(config)
        }
        Mode::Polling => {
            // A random delay: polling listeners do not start all at the same moment.
            tokio::time::sleep(SECOND.mul_f64(fastrand::f64())).await;
            builder.hooks(PollEverySecond).config(config)
        }
    })
}

/// Waits for the flag, which may already be set.
async fn parked(client: &Client, id: &str) -> anyhow::Result<()> {
    let mut watch = client.watch_flag(FlagName::new(FLAG)?, ListenerId::new(id)?);
    loop {
        let state = FlagWatch::next(&mut watch).await;
        let state = state.context("the watch ended")??;
        if state.set {
            let after_us = since(state.set_at);
            watch.ack(state.generation).await?;
            // Last: after this message the parent may request states, which the listener answers.
            return send(&ChildEvent::Released { after_us });
        }
        send(&ChildEvent::Parked)?;
    }
}

fn since(at: Option<SystemTime>) -> u64 {
    let span = at.and_then(|at| at.elapsed().ok()).unwrap_or_default();
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Mode {
    /// Returns a publisher; `None` for polling listeners, which need no notification.
    pub(super) fn publisher(self, client: &Client, name: &str) -> Option<Publisher> {
        (self != Self::Polling).then(|| client.publisher(name))
    }
}

impl Queues {
    /// Opens the queues of a fleet, each in a separate file, and creates missing ones.
    pub(super) async fn open(home: &Path, mode: Mode) -> anyhow::Result<Self> {
        let open = async |queue: &str| {
            let file = home.join(format!("{}-{queue}.db", mode.name()));
            let queue = SqliteQueue::create(file, format!("billing/{queue}").parse()?).await?;
            anyhow::Ok(Metered::new(queue))
        };
        Ok(Self {
            input: open("input").await?,
            output: open("output").await?,
        })
    }
}

impl Handler {
    fn new(args: &WorkerArgs, client: &Client, queues: &Queues) -> Self {
        Self {
            output: queues.output.clone(),
            publisher: args.mode.publisher(client, &args.id),
        }
    }

    /// Handles messages until the queue is empty.
    async fn empty(&self, input: &Queue) -> HandlerResult {
        loop {
            let messages = input.get(PER_WORKER, VISIBILITY_TIMEOUT).await?;
            if messages.is_empty() {
                return Ok(());
            }
            let handle = async |message: &Message| {
                self.handle(message).await?;
                Ok::<_, HandlerError>(input.delete(&message.receipt).await?)
            };
            try_join_all(messages.iter().map(handle)).await?;
        }
    }

    /// Rates a work item, puts the result, and notifies.
    async fn handle(&self, message: &Message) -> HandlerResult {
        let waited = message.inserted_at.elapsed().unwrap_or_default();
        let item: WorkItem = json::decode(&message.body).map_err(Rejected::because)?;
        let rated = json::encode(&item.rate(waited))?;
        self.output.put(vec![rated]).await?;
        if let Some(publisher) = &self.publisher {
            let notification = Notification::new(self.output.address().clone());
            publisher.notify(notification).await?;
        }
        Ok(())
    }
}

impl Hooks for PollEverySecond {
    fn on_queue_empty(&self, _idle_count: u32, _proposed: Idle) -> Idle {
        Idle::Sleep(SECOND)
    }
}
