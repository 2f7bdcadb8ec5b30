//! `scale`: the agent of a machine, which starts workers while there is work; with `--hook` the central
//! agent, which decides how many nodes there are.
//!
//! This file has the arguments and the life of the process. `workers` runs the command, and reads the
//! signals of the machine. `hook` is the driver of the central agent.

mod hook;
mod workers;

use std::{ffi::OsString, num::NonZero, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use reveille::{
    GroupName, ListenerId, QueueAddress,
    agent::{Agent, AgentConfig, AgentQueue},
    duration,
    listener::PolicyFile,
    queue::WorkQueue,
    scaling::ScalePolicy,
};
use tokio_util::sync::CancellationToken;

use self::{hook::HookArgs, workers::CommandWorkers};
use super::{
    child,
    exit::{Exit, Usage},
    log,
    output::Format,
    queue,
    signals::{Interrupts, Signal},
    target::{IdArgs, RelayArgs, Target},
    values,
};

/// Start workers for queues that have work, and none while they have none
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille scale acct/orders -- ./drain-orders
  reveille scale acct/orders --serve --idle 5m --depth azure://acct/orders -- celery -A shop worker
  reveille scale acct/orders --policy fleet.toml --hook 'docker compose up -d --no-recreate --scale orders=$DESIRED'

A worker reads its queue until that is empty, and ends with exit code 0, or with 75 if messages are left. \
Its environment has WAKE_ACCOUNT, WAKE_QUEUE, WAKE_SELECTOR (ACCOUNT/QUEUE), WAKE_REASON and WAKE_SLOT, a \
number below --max. With --hook one process decides how many nodes the fleet has: docs/scaling.md has the rest.

Ctrl-C or SIGTERM: workers get SIGTERM, and SIGKILL after --grace. A second signal kills them at once.")]
pub(super) struct Args {
    /// The queues
    #[arg(required = true, value_name = "ACCOUNT/QUEUE")]
    queues: Vec<QueueAddress>,
    /// Most workers at one time [default: the number of CPUs]
    #[arg(long, value_name = "N", value_parser = values::positive::<usize>)]
    max: Option<usize>,
    /// Messages for which one worker is started
    #[arg(long, value_name = "N", value_parser = values::positive::<u32>, default_value_t = 1)]
    per: u32,
    /// A TOML file that maps the depth of the queue to a number of workers; needs --depth. With --hook:
    /// the rules for the number of nodes
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Workers run until they are ended
    #[arg(long)]
    serve: bool,
    /// How long a worker of --serve runs without a wake-up
    #[arg(long, value_name = "D", value_parser = values::pause, default_value = "5m")]
    idle: Duration,
    /// The queue, to read its depth: `sqlite:PATH?queue=NAME` or `azure://ACCOUNT/QUEUE`
    #[arg(long, value_name = "QUEUE_URL")]
    depth: Option<String>,
    /// How long a worker's get hides a message from others
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    /// Look into the queue after so long without a wake-up [default: never]
    #[arg(long, value_name = "D", value_parser = values::pause)]
    check: Option<Duration>,
    /// How often a worker looks while no relay reports work
    #[arg(long, value_name = "D", value_parser = values::pause, default_value = "30s")]
    poll: Duration,
    /// No room for a worker while this shell command ends with another exit code than 0
    #[arg(long, value_name = "CMD")]
    when_cmd: Option<String>,
    /// The group that shares the wake-ups
    #[arg(long, value_name = "NAME", default_value = "agents")]
    group: String,
    #[command(flatten)]
    id: IdArgs,
    /// How long a worker has from SIGTERM to SIGKILL
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    grace: Duration,
    #[command(flatten)]
    hook: HookArgs,
    #[command(flatten)]
    relay: RelayArgs,
    /// The worker's program
    #[arg(last = true, required_unless_present = "hook", value_name = "CMD")]
    command: Vec<OsString>,
}

/// What the agent does, and failures.
const LOG: &str = "error,rustls=off,rustls_platform_verifier=off,reveille::listener::agent=info,\
                   reveille::listener::policy_file=info,reveille_cli::scale=info";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.relay.resolve(None);
        log::start(LOG, target.format != Format::Table);
        let mut interrupts = Interrupts::of_service(false)?;
        let id = self.id.resolve("scale")?;
        let stop = CancellationToken::new();
        let mut run = pin!(async {
            match &self.hook.hook {
                Some(command) => hook::run(&self, command, id, &target, &stop).await,
                None => self.run_agent(id, &target, stop.clone()).await,
            }
        });
        let signal = tokio::select! {
            ended = &mut run => return ended.map(|()| Exit::OK),
            signal = interrupts.next() => signal,
        };
        stop.cancel();
        tokio::select! {
            ended = run => ended?,
            signal = interrupts.next() => return Ok(signal.exit()),
        }
        Ok(match signal {
            Signal::Terminate => Exit::OK,
            Signal::Interrupt => signal.exit(),
        })
    }

    async fn run_agent(
        &self,
        id: ListenerId,
        target: &Target,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let config = self.config()?;
        child::check_exists(&self.command)?;
        let depth: Option<Arc<dyn WorkQueue>> = match &self.depth {
            Some(url) => Some(queue::open(url).await?),
            None => None,
        };
        let queue = |address: &QueueAddress| AgentQueue {
            address: address.clone(),
            depth: depth.clone(),
        };
        let queues: Vec<_> = self.queues.iter().map(queue).collect();
        let options = config.subscription(id, GroupName::new(&self.group)?, &queues)?;
        let subscription = target.client()?.subscribe(options)?;
        let workers = CommandWorkers {
            command: self.command.clone(),
            serve: self.serve,
            grace: self.grace,
            when_cmd: self.when_cmd.clone(),
        };
        let agent = Agent::new(&config, queues, subscription, Arc::new(workers))?;
        Ok(agent.run(stop).await?)
    }

    fn config(&self) -> anyhow::Result<AgentConfig> {
        if self.policy.is_some() && self.depth.is_none() {
            return Err(Usage("--policy: needs --depth, or --hook".to_owned()).into());
        }
        if self.depth.is_some() && self.queues.len() > 1 {
            let rule = "--depth: is that of one queue; run an agent for each queue";
            return Err(Usage(rule.to_owned()).into());
        }
        let max = self
            .max
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZero::get));
        let policy = self.policy.as_ref().map(PolicyFile::open).transpose()?;
        Ok(AgentConfig {
            max,
            per: self.per,
            idle: self.serve.then_some(self.idle),
            visibility_timeout: self.visibility_timeout,
            poll: self.poll,
            check: self.check,
            policy: policy.map(|policy| Arc::new(policy) as Arc<dyn ScalePolicy>),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{Cli, Verb};

    fn parsed(arguments: &[&str]) -> Result<Args, String> {
        let typed = [&["reveille", "scale"], arguments].concat();
        let cli = Cli::try_parse_from(typed).map_err(|error| error.to_string())?;
        match cli.verb {
            Verb::Scale(args) => Ok(*args),
            _ => unreachable!("the verb was typed"),
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused_with_their_name() {
        let refusal = |arguments: &[&str]| match parsed(arguments) {
            Ok(args) => args.config().expect_err("refused").to_string(),
            Err(error) => error,
        };
        for (arguments, words) in [
            (&["a/*", "--", "true"][..], "a/*"),
            (
                &["a/q", "a/r", "--depth", "memory:", "--", "true"],
                "--depth: is that of one queue",
            ),
            (&["a/q", "--policy", "f", "--", "true"], "--depth"),
            (&["a/q"], "CMD"),
            (&["a/q", "--hook", "h"], "--policy <FILE>"),
            (
                &["a/q", "--hook", "h", "--policy", "f", "--", "true"],
                "--hook <CMD>",
            ),
            (
                &["a/q", "--hook", "h", "--policy", "f", "--max", "3"],
                "--max <N>",
            ),
        ] {
            let refused = refusal(arguments);
            assert!(refused.contains(words), "{arguments:?}: {refused}");
        }
    }
}
