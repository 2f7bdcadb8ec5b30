//! The planted faults that each simulation has to find, with the rules that they break.

use super::Row;
use crate::base::fault::Fault;

/// Makes rows of lines: a fault, its rule, and its description.
macro_rules! rows {
    ($($fault:ident, $rule:literal, $what:literal;)*) => {
        &[$((Fault::$fault, $rule, $what)),*]
    };
}

pub(super) const FAULTS: &[Row] = rows! {
    WakeUnbounded, "R1", "a wake holds however much is owed";
    WakeDropsRest, "R1", "what finds no room is not sent in the next";
    NoTokenIsCurrent, "R2", "no token is taken to be up to date";
    ForeignEpochAccepted, "R2", "a token of another epoch is believed";
    TokenAboveHeadAccepted, "R2", "a token above the head is believed";
    TokenBelowStartAccepted, "R2", "a token below the start is taken to be up to date";
    PatternWithoutSelectorEntry, "R2", "a pattern gets no CATCH_UP under its own name";
    SpreadUntilHeartbeat, "R2", "a CATCH_UP that was spread waits for a heartbeat";
    PositionsMakeNothing, "R2", "a position makes no record";
    FloorForgotten, "R3", "a forgotten queue starts again where it first did";
    ForgetWithTimer, "R3", "a queue with a pending timer is forgotten";
    PatternPinsQueue, "R3", "a pattern keeps the entries of idle queues";
    OverflowUntold, "R2", "a pattern is not told of queues that it has no cursor for";
    ChecksOneByOne, "R11", "a stream is asked for one check at a time";
    SnapshotBeforeRegister, "R4", "the snapshot comes before the registration";
    PatternRegistersLate, "R4", "a pattern is registered after the scan";
    MarkClearedAfterWalk, "R5", "a walk clears the dirty mark last";
    AwakeNeverCleared, "R5", "a stream does not clear its awake mark";
    MarkWithoutWake, "R5", "a new cursor marks its stream without waking it";
    WalkLeavesMark, "R5", "an unfinished walk leaves its mark behind";
    HeartbeatUnchecked, "R6", "a heartbeat compares no cursors";
    LookPutOff, "R6", "each wake puts off the look at all cursors";
    SilenceUnnoticed, "R6", "a silent stream is not noticed";
    RestUntilHeartbeat, "R6", "a rest after many lasts until a heartbeat";
    GoodbyeKeepsBackoff, "I18", "a good stream's Goodbye does not reset the back-off";
    SilentConnectionKept, "R6", "the stream after a silent one uses the same connection";
    ConnectionWindowNarrow, "section 2", "an unread stream takes up the whole connection's window";
    TimersCancelled, "R7", "a new timer cancels those before it";
    TimersMergeDown, "R7", "timers merge downwards";
    NoTimerForBusy, "R8", "a busy listener's end sets no timer";
    NeverReportingIsIdle, "R8", "who never reports is taken to be idle";
    SequenceAboveHeadAccepted, "R9", "a reported sequence above the head is believed";
    VisibleNowIgnored, "R10", "`visible_in = 0` wakes no listener";
    AskedCountsAsLooked, "R11", "a listener that was asked counts as if it had looked";
    BusyCountedNotSent, "R12", "a busy member is counted and sent nothing";
    UncoveredNotReassigned, "R13", "an uncovered wake-up goes to no other member";
    LeaseNeverLapses, "R14", "a busy member's lease never lapses";
    DrainedBehindIsDone, "R15", "what came after a drained sequence is not owed";
    BusyEndNotReassigned, "R16", "a busy member's end hands nothing on";
    PublisherGivesUp, "retry", "an unacknowledged notification is not sent again";
    BatchDropped, "R19", "a refused batch is dropped whole";
    ExhaustedRetriedWhole, "R19", "a request that a full relay refused is sent again whole";
    SetAsideDropped, "R19", "what a full relay refused is dropped";
    DeadlineSilent, "R19", "a deadline passes in silence";
    DelaySlotIgnored, "R19", "delayed and not delayed are conflated";
    TokenTakenOnArrival, "resume", "a token is taken when its wake-up arrives";
    BrokenKeepsArrived, "resume", "what a broken stream brought is handed over";
    PositionsNotCut, "resume", "positions are sent that the request has no room for";
    ExhaustedSendsAll, "resume", "a request that was refused for its size is sent as it was";
    ResumeNumberTooNew, "resume", "the number is drawn when all cursors are compared, not before";
    ResumePastForgotten, "resume", "a pattern resumes past what changed and was forgotten";
    NewQueueNotStamped, "resume", "a new entry counts as unchanged since ever";
    ResumeBeforeHandOver, "resume", "a number counts although wake-ups before it were not handed over";
    MarkReplaces, "marks", "a mark replaces those before it";
    SpentRoundDropped, "R14, R16", "what a member leaves is dropped where all others were asked";
    RestKept, "R12", "messages that waited for a stream are owed although the queue was drained";
    ParkedClaimForgotten, "R13", "a claim that waited for a stream is not redelivered";
    UnansweredCheckDropped, "R11", "a check that no member answers is dropped";
    CheckWaitsForReader, "R11", "a check waits for a member that does not read";
    CheckStaysWithMembers, "R11", "a queue with a group never asks its other listeners";
    NewGroupIsCurrent, "R2", "a new group is taken to be up to date";
    OneGroupIsTold, "section 5", "of several groups on a queue one is told";
    RefusalLeavesQueues, "R19", "a refused request leaves queues behind";
    EndedStreamPinsQueue, "R3", "a pattern's stream that ends keeps idle queues in a full table";
    LeaveUnarmed, "R17", "a task leaves although there was a cause since its get";
    BusyNeverLooks, "R18", "a wake-up starts no look while tasks are at work";
    LastTaskLeaves, "section 6", "the last task of a queue that is polled leaves";
    NeverPolls, "section 6", "a listener without its relay stays in the mode `Pushed`";
    ReportsNotRepeated, "section 3", "reports are not repeated after a Welcome";
    BusyUnsaid, "R8", "who found work unasked does not say BUSY";
    DrainedEarly, "R8", "DRAINED is said while another task holds messages";
    HiddenUnsaid, "section 3", "the time when messages become visible again is not reported";
    LostGetUnsaid, "section 3", "a get without an answer hides messages that are not reported";
    LostGetRetried, "section 3", "a get without an answer is repeated by what tries again, and comes back empty";
    AnnouncedForever, "section 6", "an announced end counts as one, however the next attempt fails";
    LookerHandles, "section 6", "the task that looks also handles, and no other one looks";
    DepthNotAskedAgain, "section 6", "a depth that needed no more tasks is not asked for again";
    HolderNeverRoused, "R18", "a wake-up rouses no task that holds messages and has places left";
    PlacesWaitForAll, "places", "a task gets nothing more before all of its messages are handled";
    LeavesWhileHolding, "R8", "a task whose get found nothing ends with messages in its hands";
    DismissedWhileHolding, "R8", "a task that is one too many ends with messages in its hands";
    PauseForgets, "R18", "wake-ups of a paused listener are forgotten";
    LeavingStays, "R18", "a task that was to end does not go on when its listener does";
    UntriedGetCounted, "attempts", "a get without a try counts as an attempt";
    TakenBackTwice, "attempts", "the listener also subtracts a get that the queue has removed from its count";
    AbandonedGetCounted, "attempts", "messages that a stopping listener releases count as tried";
    PoisonedUntried, "attempts", "a message that was got too often is poisoned without an attempt";
    LastTryShared, "attempts", "a message's last attempt shares a run with other messages";
    SettledHandledAgain, "attempts", "a handled message that was not deleted is handled again by the same listener";
};

