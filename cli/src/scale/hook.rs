//! `--hook`: the driver of the central agent. It follows the relay's stream, reads the relay's lists and
//! calls the hook; `reveille::agent::CentralAgent` makes all decisions.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Seek as _},
    pin::pin,
    process::Stdio,
    time::Duration,
};

use anyhow::bail;
use reveille::{
    Client, LatencyBuckets, LinkState, ListenerId, ListenerInfo, QueueAddress, QueueInfo,
    QueueQuery, Selector, Subscription, WakeReason, WakeStream as _, WorkDetected,
    agent::{CentralAgent, FleetDecision, FleetLoad, FleetPolicy, FleetStep},
    duration::Span,
};
use serde_json::json;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::Args;
use crate::{
    child::Process,
    listeners::selectors,
    output::{Format, span},
    target::Target,
    values,
};

#[derive(Debug, clap::Args)]
pub(super) struct HookArgs {
    /// A shell command that sets the number of nodes, in place of the worker's program; needs --policy
    #[arg(
        long,
        value_name = "CMD",
        requires = "policy",
        conflicts_with_all = [
            "max", "per", "serve", "idle", "depth", "visibility_timeout", "check", "poll",
            "when_cmd", "group", "grace", "command",
        ]
    )]
    pub(super) hook: Option<String>,
    /// Print each decision and its reason, and call nothing
    #[arg(long, requires = "hook")]
    dry_run: bool,
    /// Least time between two calls, but for the first nodes and after a failure
    #[arg(long, value_name = "D", requires = "hook", value_parser = values::pause, default_value = "10s")]
    hook_interval: Duration,
    /// Kill a call after this time
    #[arg(long, value_name = "D", requires = "hook", value_parser = values::pause, default_value = "60s")]
    hook_timeout: Duration,
}

struct Driver<'a> {
    args: &'a Args,
    /// The shell command.
    hook: &'a str,
    agent: CentralAgent,
    client: Client,
    subscription: Subscription,
    link: watch::Receiver<LinkState>,
    origin: Instant,
    /// Prints decisions in this format, and calls nothing.
    dry_run: Option<Format>,
    /// The policy needs the latency.
    reads_latency: bool,
    latencies: Option<LatencyBuckets>,
    /// The streams on which queues were told their first CATCH_UP.
    caught_up: BTreeMap<Selector, u64>,
    doubts: Doubts,
}

/// When the relay had a doubt about a queue on a stream that lasts: it may have missed notifications that
/// another relay has counted.
type Doubts = BTreeMap<Selector, Instant>;

/// The number of nodes that the hook has stated, or why it failed.
type Called = Result<Option<usize>, String>;

/// What the relay's lists state, and all latencies since the relay's start.
type Look = (FleetLoad, Option<LatencyBuckets>);

/// A slower look has failed.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before a refused subscription is tried again.
const RETRY_AFTER_REFUSAL: Duration = Duration::from_secs(60);
/// The share of the latencies that the policy's limit is for.
const PERCENTILE: u8 = 90;
/// The longest number on the hook's first line.
const MOST_DIGITS: u64 = 32;

/// Runs the central agent until it is stopped. A running call of the hook is awaited.
pub(super) async fn run(
    args: &Args,
    hook: &str,
    id: ListenerId,
    target: &Target,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let policy = args
        .policy
        .as_deref()
        .expect("clap requires it with --hook");
    let policy = FleetPolicy::open(policy)?;
    let options = &args.hook;
    let client = target.client()?;
    let subscription = client.subscribe(CentralAgent::subscription(id, &args.queues)?)?;
    let mut driver = Driver {
        args,
        hook,
        reads_latency: policy.latency.is_some(),
        agent: CentralAgent::new(policy, options.hook_interval, fastrand::u64(..))?,
        client,
        link: subscription.link(),
        subscription,
        origin: Instant::now(),
        dry_run: options.dry_run.then_some(target.format),
        latencies: None,
        caught_up: BTreeMap::new(),
        doubts: Doubts::new(),
    };
    driver.run(stop).await
}

