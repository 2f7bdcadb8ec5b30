//! `listen`: the auto-scaling listener around any program.
//!
//! This file has the arguments and the life of the process: open, start, wait for an end, drain.
//! `config` converts the arguments to the listener's configuration. `worker` handles messages by
//! running the command. `command` supervises one run. `event_log` writes events to stderr.

mod command;
mod config;
mod event_log;
mod worker;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reveille::{
    Client, Error, ErrorKind, GroupName, ListenerConsole, PublisherOptions, SubscribeOptions,
    duration,
    listener::{Delivery, Listener, ListenerBuilder, ListenerStats},
    queue::WorkQueue,
};
use serde_json::json;

use self::{
    command::Program,
    config::PoisonQueue,
    event_log::{EventLog, ListenHooks},
    worker::{Quota, StopHandle, StopReason, Worker},
};
use super::{
    child::{self, KILL_AFTER, ProcessGroups},
    exit::{Exit, Failed},
    log,
    output::{self, Format},
    queue,
    signals::{Interrupts, Signal},
    target::{self, IdArgs, RelayArgs, Target},
    values::{self, LogFormat},
};

/// Run a command for each message of a queue
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille listen 'sqlite:jobs.db?queue=orders' --create -- ./handle-order
  reveille listen 'sqlite:jobs.db?queue=orders' --batch -- ./import-lines
  reveille listen 'sqlite:jobs.db?queue=orders' --no-relay --until-empty -- sh -c 'wc -c'

The command reads the message from its standard input. The command's environment has MESSAGE_ID, \
MESSAGE_DEQUEUE_COUNT, MESSAGE_QUEUE and MESSAGE_INSERTED_AT. Its exit code decides:
  0         handled: the message is deleted
  65        rejected: it goes to the poison queue at once (EX_DATAERR)
  75        put back: it is redelivered after --postpone, and no attempt is counted (EX_TEMPFAIL)
  126, 127  no program could be run: tried again with growing pauses, and no attempt is counted
  others    failed, as by a signal: it is redelivered, with a longer delay each time; after
            --max-dequeue-count attempts it goes to the poison queue

With --batch the command runs once for all messages of a get. Its environment has MESSAGE_QUEUE and \
MESSAGE_COUNT. Its standard input has one JSON object a line, as `queue get -o jsonl` prints them: \
message_id, body (null if it is not UTF-8), body_base64, bytes, dequeue_count and inserted_at. The \
exit code counts for all messages of the batch. The last attempt at a message runs without the others.

The listeners of a queue share its wake-ups: the relay wakes as many as there are messages for. With \
--group, only the listeners of that group share. With --no-group, this listener is woken for every \
notification.

While the relay reports work (`queue put --notify`, `notify`), an idle listener makes no call to the \
queue. While it cannot, the listener polls the queue. More commands start as there is more work, up \
to --max-tasks times --concurrency at a time.

Ctrl-C or SIGTERM: the listener gets no more messages and waits for its commands (--grace). Then it \
sends them SIGTERM, and at last kills them. A second signal kills them at once. After SIGTERM the \
exit code is 0 if no command was cut off, else 143. A command that dies of SIGTERM at the same time, as \
when a service manager ends all processes of a unit, was cut off: no attempt is counted. SIGHUP is \
ignored, unless there is a terminal. `listen` stops if a command fails and nobody reads standard \
output any more. If `listen` itself is killed by SIGKILL, a \
guard process ends its commands: by SIGTERM, and 5s later by SIGKILL. Their messages are redelivered \
after the visibility time-out. Processes that a command moved to another process group keep running.