pub(super) const FLAG_FAULTS: &[Row] = rows! {
    FlagReadBeforeRegister, "R20", "the store is read before the watcher is registered";
    FlagReadDuringWrite, "R20", "a read counts although a write ended during it";
    FlagListDuringWrite, "R20", "a list of the store counts although a write ended during it";
    FlagSetConflated, "R21", "a watcher is told the present state only";
    FlagExpiryUnconditional, "R22", "an expired flag is deleted even if it has changed";
    FlagTellsBeforeDurable, "durable first", "watchers are told before the flag is written";
    FlagGenerationRepeats, "generation", "the time alone makes generations";
};

pub(super) const LEASE_FAULTS: &[Row] = rows! {
    TenureBelievedFromAnswer, "section 9", "a write is believed from its answer on";
    TenureMarginMissing, "section 9", "a holder believes for as long as its challengers wait";
    TenureUnknownBelieved, "section 9", "a write of unknown outcome is taken to have succeeded";
    TenureOldWriteAsNew, "section 9", "an older write that is found is believed from the newest one's sending";
    TenureNonceIgnored, "section 9", "a write is taken for one's own by its token";
    TenureNonceKept, "section 9", "a renewal has the nonce of what it renews";
    TenureTokenKept, "section 9", "a contender that takes a lease keeps its token";
    TenureSeenFromRequest, "section 9", "a challenger counts from before its read";
    TenureRenewalUnseen, "section 9", "a renewal does not begin a challenger's wait anew";
    TenureOwnDuration, "section 9", "a challenger waits for its own duration";
    TenureTombstoneIgnored, "section 9", "a tombstone is waited for like a holder";
    TenureBelievedInRelease, "section 9", "a holder believes until its tombstone is written";
};

pub(super) const MANY_FAULTS: &[Row] = rows! {
    TurnsUnbounded, "work", "a quarter of all queues that wait for a stream have their turns in one step";
};

