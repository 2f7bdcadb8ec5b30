//! The planted faults that each simulation has to find: a seed that finds each, and the rule that it
//! breaks.

use super::Row;
use crate::base::fault::Fault;

/// Makes rows of lines: a fault, its seed, its rule, and its description.
macro_rules! rows {
    ($($fault:ident, $seed:literal, $rule:literal, $what:literal;)*) => {
        &[$(Row { fault: Fault::$fault, seed: $seed, rule: $rule, what: $what }),*]
    };
}

pub(super) const FAULTS: &[Row] = rows! {
    WakeUnbounded, 8, "R1", "a wake holds however much is owed";
    ForeignEpochAccepted, 1, "R2", "a resume number of another epoch is accepted";
    FloorForgotten, 22, "R3", "a forgotten queue starts again where it first did";
    OverflowUntold, 7, "R2", "a pattern is not told of queues that it has no cursor for";
    MarkClearedAfterWalk, 271, "R5", "a walk clears the dirty mark last";
    SilenceUnnoticed, 1, "R6", "a silent stream is not noticed";
    GoodbyeKeepsBackoff, 227, "I18", "a good stream's Goodbye does not reset the back-off";
    TimersMergeDown, 0, "R7", "timers merge downwards";
    NoTimerForBusy, 17, "R8", "a busy listener's end sets no timer";
    MemberSkipped, 2, "R12", "the turn of members does not begin again";
    SequenceAboveHeadAccepted, 281, "R9", "a reported sequence above the head is believed";
    LateDepthLowersBacklog, 0, "backlog", "a report lowers it whatever the report has seen";
    BusyCountedNotSent, 2, "R12", "a busy member is counted and sent nothing";
    UncoveredNotReassigned, 309, "R13", "an uncovered wake-up goes to no other member";
    LeaseNeverLapses, 15, "R14", "a busy member's lease never lapses";
    DrainedBehindIsDone, 9, "R15", "what came after a drained sequence is not owed";
    RefusalTakesAll, 61, "R19", "a refused event takes the others of its request with it";
    RefusedDropped, 61, "R19", "an event without room is dropped and not sent again";
    ResumeTakenOnArrival, 235, "resume", "a number is taken before the wake-ups before it were handed over";
    ResumeNumberTooNew, 58, "resume", "a change counts as told before the fan-out has told all of it";
    ResumePastForgotten, 0, "resume", "a pattern resumes past what changed and was forgotten";
    SpentRoundDropped, 522, "R14, R16", "what a member leaves is dropped where all others were asked";
    LeaveUnarmed, 738, "R17", "a task leaves although there was a cause since its get";
    BusyNeverLooks, 20, "R18", "a wake-up starts no look while tasks are at work";
    ReportsNotRepeated, 71, "section 3", "reports are not repeated after a Welcome";
    DrainedEarly, 12, "R8", "DRAINED is said while another task holds messages";
    LostGetUnsaid, 772, "section 3", "a get without an answer hides messages that are not reported";
    AnnouncedForever, 3270, "section 6", "an announced end counts as one, however the next attempt fails";
    SettledHandledAgain, 92, "attempts", "a handled message that was not deleted is handled again by the same listener";
};

pub(super) const FLAG_FAULTS: &[Row] = rows! {
    FlagReadDuringWrite, 38, "R20", "a read counts although a write ended during it";
    FlagSetConflated, 494, "R21", "a watcher is told the present state only";
    FlagExpiryUnconditional, 421, "R22", "an expired flag is deleted even if it has changed";
    FlagTellsBeforeDurable, 3, "durable first", "watchers are told before the flag is written";
    FlagGenerationRepeats, 3, "generation", "the time alone makes generations";
};

pub(super) const AGENT_FAULTS: &[Row] = rows! {
    RoomUnnoticed, 8, "R12", "a member that has room again is given no work that waits";
    AgentForgetsLate, 74, "agents", "what came after a worker's start is forgotten when it ends";
    AgentTrustsTimers, 452, "agents", "after a lost stream nobody looks when hidden messages become visible";
};

