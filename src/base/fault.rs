//! Faults that the simulation plants in the cores, to show that it would find them.
//!
//! Each takes out or weakens one rule. docs/internal has the rules R1 to R28 and C1 to C16 with their
//! sections, and the invariants (evidence.md). Outside of this crate's own tests
//! `planted!` is `false`.

/// A fault of the state machines.
#[cfg(test)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// None: the rules as they are.
    #[default]
    None,
    /// R1: a wake holds however much is owed.
    WakeUnbounded,
    /// R1: what finds no room in a wake is not sent in the next.
    WakeDropsRest,
    /// R2: a subscriber without a token is taken to be up to date.
    NoTokenIsCurrent,
    /// R2: a token of another epoch is taken at its word.
    ForeignEpochAccepted,
    /// R2: a token above the record's head is taken at its word.
    TokenAboveHeadAccepted,
    /// R2: a token below the record's start is taken to be up to date.
    TokenBelowStartAccepted,
    /// R2: a pattern gets no CATCH_UP under its own name.
    PatternWithoutSelectorEntry,
    /// R2: a CATCH_UP that was spread comes with the next heartbeat only.
    SpreadUntilHeartbeat,
    /// R2: a position makes no record.
    PositionsMakeNothing,
    /// R3: a forgotten queue starts again where it started first.
    FloorForgotten,
    /// R3: a queue with a pending timer is forgotten.
    ForgetWithTimer,
    /// R3: a forgotten record is not marked dead.
    DeadNotMarked,
    /// R3: a pattern keeps the entries of idle queues.
    PatternPinsQueue,
    /// R4: the snapshot is taken, and told, before the subscriber is registered.
    SnapshotBeforeRegister,
    /// R4: a pattern is registered after the map was scanned.
    PatternRegistersLate,
    /// R5: a walk clears the dirty mark last.
    MarkClearedAfterWalk,
    /// R5: a stream clears its awake mark after it has read its cursors. Needs two threads: the
    /// concurrency test's.
    AwakeClearedAfterRead,
    /// R5: a stream does not clear its awake mark.
    AwakeNeverCleared,
    /// R5: a new cursor marks its stream without waking it, and so silences the next mark.
    MarkWithoutWake,
    /// R5: a walk that is not finished leaves the dirty mark behind.
    WalkLeavesMark,
    /// R6: a heartbeat is sent without comparing cursors.
    HeartbeatUnchecked,
    /// R6: each wake puts off the comparison of all cursors, for ever where one queue is busy.
    LookPutOff,
    /// R6: a stream that rests after a wake of many rests until the heartbeat.
    RestUntilHeartbeat,
    /// R7: a new timer cancels those before it.
    TimersCancelled,
    /// R7: timers merge downwards.
    TimersMergeDown,
    /// R8: a busy listener's end sets no timer.
    NoTimerForBusy,
    /// R8: a woken listener that never reports is taken to be idle.
    NeverReportingIsIdle,
    /// R9: a reported sequence above the head is taken at its word.
    SequenceAboveHeadAccepted,
    /// Backlog: a report lowers it whatever the report has seen.
    LateDepthLowersBacklog,
    /// R10: `visible_in = 0` wakes no listener.
    VisibleNowIgnored,
    /// R19: a notification that was not acknowledged is not sent again.
    PublisherGivesUp,
    /// R19: a batch that was refused is dropped whole and unreported.
    BatchDropped,
    /// R19: a deadline passes in silence.
    DeadlineSilent,
    /// R19: delayed and immediate notifications are merged.
    DelaySlotIgnored,
    /// Section 2: a token is taken when its wake-up arrives.
    TokenTakenOnArrival,
    /// Resume number: it is drawn when the comparison of all cursors has ended.
    ResumeNumberTooNew,
    /// Resume number: a stream that lacks cursors states one.
    ResumeWithoutCursors,
    /// Resume number: a pattern that resumes gets no CATCH_UP for queues that were forgotten.
    ResumePastForgotten,
    /// Resume number: a new entry counts as never changed.
    NewQueueNotStamped,
    /// Resume number: it is kept when it arrives, and not when the wake-ups before it are handed
    /// over.
    ResumeBeforeHandOver,
    /// Section 2: what arrived on a broken stream is handed over, and told again by the next.
    BrokenKeepsArrived,
    /// R6: a stream that is silent past its heartbeat is not noticed.
    SilenceUnnoticed,
    /// I18: a stream that lasted and ended in a Goodbye does not reset the back-off.
    GoodbyeKeepsBackoff,
    /// R6: the stream after a silent one uses the same connection.
    SilentConnectionKept,
    /// A connection's window is that of one stream: an unread stream starves the others.
    ConnectionWindowNarrow,
    /// Section 2: all positions are sent, also in a request that is too large.
    PositionsNotCut,
    /// Section 2: a request that was refused for its size is sent again unchanged.
    ExhaustedSendsAll,
    /// R19: a request that was refused with RESOURCE_EXHAUSTED is sent again whole.
    ExhaustedRetriedWhole,
    /// R19: an entry that was refused with RESOURCE_EXHAUSTED is dropped.
    SetAsideDropped,
    /// R19: a request that is refused for want of room leaves queues behind.
    RefusalLeavesQueues,
    /// R3: a pattern's stream that ends keeps its queues from giving way in a full table.
    EndedStreamPinsQueue,
    /// Section 2: a mark replaces those before it.
    MarkReplaces,
    /// R17: a task leaves although there was a cause since its get was issued.
    LeaveUnarmed,
    /// R18: a wake-up for a queue whose tasks are all at work starts no look.
    BusyNeverLooks,
    /// Section 6: the last task of a queue that is polled leaves like any other.
    LastTaskLeaves,
    /// Section 6: a listener without its relay stays in the mode `Pushed`.
    NeverPolls,
    /// Section 3: reports are not repeated after a Welcome.
    ReportsNotRepeated,
    /// Section 3: a get without an answer hides messages that are not reported.
    LostGetUnsaid,
    /// Section 3: a get without an answer is repeated by the wrapper that retries, and comes back
    /// empty.
    LostGetRetried,
    /// Section 6: an announced end of a stream counts as one, even after the next attempt fails.
    AnnouncedForever,
    /// Section 6: the polling task also handles its messages, and no other task polls during that.
    LookerHandles,
    /// Section 6: after a depth that needed no more tasks, it is not read again while all are busy.
    DepthNotAskedAgain,
    /// R18: a wake-up rouses no task that holds messages and has places left.
    HolderNeverRoused,
    /// A task gets nothing more before all of its messages are handled.
    PlacesWaitForAll,
    /// R8: a task whose get found nothing ends with messages in its hands.
    LeavesWhileHolding,
    /// R8: a task that is one too many ends with messages in its hands.
    DismissedWhileHolding,
    /// R18: wake-ups of a paused listener are forgotten.
    PauseForgets,
    /// R18: a task that was to end does not go on when its listener does.
    LeavingStays,
    /// Attempts: a get without a try counts as an attempt.
    UntriedGetCounted,
    /// Attempts: the listener also subtracts a get that the queue has removed from its count.
    TakenBackTwice,
    /// Attempts: messages that a stopping listener releases count as tried.
    AbandonedGetCounted,
    /// Attempts: a message with too many gets goes to the poison queue without an attempt.
    PoisonedUntried,
    /// Attempts: a message's last attempt shares a run with other messages.
    LastTryShared,
    /// Attempts: a handled message that could not be deleted is handled again by the same listener.
    SettledHandledAgain,
    /// R8: who found work unasked does not say BUSY.
    BusyUnsaid,
    /// R8: DRAINED is said while another task holds messages.
    DrainedEarly,
    /// Section 3: the time when messages become visible again is not reported.
    HiddenUnsaid,
    /// R11: a listener that was asked counts as if it had looked.
    AskedCountsAsLooked,
    /// R12: a busy member is counted, and not sent the wake-up.
    BusyCountedNotSent,
    /// Agents: what came after a worker's start is forgotten when it ends.
    AgentForgetsLate,
    /// Agents: DRAINED is said while another worker runs.
    AgentDrainsEarly,
    /// Agents: the relay is not told when the messages of a failed worker become visible.
    AgentHiddenUnsaid,
    /// Agents: after a lost stream the relay is taken to know when hidden messages become visible.
    AgentTrustsTimers,
    /// Agents: the relay is not told that there is room again.
    AgentRoomUnsaid,
    /// Central agent: nodes with work are removed.
    CentralRetiresWork,
    /// Central agent: a call that failed counts as done.
    CentralFailureIsDone,
    /// Central agent: calls follow each other without the interval.
    CentralIgnoresInterval,
    /// Central agent: nodes are removed soon after others were added.
    CentralNoDwell,
    /// Central agent: a wake-up causes no look.
    CentralDropsWakeUps,
    /// R12: a member that has room again is given no work that waits.
    RoomUnnoticed,
    /// R13: a wake-up that a member does not cover in time goes to no other member.
    UncoveredNotReassigned,
    /// R14: a busy member's lease never lapses.
    LeaseNeverLapses,
    /// R15: events counted after the drained sequence are not assigned at once.
    DrainedBehindIsDone,
    /// R16: the end of a busy member's stream hands its wake-up to no other member.
    BusyEndNotReassigned,
    /// R14, R16: what a member leaves is dropped where all others were asked in the round.
    SpentRoundDropped,
    /// R12: messages that waited for a stream are owed although the queue was drained.
    RestKept,
    /// R13: a claim that waited for a stream is not redelivered.
    ParkedClaimForgotten,
    /// R11: a check that no member answers is dropped.
    UnansweredCheckDropped,
    /// Work: however many queues wait for a stream, a quarter of them have their turns in one step.
    TurnsUnbounded,
    /// R11: a check waits for a member that does not read.
    CheckWaitsForReader,
    /// R11: a queue with a group never asks its other listeners.
    CheckStaysWithMembers,
    /// R2: a new group is taken to be up to date.
    NewGroupIsCurrent,
    /// Section 5: of several groups one is told.
    OneGroupIsTold,
    /// R2: a pattern that has no cursor for a queue is not told of it under its own name.
    OverflowUntold,
    /// R11: a stream is asked for one check at a time, and not told of the others when it has sent.
    ChecksOneByOne,
    /// R11, R12: a queue that waits for a stream is listed after the stream's mark is set. Needs
    /// two threads.
    AwaitedBeforeListed,
    /// R8: a report is taken from a subscription that has already ended. Needs two threads.
    ReportAfterEnd,
    /// R20: a watcher is told the state that was read before its registration.
    FlagReadBeforeRegister,
    /// R20: a read counts although a local write ended during it.
    FlagReadDuringWrite,
    /// R21: a watcher is told the present state only.
    FlagSetConflated,
    /// R21: a clearing leaves no trace of the set that it ends.
    FlagEndUnmarked,
    /// R22: an expired flag is deleted even if its ETag has changed.
    FlagExpiryUnconditional,
    /// Section 8, durable first: watchers are told before the flag is written.
    FlagTellsBeforeDurable,
    /// Section 8, generations: the time alone makes them.
    FlagGenerationRepeats,
    /// Section 9, leases: a write is believed from its answer on.
    TenureBelievedFromAnswer,
    /// Section 9: a holder believes for as long as its challengers wait.
    TenureMarginMissing,
    /// Section 9: a write of unknown outcome is taken to have succeeded.
    TenureUnknownBelieved,
    /// Section 9: an older write that is found is believed from the newest one's sending.
    TenureOldWriteAsNew,
    /// Section 9: a write is taken for one's own by its token.
    TenureNonceIgnored,
    /// Section 9: a renewal has the nonce of what it renews.
    TenureNonceKept,
    /// Section 9: a contender that takes a lease keeps its token.
    TenureTokenKept,
    /// Section 9: a challenger counts from before its read.
    TenureSeenFromRequest,
    /// Section 9: a renewal does not begin a challenger's wait anew.
    TenureRenewalUnseen,
    /// Section 9: a challenger waits for its own duration.
    TenureOwnDuration,
    /// Section 9: a tombstone is waited for like a holder.
    TenureTombstoneIgnored,
    /// Section 9: a holder believes until its tombstone is written.
    TenureBelievedInRelease,
    /// Hand-over: offers are accepted before they are stored.
    AcceptedBeforeStored,
    /// Hand-over: a message is visible when it is stored, before the sender has marked it as sent.
    VisibleBeforeConfirmed,
    /// Hand-over: a message is marked as sent before it is accepted.
    SentBeforeAccepted,
    /// Hand-over: the confirmation covers messages that are not accepted yet.
    ConfirmsAllOffered,
    /// Hand-over: a new connection does not ask which messages the receiver holds.
    HeldIgnored,
    /// Hand-over: messages that the receiver holds are never confirmed.
    HeldNotConfirmed,
    /// Hand-over: sent messages count as visible although the receiver holds them.
    HeldConfirmed,
    /// Hand-over: messages are offered before the receiver has said what it holds.
    OffersBeforeWelcome,
    /// Hand-over: frames of an earlier connection are handled.
    OldConnectionAccepted,
    /// Hand-over: a frame is handled although an earlier one is missing.
    FrameGapAccepted,
    /// Hand-over: the ids of earlier messages are forgotten.
    RestoredCopyStored,
    /// Hand-over: a sender that reaches the receiver by two names has one session.
    OneSessionPerSender,
    /// Hand-over: a host that was restored does not confirm what the receiver holds.
    NoGreeting,
    /// Hand-over: a message overtakes a postponed one of its queue.
    PostponedOvertaken,
    /// Hand-over: a message overtakes a refused one before the sender has settled the refusal.
    RefusedOvertaken,
    /// Hand-over: a postponed message becomes a dead letter.
    PostponedBuried,
    /// Hand-over: a refused message goes to no dead letters.
    RefusedForgotten,
    /// Hand-over: a message goes round in a loop of routes.
    LoopAccepted,
    /// Hand-over: the relay is not told of messages that become visible.
    NotificationNotNoted,
    /// Hand-over: a connection leaves no note that its messages are uncertain.
    UncertaintyNotNoted,
    /// Hand-over: a message that the next machine may have stored expires.
    UncertainExpired,
    /// Hand-over: an offer that a slow line did not carry in time is made again.
    OfferNotShrunk,
    /// Cluster, C2: a frame that is published again has more entries under the same number.
    LinkFrameRebuilt,
    /// Cluster, C2: a frame is published once.
    LinkFrameNotRepeated,
    /// Cluster, C2: an own number with other bytes is ignored.
    LinkSecondMachineIgnored,
    /// Cluster, C3: a frame that was received before is applied again.
    LinkFrameAppliedTwice,
    /// Cluster, C3: numbers that a frame skips do not join the gap.
    LinkGapForgotten,
    /// Cluster, C3: a served group is given nothing although an earlier frame was missed.
    LinkServedInGap,
    /// Cluster, C4: queues leave the list of a heartbeat, and its lower bound stays.
    LinkRecentCutSilently,
    /// Cluster, C5: a number that goes back is no resync.
    LinkNumberBackTrusted,
    /// Cluster, C5: the numbers of heartbeats are not compared.
    LinkHeartbeatUnread,
    /// Cluster, C5: a new peer begins at its first number.
    LinkNewPeerTrusted,
    /// Cluster, C5: a copy of a heartbeat counts as a number that goes back.
    LinkCopyTrusted,
    /// Cluster, C7: groups check nothing when a peer is missing.
    LinkMissingNoCheck,
    /// Cluster, C7: a peer is missing after four own heartbeats, however fast they were.
    LinkMissingEarly,
    /// Cluster, C7: a peer that goes missing after an interruption is no resync.
    LinkInterruptionIgnored,
    /// Cluster, C7: only the client's events are interruptions.
    LinkEventsTrusted,
    /// Cluster, C7: a peer that was missing before is judged as early as any other.
    LinkFlapJudgedEarly,
    /// Cluster, C9: `degraded` is not told when an isolation begins.
    LinkIsolationUntold,
    /// Cluster, C9: an old own heartbeat ends an isolation.
    LinkOldReturnTrusted,
    /// Cluster, C9: the end of an isolation is no resync.
    LinkIsolationEndTrusted,
    /// C1: a queue's mark is cleared after its counters were read.
    LinkMarkClearedLate,
    /// C3: an entry of a frame makes a queue entry only where a pattern is here.
    LinkNameNotKept,
    /// C6: a hash without a queue wakes no pattern.
    LinkResyncSkipsPatterns,
    /// C6: a resync postpones forgetting.
    LinkResyncPostponesForgetting,
    /// C6: a resync counts no cause where the queue has no listener at present.
    LinkResyncNeedsListener,
    /// C7: groups without members do not check.
    LinkMissingSkipsEmpty,
    /// C10: a group is announced as served though idle members did not take all of the causes.
    LinkServedInPart,
    /// C11: work that members do not finish is not passed on.
    LinkServedDropped,
    /// C12: a relay of a cluster has no sentinel.
    LinkSentinelMissing,
    /// C12: a check by a listener of another relay does not restart the sentinel's interval.
    LinkCheckIgnored,
    /// C8: a publisher is answered when the frame is published.
    LinkAnswerUnconfirmed,
    /// C15: a relay leaves before its last causes are confirmed.
    LinkLeavesEarly,
    /// C15: a relay leaves without the hand-over of its timers.
    LinkTimersNotHandedOver,
    /// C14: the flags in another relay's frame are not read.
    LinkHintDropped,
    /// C14: a resync reads no watched flags.
    LinkResyncReadsNoFlags,
    /// C14: the acknowledgements of another relay are read once in a generation.
    FlagAcksReadOnce,
    /// C14: a set through another relay is told although it was over before a watcher came.
    FlagOldSetTold,
    /// C14: an acknowledgement of a generation that the relay does not know is dropped.
    FlagAckUnread,
    /// C14: the outcome of a write counts although another relay's write was heard during it.
    FlagWriteUnordered,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Fault> = const { std::cell::Cell::new(Fault::None) };
}

#[cfg(test)]
impl Fault {
    /// Plants this fault, in place of the one before, in all state machines that this thread runs. A
    /// simulated world and a model of threads run on one thread.
    pub(crate) fn plant(self) {
        PLANTED.set(self);
    }

    pub(crate) fn is_planted(self) -> bool {
        PLANTED.get() == self
    }
}

/// Returns whether the named fault is planted: `planted!(ForgetFloor)`.
macro_rules! planted {
    ($name:ident) => {{
        #[cfg(test)]
        let planted = $crate::base::fault::Fault::$name.is_planted();
        #[cfg(not(test))]
        let planted = false;
        planted
    }};
}

pub(crate) use planted;