The command's output is passed through. Events of the listener go to stderr, with `-o json` as JSON \
objects, one a line.")]
pub(super) struct Args {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    /// Create the queue if it is missing
    #[arg(long)]
    create: bool,
    /// Run the command once for all messages of a get
    #[arg(long, conflicts_with = "concurrency")]
    batch: bool,
    /// Number of messages that one dequeue task handles at the same time [default: 1]
    #[arg(long, value_name = "N", value_parser = values::positive::<usize>)]
    concurrency: Option<usize>,
    /// Maximum number of dequeue tasks [default: the number of CPUs; with --policy, by the policy]
    #[arg(long, value_name = "N", value_parser = values::positive::<usize>)]
    max_tasks: Option<usize>,
    /// A TOML file that maps queue depth to a number of dequeue tasks; read again when it changes
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// How long a get hides a message from others; renewed while its command runs
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    /// Number of attempts after which a message goes to the poison queue
    #[arg(long, value_name = "N", value_parser = values::positive::<u32>, default_value_t = 5)]
    max_dequeue_count: u32,
    /// The poison queue [default: the same URL with `-poison` after the queue's name]
    #[arg(long, value_name = "QUEUE_URL", conflicts_with = "no_poison")]
    poison: Option<String>,
    /// Use no poison queue: redeliver a failing message for ever, with growing delays
    #[arg(long)]
    no_poison: bool,
    /// A command that runs longer is ended, and counts as failed
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "1h")]
    max_handling_time: Duration,
    /// Longest pause between two polls while no relay reports work [default: 1s without a relay,
    /// 30s while the relay is unreachable]
    #[arg(long, value_name = "D", value_parser = values::pause)]
    poll: Option<Duration>,
    /// Stop after this number of handled messages
    #[arg(long, value_name = "N", value_parser = values::positive::<u64>)]
    count: Option<u64>,
    /// Stop once the queue is empty; with exit code 1 if a run of the command has failed, or a message
    /// was put back, because it may still be there
    #[arg(long)]
    until_empty: bool,
    /// How long a message stays hidden whose command ends with code 75
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    postpone: Duration,
    /// How long a shutdown waits for running commands
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    grace: Duration,
    #[command(flatten)]
    id: IdArgs,
    /// Share wake-ups with the listeners of this group [default: a group for each queue]
    #[arg(long, value_name = "NAME", conflicts_with = "no_group")]
    group: Option<String>,
    /// Share no wake-ups: wake this listener for every notification
    #[arg(long)]
    no_group: bool,
    /// Poll the queue, without a relay
    #[arg(long)]
    no_relay: bool,
    /// Serve /metrics, /livez and /readyz of this listener on this HOST:PORT; another one than loopback
    /// needs --insecure
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// Host names that requests to that port may use, comma-separated; IP addresses and localhost
    /// are always allowed
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = values::host_name, requires = "metrics_listen")]
    metrics_host: Vec<String>,
    #[command(flatten)]
    relay: RelayArgs,
    /// The command to run
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The default log level: events for which a listener has no hook.
const LOG: &str = "error,rustls=off,rustls_platform_verifier=off,\
                   reveille::listener::policy_file=info,reveille::queue::url=warn";
