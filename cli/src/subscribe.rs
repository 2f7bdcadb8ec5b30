//! `subscribe`: prints wake-ups, or runs a command on each.

mod runner;

use std::{ffi::OsString, time::Duration};

use reveille::{
    Client, ConnectionState, GroupName, LastEvent, LinkState, Report, ReportState, Selector,
    SubscribeOptions, Subscription, WakeReason, WakeStream as _, WorkDetected, duration,
};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use self::runner::{Finished, Runner};
use super::{
    exit::Exit,
    log,
    output::{self, Format},
    signals::{Interrupts, Signal},
    target::{self, IdArgs, Target, WaitingArgs},
    values,
};

/// Print wake-ups, or run a command on each
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille subscribe acct/orders
  reveille subscribe acct/orders -- ./drain-orders --all
  reveille subscribe 'acct/*' -- sh -c './drain-queue \"$WAKE_QUEUE\"'

Any wake-up means: read the queue until it is empty. The first wake-up of a queue is a CATCH_UP: \
there may be work from before the subscription.

One command runs at a time. Wake-ups of a queue during a run are merged into one later run. A failing \
command runs again after 5s. After --count wake-ups it does not, and the exit code is 1.

The command's environment has WAKE_ACCOUNT, WAKE_QUEUE, WAKE_REASON, WAKE_SEQUENCE, \
WAKE_NOTIFICATIONS, WAKE_MESSAGES and WAKE_PAYLOAD_SIZE. WAKE_SELECTOR is ACCOUNT/QUEUE. For a \
CATCH_UP of a pattern, WAKE_SELECTOR is the pattern, and WAKE_ACCOUNT and WAKE_QUEUE are empty: read \
all queues that match it.")]
pub(super) struct Args {
    /// The queues; each part may end in one `*`
    #[arg(required = true, value_name = "ACCOUNT/QUEUE")]
    selectors: Vec<Selector>,
    #[command(flatten)]
    id: IdArgs,
    /// End after this number of wake-ups
    #[arg(long, value_name = "N", value_parser = values::positive::<u64>)]
    count: Option<u64>,
    /// How often the command runs while no relay reports work; 0: not at all
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s", requires = "command")]
    poll: Duration,
    /// Share wake-ups with the other members of this group, instead of getting every wake-up
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// How long a get from the queue hides a message from others
    #[arg(long, value_name = "D", value_parser = duration::parse, default_value = "30s")]
    visibility_timeout: Duration,
    #[command(flatten)]
    target: WaitingArgs,
    /// The program to run on each wake-up
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A subscription and the commands that its wake-ups run.
struct WakeLoop<'a> {
    target: &'a Target,
    client: &'a Client,
    subscription: Subscription,
    link: watch::Receiver<LinkState>,
    /// The number of the newest stream.
    stream: u64,
    is_connected: bool,
    runner: Runner,
    poller: Poller,
    /// Reports that could not be sent. R8: they are repeated after the next Welcome, because a
    /// woken listener counts as busy until it reports DRAINED.
    unsent: Vec<Report>,
    left: Option<u64>,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        log::to_stderr(log::CLIENT_LOG);
        let target = self.target.resolve();
        let options = self.options()?;
        let runs = !self.command.is_empty();
        let poll = (runs && !self.poll.is_zero()).then_some(self.poll);
        let client = target.client()?;
        let subscription = client.subscribe(options)?;
        let mut wake_loop = WakeLoop {
            target: &target,
            client: &client,
            link: subscription.link(),
            is_connected: false,
            stream: 0,
            subscription,
            runner: Runner::new(self.command.clone()),
            poller: Poller {
                selectors: self.selectors.clone(),
                interval: poll,
                next: poll.map(|_| Instant::now() + target::WARN_AFTER),
            },
            unsent: Vec::new(),
            left: self.count,
        };
        let mut interrupts = Interrupts::listen()?;
        let link = wake_loop.link.clone();
        let timeout = tokio::time::sleep(target.timeout.unwrap_or(Duration::MAX));
        let ended = tokio::select! {
            outcome = target::noting_causes(&client, link, wake_loop.run()) => outcome,
            () = timeout => {
                output::note(target.timed_out_waiting(&wake_loop.link.borrow()));
                Ok(Exit::TIMED_OUT)
            }
            signal = interrupts.next() => {
                wake_loop.runner.forward(signal);
                Ok(signal.exit())
            }
        };
        if ended.is_err() {
            wake_loop.runner.forward(Signal::Terminate);
        }
        // Waits for a running command; a second signal ends this wait.
        tokio::select! {
            () = wake_loop.finish() => ended,
            signal = interrupts.next() => Ok(signal.exit()),
        }
    }

    fn options(&self) -> reveille::Result<SubscribeOptions> {
        let listener_id = self.id.resolve("subscribe")?;
        let options = SubscribeOptions {
            group: self.group.as_deref().map(GroupName::new).transpose()?,
            visibility_timeout: self.visibility_timeout,
            ..SubscribeOptions::new(listener_id, self.selectors.iter().cloned())
        };
        options.check()?;
        Ok(options)
    }
}

