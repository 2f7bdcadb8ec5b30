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
    WakeDropsRest, 8, "R1", "what finds no room is not sent in the next";
    NoTokenIsCurrent, 2, "R2", "no token is taken to be up to date";
    ForeignEpochAccepted, 1, "R2", "a token of another epoch is believed";
    TokenAboveHeadAccepted, 454, "R2", "a token above the head is believed";
    TokenBelowStartAccepted, 324, "R2", "a token below the start is taken to be up to date";
    PatternWithoutSelectorEntry, 7, "R2", "a pattern gets no CATCH_UP under its own name";
    SpreadUntilHeartbeat, 1, "R2", "a CATCH_UP that was spread waits for a heartbeat";
    PositionsMakeNothing, 55, "R2", "a position makes no record";
    FloorForgotten, 24, "R3", "a forgotten queue starts again where it first did";
    ForgetWithTimer, 0, "R3", "a queue with a pending timer is forgotten";
    PatternPinsQueue, 0, "R3", "a pattern keeps the entries of idle queues";
    OverflowUntold, 7, "R2", "a pattern is not told of queues that it has no cursor for";
    ChecksOneByOne, 594, "R11", "a stream is asked for one check at a time";
    SnapshotBeforeRegister, 0, "R4", "the snapshot comes before the registration";
    PatternRegistersLate, 27, "R4", "a pattern is registered after the scan";
    MarkClearedAfterWalk, 480, "R5", "a walk clears the dirty mark last";
    AwakeNeverCleared, 0, "R5", "a stream does not clear its awake mark";
    MarkWithoutWake, 0, "R5", "a new cursor marks its stream without waking it";
    WalkLeavesMark, 10, "R5", "an unfinished walk leaves its mark behind";
    HeartbeatUnchecked, 51, "R6", "a heartbeat compares no cursors";
    LookPutOff, 283, "R6", "each wake puts off the look at all cursors";
    SilenceUnnoticed, 4, "R6", "a silent stream is not noticed";
    RestUntilHeartbeat, 60, "R6", "a rest after many lasts until a heartbeat";
    GoodbyeKeepsBackoff, 43, "I18", "a good stream's Goodbye does not reset the back-off";
    SilentConnectionKept, 11, "R6", "the stream after a silent one uses the same connection";
    ConnectionWindowNarrow, 47, "section 2", "an unread stream takes up the whole connection's window";
    TimersCancelled, 0, "R7", "a new timer cancels those before it";
    TimersMergeDown, 0, "R7", "timers merge downwards";
    NoTimerForBusy, 17, "R8", "a busy listener's end sets no timer";
    NeverReportingIsIdle, 34, "R8", "who never reports is taken to be idle";
    SequenceAboveHeadAccepted, 1311, "R9", "a reported sequence above the head is believed";
    LateDepthLowersBacklog, 0, "backlog", "a report lowers it whatever the report has seen";
    VisibleNowIgnored, 59, "R10", "`visible_in = 0` wakes no listener";
    AskedCountsAsLooked, 2, "R11", "a listener that was asked counts as if it had looked";
    BusyCountedNotSent, 2, "R12", "a busy member is counted and sent nothing";
    UncoveredNotReassigned, 67, "R13", "an uncovered wake-up goes to no other member";
    LeaseNeverLapses, 32, "R14", "a busy member's lease never lapses";
    DrainedBehindIsDone, 9, "R15", "what came after a drained sequence is not owed";
    BusyEndNotReassigned, 50, "R16", "a busy member's end hands nothing on";
    PublisherGivesUp, 3, "retry", "an unacknowledged notification is not sent again";
    BatchDropped, 34, "R19", "a refused batch is dropped whole";
    ExhaustedRetriedWhole, 45, "R19", "a request that a full relay refused is sent again whole";
    SetAsideDropped, 61, "R19", "what a full relay refused is dropped";
    DeadlineSilent, 1, "R19", "a deadline passes in silence";
    DelaySlotIgnored, 0, "R19", "delayed and not delayed are conflated";
    TokenTakenOnArrival, 33, "resume", "a token is taken when its wake-up arrives";
    BrokenKeepsArrived, 0, "resume", "what a broken stream brought is handed over";
    PositionsNotCut, 79, "resume", "positions are sent that the request has no room for";
    ExhaustedSendsAll, 295, "resume", "a request that was refused for its size is sent as it was";
    ResumeNumberTooNew, 96, "resume", "the number is drawn when all cursors are compared, not before";
    ResumePastForgotten, 783, "resume", "a pattern resumes past what changed and was forgotten";
    NewQueueNotStamped, 393, "resume", "a new entry counts as unchanged since ever";
    ResumeBeforeHandOver, 555, "resume", "a number counts although wake-ups before it were not handed over";
    MarkReplaces, 0, "marks", "a mark replaces those before it";
    SpentRoundDropped, 32, "R14, R16", "what a member leaves is dropped where all others were asked";
    RestKept, 39, "R12", "messages that waited for a stream are owed although the queue was drained";
    ParkedClaimForgotten, 293, "R13", "a claim that waited for a stream is not redelivered";
    UnansweredCheckDropped, 5, "R11", "a check that no member answers is dropped";
    CheckWaitsForReader, 1221, "R11", "a check waits for a member that does not read";
    CheckStaysWithMembers, 5, "R11", "a queue with a group never asks its other listeners";
    NewGroupIsCurrent, 2, "R2", "a new group is taken to be up to date";
    OneGroupIsTold, 9, "section 5", "of several groups on a queue one is told";
    RefusalLeavesQueues, 13, "R19", "a refused request leaves queues behind";
    EndedStreamPinsQueue, 13, "R3", "a pattern's stream that ends keeps idle queues in a full table";
    LeaveUnarmed, 1548, "R17", "a task leaves although there was a cause since its get";
    BusyNeverLooks, 4, "R18", "a wake-up starts no look while tasks are at work";
    LastTaskLeaves, 18, "section 6", "the last task of a queue that is polled leaves";
    NeverPolls, 23, "section 6", "a listener without its relay stays in the mode `Pushed`";
    ReportsNotRepeated, 4, "section 3", "reports are not repeated after a Welcome";
    BusyUnsaid, 108, "R8", "who found work unasked does not say BUSY";
    DrainedEarly, 4, "R8", "DRAINED is said while another task holds messages";
    HiddenUnsaid, 27, "section 3", "the time when messages become visible again is not reported";
    LostGetUnsaid, 25, "section 3", "a get without an answer hides messages that are not reported";
    LostGetRetried, 980, "section 3", "a get without an answer is repeated by what tries again, and comes back empty";
    AnnouncedForever, 419, "section 6", "an announced end counts as one, however the next attempt fails";
    LookerHandles, 635, "section 6", "the task that looks also handles, and no other one looks";
    DepthNotAskedAgain, 2014, "section 6", "a depth that needed no more tasks is not asked for again";
    HolderNeverRoused, 1222, "R18", "a wake-up rouses no task that holds messages and has places left";
    PlacesWaitForAll, 92, "places", "a task gets nothing more before all of its messages are handled";
    LeavesWhileHolding, 4, "R8", "a task whose get found nothing ends with messages in its hands";
    DismissedWhileHolding, 294, "R8", "a task that is one too many ends with messages in its hands";
    PauseForgets, 958, "R18", "wake-ups of a paused listener are forgotten";
    LeavingStays, 294, "R18", "a task that was to end does not go on when its listener does";
    UntriedGetCounted, 28, "attempts", "a get without a try counts as an attempt";
    TakenBackTwice, 12, "attempts", "the listener also subtracts a get that the queue has removed from its count";
    AbandonedGetCounted, 12, "attempts", "messages that a stopping listener releases count as tried";
    PoisonedUntried, 12, "attempts", "a message that was got too often is poisoned without an attempt";
    LastTryShared, 12, "attempts", "a message's last attempt shares a run with other messages";
    SettledHandledAgain, 28, "attempts", "a handled message that was not deleted is handled again by the same listener";
};

