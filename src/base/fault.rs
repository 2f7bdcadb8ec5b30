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
    /// R2: a resume number of another epoch is accepted.
    ForeignEpochAccepted,
    /// R3: a forgotten queue starts again where it started first.
    FloorForgotten,
    /// R3: a forgotten record is not marked dead.
    DeadNotMarked,
    /// R5: a walk clears the dirty mark last.
    MarkClearedAfterWalk,
    /// R7: timers merge downwards.
    TimersMergeDown,
    /// R8: a busy listener's end sets no timer.
    NoTimerForBusy,
    /// R9: a reported sequence above the head is taken at its word.
    SequenceAboveHeadAccepted,
    /// Backlog: a report lowers it whatever the report has seen.
    LateDepthLowersBacklog,
    /// R19: a refused event takes the others of its request with it.
    RefusalTakesAll,
    /// R19: an event without room at the relay is dropped, and not sent again.
    RefusedDropped,
    /// Section 2: a resume number is taken when it arrives.
    ResumeTakenOnArrival,
    /// Resume number: a change counts as told before the fan-out has told all of it.
    ResumeNumberTooNew,
    /// Resume number: it is drawn after the inbox was read. Needs two threads.
    ResumeNumberDrawnLate,
    /// Resume number: a pattern that resumes gets no CATCH_UP for queues that were forgotten.
    ResumePastForgotten,
    /// R4: a new queue does not look up the patterns that match it.
    NewQueueUnmatched,
    /// R4: a queue that is known does not look up a new pattern.
    NewPatternUnmatched,
    /// Section 2: a stream's take does not show its queue that it is owed nothing any more.
    TakeUnnoticed,
    /// R6: a stream that is silent past its heartbeat is not noticed.
    SilenceUnnoticed,
    /// I18: a stream that lasted and ended in a Goodbye does not reset the back-off.
    GoodbyeKeepsBackoff,
    /// R17: a task leaves although there was a cause since its get was issued.
    LeaveUnarmed,
    /// R18: a wake-up for a queue whose tasks are all at work starts no look.
    BusyNeverLooks,
    /// Section 3: reports are not repeated after a Welcome.
    ReportsNotRepeated,
    /// Section 3: a get without an answer hides messages that are not reported.
    LostGetUnsaid,
    /// Section 6: an announced end of a stream counts as one, even after the next attempt fails.
    AnnouncedForever,
    /// Attempts: a handled message that could not be deleted is handled again by the same listener.
    SettledHandledAgain,
    /// R8: DRAINED is said while another task holds messages.
    DrainedEarly,
    /// R12: a busy member is counted, and not sent the wake-up.
    BusyCountedNotSent,
    /// Agents: what came after a worker's start is forgotten when it ends.
    AgentForgetsLate,
    /// Agents: after a lost stream the relay is taken to know when hidden messages become visible.
    AgentTrustsTimers,
    /// Central agent: nodes with work are removed.
    CentralRetiresWork,
    /// Central agent: a call that failed counts as done.
    CentralFailureIsDone,
    /// Central agent: calls follow each other without the interval.
    CentralIgnoresInterval,
    /// Central agent: nodes are removed soon after they were needed.
    CentralNoCoolDown,
    /// R12: a member that has room again is given no work that waits.
    RoomUnnoticed,
    /// R12: a member that joins a pattern takes up nothing that waits for a member.
    MemberUnnoticed,
    /// R12: the turn of members does not begin again.
    MemberSkipped,
    /// R13: a wake-up that a member does not cover in time goes to no other member.
    UncoveredNotReassigned,
    /// R14: a busy member's lease never lapses.
    LeaseNeverLapses,
    /// R15: events counted after the drained sequence are not assigned at once.
    DrainedBehindIsDone,
    /// R14, R16: what a member leaves is dropped where all others were asked in the round.
    SpentRoundDropped,
    /// R11: a listener that was asked and has left counts as if it had looked. Needs two threads.
    AskedCountsAsLooked,
    /// R11: the checks stay with the first listener. The concurrency test finds it.
    CheckTurnStuck,
    /// Work: however many queues wait for a stream, a quarter of them have their turns in one step.
    TurnsUnbounded,
    /// R2: a pattern that has no cursor for a queue is not told of it under its own name.
    OverflowUntold,
    /// R11, R12: a queue that waits for a stream is listed after the stream's mark is set. Needs
    /// two threads.
    AwaitedBeforeListed,
    /// R8: a report is taken from a subscription that has already ended. Needs two threads.
    ReportAfterEnd,
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
    /// Section 9: a write is taken for one's own by its token.
    TenureNonceIgnored,
    /// Section 9: a contender that takes a lease keeps its token.
    TenureTokenKept,
    /// Section 9: a challenger counts from before its read.
    TenureSeenFromRequest,
    /// Hand-over: offers are accepted before they are stored.
    AcceptedBeforeStored,
    /// Hand-over: an offer, which confirms the one before it, does not wait for the answer to that.
    ConfirmsAllOffered,
    /// Hand-over: a new connection does not ask which messages the receiver holds.
    HeldIgnored,
    /// Hand-over: frames of an earlier connection are handled.
    OldConnectionAccepted,
    /// Hand-over: a host that was restored does not confirm what the receiver holds.
    NoGreeting,
    /// Hand-over: a request that was handled before is handled again.
    RepeatedRequestAccepted,
    /// Hand-over: the message after a postponed one is offered in its place.
    PostponedOvertaken,
    /// Hand-over: a message goes round in a loop of routes.
    LoopAccepted,
    /// Hand-over: the relay is not told of messages that become visible.
    NotificationNotNoted,
    /// Hand-over: a connection leaves no note that its messages are uncertain.
    UncertaintyNotNoted,
    /// Cluster, C2: a frame is published once.
    LinkFrameNotRepeated,
    /// Cluster, C3: a frame that was received before is applied again.
    LinkFrameAppliedTwice,
    /// Cluster, C3: numbers that a frame skips do not join the gap.
    LinkGapForgotten,
    /// Cluster, C4: queues leave the list of a heartbeat, and its lower bound stays.
    LinkRecentCutSilently,
    /// Cluster, C5: a number that goes back is no resync.
    LinkNumberBackTrusted,
    /// Cluster, C5: the numbers of heartbeats are not compared.
    LinkHeartbeatUnread,
    /// Cluster, C7: groups check nothing when a peer is missing.
    LinkMissingNoCheck,
    /// Cluster, C7: a peer that goes missing after an interruption is no resync.
    LinkInterruptionIgnored,
    /// Cluster, C9: `degraded` is not told when an isolation begins.
    LinkIsolationUntold,
    /// Cluster, C9: the end of an isolation is no resync.
    LinkIsolationEndTrusted,
    /// C1: a queue's mark is cleared after its counters were read.
    LinkMarkClearedLate,
    /// C6: a resync counts no cause where the queue has no listener at present.
    LinkResyncNeedsListener,
    /// C10: a group is announced as served though idle members did not take all of the causes.
    LinkServedInPart,
    /// C11: work that members do not finish is not passed on.
    LinkServedDropped,
    /// C12: a check by a listener of another relay does not restart the sentinel's interval.
    LinkCheckIgnored,
    /// C8: a publisher is answered when the frame is published.
    LinkAnswerUnconfirmed,
    /// C15: a relay leaves before its last causes are confirmed.
    LinkLeavesEarly,
    /// C15: a relay leaves without the hand-over of its timers.
    LinkTimersNotHandedOver,
    /// C14: the acknowledgements of another relay are read once in a generation.
    FlagAcksReadOnce,
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
