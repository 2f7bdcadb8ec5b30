//! `why`: why a queue is, or is not, served.

use std::time::Duration;

use reveille::{Decision, Explanation, Finding, FindingKind, QueueAddress, duration::Span};
use serde_json::{Value, json};

use super::{
    exit::Exit,
    output::{self, span, stated, value_name, wire_millis},
    queues,
    target::TargetArgs,
};

/// Explain why a queue is, or is not, served
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille why acct/orders
  reveille why acct/orders -o json

The first line is the verdict. Further lines are other findings, the worst first; `!` marks one that \
needs an operator now, because work waits that no listener will handle.

The table has the newest decisions of the relay about the queue, at most 32. The relay notes them from \
the first question on, until ten minutes after the newest one: ask again.

  stood_aside  a member of the GROUP was not woken, because others have the work
  reassigned   the listener was woken for work that another member had not confirmed
  checked      the listener was asked to read the queue, without a notification
  busy, empty  the listener reported that it works, or that it found no more messages")]
pub(super) struct Args {
    /// The queue
    #[arg(value_name = "ACCOUNT/QUEUE")]
    queue: QueueAddress,
    #[command(flatten)]
    target: TargetArgs,
}

const COLUMNS: &str = "ago_ms kind listener_id reason group sequence relay_id";

impl Args {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = self.target.resolve();
        let client = target.client()?;
        let explanation = target.within(client.explain(&self.queue)).await?;
        let rows: Vec<_> = explanation.decisions.iter().map(row).collect();
        let findings: Vec<_> = explanation.findings.iter().map(finding_json).collect();
        let why = json!({
            "queue": self.queue.to_string(),
            "verdict": explanation.findings.first().map(|one| &one.text),
            "findings": findings,
            "known": explanation.queue.as_ref().map(queues::row),
            "decisions": rows,
            "noted_for_ms": wire_millis(explanation.noted_for),
            "unanswered_relays": explanation.unanswered_relays,
        });
        target.format.object(&why, || text(&explanation, &rows))?;
        Ok(Exit::OK)
    }
}

fn text(of: &Explanation, rows: &[Value]) -> String {
    let mut text = finding_lines(&of.findings) + "\n";
    if rows.is_empty() {
        text.push_str(&match span(of.noted_for).unwrap_or_default().as_secs() {
            0 => {
                "a relay that knows the queue notes its decisions from now on: ask again".to_owned()
            }
            seconds => {
                let since = Span(Duration::from_secs(seconds));
                format!("no decision in the {since} since the relay notes them")
            }
        });
    } else {
        text.push_str(&output::table_of(COLUMNS, rows));
    }
    text
}

/// Returns a line for each finding; the first one is the verdict.
pub(super) fn finding_lines(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let mark = if finding.urgent { "! " } else { "" };
        output::printable(&format!("{mark}{}\n", finding.text))
    };
    findings.iter().map(line).collect()
}

pub(super) fn finding_json(finding: &Finding) -> Value {
    let kind = match FindingKind::try_from(finding.kind) {
        Ok(FindingKind::Unspecified) => "fine".to_owned(),
        Ok(kind) => value_name(kind.as_str_name(), "FINDING_KIND_"),
        // Of a later version.
        Err(_) => "unknown".to_owned(),
    };
    json!({
        "kind": kind,
        "urgent": finding.urgent,
        "text": finding.text,
        "queue": stated(&finding.queue),
        "listener_id": stated(&finding.listener_id),
        "relay_id": stated(&finding.relay_id),
    })
}

fn row(decision: &Decision) -> Value {
    // As in the variables of `subscribe`; null without one.
    let reason = decision.reason().as_str_name();
    let reason = reason.trim_start_matches("WAKE_REASON_");
    json!({
        "ago_ms": wire_millis(decision.ago),
        "kind": value_name(decision.kind().as_str_name(), "DECISION_KIND_"),
        "listener_id": stated(&decision.listener_id),
        "group": stated(&decision.group),
        "reason": Some(reason).filter(|reason| *reason != "UNSPECIFIED"),
        "sequence": decision.sequence,
        "relay_id": decision.relay_id,
    })
}
