//! `subscribe`: prints wake-ups, or runs a command on each.

mod runner;
mod wake;

use std::{ffi::OsString, time::Duration};

use reveille::{
    Client, ConnectionState, GroupName, Limits, LinkState, ListenerId, Report, ReportState,
    Selector, SubscribeOptions, Subscription, Wakes as _, WorkDetected, duration,
};
use tokio::sync::watch;

use self::{
    runner::{Finished, Program, Runner},
    wake::WakeRow,
};
use super::{
    exit::Exit,
    log, output,
    settings::Settings,
    signals::{self, Interrupts},
    target::{self, Target, WaitingArgs},
    usage,
};

/// Print wake-ups, or run a command on each
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille subscribe acct/orders
  reveille subscribe 'acct/*' --count 1 -o jsonl
  reveille subscribe acct/orders --exec './drain-queue \"$WAKE_QUEUE\"'
  reveille subscribe acct/orders -- ./drain-orders --all

Any wake-up means: read the queue until it is empty. The first one of a queue asks to look once \
(CATCH_UP): what came before is not known. --exec by `sh -c`, or CMD as it is, runs one command at a \
time with WAKE_ACCOUNT, WAKE_QUEUE, WAKE_REASON, WAKE_SEQUENCE, WAKE_NOTIFICATIONS, WAKE_MESSAGES \
and WAKE_PAYLOAD_SIZE; WAKE_SELECTOR is both parts of the queue's name. A CATCH_UP of a pattern has \
the pattern in WAKE_SELECTOR and no WAKE_ACCOUNT and WAKE_QUEUE: read all queues that match it. \
Wake-ups of a queue that come meanwhile are one run after it. A command that fails is told on stderr \
and ends nothing.")]
pub(super) struct Args {
    /// The queues; either part may end in one `*`
    #[arg(required = true, value_name = "ACCOUNT/QUEUE")]
    selectors: Vec<Selector>,
    /// Who listens [default: cli- and random characters]
    #[arg(
        long,
        alias = "listener-id",
        env = "REVEILLE_LISTENER_ID",
        value_name = "NAME"
    )]
    id: Option<String>,
    /// End after so many wake-ups
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = usage::positive::<u64>)]
    count: Option<u64>,
    /// Run this on each wake-up, by `sh -c`
    #[arg(long, value_name = "CMD", conflicts_with = "command")]
    exec: Option<String>,
    /// Share wake-ups with the other members of this group, instead of being told of every one
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Messages that are taken on at once
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = usage::positive::<u32>,
        default_value_t = 1
    )]
    capacity: u32,
    /// For how long the queue hides a message that was got
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    /// Silence after which the relay gives a sign of life, 1s to 60s
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = heartbeat, default_value = "10s")]
    heartbeat: Duration,
    #[command(flatten)]
    target: WaitingArgs,
    /// What to run on each wake-up
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A subscription and what is done with it.
struct Listening<'a> {
    target: &'a Target,
    subscription: Subscription,
    link: watch::Receiver<LinkState>,
    runner: Option<Runner>,
    /// Reports that could not be sent. R8: they are repeated after the next Welcome, because a
    /// woken listener counts as busy until it reports DRAINED.
    unsent: Vec<Report>,
    left: Option<u64>,
}

impl Args {
    pub(super) async fn run(self, settings: &Settings) -> anyhow::Result<Exit> {
        log::to_stderr(log::CLIENT_LOG);
        let target = self.target.resolve(settings);
        let options = self.options()?;
        let client = target.client()?;
        let subscription = client.subscribe(options)?;
        let mut listening = Listening {
            target: &target,
            link: subscription.link(),
            subscription,
            runner: self.program().map(Runner::new),
            unsent: Vec::new(),
            left: self.count,
        };
        let mut interrupts = Interrupts::listen()?;
        let timeout = tokio::time::sleep(target.timeout.unwrap_or(Duration::MAX));
        let exit = tokio::select! {
            outcome = listening.listen(&client) => return outcome,
            () = timeout => {
                output::note(target.timed_out_waiting());
                Exit::TIMED_OUT
            }
            signal = interrupts.next() => {
                listening.forward(signal);
                signal.exit()
            }
        };
        // A command that runs comes to its end; a second signal does not wait for it.
        tokio::select! {
            () = listening.finish() => Ok(exit),
            signal = interrupts.next() => Ok(signal.exit()),
        }
    }

    fn program(&self) -> Option<Program> {
        let direct = (!self.command.is_empty()).then(|| Program::Direct(self.command.clone()));
        direct.or_else(|| self.exec.clone().map(Program::Shell))
    }

    fn options(&self) -> reveille::Result<SubscribeOptions> {
        let listener_id = match &self.id {
            Some(id) => ListenerId::new(id)?,
            None => ListenerId::unique("cli")?,
        };
        let options = SubscribeOptions {
            group: self.group.as_deref().map(GroupName::new).transpose()?,
            capacity: self.capacity,
            visibility_timeout: self.visibility_timeout,
            heartbeat: self.heartbeat,
            ..SubscribeOptions::new(listener_id, self.selectors.iter().cloned())
        };
        options.check()?;
        Ok(options)
    }
}

