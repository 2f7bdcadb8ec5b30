//! `listen`: the auto-scaling listener around any program.
//!
//! This file has what is typed and the life of the process: open, start, wait for an end, drain.
//! `plan` makes the listener's configuration of what was typed, `worker` handles messages by running
//! the command, `command` sees one run through, `voice` tells what happens.

mod command;
mod input;
mod plan;
mod voice;
mod worker;

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use reveille::{
    Client, Error, ErrorKind, GroupName, ListenerConsole, ListenerId, PublisherOptions, duration,
    listener::{Delivery, Listener, ListenerBuilder, ListenerMode},
    queue::WorkQueue,
};

use self::{
    command::Program,
    plan::Poison,
    voice::{Ears, Event, Voice},
    worker::{End, Ending, Worker},
};
use super::{
    exit::{Exit, Failed},
    log,
    output::{self, Format},
    queue,
    serve::{self, LogFormat},
    settings::Settings,
    signals::{Interrupts, Signal},
    target::{self, RelayArgs, Target},
    usage,
};

/// Run a command for each message of a queue
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille listen 'sqlite:jobs.db?queue=orders' --create -- ./handle-order
  reveille listen 'sqlite:jobs.db?queue=orders' --batch -- ./import-lines
  reveille listen 'sqlite:jobs.db?queue=orders' --no-relay --until-empty -- sh -c 'wc -c'

The message is the command's standard input. Exit code 0 deletes it; any other, or an end by a \
signal, has it handed out again, later each time, and after --max-dequeue-count tries it goes to the \
poison queue. The command's environment has MESSAGE_ID, MESSAGE_DEQUEUE_COUNT, MESSAGE_QUEUE and \
MESSAGE_INSERTED_AT. With --batch there is one run for all messages of a get, with MESSAGE_QUEUE and \
MESSAGE_COUNT and one JSON object a line, as `queue get -o jsonl` prints them: message_id, body (null \
where it is not UTF-8), body_base64, bytes, dequeue_count and inserted_at; its exit code is that of all of them. A message's last try is a run of its \
own.

The listeners of a queue share its wake-ups: as many are woken as there are messages for. With \
--no-group each of them is woken for every notification, with --group those of that group share.

While the relay tells of work (`put --notify`, `notify`), an idle listener makes no call to the \
queue; while it cannot, the queue is looked at now and then. A second message is handled beside the \
first as there is more work, up to --max-tasks times --concurrency commands at a time.

Ctrl-C or SIGTERM: nothing more is got, the commands that run are waited for (--grace), then told by \
SIGTERM and at last killed; a second signal kills them at once. After SIGTERM the exit code is 0 \
where no command was cut off, else 143. After a SIGKILL the commands that run are ended all the same, \
by a process that `listen` has beside it: by SIGTERM, and 5s later by SIGKILL; their messages are \
handed out again after the visibility time-out. What a command has moved to another process group goes \
on.

