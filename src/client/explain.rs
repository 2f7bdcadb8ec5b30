//! Why a queue is, or is not, served: the relay's findings and its newest decisions.

use std::time::Duration;

use super::{
    admin::QueueInfo,
    mirror::{mirror, mirror_enum},
};
use crate::types::WakeReason;

mirror! {
    /// Why a queue is, or is not, served.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Explanation from ExplainResponse {
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
        pub unanswered = unanswered_relays: Vec<String>,
    }
}

mirror! {
    /// Something that is wrong, or explains why a queue waits.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Finding from Finding {
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
}

mirror_enum! {
    /// What a [`Finding`] is about.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum FindingKind from FindingKind {
        /// Nothing is wrong.
        Fine = Unspecified "fine",
        /// A queue has no listener.
        NoListener = NoListener "no_listener",
        /// All listeners of a queue handle as much as they can.
        AtCapacity = AtCapacity "at_capacity",
        /// A listener was woken and does not report.
        Silent = Silent "silent",
        /// A listener was lost: it did not answer in time.
        Gone = Gone "gone",
        /// A listener has been handling one message for long.
        Busy = Busy "busy",
        /// The relay has reached a limit, or nearly.
        Full = Full "full",
        /// The relay shuts down.
        Draining = Draining "draining",
        /// The relay is cut off from the others, so its listeners poll.
        CutOff = CutOff "cut_off",
        /// The store of the flags cannot be read.
        Store = Store "store",
        /// Listeners poll without wake-ups.
        Polling = Polling "polling",
        /// A relay of the cluster does not answer.
        RelayMissing = RelayMissing "relay_missing",
    }
}

mirror! {
    /// What a relay decided about a queue, or learned of it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Decision from Decision {
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
}

mirror_enum! {
    /// The kind of a [`Decision`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum DecisionKind from DecisionKind {
        /// A notification was counted.
        Notified = Notified "notified",
        /// A wake-up was sent to the listener.
        Woken = Woken "woken",
        /// The member of a group was not woken, because others have the work.
        StoodAside = StoodAside "stood_aside",
        /// The listener was woken for work that another member had not confirmed.
        Reassigned = Reassigned "reassigned",
        /// The listener was asked to read the queue, without a notification.
        Checked = Checked "checked",
        /// The listener reported that it works on the queue.
        Busy = Busy "busy",
        /// The listener reported that it found no more messages.
        Empty = Empty "empty",
        /// The listener subscribed.
        Joined = Joined "joined",
        /// The listener's stream ended.
        Left = Left "left",
    }
}