pub(super) const FLAG_FAULTS: &[Row] = rows! {
    FlagReadBeforeRegister, 59, "R20", "a watcher is told the state that was read before its registration";
    FlagReadDuringWrite, 59, "R20", "a read counts although a write ended during it";
    FlagSetConflated, 1594, "R21", "a watcher is told the present state only";
    FlagExpiryUnconditional, 421, "R22", "an expired flag is deleted even if it has changed";
    FlagTellsBeforeDurable, 3, "durable first", "watchers are told before the flag is written";
    FlagGenerationRepeats, 3, "generation", "the time alone makes generations";
};

pub(super) const AGENT_FAULTS: &[Row] = rows! {
    RoomUnnoticed, 1, "R12", "a member that has room again is given no work that waits";
    AgentForgetsLate, 74, "agents", "what came after a worker's start is forgotten when it ends";
    AgentDrainsEarly, 982, "agents", "DRAINED is said while another worker runs";
    AgentHiddenUnsaid, 225, "agents", "the time when a failed worker's messages become visible is not said";
    AgentTrustsTimers, 72, "agents", "after a lost stream nobody looks when hidden messages become visible";
    AgentRoomUnsaid, 1, "agents", "the relay is not told that there is room again";
};

pub(super) const CENTRAL_FAULTS: &[Row] = rows! {
    CentralRetiresWork, 2, "central agent", "nodes with work are removed";
    CentralFailureIsDone, 29, "central agent", "a call that failed counts as done";
    CentralIgnoresInterval, 4, "central agent", "calls follow each other without the interval";
    CentralNoDwell, 5, "central agent", "nodes are removed soon after others were added";
    CentralDropsWakeUps, 1, "central agent", "a wake-up causes no look";
};

