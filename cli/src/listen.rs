//! `listen`: the auto-scaling listener around any program.
//!
//! This file has the arguments, the listener's configuration, and the life of the process: open, start,
//! wait for an end, drain. `worker` handles messages by running the command.

mod worker;

use std::{
    ffi::OsString,
    net::SocketAddr,
    num::NonZero,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use reveille::{
    Console, Error, GroupName, PublisherOptions, duration,
    listener::{Delivery, Listener, ListenerConfig, PolicyFile},
    queue as queues,
};

use self::worker::{EndCause, Worker};
use super::{
    child::{self, KILL_AFTER},
    exit::{Exit, Failed},
    log,
    output::{self, Format},
    queue,
    signals::{Interrupts, Signal},
    target::{IdArgs, RelayArgs, Target},
    values,
};

/// Run a command for each message of a queue
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille listen 'sqlite:jobs.db?queue=orders' --create -- ./handle-order
  reveille listen 'sqlite:jobs.db?queue=orders' --no-relay --until-empty -- sh -c 'wc -c'

The command reads the message from its standard input. The command's environment has MESSAGE_ID, \
MESSAGE_DEQUEUE_COUNT, MESSAGE_QUEUE and MESSAGE_INSERTED_AT. Its exit code decides:
  0         handled: the message is deleted
  65        rejected: it goes to the poison queue at once (EX_DATAERR)
  75        put back: it is redelivered after --postpone, and no attempt is counted (EX_TEMPFAIL)
  126, 127  no program could be run: tried again some seconds later, and no attempt is counted
  others    failed, as by a signal: it is redelivered, with a longer delay each time; after
            --max-dequeue-count attempts it goes to the poison queue

Ctrl-C or SIGTERM: the listener gets no more messages and waits for its commands (--grace). Then it \
sends them SIGTERM, and at last kills them. A second signal kills them at once. After SIGTERM the \
exit code is 0 if no command was cut off, else 143. Processes that a command leaves in its process \
group are killed at its end. After a SIGKILL of `listen` itself its commands keep running.

The command's output is passed through. The log of the listener goes to stderr, with `-o json` as JSON \
objects, one a line.")]
pub(super) struct Args {
    /// The queue: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(value_name = "QUEUE_URL")]
    url: String,
    /// Create the queue if it is missing
    #[arg(long)]
    create: bool,
    /// Number of messages that one dequeue task handles at the same time
    #[arg(long, value_name = "N", value_parser = values::positive::<usize>, default_value_t = 1)]
    concurrency: usize,
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
    /// Stop after this number of successful runs of the command
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

/// The default log level.
const LOG: &str = "error,rustls=off,rustls_platform_verifier=off,reveille::listener=info,\
                   reveille::queue::url=warn,reveille_cli::listen=info";
/// How often --until-empty checks for its end: soon for a person, cheap for a processor.
const EMPTY_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Deadline for notifying a poison queue's listeners. After it they find the message by polling.
const POISON_NOTIFY_DEADLINE: Duration = Duration::from_secs(2);
const POISON_SUFFIX: &str = "-poison";
/// With a policy file the policy decides. This cap bounds a mistake in the file.
const MAX_POLICY_TASKS: usize = 1_000;

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.relay.resolve(None);
        values::check_open("metrics-listen", self.metrics_listen, target.insecure)?;
        log::start(LOG, target.format != Format::Table);
        let mut interrupts = Interrupts::of_service(false)?;
        // The console serves the metrics until the end.
        let (listener, worker, _console) = tokio::select! {
            prepared = self.prepare(&target) => prepared?,
            signal = interrupts.next() => return Ok(signal.exit()),
        };
        let cause = tokio::select! {
            cause = worker.ended() => cause,
            signal = interrupts.next() => EndCause::Signal(signal),
            () = until_empty(&listener), if self.until_empty => EndCause::Emptied,
        };
        worker.stopped.cancel();
        tracing::info!("stopping: waiting for commands; a second signal kills them");
        let stats = tokio::select! {
            stats = listener.shutdown() => stats,
            // The end of the runtime drops the commands, which kills them.
            signal = interrupts.next() => return Ok(signal.exit()),
        };
        tracing::info!(
            handled = stats.handled,
            failed = stats.failed,
            poisoned = stats.poisoned,
            lost = stats.lost,
            gets = stats.gets,
            empty_gets = stats.empty_gets,
            "ended"
        );
        match cause {
            EndCause::Signal(Signal::Terminate) if !worker.cut_off.load(Ordering::Relaxed) => {
                Ok(Exit::OK)
            }
            EndCause::Signal(signal) => Ok(signal.exit()),
            EndCause::Unable(reason) => Err(Failed(reason).into()),
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
            EndCause::Emptied | EndCause::Counted | EndCause::Unread => Ok(Exit::OK),
        }
    }

    /// Performs every step that may fail before the first get.
    async fn prepare(
        &self,
        target: &Target,
    ) -> anyhow::Result<(Listener, Arc<Worker>, Option<Console>)> {
        let config = self.config()?;
        child::check_exists(&self.command)?;
        let id = self.id.resolve("listen")?;
        let client = (!self.no_relay).then(|| target.client()).transpose()?;
        let (queue, _) = queue::open_or_create(&self.url, self.create).await?;
        let mut builder = Listener::builder(Arc::clone(&queue));
        if let Some(url) = self.poison()? {
            let creates = self.create && self.poison.is_some();
            let (poison, _) = queue::open_or_create(&url, creates).await?;
            builder = builder.poison(poison);
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
                deadline: POISON_NOTIFY_DEADLINE,
                ..PublisherOptions::default()
            })));
        }
        let command = self.command.clone();
        let worker = Worker::new(command, self.count, self.postpone, self.max_handling_time);
        let worker = Arc::new(worker);
        let handler = Arc::clone(&worker);
        let handle = move |delivery: Delivery| {
            let worker = Arc::clone(&handler);
            async move { worker.handle(delivery).await }
        };
        let listener = builder.config(config).start(handle).await?;
        let relay = client.map(|_| &target.relay);
        tracing::info!(queue = %queue.address(), relay, "listening");
        let console = match self.metrics_listen {
            None => None,
            Some(listen) => {
                let hosts = &self.metrics_host;
                let console = listener.monitor().serve(listen, hosts).await?;
                let url = format!("http://{}/metrics", console.address());
                tracing::info!(url, "metrics are served");
                Some(console)
            }
        };
        if self.until_empty && relay.is_some() {
            // Starts a first get whether or not the relay answers. Without a relay the listener
            // starts one by itself.
            listener.start_listener(1);
        }
        Ok((listener, worker, console))
    }

    fn config(&self) -> reveille::Result<ListenerConfig> {
        let max_tasks = match (self.max_tasks, &self.policy) {
            (Some(most), _) => most,
            (None, Some(_)) => MAX_POLICY_TASKS,
            (None, None) => thread::available_parallelism().map_or(1, NonZero::get),
        };
        let mut config = ListenerConfig {
            concurrency: self.concurrency,
            // Each message costs a process, far more than its get, so a larger get would only
            // withhold messages from other machines.
            dequeue_batch_size: self.concurrency,
            max_tasks,
            visibility_timeout: self.visibility_timeout,
            max_handling_time: self.max_handling_time,
            max_dequeue_count: self.max_dequeue_count,
            grace: self.grace,
            wind_down: KILL_AFTER + Duration::from_secs(2),
            ..ListenerConfig::default()
        };
        if let Some(file) = &self.policy {
            config.policy = Arc::new(PolicyFile::open(file)?);
        }
        if let Some(poll) = self.poll {
            (config.idle.most, config.away) = (poll, poll);
        }
        Ok(config)
    }

    /// Returns the URL of the queue of messages with too many failed attempts.
    fn poison(&self) -> reveille::Result<Option<String>> {
        if self.no_poison || self.poison.is_some() {
            return Ok(self.poison.clone());
        }
        let address = queues::address(&self.url)?;
        // A poison queue has no poison queue.
        if address.queue_name().ends_with(POISON_SUFFIX) {
            return Ok(None);
        }
        let named = queues::with_suffix(&self.url, POISON_SUFFIX).map_err(|error| {
            let rule = format!(
                "the default, the queue's name with `{POISON_SUFFIX}`, breaks a rule ({error}): name the \
                 poison queue with --poison, or pass --no-poison"
            );
            Error::invalid("--poison", rule)
        });
        named.map(Some)
    }
}

