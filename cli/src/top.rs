//! `top`: what is wrong at a relay, its figures and its fullest queues; again and again, or once.

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _},
    time::{Duration, SystemTime},
};

use reveille::{LatencyBuckets, QueueOrder, QueueQuery, Stats, duration::Span};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    exit::Exit,
    output::{self, Format, count, span},
    queues,
    target::TargetArgs,
    values,
    why::{finding_json, finding_lines},
};

/// Watch a relay: what is wrong, how many listeners sleep, and which queues have work
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille top
  reveille top --once -o json

The second line is a verdict: the worst of what is wrong now. NOTIFIED and WOKEN are per second. ASLEEP \
listeners run no dequeue task, POLLING ones get no wake-ups. WAKE is the time of a wake-up from the \
accepted notification to the stream. The queues are those with the largest backlogs.

-o json prints the figures, an object a line, at each interval. The caller needs the action `admin`.")]
pub(super) struct Args {
    /// How often the figures are read
    #[arg(long, value_name = "D", default_value = "1s", value_parser = values::pause)]
    interval: Duration,
    /// Print the figures of one interval, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// What happened within an interval.
#[derive(Debug, Default)]
struct Rates {
    /// Per second.
    notified: f64,
    woken: f64,
    wake: LatencyBuckets,
}

/// The queues and findings of a view: a terminal has 24 lines.
const QUEUES: u32 = 8;
const FINDINGS: usize = 4;
/// The relay computes the figures for each reading.
const LEAST_INTERVAL: Duration = Duration::from_millis(250);
const QUEUE_COLUMNS: &str = "queue backlog in_doubt listeners busy idle_for_ms notifications";
const COLUMNS: &str =
    "notified woken asleep awake polling tasks wake_p50 wake_p99 polls_saved saved";
/// Moves to the first line of the terminal, and clears what follows.
const CLEAR: &str = "\x1b[H\x1b[J";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let client = target.client()?;
        let shows_views = target.format == Format::Table && !self.once;
        let clear = match shows_views && io::stdout().is_terminal() {
            true => CLEAR,
            false => "",
        };
        let query = QueueQuery {
            order_by: QueueOrder::Backlog.into(),
            page_size: QUEUES,
            ..QueueQuery::default()
        };
        let mut before = target.within(client.stats()).await?;
        loop {
            sleep(self.interval.max(LEAST_INTERVAL)).await;
            let reading = async { Ok((client.stats().await?, client.queues_where(&query).await?)) };
            let (stats, listed) = match target.within(reading).await {
                Ok(read) => read,
                Err(error) if shows_views => {
                    output::note(format_args!("the figures are old: {error}; reading again"));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let rates = Rates::between(&before, &stats);
            let queues: Vec<_> = listed.iter().map(queues::row).collect();
            let (figures, text) = (
                figures(&stats, &rates, &queues),
                text(&stats, &rates, &queues),
            );
            if self.once {
                target.format.object(&figures, || text)?;
                return Ok(Exit::OK);
            }
            target.format.next(&figures, clear.to_owned() + &text)?;
            before = stats;
        }
    }
}

impl Rates {
    fn between(before: &Stats, now: &Stats) -> Self {
        let epochs = |stats: &Stats| -> BTreeSet<String> {
            let relays = stats.relays.iter();
            relays.map(|relay| relay.epoch.clone()).collect()
        };
        if epochs(before) != epochs(now) {
            // The counts of a relay that has started, or that answers again, are no difference.
            return Self::default();
        }
        let at = |stats: &Stats| stats.at.and_then(|at| SystemTime::try_from(at).ok());
        let span = at(now)
            .zip(at(before))
            .and_then(|(now, before)| now.duration_since(before).ok());
        let span = span.unwrap_or_default();
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = |now: u64, before: u64| match span.is_zero() {
            true => 0.0,
            false => now.saturating_sub(before) as f64 / span.as_secs_f64(),
        };
        let totals = |stats: &Stats| stats.totals.clone().unwrap_or_default();
        let (then, totals) = (totals(before), totals(now));
        let latency = totals.wake_latency.unwrap_or_default();
        Self {
            notified: rate(totals.notifications, then.notifications),
            woken: rate(totals.wake_entries, then.wake_entries),
            wake: latency.since(&then.wake_latency.unwrap_or_default()),
        }
    }
}

/// Returns the figures for people.
fn text(stats: &Stats, rates: &Rates, queues: &[Value]) -> String {
    let levels = stats.levels.unwrap_or_default();
    let savings = stats.savings.clone().unwrap_or_default();
    let title = match &stats.relays[..] {
        [] => "no relay".to_owned(),
        [relay, others @ ..] => {
            let others = match others.len() as u64 {
                0 => String::new(),
                others => format!(" and {}", count(others, "other relay")),
            };
            let up = span(relay.uptime).unwrap_or_default().as_secs();
            let up = Span(Duration::from_secs(up));
            format!("{}{others}, up {up}", relay.relay_id)
        }
    };
    let verdict = match stats.findings.is_empty() {
        true => {
            let all = count(levels.subscriptions, "listener");
            format!("nothing is wrong: {} of {all} asleep\n", levels.asleep)
        }
        false => {
            let shown = stats.findings.len().min(FINDINGS);
            finding_lines(&stats.findings[..shown])
        }
    };
    let latency = |percent| rates.wake.percentile(percent).map(Span);
    let row = json!({
        "notified": format!("{:.1}", rates.notified),
        "woken": format!("{:.1}", rates.woken),
        "asleep": levels.asleep,
        "awake": levels.awake,
        "polling": levels.polling,
        "tasks": levels.active_dequeue_tasks,
        "wake_p50": latency(50).map(|span| span.to_string()),
        "wake_p99": latency(99).map(|span| span.to_string()),
        "polls_saved": savings.polls_avoided,
        "saved": format!("{:.2} {}", savings.price(), savings.currency),
    });
    let figures = output::table_of(COLUMNS, &[row]);
    let queues = output::table_of(QUEUE_COLUMNS, queues);
    format!("{title}\n{verdict}\n{figures}\n\n{queues}")
}

/// Returns the figures for programs; counts are those of `/metrics`, which has more.
fn figures(now: &Stats, rates: &Rates, queues: &[Value]) -> Value {
    let totals = now.totals.clone().unwrap_or_default();
    let levels = now.levels.unwrap_or_default();
    let savings = now.savings.clone().unwrap_or_default();
    let micros = |percent| {
        let bound = rates.wake.percentile(percent)?;
        u64::try_from(bound.as_micros()).ok()
    };
    json!({
        "at": now.at.map(|at| at.to_string()),
        "findings": now.findings.iter().map(finding_json).collect::<Vec<_>>(),
        "notifications_per_second": rates.notified,
        "wake_entries_per_second": rates.woken,
        "wake_p50_us": micros(50),
        "wake_p99_us": micros(99),
        "totals": {
            "notifications": totals.notifications,
            "messages": totals.messages,
            "wakes": totals.wakes,
            "wake_entries": totals.wake_entries,
        },
        "levels": {
            "queues": levels.queues,
            "subscriptions": levels.subscriptions,
            "asleep": levels.asleep,
            "awake": levels.awake,
            "polling": levels.polling,
            "active_dequeue_tasks": levels.active_dequeue_tasks,
        },
        "savings": {
            "polls_avoided": savings.polls_avoided,
            "price": savings.price(),
            "currency": savings.currency,
        },
        "unanswered_relays": now.unanswered_relays,
        "queues": queues,
    })
}