impl Driver<'_> {
    /// Runs until it is stopped, or the relay refuses the subscription for good.
    async fn run(&mut self, stop: &CancellationToken) -> anyhow::Result<()> {
        self.follow_link();
        while !stop.is_cancelled() {
            match self.agent.step(self.now()) {
                FleetStep::Wait(until) => {
                    let wait = tokio::time::sleep(until.saturating_sub(self.now()));
                    tokio::select! {
                        () = stop.cancelled() => {}
                        event = self.on_event() => event?,
                        () = wait => {}
                    }
                }
                FleetStep::Look => {
                    let (client, doubts) = (self.client.clone(), self.doubts.clone());
                    let look = look(&client, &self.args.queues, &doubts, self.reads_latency);
                    let look = self
                        .during(tokio::time::timeout(LOOK_TIMEOUT, look))
                        .await?;
                    self.on_look(look.map_err(Into::into).and_then(|look| Ok(look?)));
                }
                FleetStep::Call(decision) => {
                    let (desired, current) = (decision.desired, decision.current);
                    let (backlog, reason) = (decision.backlog, &decision.reason);
                    if let Some(format) = self.dry_run {
                        let current = current.map(|count| count.to_string());
                        let current = current.unwrap_or_else(|| "unknown".to_owned());
                        let row = json!(decision);
                        format.next(&row, format_args!("{current} -> {desired}: {reason}"))?;
                        self.agent.on_success(None, self.now());
                        continue;
                    }
                    tracing::info!(desired, current, backlog, reason, "the hook is called");
                    let called = call(self.hook, self.args.hook.hook_timeout, &decision);
                    let called = self.during(called).await?;
                    match called {
                        Ok(present) => self.agent.on_success(present, self.now()),
                        Err(why) => {
                            tracing::warn!(why, "the hook failed; it is called again");
                            self.agent.on_failure(self.now());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Follows the stream until the work ends.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> anyhow::Result<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                event = self.on_event() => event?,
            }
        }
    }

    /// Handles the next event of the stream. Safe to cancel.
    async fn on_event(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            Ok(()) = self.link.changed() => self.follow_link(),
            work = self.subscription.next() => match work {
                Some(Ok(work)) => self.on_wake_up(&work),
                Some(Err(error)) => {
                    let was_accepted = self.link.borrow().welcomes > 0;
                    if !(was_accepted && self.subscription.ask_again(RETRY_AFTER_REFUSAL)) {
                        return Err(error.into());
                    }
                    tracing::warn!(%error, "the relay refuses the subscription; it is tried again");
                }
                None => bail!("the subscription has ended"),
            },
        }
        Ok(())
    }

    fn on_wake_up(&mut self, work: &WorkDetected) {
        if work.reason == WakeReason::CatchUp {
            let stream = self.link.borrow().welcomes;
            if self.caught_up.insert(work.queue.clone(), stream) == Some(stream) {
                self.doubts.insert(work.queue.clone(), Instant::now());
            }
        }
        self.agent.on_wake_up();
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn follow_link(&mut self) {
        let link = self.link.borrow_and_update().clone();
        // After an announced end the next stream follows within seconds.
        let is_pushed = link.is_pushed() || link.announced;
        if let (Some(cause), false) = (link.cause.as_deref(), is_pushed) {
            tracing::warn!(cause, "no wake-ups from the relay");
        }
        self.agent.on_link(is_pushed, self.now());
    }

    fn on_look(&mut self, look: anyhow::Result<Look>) {
        let now = self.now();
        let (mut load, latencies) = match look {
            Ok(look) => look,
            Err(error) => {
                tracing::warn!(%error, "the relay's lists cannot be read: no decision is made");
                return self.agent.on_load(None, now);
            }
        };
        if let (Some(all), Some(before)) = (&latencies, &self.latencies) {
            load.latency = all.since(before).percentile(PERCENTILE);
        }
        self.latencies = latencies;
        self.agent.on_load(Some(load), now);
    }
}

async fn call(hook: &str, limit: Duration, decision: &FleetDecision) -> Called {
    let current = decision.current.map(|count| count.to_string());
    let environment = [
        ("DESIRED", decision.desired.to_string()),
        ("CURRENT", current.unwrap_or_default()),
        ("BACKLOG", decision.backlog.to_string()),
        ("REASON", decision.reason.clone()),
    ];
    let shell = ["sh", "-c", hook].map(OsString::from);
    let failed = |error: std::io::Error| format!("it cannot be run: {error}");
    // A file, and no pipe: a process in a group of its own may keep the output open.
    let output = tempfile::tempfile().map_err(failed)?;
    let stdout = output.try_clone().map_err(failed)?.into();
    let mut process = Process::start(&shell, environment, Stdio::null(), stdout).map_err(failed)?;
    // A dropped process ends with its group.
    match tokio::time::timeout(limit, process.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(number_in(output)),
        Ok(Ok(status)) => Err(status.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            let limit = Span(limit);
            Err(format!("it took longer than {limit}, and was killed"))
        }
    }
}

/// Returns the number on the first line.
fn number_in(mut output: File) -> Option<usize> {
    let mut line = String::new();
    output.rewind().ok()?;
    let mut output = BufReader::new(output.take(MOST_DIGITS));
    output.read_line(&mut line).ok()?;
    line.trim().parse().ok()
}

/// Reads the relay's lists.
async fn look(
    client: &Client,
    queues: &[QueueAddress],
    doubts: &Doubts,
    reads_latency: bool,
) -> reveille::Result<Look> {
    let (mut load, mut latencies) = Look::default();
    for queue in queues {
        let query = QueueQuery {
            filter: queue.queue_name().to_owned(),
            ..QueueQuery::default()
        };
        let listed = client.queues_where(&query).await?;
        load.is_partial |= !listed.unanswered.is_empty();
        let is_it = |one: &&QueueInfo| {
            one.storage_account == queue.storage_account() && one.queue_name == queue.queue_name()
        };
        let doubt = doubts.get(&Selector::from(queue.clone()));
        let doubted_for = doubt.map(Instant::elapsed);
        let found = listed.iter().find(is_it);
        let waiting = match found {
            Some(found) => waiting(found, doubted_for),
            None => u64::from(doubted_for.is_some()),
        };
        load.backlog = load.backlog.saturating_add(waiting);
    }
    let listed = client.listeners().await?;
    load.is_partial |= !listed.unanswered.is_empty();
    add_nodes(&mut load, &listed, queues);
    if reads_latency {
        let stats = client.stats().await?;
        let is_whole = stats.unanswered_relays.is_empty();
        load.is_partial |= !is_whole;
        // The latencies of a relay that answers again would all be new ones.
        let all = stats.totals.and_then(|totals| totals.handler_latency);
        latencies = all.filter(|_| is_whole);
    }
    Ok((load, latencies))
}

/// Returns the messages that may wait in a queue. A timed wake-up counts no message, and a relay that
/// restarted, or missed notifications, knows none: a queue that was not read since counts as one.
fn waiting(queue: &QueueInfo, doubted_for: Option<Duration>) -> u64 {
    let (idle_for, depth_age) = (span(queue.idle_for), span(queue.depth_age));
    let is_newer = |doubt: Duration| depth_age.is_some_and(|age| age <= doubt);
    let is_read = match (idle_for, depth_age) {
        (None, _) => true,
        (Some(idle_for), Some(age)) => age <= idle_for,
        (Some(_), None) => false,
    } && doubted_for.is_none_or(is_newer);
    queue.backlog.max(u64::from(queue.in_doubt || !is_read))
}

/// Adds the nodes of the queues: listeners with one id are one node. A central agent is none.
fn add_nodes(load: &mut FleetLoad, listeners: &[ListenerInfo], queues: &[QueueAddress]) {
    let matches = |selector: &String| {
        let selector: Option<Selector> = selector.parse().ok();
        selector.is_some_and(|one| queues.iter().any(|queue| one.matches(queue)))
    };
    let mut nodes: BTreeMap<&str, bool> = BTreeMap::new();
    for one in listeners {
        let is_central = one.agent && one.group.is_empty();
        if is_central || !selectors(one).iter().any(matches) {
            continue;
        }
        let works = one.active_dequeue_tasks > 0 || one.busy > 0 || one.busy_for.is_some();
        *nodes.entry(&one.listener_id).or_default() |= works;
        load.active_tasks += u64::from(one.active_dequeue_tasks);
        load.total_tasks += u64::from(one.total_dequeue_tasks);
    }
    load.nodes = nodes.len();
    load.nodes_at_work = nodes.values().filter(|works| **works).count();
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queue(idle_for: Option<i64>, depth_age: Option<i64>) -> QueueInfo {
        let span = |seconds| prost_types::Duration { seconds, nanos: 0 };
        QueueInfo {
            storage_account: "a".to_owned(),
            queue_name: "q".to_owned(),
            idle_for: idle_for.map(span),
            current_queue_depth: depth_age.map(|_| 0),
            depth_age: depth_age.map(span),
            ..QueueInfo::default()
        }
    }

    #[test]
    fn a_queue_that_was_not_read_since_its_newest_event_has_a_message() {
        for (idle_for, depth_age, messages) in [
            (None, None, 0),
            (Some(5), Some(3), 0),
            (Some(3), Some(5), 1),
            (Some(3), None, 1),
        ] {
            assert_eq!(waiting(&queue(idle_for, depth_age), None), messages);
        }
        let read = queue(Some(9), Some(5));
        assert_eq!(waiting(&read, Some(SECOND * 7)), 0);
        assert_eq!(waiting(&read, Some(SECOND * 3)), 1, "not since the doubt");
        let in_doubt = QueueInfo {
            in_doubt: true,
            ..queue(None, None)
        };
        assert_eq!(waiting(&in_doubt, None), 1);
        let backlog = QueueInfo {
            backlog: 7,
            ..queue(Some(3), None)
        };
        assert_eq!(waiting(&backlog, None), 7);
    }

    fn listener(id: &str, account: &str, queue: &str, active: u32) -> ListenerInfo {
        let mut listener = ListenerInfo {
            listener_id: id.to_owned(),
            active_dequeue_tasks: active,
            total_dequeue_tasks: 4,
            group: "agents".to_owned(),
            ..ListenerInfo::default()
        };
        // The type of a selector has no name outside of the library.
        listener.selectors.resize_with(1, Default::default);
        listener.selectors[0].storage_account = account.to_owned();
        listener.selectors[0].queue_name = queue.to_owned();
        listener
    }

    #[test]
    fn listeners_of_the_queues_are_nodes_and_central_agents_are_not() {
        let central = ListenerInfo {
            agent: true,
            group: String::new(),
            busy: 1,
            ..listener("central", "a", "q", 0)
        };
        let busy = ListenerInfo {
            busy: 1,
            ..listener("busy", "a", "*", 0)
        };
        let listeners = [
            central,
            busy,
            listener("one", "a", "q", 3),
            listener("one", "a", "q", 0),
            listener("idle", "a", "q", 0),
            listener("other", "a", "other", 4),
        ];
        let mut load = FleetLoad::default();
        add_nodes(&mut load, &listeners, &["a/q".parse().expect("a queue")]);
        assert_eq!((load.nodes, load.nodes_at_work), (3, 2));
        assert_eq!((load.active_tasks, load.total_tasks), (3, 16));
    }

    #[tokio::test]
    async fn the_first_line_of_a_hook_is_the_present_count_and_a_failure_has_its_reason() {
        let agent = CentralAgent::new(FleetPolicy::default(), SECOND, 7);
        let mut agent = agent.expect("a policy");
        agent.on_link(true, Duration::ZERO);
        let now = SECOND * 60;
        assert_eq!(agent.step(now), FleetStep::Look);
        let load = FleetLoad {
            backlog: 3,
            ..FleetLoad::default()
        };
        agent.on_load(Some(load), now);
        let FleetStep::Call(decision) = agent.step(now) else {
            panic!("a call is needed");
        };
        for (command, called) in [
            ("echo $((DESIRED + 4))", Ok(Some(5))),
            ("echo; echo 7", Ok(None)),
            ("setsid sleep 3 & sleep 0.3; echo 6", Ok(Some(6))),
            ("setsid sleep 3 & sleep 0.3", Ok(None)),
            ("echo \"$BACKLOG nodes\"", Ok(None)),
            (
                "test \"$BACKLOG$CURRENT\" = 3 && yes | head -c 300000",
                Ok(None),
            ),
        ] {
            assert_eq!(
                call(command, SECOND * 60, &decision).await,
                called,
                "{command}"
            );
        }
        for (command, timeout, words) in [
            ("exit 4", SECOND * 60, "exit status: 4"),
            ("no-such-hook 3", SECOND * 60, "exit status: 127"),
            ("sleep 60", SECOND, "longer than 1s, and was killed"),
        ] {
            let failed = call(command, timeout, &decision).await;
            let failed = failed.expect_err(command);
            assert!(failed.contains(words), "{command}: {failed}");
        }
    }
}