/// How often --until-empty checks for its end: soon for a person, cheap for a processor.
const EMPTY_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// A slower check of the poison queue is left out.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline for notifying a poison queue's listeners. After it they find the message by polling.
const POISON_NOTIFY_DEADLINE: Duration = Duration::from_secs(2);

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.relay.resolve(None);
        values::check_open("metrics-listen", self.metrics_listen, target.insecure)?;
        let log = match target.format {
            Format::Table => LogFormat::Text,
            Format::Json | Format::Jsonl => LogFormat::Json,
        };
        log::start(LOG, log);
        let mut interrupts = Interrupts::of_service(false)?;
        tokio::select! {
            outcome = self.prepare(&target) => outcome?.run(&mut interrupts).await,
            signal = interrupts.next() => Ok(signal.exit()),
        }
    }

    /// Performs every step that may fail before the first get.
    async fn prepare(&self, target: &Target) -> anyhow::Result<RunningListener> {
        let config = self.config()?;
        child::check_exists(&self.command)?;
        let program = Program {
            command: self.command.clone(),
            running: ProcessGroups::guarded(KILL_AFTER),
        };
        let id = self.id.resolve("listen")?;
        let client = (!self.no_relay).then(|| target.client()).transpose()?;
        let queue = match self.create {
            true => queue::create(&self.url).await?.0,
            false => queue::open(&self.url).await?,
        };
        let relay = client.as_ref().map(|_| target.relay.clone());
        let events = Arc::new(EventLog::new(target.format, queue.address(), relay));
        let (stop_handle, reasons) = StopHandle::new();
        let until_empty = self.until_empty.then(|| stop_handle.clone());
        let mut builder = Listener::builder(Arc::clone(&queue)).hooks(ListenHooks {
            events: Arc::clone(&events),
            until_empty: until_empty.clone(),
        });
        if let PoisonQueue::Url(url) = self.poison()? {
            let poison = match self.create && self.poison.is_some() {
                true => queue::create(&url).await?.0,
                false => queue::open(&url).await?,
            };
            check_poison(&*queue, &*poison).await?;
            builder = builder.poison(poison);
        }
        if let Some(client) = &client {
            let mut options = config.subscription(id, &*queue);
            self.set_group(&mut options)?;
            builder = builder.wakes(client.subscribe(options)?);
            builder = builder.publisher(Arc::new(client.publisher_with(PublisherOptions {
                name: "reveille-listen".to_owned(),
                deadline: POISON_NOTIFY_DEADLINE,
                ..PublisherOptions::default()
            })));
        }
        let worker = Arc::new(Worker {
            program,
            quota: self.count.map(Quota::new),
            postpone: self.postpone,
            stop_handle,
            cut_off: AtomicBool::new(false),
            patience: self.max_handling_time / 2,
            put_back: AtomicBool::new(false),
            events: Arc::clone(&events),
        });
        let started = self.start(builder.config(config), Arc::clone(&worker));
        let listener = started
            .await
            .map_err(|error| with_advice(&*queue, &error))?;
        let console = match self.console(&listener).await {
            Ok(console) => console,
            Err(error) => {
                // The shutdown returns messages that the listener has got by now.
                worker.stop_handle.stopped.cancel();
                listener.shutdown().await;
                return Err(error.into());
            }
        };
        events.started();
        if let Some(console) = &console {
            let url = format!("http://{}/metrics", console.address());
            events.write(
                "metrics",
                format_args!("metrics at {url}"),
                json!({ "url": url }),
            );
        }
        if self.until_empty && client.is_some() {
            // Starts a first get whether or not the relay answers. Without a relay the listener
            // starts one by itself.
            listener.start_listener(1);
        }
        Ok(RunningListener {
            listener,
            worker,
            events,
            client,
            reasons,
            until_empty,
            grace: self.grace,
            _console: console,
        })
    }

    /// Applies --group and --no-group.
    fn set_group(&self, options: &mut SubscribeOptions) -> reveille::Result<()> {
        if self.no_group {
            options.group = None;
        } else if let Some(group) = &self.group {
            options.group = Some(GroupName::new(group)?);
        }
        Ok(())
    }

    async fn console(&self, listener: &Listener) -> reveille::Result<Option<ListenerConsole>> {
        let Some(listen) = self.metrics_listen else {
            return Ok(None);
        };
        let started = ListenerConsole::start(listener.monitor(), listen, &self.metrics_host);
        started.await.map(Some)
    }

    async fn start(
        &self,
        builder: ListenerBuilder,
        worker: Arc<Worker>,
    ) -> reveille::Result<Listener> {
        if self.batch {
            let handle = move |batch: Vec<Delivery>| {
                let worker = Arc::clone(&worker);
                async move { worker.handle_batch(batch).await }
            };
            return builder.start_batches(handle).await;
        }
        let handle = move |delivery: Delivery| {
            let worker = Arc::clone(&worker);
            async move { worker.handle(delivery).await }
        };
        builder.start(handle).await
    }
}

/// A started listener and the parts that run beside it.
struct RunningListener {
    listener: Listener,
    worker: Arc<Worker>,
    events: Arc<EventLog>,
    client: Option<Client>,
    reasons: tokio::sync::mpsc::Receiver<StopReason>,
    until_empty: Option<StopHandle>,
    grace: Duration,
    /// Serves the metrics until the end.
    _console: Option<ListenerConsole>,
}

/// Why the listener ends.
enum EndCause {
    Worker(StopReason),
    Emptied,
    Signal(Signal),
}