The command's output is passed through; what is told of the listener goes to stderr, with `-o json` \
as JSON objects, one a line.")]
pub(super) struct Args {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    /// Make the queue where it is missing
    #[arg(long)]
    create: bool,
    /// Run the command once for all messages of a get
    #[arg(long, conflicts_with = "concurrency")]
    batch: bool,
    /// Messages of one get [default: as --concurrency; 16 with --batch]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<usize>)]
    dequeue_batch_size: Option<usize>,
    /// Messages of one dequeue task that are handled at the same time [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<usize>)]
    concurrency: Option<usize>,
    /// Dequeue tasks at most [default: the number of CPUs; with --policy as many as that says]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<usize>)]
    max_tasks: Option<usize>,
    /// A TOML file that says how many dequeue tasks a depth needs; read again when it changes
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// For how long a message is hidden; renewed while its command runs, so it need not cover that
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    /// Tries after which a message goes to the poison queue
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<u32>, default_value_t = 5)]
    max_dequeue_count: u32,
    /// The poison queue [default: the same URL with `-poison` after the queue's name]
    #[arg(long, value_name = "QUEUE_URL", conflicts_with = "no_poison")]
    poison: Option<String>,
    /// Have no poison queue: hand messages out again for ever, less and less often
    #[arg(long)]
    no_poison: bool,
    /// A command that takes longer is ended, and has failed
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse, default_value = "1h")]
    max_handling_time: Duration,
    /// The longest pause between two looks where no relay tells of work [default: 1s without a
    /// relay, 30s while it is away]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = usage::pause)]
    poll: Option<Duration>,
    /// End after so many messages were handled
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<u64>)]
    count: Option<u64>,
    /// End when the queue was read until it was empty: with 1 where a command has failed, as its
    /// message may still be there
    #[arg(long)]
    until_empty: bool,
    /// How long an end waits for the commands that run
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse, default_value = "30s")]
    grace: Duration,
    /// Who listens [default: listen- and random characters]
    #[arg(
        long,
        alias = "listener-id",
        env = "REVEILLE_LISTENER_ID",
        value_name = "NAME"
    )]
    id: Option<String>,
    /// Share wake-ups with the listeners of this group [default: a name of the queue's own]
    #[arg(long, value_name = "NAME", conflicts_with = "no_group")]
    group: Option<String>,
    /// Share no wake-ups: this listener is woken for every notification, whatever others do
    #[arg(long)]
    no_group: bool,
    /// Look by itself, and ask no relay
    #[arg(long)]
    no_relay: bool,
    /// Serve /metrics, /livez and /readyz of this listener there: HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// Names, comma-separated, by which that port may be asked, beside IP addresses and localhost
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = serve::host_name, requires = "metrics_listen")]
    metrics_host: Vec<String>,
    #[command(flatten)]
    relay: RelayArgs,
    /// What to run
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What the library logs of a listener by default: what its hooks do not hear.
const LOG: &str = "error,reveille::listener::policy_file=info,reveille::queue::url=warn";
/// How soon --until-empty sees that all is done: soon for a person, seldom for a processor.
const GLANCE: Duration = Duration::from_millis(10);
/// A poison queue's listeners are told within this, or hear of it otherwise.
const TELL_POISON: Duration = Duration::from_secs(2);

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        let target = self.relay.resolve(settings, None);
        let log = match target.format {
            Format::Table => LogFormat::Text,
            Format::Json | Format::Jsonl => LogFormat::Json,
        };
        log::start(LOG, log);
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            outcome = self.prepare(&target) => outcome?.run(&mut interrupts).await,
            signal = interrupts.next() => Ok(signal.exit()),
        }
    }

    /// Does all that may fail before the first message is got.
    async fn prepare(&self, target: &Target) -> anyhow::Result<Listening> {
        let config = self.config()?;
        let program = Program::find(&self.command)?.guarded();
        let id = match &self.id {
            Some(id) => ListenerId::new(id)?,
            None => ListenerId::unique("listen")?,
        };
        let client = (!self.no_relay).then(|| target.client()).transpose()?;
        let queue = queue::open(&self.url).await?;
        if self.create {
            queue.create().await?;
        }
        let relay = client.as_ref().map(|_| target.relay.clone());
        let voice = Arc::new(Voice::new(target.format, queue.address(), relay));
        let (ending, ends) = Ending::new();
        let until_empty = self.until_empty.then(|| ending.clone());
        let mut builder = Listener::builder(Arc::clone(&queue)).hooks(Ears {
            voice: Arc::clone(&voice),
            until_empty: until_empty.clone(),
        });
        if let Poison::Queue(url) = self.poison()? {
            builder = builder.poison(queue::open(&url).await?);
        }
        if let Some(client) = &client {
            let mut options = config.subscription(id, &*queue);
            if self.no_group {
                options.group = None;
            } else if let Some(group) = &self.group {
                options.group = Some(GroupName::new(group)?);
            }
            builder = builder.wakes(client.subscribe(options)?);
            builder = builder.publisher(Arc::new(client.publisher_with(PublisherOptions {
                name: "reveille-listen".to_owned(),
                deadline: TELL_POISON,
                ..PublisherOptions::default()
            })));
        }
        let worker = Worker::new(program, self.count, ending, Arc::clone(&voice));
        let worker = Arc::new(worker);
        let started = self.start(builder.config(config), Arc::clone(&worker));
        let listener = started.await.map_err(|error| advise(&*queue, &error))?;
        let console = match self.console(&listener).await {
            Ok(console) => console,
            Err(error) => {
                // What it has got by now is given back.
                worker.stop();
                listener.shutdown().await;
                return Err(error.into());
            }
        };
        voice.started();
        if let Some(console) = &console {
            voice.tell(&Event::Metrics {
                url: format!("http://{}/metrics", console.address()),
            });
        }
        if self.until_empty && client.is_some() {
            // Looks at once, whether or not the relay answers; without one it does so anyway.
            listener.start_listener(1);
        }
        Ok(Listening {
            listener,
            worker,
            voice,
            client,
            ends,
            until_empty,
            grace: self.grace,
            _console: console,
        })
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

/// A listener at work.
struct Listening {
    listener: Listener,
    worker: Arc<Worker>,
    voice: Arc<Voice>,
    client: Option<Client>,
    ends: tokio::sync::mpsc::Receiver<End>,
    until_empty: Option<Ending>,
    grace: Duration,
    /// Serves the metrics until the end.
    _console: Option<ListenerConsole>,
}

/// It has ended gracefully.
struct Drained {
    /// A command was ended before it had come to its end.
    cut_off: bool,
    /// How many runs have failed.
    failed: u64,
}

/// Why it ends.
enum Cause {
    Own(End),
    Emptied,
    Signal(Signal),
}

impl Listening {
    async fn run(mut self, interrupts: &mut Interrupts) -> anyhow::Result<Exit> {
        let cause = self.until_ended(interrupts).await;
        let drained = self.drain(interrupts).await;
        match (cause, drained) {
            (Cause::Own(End::Unable(reason)), _) => Err(Failed(reason).into()),
            (_, Err(second)) => Ok(second.exit()),
            (Cause::Signal(Signal::Terminate), Ok(Drained { cut_off: false, .. })) => Ok(Exit::OK),
            (Cause::Signal(signal), _) => Ok(signal.exit()),
            (Cause::Emptied, Ok(Drained { failed, .. })) if failed > 0 => {
                let runs = output::count(failed, "run");
                Err(Failed(format!(
                    "{runs} of the command failed; the message may still be there"
                ))
                .into())
            }
            (Cause::Own(End::Counted) | Cause::Emptied, _) => Ok(Exit::OK),
        }
    }

    async fn until_ended(&mut self, interrupts: &mut Interrupts) -> Cause {
        let unheard = unheard(self.client.as_ref(), &self.voice);
        let emptied = emptied(&self.listener, self.until_empty.as_ref());
        tokio::pin!(unheard, emptied);
        let mut waits = true;
        loop {
            tokio::select! {
                Some(end) = self.ends.recv() => return Cause::Own(end),
                signal = interrupts.next() => return Cause::Signal(signal),
                () = &mut emptied => return Cause::Emptied,
                () = &mut unheard, if waits => waits = false,
            }
        }
    }

    /// Ends the listener gracefully, unless a signal wants it at once.
    async fn drain(self, interrupts: &mut Interrupts) -> Result<Drained, Signal> {
        let (worker, voice) = (self.worker, self.voice);
        worker.stop();
        let running = worker.running();
        if running > 0 {
            let grace_ms = output::millis(self.grace);
            voice.tell(&Event::Stopping { running, grace_ms });
        }
        let stats = tokio::select! {
            stats = self.listener.shutdown() => Ok(stats),
            signal = interrupts.next() => Err(signal),
        };
        // None is left behind: its message is somebody else's from now on.
        let killed = worker.kill();
        let failed = match stats {
            Ok(stats) => {
                voice.tell(&Event::ended(&stats));
                stats.failed
            }
            Err(signal) => {
                voice.tell(&Event::Killed { killed });
                return Err(signal);
            }
        };
        let cut_off = worker.has_cut_off();
        Ok(Drained { cut_off, failed })
    }
}

/// Waits until the queue was found empty and nobody holds one of its messages; for ever where that
/// is no end.
async fn emptied(listener: &Listener, until_empty: Option<&Ending>) {
    let Some(ending) = until_empty else {
        return std::future::pending().await;
    };
    while !(ending.is_emptied() && listener.state().is_idle) {
        tokio::time::sleep(GLANCE).await;
    }
}

/// Tells once that the relay does not answer, where it has not been heard after a while.
async fn unheard(client: Option<&Client>, voice: &Voice) {
    let Some(client) = client else { return };
    tokio::time::sleep(target::PATIENCE).await;
    if voice.has_told_mode() {
        return;
    }
    if let Some(error) = target::unreachable(client).await {
        voice.mode(ListenerMode::Polling, Some(&error));
    }
}

/// Adds what to do next to the error of a queue that cannot be listened to.
fn advise(queue: &dyn WorkQueue, error: &Error) -> Error {
    let advice = match error.kind() {
        ErrorKind::NotFound => "--create makes it",
        ErrorKind::Denied => "check the URL's credentials, and what they may do",
        _ => return error.clone(),
    };
    let message = format!("queue {}: {error}; {advice}", queue.address());
    Error::new(error.kind(), message)
}