pub(super) const LEASE_FAULTS: &[Row] = rows! {
    TenureBelievedFromAnswer, 6, "section 9", "a write is believed from its answer on";
    TenureMarginMissing, 11, "section 9", "a holder believes for as long as its challengers wait";
    TenureUnknownBelieved, 11, "section 9", "a write of unknown outcome is taken to have succeeded";
    TenureOldWriteAsNew, 799, "section 9", "an older write that is found is believed from the newest one's sending";
    TenureNonceIgnored, 0, "section 9", "a write is taken for one's own by its token";
    TenureNonceKept, 0, "section 9", "a renewal has the nonce of what it renews";
    TenureTokenKept, 0, "section 9", "a contender that takes a lease keeps its token";
    TenureSeenFromRequest, 279, "section 9", "a challenger counts from before its read";
    TenureRenewalUnseen, 0, "section 9", "a renewal does not begin a challenger's wait anew";
    TenureOwnDuration, 1, "section 9", "a challenger waits for its own duration";
    TenureTombstoneIgnored, 0, "section 9", "a tombstone is waited for like a holder";
    TenureBelievedInRelease, 1, "section 9", "a holder believes until its tombstone is written";
};

pub(super) const MANY_FAULTS: &[Row] = rows! {
    TurnsUnbounded, 0, "work", "a quarter of all queues that wait for a stream have their turns in one step";
};

pub(super) const COURIER_FAULTS: &[Row] = rows! {
    AcceptedBeforeStored, 4, "hand-over: accept", "offers are accepted before they are stored";
    VisibleBeforeConfirmed, 1, "hand-over: confirm", "a message is visible when it is stored, before the sender has marked it as sent";
    SentBeforeAccepted, 0, "hand-over: accept", "a message is marked as sent before it is accepted";
    ConfirmsAllOffered, 2, "hand-over: confirm", "the confirmation covers messages that are not accepted yet";
    HeldIgnored, 1, "hand-over: welcome", "a new connection does not ask which messages the receiver holds";
    HeldNotConfirmed, 1, "hand-over: welcome", "messages that the receiver holds are never confirmed";
    HeldConfirmed, 4, "hand-over: welcome", "sent messages count as visible although the receiver holds them";
    OffersBeforeWelcome, 11, "hand-over: welcome", "messages are offered before the receiver has said what it holds";
    OldConnectionAccepted, 2, "hand-over: connection", "frames of an earlier connection are handled";
    OneSessionPerSender, 59, "hand-over: connection", "a sender that reaches the receiver by two names has one session";
    NoGreeting, 52, "hand-over: connection", "a host connects only while messages wait, and never confirms those that a restored file does not know";
    FrameGapAccepted, 3, "hand-over: frames", "a frame is handled although an earlier one is missing";
    RestoredCopyStored, 86, "hand-over: ids", "the ids of earlier messages are forgotten";
    PostponedOvertaken, 14, "hand-over: order", "a message overtakes a postponed one of its queue";
    RefusedOvertaken, 110, "hand-over: order", "a message is stored although the refusal of an earlier one may be lost";
    PostponedBuried, 2, "hand-over: postponed", "a postponed message becomes a dead letter";
    RefusedForgotten, 4, "hand-over: refused", "a refused message goes to no dead letters";
    LoopAccepted, 3, "hand-over: routes", "a message goes round in a loop of routes";
    NotificationNotNoted, 1, "hand-over: notification", "the relay is not told of messages that become visible";
    OfferNotShrunk, 548, "hand-over: slow lines", "an offer that a slow line did not carry in time is made again";
    UncertaintyNotNoted, 2, "hand-over: age limit", "a connection leaves no note that its messages are uncertain";
    UncertainExpired, 2, "hand-over: age limit", "a message that the next machine may have stored expires";
};