impl Listening<'_> {
    /// Listens until the count is reached.
    async fn listen(&mut self, client: &Client) -> anyhow::Result<Exit> {
        let impatience = target::impatience(client);
        tokio::pin!(impatience);
        let mut impatient = true;
        while !self.is_done() {
            tokio::select! {
                biased;
                Ok(()) = self.link.changed() => {
                    impatient = false;
                    self.tell_link().await;
                }
                finished = runner::finished(&mut self.runner) => self.after(finished).await?,
                work = self.subscription.next(), if self.left != Some(0) => match work {
                    Some(work) => self.take(&work?).await?,
                    None => return Ok(Exit::FAILURE),
                },
                () = &mut impatience, if impatient => impatient = false,
            }
        }
        Ok(Exit::OK)
    }

    fn is_done(&self) -> bool {
        let idle = self.runner.as_ref().is_none_or(Runner::is_idle);
        self.left == Some(0) && idle
    }

    async fn take(&mut self, work: &WorkDetected) -> anyhow::Result<()> {
        // The stream may have opened and brought this in one go: tell it in that order.
        if self.link.has_changed().unwrap_or_default() {
            self.tell_link().await;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        let row = WakeRow::from(work);
        self.target.format.next(&row, row.line())?;
        if let Some(runner) = &mut self.runner {
            runner.offer(work);
            self.start().await?;
        }
        Ok(())
    }

    /// Runs what waits, where nothing runs.
    async fn start(&mut self) -> anyhow::Result<()> {
        let Some(runner) = &mut self.runner else {
            return Ok(());
        };
        if let Some(work) = runner.start()? {
            let report = report(work, ReportState::Busy);
            self.report(report).await;
        }
        Ok(())
    }

    async fn after(&mut self, finished: Finished) -> anyhow::Result<()> {
        let Finished { work, status } = finished;
        if status.success() {
            self.report(report(&work, ReportState::Drained)).await;
        } else {
            output::note(format_args!("{}: the command failed: {status}", work.queue));
        }
        self.start().await
    }

    /// Sends a report; one that cannot be sent now is repeated when the stream is back.
    async fn report(&mut self, report: Option<Report>) {
        let Some(report) = report else { return };
        self.unsent.retain(|unsent| unsent.queue != report.queue);
        if let Err(error) = self.subscription.report(report.clone()).await {
            tracing::debug!(%error, queue = %report.queue, "not reported");
            self.unsent.push(report);
        }
    }

    async fn tell_link(&mut self) {
        let state = self.link.borrow_and_update().connection;
        let relay = &self.target.relay;
        match state {
            ConnectionState::Connected => {
                let epoch = self.subscription.welcome().map(|welcome| &*welcome.epoch);
                let epoch = epoch.unwrap_or("unknown");
                output::note(format_args!("connected to {relay}, epoch {epoch}"));
                let mut reports = std::mem::take(&mut self.unsent);
                let running = self.runner.as_ref().and_then(Runner::running);
                reports.extend(running.and_then(|work| report(work, ReportState::Busy)));
                for again in reports {
                    self.report(Some(again)).await;
                }
            }
            ConnectionState::Reconnecting => {
                output::note(format_args!("disconnected from {relay}; reconnecting"));
            }
            ConnectionState::Closed => {}
        }
    }

    fn forward(&self, signal: signals::Signal) {
        if let Some(runner) = &self.runner {
            runner.forward(signal);
        }
    }

    /// Waits for the command that runs, and reports what came of it.
    async fn finish(&mut self) {
        let running = self
            .runner
            .as_ref()
            .is_some_and(|runner| runner.running().is_some());
        if running {
            let Finished { work, status } = runner::finished(&mut self.runner).await;
            if status.success() {
                self.report(report(&work, ReportState::Drained)).await;
            }
        }
    }
}

/// Reads a heartbeat that a relay keeps as it is.
fn heartbeat(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    let limits = Limits::HEARTBEAT_MIN..=Limits::HEARTBEAT_MAX;
    limits
        .contains(&span)
        .then_some(span)
        .ok_or_else(|| "must be 1s to 60s".to_owned())
}

/// Makes the report on a queue; a pattern's own look is about none.
fn report(work: &WorkDetected, state: ReportState) -> Option<Report> {
    Some(Report {
        state,
        sequence: work.sequence,
        ..Report::new(work.queue.as_address()?)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use reveille::ErrorKind;

    use crate::cli::{Cli, Verb};

    #[test]
    fn a_heartbeat_and_a_capacity_are_what_a_relay_takes() {
        for (flag, value, rule) in [
            ("--heartbeat", "500ms", "must be 1s to 60s"),
            ("--heartbeat", "2m", "must be 1s to 60s"),
            ("--capacity", "0", "1 or more"),
        ] {
            let typed = ["reveille", "subscribe", "acct/orders", flag, value];
            let error = Cli::try_parse_from(typed).expect_err(value).to_string();
            assert!(error.contains(rule) && error.contains(flag), "{error}");
        }
    }

    #[test]
    fn a_group_is_joined_by_its_name_and_a_bad_one_is_refused_by_the_rule() {
        let options = |group| {
            let typed = ["reveille", "subscribe", "acct/orders", "--group", group];
            let cli = Cli::try_parse_from(typed).expect("parsed");
            let Verb::Subscribe(args) = cli.verb else {
                panic!("another verb")
            };
            args.options()
        };
        let group = options("workers").expect("a good name").group;
        assert_eq!(group.expect("stated").as_str(), "workers");
        for bad in ["a/b", ""] {
            let error = options(bad).expect_err("a bad name");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error.message().starts_with("group: must be 1 to 128"),
                "{error}"
            );
        }
    }
}