impl WakeLoop<'_> {
    /// Handles wake-ups until the count is reached.
    async fn run(&mut self) -> anyhow::Result<Exit> {
        while !self.is_done() {
            let due = self.next_run();
            let due = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Ok(()) = self.link.changed() => self.on_link_change().await,
                finished = self.runner.finished() => self.on_finished(finished).await?,
                work = self.subscription.next(), if self.left != Some(0) => match work {
                    Some(work) => self.on_wake_up(&work?).await?,
                    None => return Ok(Exit::FAILURE),
                },
                () = due => self.on_due().await?,
            }
        }
        // A count leaves no time for the run after one that failed.
        Ok(if self.runner.has_failed() {
            Exit::FAILURE
        } else {
            Exit::OK
        })
    }

    /// Returns when a run is due without a wake-up: of a command that failed, or because the relay is
    /// away.
    fn next_run(&self) -> Option<Instant> {
        let retry = self.runner.retry_at();
        let next = retry.into_iter().chain(self.poller.next).min();
        next.filter(|_| self.left != Some(0))
    }

    async fn on_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        self.runner.enqueue_retries(now);
        for work in self.poller.take(now) {
            self.runner.enqueue_poll(work);
        }
        self.start().await
    }

    fn is_done(&self) -> bool {
        self.left == Some(0) && self.runner.is_idle()
    }

    async fn on_wake_up(&mut self, work: &WorkDetected) -> anyhow::Result<()> {
        // The stream may have opened and delivered this wake-up at once: print the state first.
        if self.link.has_changed().unwrap_or_default() {
            self.on_link_change().await;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        print(work, self.target.format)?;
        self.runner.enqueue(work);
        self.start().await
    }

    /// Starts the next waiting command, if none runs.
    async fn start(&mut self) -> anyhow::Result<()> {
        if let Some(work) = self.runner.start()? {
            let report = report(work, ReportState::Busy);
            self.report(report).await;
        }
        Ok(())
    }

    async fn on_finished(&mut self, finished: Finished) -> anyhow::Result<()> {
        let Finished { work, status } = finished;
        if status.success() {
            self.report(report(&work, ReportState::Drained)).await;
        } else {
            output::note(format_args!("{}: the command failed: {status}", work.queue));
            self.runner.failed(work);
        }
        self.start().await
    }

    /// Sends a report. A report that cannot be sent now is repeated on the next stream.
    async fn report(&mut self, report: Option<Report>) {
        let Some(report) = report else { return };
        self.unsent.retain(|unsent| unsent.queue != report.queue);
        if let Err(error) = self.subscription.report(report.clone()).await {
            tracing::debug!(%error, queue = %report.queue, "not reported");
            self.unsent.push(report);
        }
    }

    async fn on_link_change(&mut self) {
        let link = self.link.borrow_and_update().clone();
        self.poller.follow(&link);
        let relay = self.client.url();
        if link.connection == ConnectionState::Reconnecting
            && std::mem::take(&mut self.is_connected)
        {
            let cause = link.cause.as_deref().unwrap_or("the stream has ended");
            output::note(format_args!(
                "disconnected from {relay}: {cause}; reconnecting"
            ));
        }
        if link.connection != ConnectionState::Connected || link.welcomes == self.stream {
            return;
        }
        self.stream = link.welcomes;
        self.is_connected = true;
        let epoch = &link.epoch;
        output::note(format_args!("connected to {relay}, epoch {epoch}"));
        let mut reports = std::mem::take(&mut self.unsent);
        let running = self.runner.running();
        reports.extend(running.and_then(|work| report(work, ReportState::Busy)));
        for report in reports {
            self.report(Some(report)).await;
        }
    }

    /// Waits for the running command, and reports its success.
    async fn finish(&mut self) {
        if self.runner.running().is_some() {
            let Finished { work, status } = self.runner.finished().await;
            if status.success() {
                self.report(report(&work, ReportState::Drained)).await;
            }
        }
    }
}

/// Prints a wake-up.
fn print(work: &WorkDetected, format: Format) -> std::io::Result<()> {
    let event = &work.last_event;
    let mut line = format!(
        "{} {} sequence={} notifications={} messages={} payload_size={}",
        work.queue,
        work.reason.as_str(),
        work.sequence,
        work.notifications,
        work.messages,
        work.payload_size
    );
    if !event.publisher.is_empty() {
        line.push_str(&format!(" publisher={}", event.publisher));
    }
    let row = json!({
        "queue": work.queue.to_string(),
        "reason": work.reason.as_str(),
        "sequence": work.sequence,
        "notifications": work.notifications,
        "payload_size": work.payload_size,
        "messages": work.messages,
        "publisher": &*event.publisher,
        "published_at": event.published_at.map(output::time),
        "traceparent": &*event.traceparent,
    });
    format.next(&row, line)
}

/// Runs of the command while no relay reports work.
struct Poller {
    selectors: Vec<Selector>,
    /// `None`: none.
    interval: Option<Duration>,
    next: Option<Instant>,
}

impl Poller {
    fn follow(&mut self, link: &LinkState) {
        let Some(interval) = self.interval else {
            return;
        };
        if link.is_pushed() || link.announced {
            self.next = None;
        } else if self.next.is_none() {
            // Subscribers of one relay lose it at the same time.
            self.next = Some(Instant::now() + interval.mul_f64(fastrand::f64()));
        }
    }

    /// Returns what to run for, if that is due.
    fn take(&mut self, now: Instant) -> Vec<WorkDetected> {
        let Some(interval) = self
            .interval
            .filter(|_| self.next.is_some_and(|at| at <= now))
        else {
            return Vec::new();
        };
        self.next = Some(now + interval);
        self.selectors.iter().map(catch_up).collect()
    }
}

/// Returns the wake-up of a poll: read the queue once.
fn catch_up(selector: &Selector) -> WorkDetected {
    WorkDetected {
        queue: selector.clone(),
        reason: WakeReason::CatchUp,
        sequence: 0,
        notifications: 0,
        payload_size: 0,
        messages: 0,
        last_event: LastEvent::default(),
    }
}

/// Returns the report on a queue; `None` for the catch-up of a pattern.
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

    use crate::{Cli, Verb};

    #[test]
    fn a_group_is_joined_by_its_name_and_a_bad_name_is_refused_with_its_rule() {
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
