//! `subscribe`: prints wake-ups, or runs a command on each.

mod pending;

use std::{
    ffi::OsString,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use reveille::{
    Client, ConnectionState, GroupName, LastEvent, LinkState, Report, ReportState, Selector,
    SubscribeOptions, Subscription, WakeReason, WakeStream as _, WorkDetected, duration,
};
use serde_json::json;
use tokio::{sync::watch, time::Instant};

use self::pending::Pending;
use super::{
    child::{self, Process},
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

/// A subscription and the commands that its wake-ups run, one at a time.
struct WakeLoop<'a> {
    args: &'a Args,
    target: &'a Target,
    client: &'a Client,
    subscription: Subscription,
    link: watch::Receiver<LinkState>,
    /// The number of the newest stream.
    stream: u64,
    is_connected: bool,
    pending: Pending,
    running: Option<(WorkDetected, Process)>,
    /// When the command runs because no relay reports work.
    next_poll: Option<Instant>,
    /// Reports that could not be sent. R8: they are repeated after the next Welcome, because a
    /// woken listener counts as busy until it reports DRAINED.
    unsent: Vec<Report>,
    left: Option<u64>,
}

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        log::start(log::CLIENT_LOG, false);
        let target = self.target.resolve();
        let options = self.options()?;
        let client = target.client()?;
        let subscription = client.subscribe(options)?;
        let mut wake_loop = WakeLoop {
            args: &self,
            target: &target,
            client: &client,
            link: subscription.link(),
            is_connected: false,
            stream: 0,
            subscription,
            pending: Pending::default(),
            running: None,
            next_poll: self.polls().then(|| Instant::now() + target::WARN_AFTER),
            unsent: Vec::new(),
            left: self.count,
        };
        let mut interrupts = Interrupts::listen()?;
        let link = wake_loop.link.clone();
        let ended = tokio::select! {
            outcome = target.following(link, wake_loop.run()) => outcome,
            signal = interrupts.next() => {
                wake_loop.forward(signal);
                Ok(signal.exit())
            }
        };
        if ended.is_err() {
            wake_loop.forward(Signal::Terminate);
        }
        // Waits for a running command; a second signal ends this wait.
        tokio::select! {
            () = wake_loop.finish() => ended,
            signal = interrupts.next() => Ok(signal.exit()),
        }
    }

    fn polls(&self) -> bool {
        !self.command.is_empty() && !self.poll.is_zero()
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
        loop {
            if self.running.is_none() {
                self.start().await?;
            }
            let is_idle = self.running.is_none();
            if is_idle && self.left == Some(0) && self.pending.has_only_repeated() {
                // A count leaves no time for the run after one that failed.
                return Ok(match self.pending.is_empty() {
                    true => Exit::OK,
                    false => Exit::FAILURE,
                });
            }
            let due = self.pending.next_due().into_iter().chain(self.next_poll);
            let due = due.min().filter(|_| is_idle);
            tokio::select! {
                biased;
                Ok(()) = self.link.changed() => self.on_link_change().await,
                status = ended(&mut self.running) => self.on_end(status).await,
                work = self.subscription.next(), if self.left != Some(0) => match work {
                    Some(work) => self.on_wake_up(work?).await?,
                    None => return Ok(Exit::FAILURE),
                },
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
    }

    async fn on_wake_up(&mut self, work: WorkDetected) -> anyhow::Result<()> {
        // The stream may have opened and delivered this wake-up at once: print the state first.
        if self.link.has_changed().unwrap_or_default() {
            self.on_link_change().await;
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        print(&work, self.target.format)?;
        if !self.args.command.is_empty() {
            self.pending.add(work);
        }
        Ok(())
    }

    /// Starts the next command that is due.
    async fn start(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.next_poll.is_some_and(|at| at <= now) && self.left != Some(0) {
            self.next_poll = Some(now + self.args.poll);
            let selectors = self.args.selectors.iter();
            selectors.for_each(|selector| self.pending.add_poll(catch_up(selector)));
        }
        let Some(work) = self.pending.take() else {
            return Ok(());
        };
        let command = &self.args.command;
        match Process::start(command, environment(&work), Stdio::null(), Stdio::inherit()) {
            Ok(process) => {
                let busy = report(&work, ReportState::Busy);
                self.running = Some((work, process));
                self.report(busy).await;
            }
            Err(error) => {
                let failed = child::cannot_run(command, &error);
                if child::is_permanent(&error) {
                    return Err(failed.into());
                }
                output::note(format_args!("{}: {failed}", work.queue));
                self.pending.add_failed(work);
            }
        }
        Ok(())
    }

    /// The running command has ended.
    async fn on_end(&mut self, status: ExitStatus) {
        let Some((work, _)) = self.running.take() else {
            return;
        };
        if status.success() {
            self.report(report(&work, ReportState::Drained)).await;
        } else {
            output::note(format_args!("{}: the command failed: {status}", work.queue));
            self.pending.add_failed(work);
        }
    }

    fn forward(&self, signal: Signal) {
        if let Some((_, process)) = &self.running {
            process.signal(signal.number());
        }
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
        if link.is_pushed() || link.announced {
            self.next_poll = None;
        } else if self.next_poll.is_none() && self.args.polls() {
            // Subscribers of one relay lose it at the same time.
            let wait = self.args.poll.mul_f64(fastrand::f64());
            self.next_poll = Some(Instant::now() + wait);
        }
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
        let running = self.running.as_ref();
        reports.extend(running.and_then(|(work, _)| report(work, ReportState::Busy)));
        for report in reports {
            self.report(Some(report)).await;
        }
    }

    /// Waits for the running command, and reports its success.
    async fn finish(&mut self) {
        if self.running.is_none() {
            return;
        }
        let status = ended(&mut self.running).await;
        if status.success() {
            self.on_end(status).await;
        }
    }
}

/// Waits for the end of the running command, and for ever if none runs. Safe to cancel.
async fn ended(running: &mut Option<(WorkDetected, Process)>) -> ExitStatus {
    if let Some((_, process)) = running
        && let Ok(status) = process.wait().await
    {
        return status;
    }
    // Waiting for a child process fails only if other code has reaped it.
    std::future::pending().await
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

/// Returns the command's environment. A catch-up of a whole pattern has no queue: its names are
/// empty, so that a script does not take `*` for a name.
fn environment(work: &WorkDetected) -> [(&'static str, String); 8] {
    let queue = work.queue.as_address();
    let (account, name) = match &queue {
        Some(queue) => (queue.storage_account(), queue.queue_name()),
        None => ("", ""),
    };
    [
        ("WAKE_SELECTOR", work.queue.to_string()),
        ("WAKE_ACCOUNT", account.to_owned()),
        ("WAKE_QUEUE", name.to_owned()),
        ("WAKE_REASON", work.reason.to_string()),
        ("WAKE_SEQUENCE", work.sequence.to_string()),
        ("WAKE_NOTIFICATIONS", work.notifications.to_string()),
        ("WAKE_MESSAGES", work.messages.to_string()),
        ("WAKE_PAYLOAD_SIZE", work.payload_size.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use reveille::ErrorKind;

    use super::{catch_up, environment};
    use crate::{Cli, Verb};

    #[test]
    fn a_catch_up_of_a_pattern_names_no_queue() {
        let named = |queue: &str| {
            let environment = environment(&catch_up(&queue.parse().expect(queue)));
            let find = |name| environment.iter().find(|(known, _)| *known == name);
            ["WAKE_SELECTOR", "WAKE_ACCOUNT", "WAKE_QUEUE"]
                .map(|name| find(name).expect("a variable").1.clone())
        };
        assert_eq!(named("acct/*"), ["acct/*", "", ""]);
        assert_eq!(named("acct/orders"), ["acct/orders", "acct", "orders"]);
    }

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
