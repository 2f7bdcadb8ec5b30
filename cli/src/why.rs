//! `why`: why a queue is, or is not, served.

use std::{fmt::Write as _, time::Duration};

use reveille::{
    Client, Decision, ErrorKind, Explanation, Finding, QueueAddress, WakeReason, duration::Span,
};
use serde::{Serialize, Serializer};
use serde_json::json;

use super::{
    causes::Causes,
    exit::Exit,
    output::{self, Row, millis},
    queues::QueueRow,
    target::{Target, TargetArgs},
};

/// Explain why a queue is, or is not, served
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille why acct/orders
  reveille why acct/orders --follow
  reveille why acct/orders -o json

The first line is the verdict. Further lines are other findings, the worst first; `!` marks one that \
needs an operator now, because work waits that no listener will handle.

The table has the newest decisions of the relay about the queue, at most 32. The relay notes them from \
the first question on, until ten minutes after the newest one: ask again, or use --follow.

  notified     a notification was counted
  woken        the listener was sent a wake-up, for this REASON
  stood_aside  a member of the GROUP was not woken, because others have the work
  reassigned   the listener was woken for work that another member had not confirmed
  checked      the listener was asked to read the queue, without a notification
  busy, empty  the listener reported that it works, or that it found no more messages
  joined, left the listener subscribed, or its stream ended

A relay of a cluster asks all relays.")]
pub(super) struct Args {
    /// The queue
    #[arg(value_name = "ACCOUNT/QUEUE")]
    queue: QueueAddress,
    /// Ask again every 2s, until interrupted
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug)]
struct Why {
    queue: QueueAddress,
    explanation: Explanation,
}

#[derive(Debug)]
struct DecisionRow<'a>(&'a Decision);

/// Short enough to see a reassignment, which takes a second.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let client = target.client()?;
        self.ask(&target, &client).await?;
        if !self.follow {
            return Ok(Exit::OK);
        }
        let mut causes = Causes::default();
        loop {
            tokio::time::sleep(FOLLOW_EVERY).await;
            match self.ask(&target, &client).await {
                Ok(()) => causes = Causes::default(),
                Err(error) if is_away(&error) => causes.note(&output::one_line(&error)),
                Err(error) => return Err(error),
            }
        }
    }

    async fn ask(&self, target: &Target, client: &Client) -> anyhow::Result<()> {
        let explanation = target.within(client.explain(&self.queue)).await?;
        let why = Why {
            queue: self.queue.clone(),
            explanation,
        };
        if self.follow {
            target.format.next(&why, why.text() + "\n")?;
        } else {
            target.format.object(&why, || why.text())?;
        }
        Ok(())
    }
}

impl Why {
    fn text(&self) -> String {
        let Explanation {
            findings,
            decisions,
            noted_for,
            ..
        } = &self.explanation;
        let mut text = String::new();
        for finding in findings {
            let mark = if finding.urgent { "! " } else { "" };
            let line = output::printable(&format!("{mark}{}", finding.text));
            let _ = writeln!(text, "{line}");
        }
        text.push('\n');
        if decisions.is_empty() {
            text.push_str(&output::printable(&match noted_for.as_secs() {
                0 => "the relay notes its decisions from now on: ask again, or use --follow"
                    .to_owned(),
                seconds => {
                    let since = Span(Duration::from_secs(seconds));
                    format!("no decision in the {since} since the relay notes them")
                }
            }));
        } else {
            let rows: Vec<_> = decisions.iter().map(DecisionRow).collect();
            text.push_str(&output::table(&rows));
        }
        text
    }
}

impl Serialize for Why {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of = &self.explanation;
        let findings: Vec<_> = of.findings.iter().map(finding_json).collect();
        let decisions: Vec<_> = of.decisions.iter().map(DecisionRow).collect();
        let known = of.queue.clone().map(QueueRow);
        serializer.collect_map([
            ("queue", json!(self.queue.to_string())),
            ("verdict", json!(of.findings.first().map(|one| &one.text))),
            ("findings", json!(findings)),
            ("known", json!(known)),
            ("decisions", json!(decisions)),
            ("noted_for_ms", json!(millis(of.noted_for))),
            ("unanswered_relays", json!(of.unanswered)),
        ])
    }
}

/// Returns whether the relay cannot be reached, which may be for a moment.
fn is_away(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<reveille::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::Unavailable)
}

pub(super) fn finding_json(finding: &Finding) -> serde_json::Value {
    json!({
        "kind": finding.kind.as_str(),
        "urgent": finding.urgent,
        "text": finding.text,
        "queue": finding.queue,
        "listener_id": finding.listener_id,
        "relay_id": finding.relay_id,
    })
}

impl Serialize for DecisionRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let decision = self.0;
        serializer.collect_map([
            ("ago_ms", json!(millis(decision.ago))),
            ("kind", json!(decision.kind.as_str())),
            ("listener_id", json!(decision.listener_id)),
            ("group", json!(decision.group)),
            ("reason", json!(reason(decision.reason))),
            ("sequence", json!(decision.sequence)),
            ("relay_id", json!(decision.relay_id)),
        ])
    }
}

impl Row for DecisionRow<'_> {
    const COLUMNS: &'static [&'static str] = &[
        "ago_ms",
        "kind",
        "listener_id",
        "group",
        "reason",
        "sequence",
        "relay_id",
    ];
}

/// Returns the reason as in the variables of `subscribe`; `None` without one.
fn reason(reason: WakeReason) -> Option<&'static str> {
    (reason != WakeReason::Unspecified).then(|| reason.as_str())
}