pub(super) const CENTRAL_FAULTS: &[Row] = rows! {
    CentralRetiresWork, 2, "central agent", "nodes with work are removed";
    CentralFailureIsDone, 43, "central agent", "a call that failed counts as done";
    CentralIgnoresInterval, 93, "central agent", "calls follow each other without the interval";
    CentralNoCoolDown, 5, "central agent", "nodes are removed soon after they were needed";
};

pub(super) const LEASE_FAULTS: &[Row] = rows! {
    TenureBelievedFromAnswer, 6, "section 9", "a write is believed from its answer on";
    TenureNonceIgnored, 0, "section 9", "a write is taken for one's own by its token";
    TenureTokenKept, 0, "section 9", "a contender that takes a lease keeps its token";
    TenureSeenFromRequest, 119, "section 9", "a challenger counts from before its read";
};

pub(super) const MANY_FAULTS: &[Row] = rows! {
    TurnsUnbounded, 0, "work", "a quarter of all queues that wait for a stream have their turns in one step";
};

pub(super) const COURIER_FAULTS: &[Row] = rows! {
    AcceptedBeforeStored, 4, "hand-over: accept", "offers are accepted before they are stored";
    ConfirmsAllOffered, 1, "hand-over: confirm", "an offer, which confirms the one before it, does not wait for its answer";
    HeldIgnored, 1, "hand-over: welcome", "a new connection does not ask which messages the receiver holds";
    OldConnectionAccepted, 196, "hand-over: connection", "frames of an earlier connection are handled";
    NoGreeting, 370, "hand-over: connection", "a host connects only while messages wait, and never confirms those that a restored file does not know";
    RepeatedRequestAccepted, 19, "hand-over: frames", "a request that was handled before is handled again";
    PostponedOvertaken, 16, "hand-over: order", "the message after a postponed one is offered in its place";
    LoopAccepted, 3, "hand-over: routes", "a message goes round in a loop of routes";
    NotificationNotNoted, 1, "hand-over: notification", "the relay is not told of messages that become visible";
    UncertaintyNotNoted, 70, "hand-over: age limit", "a connection leaves no note that its messages are uncertain";
};

#[cfg(feature = "nats")]
pub(super) const CLUSTER_FAULTS: &[Row] = rows! {
    LinkFrameNotRepeated, 2, "C2", "a frame is published once";
    LinkFrameAppliedTwice, 0, "C3", "a frame that was received before is applied again";
    LinkGapForgotten, 11, "C3", "numbers that a frame skips do not join the gap";
    LinkRecentCutSilently, 41, "C4", "queues leave the list of a heartbeat, and its lower bound stays";
    LinkNumberBackTrusted, 4, "C5", "a number that goes back is no resync";
    LinkHeartbeatUnread, 2, "C5", "the numbers of heartbeats are not compared";
    LinkResyncNeedsListener, 16, "C6", "a resync counts no cause where the queue has no listener at present";
    LinkMissingNoCheck, 12, "C7", "groups check nothing when a peer is missing";
    LinkInterruptionIgnored, 25, "C7", "a peer that goes missing after an interruption is no resync";
    LinkAnswerUnconfirmed, 31, "C8", "a publisher is answered when the frame is published";
    LinkIsolationUntold, 2, "C9", "`degraded` is not told when an isolation begins";
    LinkIsolationEndTrusted, 44, "C9", "the end of an isolation is no resync";
    LinkServedInPart, 33, "C10", "a group is announced as served though idle members did not take all of the causes";
    LinkServedDropped, 7, "C11", "work of the last member that leaves is not passed on";
    LinkCheckIgnored, 0, "C12", "a check by a listener of another relay does not restart the interval";
    LinkLeavesEarly, 168, "C15", "a relay leaves before its last causes are confirmed";
    LinkTimersNotHandedOver, 20, "C15", "a relay leaves without the hand-over of its timers";
    FlagEndUnmarked, 8, "R21", "a clearing leaves no trace of the set that it ends";
    FlagAcksReadOnce, 37, "C14", "the acknowledgements of another relay are read once in a generation";
};
