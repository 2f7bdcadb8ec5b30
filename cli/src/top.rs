//! `top`: the figures of a relay at each interval, or once.

use std::time::Duration;

use reveille::{
    Client, Error, ErrorKind, LatencyBuckets, RelayLevels, RelayTotals, Savings, Stats, StatsWatch,
    duration::{self, Span},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    causes::Causes,
    exit::Exit,
    output::{self, Row, count, millis, time},
    target::{Target, TargetArgs},
    why::{finding_json, is_away},
};

/// Watch a relay: what is wrong, how many listeners sleep, and which queues have work
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille top
  reveille top --interval 5s --relay http://relay-1:7600
  reveille top --once -o json

The first line is a verdict: the worst of what is wrong now. NOTIFIED and WOKEN are per second. ASLEEP \
listeners run no dequeue task, POLLING ones get no wake-ups. WAKE is the time of a wake-up from the \
accepted notification to the stream. The queues are those with most notifications since the figures \
before; BACKLOG is the newest depth that a listener read, and the messages notified since.

Ctrl-C ends it. The figures are those of all relays of a cluster that answer. The caller needs the \
action `admin`.")]
pub(super) struct Args {
    /// How often the figures are read, 250ms to 1m
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,
    /// Print the figures of one interval, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// The figures of an interval, for people.
#[derive(Debug, Serialize)]
struct Figures {
    notified: String,
    woken: String,
    asleep: u64,
    awake: u64,
    polling: u64,
    tasks: u64,
    wake_p50: String,
    wake_p99: String,
    polls_saved: u64,
    saved: String,
}

#[derive(Debug, Serialize)]
struct BusyRow {
    queue: String,
    notifications: u64,
    messages: u64,
    backlog: u64,
    listeners: u32,
}

/// What has changed between two readings.
#[derive(Debug, Default)]
struct Rates {
    notified: f64,
    woken: f64,
    wake: LatencyBuckets,
    handler: LatencyBuckets,
}

/// The pause before a lost stream is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Queues that a terminal shows.
const ROWS: usize = 20;
/// Moves to the first line of a terminal, and clears what follows.
const CLEAR: &str = "\x1b[H\x1b[J";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let client = target.client()?;
        let mut causes = None;
        loop {
            match self.watch(&target, &client, &mut causes).await {
                Ok(()) => return Ok(Exit::OK),
                Err(error) => match &mut causes {
                    Some(causes) if is_away(&error) => causes.note(&output::one_line(&error)),
                    // The first failure is that of each verb.
                    _ => return Err(error),
                },
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// Prints figures until the stream fails.
    async fn watch(
        &self,
        target: &Target,
        client: &Client,
        causes: &mut Option<Causes>,
    ) -> anyhow::Result<()> {
        let mut stream = target.within(client.watch_stats(self.interval)).await?;
        let mut before = self.next(target, &mut stream).await?;
        loop {
            let now = self.next(target, &mut stream).await?;
            let figures = figures(&before, &now);
            if self.once {
                target.format.object(&figures, || text(&before, &now))?;
                return Ok(());
            }
            let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
            let clear = if is_terminal { CLEAR } else { "" };
            let text = format!("{clear}{}\n", text(&before, &now));
            target.format.next(&figures, text)?;
            *causes = Some(Causes::default());
            before = now;
        }
    }

    /// Reads the next figures. The time-out is that of each reading, which comes after an interval.
    async fn next(&self, target: &Target, stream: &mut StatsWatch) -> reveille::Result<Stats> {
        let ended = || Error::new(ErrorKind::Unavailable, "the relay has ended the stream");
        let limit = target.timeout.unwrap_or(Duration::MAX);
        tokio::time::timeout(self.interval.saturating_add(limit), stream.next())
            .await
            .map_err(|_| target.no_answer())?
            .ok_or_else(ended)?
    }
}

impl Rates {
    fn between(before: &Stats, now: &Stats) -> Self {
        let epoch = |stats: &Stats| stats.relays.first().map(|relay| relay.epoch.clone());
        if epoch(before) != epoch(now) {
            // After a restart the counts begin again.
            return Self::default();
        }
        let span = now.at.duration_since(before.at).unwrap_or_default();
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = |now: u64, before: u64| {
            now.saturating_sub(before) as f64 / span.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        let (then, totals) = (&before.totals, &now.totals);
        Self {
            notified: rate(totals.notifications, then.notifications),
            woken: rate(totals.wake_entries, then.wake_entries),
            wake: totals.wake_latency.since(&then.wake_latency),
            handler: totals.handler_latency.since(&then.handler_latency),
        }
    }
}

impl Row for Figures {
    const COLUMNS: &'static [&'static str] = &[
        "notified",
        "woken",
        "asleep",
        "awake",
        "polling",
        "tasks",
        "wake_p50",
        "wake_p99",
        "polls_saved",
        "saved",
    ];
}

impl Row for BusyRow {
    const COLUMNS: &'static [&'static str] =
        &["queue", "notifications", "messages", "backlog", "listeners"];
}

fn text(before: &Stats, now: &Stats) -> String {
    let rates = Rates::between(before, now);
    let latency = |percent| {
        let bound = rates.wake.percentile(percent);
        bound.map_or_else(|| "-".to_owned(), |bound| Span(bound).to_string())
    };
    let (levels, savings) = (&now.levels, &now.savings);
    let row = Figures {
        notified: format!("{:.1}", rates.notified),
        woken: format!("{:.1}", rates.woken),
        asleep: levels.asleep,
        awake: levels.awake,
        polling: levels.polling,
        tasks: levels.active_dequeue_tasks,
        wake_p50: latency(50),
        wake_p99: latency(99),
        polls_saved: savings.polls_avoided,
        saved: format!("{:.2} {}", savings.price(), savings.currency),
    };
    let mut lines = vec![title(now)];
    match now.findings.split_first() {
        Some((worst, others)) => {
            lines.push(worst.text.clone());
            lines.extend(others.iter().map(|finding| format!("  {}", finding.text)));
        }
        None => lines.push(fine(levels)),
    }
    lines.push(String::new());
    lines.push(output::table(&[row]));
    let mut busiest = busiest(now);
    busiest.truncate(ROWS);
    if !busiest.is_empty() {
        lines.push(String::new());
        lines.push(output::table(&busiest));
    }
    lines.join("\n")
}

fn title(stats: &Stats) -> String {
    let Some(relay) = stats.relays.first() else {
        return "no relay".to_owned();
    };
    let others = match stats.relays.len() as u64 - 1 {
        0 => String::new(),
        others => format!(" and {}", count(others, "other relay")),
    };
    let up = Span(Duration::from_secs(relay.uptime.as_secs()));
    format!("{}{others}, up {up}", relay.relay_id)
}

fn fine(levels: &RelayLevels) -> String {
    match levels.subscriptions {
        0 => "nothing is wrong; no listener is connected".to_owned(),
        all => {
            let asleep = levels.asleep;
            format!(
                "nothing is wrong: {asleep} of {} asleep",
                count(all, "listener")
            )
        }
    }
}

fn busiest(stats: &Stats) -> Vec<BusyRow> {
    let rows = stats.busiest.iter().map(|queue| BusyRow {
        queue: format!("{}/{}", queue.storage_account, queue.queue_name),
        notifications: queue.notifications,
        messages: queue.messages,
        backlog: queue.backlog,
        listeners: queue.listeners,
    });
    rows.collect()
}

/// Returns the figures for programs; counts are those of `/metrics`.
fn figures(before: &Stats, now: &Stats) -> Value {
    let rates = Rates::between(before, now);
    let micros = |latency: &LatencyBuckets, percent| {
        let bound = latency.percentile(percent)?;
        u64::try_from(bound.as_micros()).ok()
    };
    json!({
        "at": time(now.at),
        "findings": now.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "notifications_per_second": rates.notified,
        "wake_entries_per_second": rates.woken,
        "wake_p50_us": micros(&rates.wake, 50),
        "wake_p99_us": micros(&rates.wake, 99),
        "handler_p50_us": micros(&rates.handler, 50),
        "handler_p99_us": micros(&rates.handler, 99),
        "totals": totals(&now.totals),
        "levels": levels(&now.levels),
        "savings": savings(&now.savings),
        "relays": now.relays.iter().map(|relay| json!({
            "relay_id": relay.relay_id,
            "epoch": relay.epoch,
            "version": relay.version,
            "uptime_ms": millis(relay.uptime),
            "draining": relay.draining,
            "degraded": relay.degraded,
            "totals": totals(&relay.totals),
            "levels": levels(&relay.levels),
            "savings": savings(&relay.savings),
        })).collect::<Vec<_>>(),
        "unanswered_relays": now.unanswered,
        "busiest": busiest(now),
    })
}

fn totals(totals: &RelayTotals) -> Value {
    json!({
        "notifications": totals.notifications,
        "messages": totals.messages,
        "wakes": totals.wakes,
        "wake_entries": totals.wake_entries,
        "timed": totals.timed,
        "heartbeats": totals.heartbeats,
        "catch_ups": totals.catch_ups,
        "sentinels": totals.sentinels,
        "reassigned": totals.reassigned,
        "refused": totals.refused,
    })
}

fn levels(levels: &RelayLevels) -> Value {
    json!({
        "queues": levels.queues,
        "subscriptions": levels.subscriptions,
        "asleep": levels.asleep,
        "awake": levels.awake,
        "polling": levels.polling,
        "active_dequeue_tasks": levels.active_dequeue_tasks,
        "connections": levels.connections,
        "flag_watchers": levels.flag_watchers,
        "timers": levels.timers,
        "unassigned": levels.unassigned,
    })
}

fn savings(savings: &Savings) -> Value {
    json!({
        "polls_avoided": savings.polls_avoided,
        "assumed_poll_ms": millis(savings.assumed_poll),
        "price": savings.price(),
        "currency": savings.currency,
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use reveille::{BusyQueue, Finding, FindingKind, RelayStats};

    use super::*;

    fn stats(seconds: u64, notifications: u64, findings: Vec<Finding>) -> Stats {
        let totals = RelayTotals {
            notifications,
            ..RelayTotals::default()
        };
        let levels = RelayLevels {
            subscriptions: 3,
            asleep: 2,
            awake: 1,
            ..RelayLevels::default()
        };
        Stats {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            relays: vec![RelayStats {
                relay_id: "relay-1".to_owned(),
                epoch: "e".to_owned(),
                version: "1".to_owned(),
                uptime: Duration::from_secs(90),
                draining: false,
                degraded: false,
                totals: totals.clone(),
                levels: levels.clone(),
                savings: Savings::default(),
            }],
            unanswered: Vec::new(),
            totals,
            levels,
            savings: Savings::default(),
            busiest: vec![BusyQueue {
                storage_account: "acct".to_owned(),
                queue_name: "invoice".to_owned(),
                backlog: 3,
                ..BusyQueue::default()
            }],
            findings,
        }
    }

    #[test]
    fn the_text_has_the_verdict_the_rates_and_the_queues() {
        let words = "no listener subscribes to acct/invoice; start one, or check the name";
        let finding = Finding {
            kind: FindingKind::NoListener,
            urgent: true,
            text: words.to_owned(),
            queue: None,
            listener_id: None,
            relay_id: None,
        };
        let (before, now) = (stats(1, 10, Vec::new()), stats(3, 50, vec![finding]));
        let screen = text(&before, &now);
        for part in [
            "relay-1, up 1m30s",
            words,
            "NOTIFIED",
            "20.0",
            "acct/invoice",
        ] {
            assert!(screen.contains(part), "no {part:?} in\n{screen}");
        }
        assert!((Rates::between(&before, &now).notified - 20.0).abs() < 1e-9);
        assert!(text(&before, &before).contains("nothing is wrong: 2 of 3 listeners asleep"));
    }
}