#[cfg(feature = "nats")]
pub(super) const CLUSTER_FAULTS: &[Row] = rows! {
    LinkFrameRebuilt, 1, "C2", "a frame that is published again has more entries under the same number";
    LinkFrameNotRepeated, 2, "C2", "a frame is published once";
    LinkSecondMachineIgnored, 1, "C2", "an own number with other bytes is ignored";
    LinkFrameAppliedTwice, 0, "C3", "a frame that was received before is applied again";
    LinkGapForgotten, 13, "C3", "numbers that a frame skips do not join the gap";
    LinkNameNotKept, 24, "C3", "an entry of a frame makes a queue entry only where a pattern is here";
    LinkRecentCutSilently, 15, "C4", "queues leave the list of a heartbeat, and its lower bound stays";
    LinkNumberBackTrusted, 4, "C5", "a number that goes back is no resync";
    LinkHeartbeatUnread, 2, "C5", "the numbers of heartbeats are not compared";
    LinkNewPeerTrusted, 22, "C5", "a new peer begins at its first number";
    LinkCopyTrusted, 0, "C5", "a copy of a heartbeat counts as a number that goes back";
    LinkResyncSkipsPatterns, 120, "C6", "a hash without a queue wakes no pattern";
    LinkResyncPostponesForgetting, 256, "C6", "a resync postpones forgetting";
    LinkResyncNeedsListener, 30, "C6", "a resync counts no cause where the queue has no listener at present";
    LinkMissingNoCheck, 12, "C7", "groups check nothing when a peer is missing";
    LinkMissingSkipsEmpty, 16, "C7", "groups without members do not check";
    LinkInterruptionIgnored, 25, "C7", "a peer that goes missing after an interruption is no resync";
    LinkEventsTrusted, 53, "C7", "only the client's events are interruptions";
    LinkAnswerUnconfirmed, 23, "C8", "a publisher is answered when the frame is published";
    LinkIsolationUntold, 2, "C9", "`degraded` is not told when an isolation begins";
    LinkOldReturnTrusted, 43, "C9", "an old own heartbeat ends an isolation";
    LinkIsolationEndTrusted, 44, "C9", "the end of an isolation is no resync";
    LinkServedInPart, 33, "C10", "a group is announced as served though idle members did not take all of the causes";
    LinkServedDropped, 7, "C11", "work of the last member that leaves is not passed on";
    LinkSentinelMissing, 0, "C12", "a relay of a cluster has no sentinel";
    LinkCheckIgnored, 0, "C12", "a check by a listener of another relay does not restart the interval";
    LinkLeavesEarly, 325, "C15", "a relay leaves before its last causes are confirmed";
    LinkTimersNotHandedOver, 22, "C15", "a relay leaves without the hand-over of its timers";
    LinkHintDropped, 1, "C14", "the flags in another relay's frame are not read";
    LinkResyncReadsNoFlags, 60, "C14", "a resync reads no watched flags";
    FlagEndUnmarked, 1, "R21", "a clearing leaves no trace of the set that it ends";
    FlagOldSetTold, 57, "C14", "a set through another relay is told although it was over before a watcher came";
    FlagWriteUnordered, 28, "C14", "the outcome of a write counts although another relay's write was heard during it";
    FlagAcksReadOnce, 100, "C14", "the acknowledgements of another relay are read once in a generation";
    FlagAckUnread, 99, "C14", "an acknowledgement of a generation that the relay does not know is dropped";
};