/// Waits until the queue was found empty and the listener is idle.
async fn until_empty(listener: &Listener) {
    loop {
        let state = listener.state();
        if state.is_idle && state.stats.empty_gets > 0 {
            return;
        }
        tokio::time::sleep(EMPTY_CHECK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use reveille::scaling::Load;

    use super::*;
    use crate::{Cli, Verb};

    fn args(typed: &[&str]) -> Args {
        let typed = ["reveille", "listen"].iter().chain(typed);
        let cli = Cli::try_parse_from(typed.chain(&["--", "true"])).expect("parsed");
        let Verb::Listen(args) = cli.verb else {
            panic!("another verb")
        };
        args
    }

    #[test]
    fn a_get_takes_what_is_handled_at_once() {
        for (typed, expected) in [
            (&["memory:q"][..], 1),
            (&["memory:q", "--concurrency", "8"], 8),
        ] {
            let config = args(typed).config().expect("sound");
            let sizes = (config.dequeue_batch_size, config.concurrency);
            assert_eq!(sizes, (expected, expected), "{typed:?}");
        }
    }

    #[test]
    fn a_policy_decides_alone_unless_there_is_a_cap() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("policy.toml");
        std::fs::write(&file, "policy = \"steps\"\nsteps = []\nmost = 7").expect("written");
        let file = file.to_str().expect("a plain path");
        let config = args(&["memory:q", "--policy", file])
            .config()
            .expect("sound");
        assert_eq!(config.policy.tasks(&Load::default()), 7);
        assert!(config.max_tasks > 7);
        let capped = args(&["memory:q", "--policy", file, "--max-tasks", "2"]).config();
        assert_eq!(capped.expect("sound").max_tasks, 2);
    }

    #[test]
    fn the_poison_queue_stands_beside_its_queue_unless_it_is_one() {
        let queue = |url: &str| Some(url.to_owned());
        for (typed, poison) in [
            (&["memory:q"][..], queue("memory:q-poison")),
            (&["memory:q", "--poison", "memory:bad"], queue("memory:bad")),
            (&["memory:q", "--no-poison"], None),
            (&["memory:q-poison"], None),
        ] {
            assert_eq!(args(typed).poison().expect("a queue"), poison, "{typed:?}");
        }
    }
}