impl RunningListener {
    async fn run(mut self, interrupts: &mut Interrupts) -> anyhow::Result<Exit> {
        let cause = self.until_ended(interrupts).await;
        let worker = Arc::clone(&self.worker);
        let drained = self.drain(interrupts).await;
        if let EndCause::Worker(StopReason::Unable(reason)) = cause {
            return Err(Failed(reason).into());
        }
        let stats = match drained {
            Ok(stats) => stats,
            Err(second) => return Ok(second.exit()),
        };
        match cause {
            EndCause::Signal(Signal::Terminate) if !worker.cut_off.load(Ordering::Relaxed) => {
                Ok(Exit::OK)
            }
            EndCause::Signal(signal) => Ok(signal.exit()),
            EndCause::Emptied if worker.put_back.load(Ordering::Relaxed) => {
                let text =
                    "a message was put back by its command, or no program could be run for it";
                Err(Failed(text.to_owned()).into())
            }
            EndCause::Emptied if stats.failed > 0 => {
                let runs = output::count(stats.failed, "run");
                let text = format!("{runs} of the command failed; the message may still be there");
                Err(Failed(text).into())
            }
            EndCause::Emptied | EndCause::Worker(_) => Ok(Exit::OK),
        }
    }

    async fn until_ended(&mut self, interrupts: &mut Interrupts) -> EndCause {
        let first_mode = log_first_mode(self.client.as_ref(), &self.events);
        let emptied = wait_until_empty(&self.listener, self.until_empty.as_ref());
        tokio::pin!(first_mode, emptied);
        let mut waits = true;
        loop {
            tokio::select! {
                Some(reason) = self.reasons.recv() => return EndCause::Worker(reason),
                signal = interrupts.next() => return EndCause::Signal(signal),
                () = &mut emptied => return EndCause::Emptied,
                () = &mut first_mode, if waits => waits = false,
            }
        }
    }

    /// Ends the listener gracefully, unless a second signal arrives.
    async fn drain(self, interrupts: &mut Interrupts) -> Result<ListenerStats, Signal> {
        let (program, events) = (&self.worker.program, &self.events);
        self.worker.stop_handle.stopped.cancel();
        let running = program.running.count();
        if running > 0 {
            events.stopping(running, self.grace);
        }
        let stats = tokio::select! {
            stats = self.listener.shutdown() => Ok(stats),
            signal = interrupts.next() => Err(signal),
        };
        // No command may outlive the listener: its message goes to another listener now.
        let killed = program.running.kill();
        match &stats {
            Ok(stats) => events.ended(stats),
            Err(_) => events.killed(killed),
        }
        stats
    }
}

/// Waits until the queue was found empty and the listener is idle. Never returns without
/// --until-empty.
async fn wait_until_empty(listener: &Listener, until_empty: Option<&StopHandle>) {
    let Some(stop) = until_empty else {
        return std::future::pending().await;
    };
    while !(stop.is_emptied() && listener.state().is_idle) {
        tokio::time::sleep(EMPTY_CHECK_INTERVAL).await;
    }
}

/// Logs why a new listener polls, if the relay does not serve it within a moment.
async fn log_first_mode(client: Option<&Client>, events: &EventLog) {
    let Some(client) = client else { return };
    tokio::time::sleep(target::WARN_AFTER).await;
    if !events.is_settled() {
        let cause = target::unreachable(client).await;
        events.settle(cause.map(|error| error.to_string()));
    }
}

/// Checks that the poison queue accepts a credential that the queue accepts: a signature may be for one
/// queue. The poison queue is created when it is needed, and another error may pass by then.
async fn check_poison(queue: &dyn WorkQueue, poison: &dyn WorkQueue) -> Result<(), Error> {
    let denial = async |queue: &dyn WorkQueue| {
        let depth = tokio::time::timeout(CHECK_TIMEOUT, queue.depth()).await;
        let error = depth.ok()?.err()?;
        (error.kind() == ErrorKind::Denied).then_some(error)
    };
    match denial(poison).await {
        Some(error) if denial(queue).await.is_none() => {
            let message = format!(
                "poison {error}; name a queue that it allows with --poison, or pass --no-poison"
            );
            Err(Error::new(ErrorKind::Denied, message))
        }
        _ => Ok(()),
    }
}

/// Adds the next step for the user to the error of a queue.
fn with_advice(queue: &dyn WorkQueue, error: &Error) -> Error {
    let advice = match error.kind() {
        ErrorKind::NotFound => "--create creates it",
        ErrorKind::Denied => "check the URL's credentials and their permissions",
        _ => return error.clone(),
    };
    let message = format!("queue {}: {error}; {advice}", queue.address());
    Error::new(error.kind(), message)
}
