//! Why a queue is, or is not, served: the relay's findings and its newest decisions.

use std::time::Duration;

use super::admin::QueueInfo;
use crate::{
    types::WakeReason,
    wire::{proto, reason_from_wire, span_from_wire},
};

/// Why a queue is, or is not, served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Worst first. The first one is the verdict; a relay always states one.
    pub findings: Vec<Finding>,
    /// `None`: no relay knows the queue.
    pub queue: Option<QueueInfo>,
    /// The newest decisions of all relays of the cluster, at most 32, oldest first.
    pub decisions: Vec<Decision>,
    /// How long the relay has noted its decisions about the queue. It begins with the first question
    /// and ends ten minutes after the newest one.
    pub noted_for: Duration,
    /// The ids of the relays of the cluster that did not answer.
    pub unanswered: Vec<String>,
}

/// Something that is wrong, or explains why a queue waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// An operator must act now: work waits that no listener will handle.
    pub urgent: bool,
    /// One sentence, which names the thing and says what to do.
    pub text: String,
    /// `account/queue`, if it is about one.
    pub queue: Option<String>,
    /// The listener, if it is about one.
    pub listener_id: Option<String>,
    /// The relay that states it, if it is about one.
    pub relay_id: Option<String>,
}

/// What a [`Finding`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FindingKind {
    /// Nothing is wrong.
    Fine,
    /// A queue has no listener.
    NoListener,
    /// The same, and a listener subscribes to a similar name.
    NearName,
    /// All listeners of a queue handle as much as they can.
    AtCapacity,
    /// A listener was woken and does not report.
    Silent,
    /// A listener was lost: it did not answer in time.
    Gone,
    /// A listener has been handling one message for long.
    Busy,
    /// The relay has reached a limit, or nearly.
    Full,
    /// The relay shuts down.
    Draining,
    /// The relay is cut off from the others, so its listeners poll.
    CutOff,
    /// Callers are refused for their credential, or by the rules.
    Refused,
    /// The store of the flags cannot be read.
    Store,
    /// Listeners poll without wake-ups.
    Polling,
    /// A relay of the cluster does not answer.
    RelayMissing,
    /// A kind that a later version added.
    Unknown,
}

/// What a relay decided about a queue, or learned of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// How long ago.
    pub ago: Duration,
    /// What happened.
    pub kind: DecisionKind,
    /// The queue's sequence then.
    pub sequence: u64,
    /// The listener; `None` for a notification.
    pub listener_id: Option<String>,
    /// The listener's group.
    pub group: Option<String>,
    /// Of a wake-up; [`WakeReason::Timed`] also of a notification whose delay has ended.
    pub reason: WakeReason,
    /// The relay that decided.
    pub relay_id: String,
}

/// The kind of a [`Decision`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecisionKind {
    /// A notification was counted.
    Notified,
    /// A wake-up was sent to the listener.
    Woken,
    /// The member of a group was not woken, because others have the work.
    StoodAside,
    /// The listener was woken for work that another member had not confirmed.
    Reassigned,
    /// The listener was asked to read the queue, without a notification.
    Checked,
    /// The listener reported that it works on the queue.
    Busy,
    /// The listener reported that it found no more messages.
    Empty,
    /// The listener subscribed.
    Joined,
    /// The listener's stream ended.
    Left,
    /// A kind that a later version added.
    Unknown,
}

impl Explanation {
    pub(super) fn from_wire(answer: proto::ExplainResponse) -> Self {
        let findings = answer.findings.into_iter();
        let decisions = answer.decisions.into_iter();
        Self {
            findings: findings.map(Finding::from_wire).collect(),
            queue: answer.queue.map(QueueInfo::from_wire),
            decisions: decisions.map(Decision::from_wire).collect(),
            noted_for: span_from_wire(answer.noted_for),
            unanswered: answer.unanswered_relays,
        }
    }
}

impl Finding {
    pub(super) fn from_wire(finding: proto::Finding) -> Self {
        Self {
            kind: FindingKind::from_wire(finding.kind),
            urgent: finding.urgent,
            text: finding.text,
            queue: non_empty(finding.queue),
            listener_id: non_empty(finding.listener_id),
            relay_id: non_empty(finding.relay_id),
        }
    }
}

impl FindingKind {
    fn from_wire(kind: i32) -> Self {
        let Ok(kind) = proto::FindingKind::try_from(kind) else {
            return Self::Unknown;
        };
        match kind {
            proto::FindingKind::Unspecified => Self::Fine,
            proto::FindingKind::NoListener => Self::NoListener,
            proto::FindingKind::NearName => Self::NearName,
            proto::FindingKind::AtCapacity => Self::AtCapacity,
            proto::FindingKind::Silent => Self::Silent,
            proto::FindingKind::Gone => Self::Gone,
            proto::FindingKind::Busy => Self::Busy,
            proto::FindingKind::Full => Self::Full,
            proto::FindingKind::Draining => Self::Draining,
            proto::FindingKind::CutOff => Self::CutOff,
            proto::FindingKind::Refused => Self::Refused,
            proto::FindingKind::Store => Self::Store,
            proto::FindingKind::Polling => Self::Polling,
            proto::FindingKind::RelayMissing => Self::RelayMissing,
        }
    }

    /// Returns the kind's name, such as `no_listener`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::NoListener => "no_listener",
            Self::NearName => "near_name",
            Self::AtCapacity => "at_capacity",
            Self::Silent => "silent",
            Self::Gone => "gone",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Draining => "draining",
            Self::CutOff => "cut_off",
            Self::Refused => "refused",
            Self::Store => "store",
            Self::Polling => "polling",
            Self::RelayMissing => "relay_missing",
            Self::Unknown => "unknown",
        }
    }
}

impl Decision {
    fn from_wire(decision: proto::Decision) -> Self {
        let kind = match decision.kind() {
            proto::DecisionKind::Unspecified => DecisionKind::Unknown,
            proto::DecisionKind::Notified => DecisionKind::Notified,
            proto::DecisionKind::Woken => DecisionKind::Woken,
            proto::DecisionKind::StoodAside => DecisionKind::StoodAside,
            proto::DecisionKind::Reassigned => DecisionKind::Reassigned,
            proto::DecisionKind::Checked => DecisionKind::Checked,
            proto::DecisionKind::Busy => DecisionKind::Busy,
            proto::DecisionKind::Empty => DecisionKind::Empty,
            proto::DecisionKind::Joined => DecisionKind::Joined,
            proto::DecisionKind::Left => DecisionKind::Left,
        };
        Self {
            ago: span_from_wire(decision.ago),
            kind,
            sequence: decision.sequence,
            reason: reason_from_wire(decision.reason()),
            listener_id: non_empty(decision.listener_id),
            group: non_empty(decision.group),
            relay_id: decision.relay_id,
        }
    }
}

impl DecisionKind {
    /// Returns the kind's name, such as `stood_aside`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Notified => "notified",
            Self::Woken => "woken",
            Self::StoodAside => "stood_aside",
            Self::Reassigned => "reassigned",
            Self::Checked => "checked",
            Self::Busy => "busy",
            Self::Empty => "empty",
            Self::Joined => "joined",
            Self::Left => "left",
            Self::Unknown => "unknown",
        }
    }
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}