pub(super) const COURIER_FAULTS: &[Row] = rows! {
    AcceptedBeforeStored, "hand-over: accept", "offers are accepted before they are stored";
    VisibleBeforeConfirmed, "hand-over: confirm", "a message is visible when it is stored, before the sender has marked it as sent";
    SentBeforeAccepted, "hand-over: accept", "a message is marked as sent before it is accepted";
    ConfirmsAllOffered, "hand-over: confirm", "the confirmation covers messages that are not accepted yet";
    HeldIgnored, "hand-over: welcome", "a new connection does not ask which messages the receiver holds";
    HeldNotConfirmed, "hand-over: welcome", "messages that the receiver holds are never confirmed";
    HeldConfirmed, "hand-over: welcome", "sent messages count as visible although the receiver holds them";
    OffersBeforeWelcome, "hand-over: welcome", "messages are offered before the receiver has said what it holds";
    OldConnectionAccepted, "hand-over: connection", "frames of an earlier connection are handled";
    OneSessionPerSender, "hand-over: connection", "a sender that reaches the receiver by two names has one session";
    NoGreeting, "hand-over: connection", "a host connects only while messages wait, and never confirms those that a restored file does not know";
    FrameGapAccepted, "hand-over: frames", "a frame is handled although an earlier one is missing";
    RestoredCopyStored, "hand-over: ids", "the ids of earlier messages are forgotten";
    PostponedOvertaken, "hand-over: order", "a message overtakes a postponed one of its queue";
    RefusedOvertaken, "hand-over: order", "a message is stored although the refusal of an earlier one may be lost";
    PostponedBuried, "hand-over: postponed", "a postponed message becomes a dead letter";
    RefusedForgotten, "hand-over: refused", "a refused message goes to no dead letters";
    LoopAccepted, "hand-over: routes", "a message goes round in a loop of routes";
    NotificationNotNoted, "hand-over: notification", "the relay is not told of messages that become visible";
    UncertaintyNotNoted, "hand-over: age limit", "a connection leaves no note that its messages are uncertain";
    UncertainExpired, "hand-over: age limit", "a message that the next machine may have stored expires";
};

pub(super) const CLUSTER_FAULTS: &[Row] = rows! {
    LinkFrameRebuilt, "C2", "a frame that is published again has more entries under the same number";
    LinkFrameNotRepeated, "C2", "a frame is published once";
    LinkSecondMachineIgnored, "C2", "an own number with other bytes is ignored";
    LinkFrameAppliedTwice, "C3", "a frame that was received before is applied again";
    LinkGapForgotten, "C3", "numbers that a frame skips do not join the gap";
    LinkNameNotKept, "C3", "an entry of a frame makes a queue entry only where a pattern is here";
    LinkRecentCutSilently, "C4", "queues leave the list of a heartbeat, and its lower bound stays";
    LinkNumberBackTrusted, "C5", "a number that goes back is no resync";
    LinkHeartbeatUnread, "C5", "the numbers of heartbeats are not compared";
    LinkNewPeerTrusted, "C5", "a new peer begins at its first number";
    LinkCopyTrusted, "C5", "a copy of a heartbeat counts as a number that goes back";
    LinkResyncSkipsPatterns, "C6", "a hash without a queue wakes no pattern";
    LinkResyncPostponesForgetting, "C6", "a resync postpones forgetting";
    LinkResyncNeedsListener, "C6", "a resync counts no cause where the queue has no listener at present";
    LinkMissingNoCheck, "C7", "groups check nothing when a peer is missing";
    LinkMissingSkipsEmpty, "C7", "groups without members do not check";
    LinkInterruptionIgnored, "C7", "a peer that goes missing after an interruption is no resync";
    LinkEventsTrusted, "C7", "only the client's events are interruptions";
    LinkAnswerUnconfirmed, "C8", "a publisher is answered when the frame is published";
    LinkIsolationUntold, "C9", "`degraded` is not told when an isolation begins";
    LinkOldReturnTrusted, "C9", "an old own heartbeat ends an isolation";
    LinkIsolationEndTrusted, "C9", "the end of an isolation is no resync";
    LinkServedInPart, "C10", "a group is announced as served though idle members did not take all of the causes";
    LinkServedDropped, "C11", "work of the last member that leaves is not passed on";
    LinkSentinelMissing, "C12", "a relay of a cluster has no sentinel";
    LinkCheckIgnored, "C12", "a check by a listener of another relay does not restart the interval";
    LinkLeavesEarly, "C15", "a relay leaves before its last causes are confirmed";
    LinkTimersNotHandedOver, "C15", "a relay leaves without the hand-over of its timers";
    LinkHintDropped, "C14", "the flags in another relay's frame are not read";
    LinkHintSetUntold, "C14", "a set that another relay announces is not told, only the present state";
    LinkResyncReadsNoFlags, "C14", "a resync reads no watched flags";
    FlagOldSetTold, "C14", "a set through another relay is told to watchers that came after it";
    FlagHashOrdered, "C14", "generations that are hashes are ordered as numbers";
    FlagWriteUnordered, "C14", "the outcome of a write counts although another relay's write was heard during it";
    FlagAcksReadOnce, "C14", "the acknowledgements of another relay are read once in a generation";
    FlagAckUnread, "C14", "an acknowledgement of a generation that the relay does not know is dropped";
};
