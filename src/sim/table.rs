//! Planted faults: each must be found, and docs/reliability.md names the seed.

use std::fmt::Write as _;

use super::{FIND_WITHIN, first, flags, leases, many, run};
use crate::base::fault::Fault;

/// A fault, the rule that it breaks, and its description.
type Row = (Fault, &'static str, &'static str);

/// Runs a seed with a planted fault, and returns the violation.
type Run = fn(u64, Fault) -> Option<String>;

/// The simulations, each with the faults that it has to find, in the table's order.
const TABLES: [(Run, &[Row]); 4] = [
    (|seed, fault| run(seed, fault, false).violation, &FAULTS),
    (|seed, fault| flags::run(seed, fault, false), &FLAG_FAULTS),
    (|seed, fault| leases::run(seed, fault, false), &LEASE_FAULTS),
    (many::run, &MANY_FAULTS),
];

const MANY_FAULTS: [Row; 1] = [(
    Fault::TurnsUnbounded,
    "work",
    "a quarter of all queues that wait for a stream have their turns in one step",
)];

const FAULTS: [Row; 89] = [
    (
        Fault::WakeUnbounded,
        "R1",
        "a wake holds however much is owed",
    ),
    (
        Fault::WakeDropsRest,
        "R1",
        "what finds no room is not sent in the next",
    ),
    (
        Fault::NoTokenIsCurrent,
        "R2",
        "no token is taken to be up to date",
    ),
    (
        Fault::ForeignEpochAccepted,
        "R2",
        "a token of another epoch is believed",
    ),
    (
        Fault::TokenAboveHeadAccepted,
        "R2",
        "a token above the head is believed",
    ),
    (
        Fault::TokenBelowStartAccepted,
        "R2",
        "a token below the start is taken to be up to date",
    ),
    (
        Fault::PatternWithoutSelectorEntry,
        "R2",
        "a pattern gets no CATCH_UP under its own name",
    ),
    (
        Fault::SpreadUntilHeartbeat,
        "R2",
        "a CATCH_UP that was spread waits for a heartbeat",
    ),
    (
        Fault::PositionsMakeNothing,
        "R2",
        "a position makes no record",
    ),
    (
        Fault::FloorForgotten,
        "R3",
        "a forgotten queue starts again where it first did",
    ),
    (
        Fault::ForgetWithTimer,
        "R3",
        "a queue with a pending timer is forgotten",
    ),
    (
        Fault::PatternPinsQueue,
        "R3",
        "a pattern keeps the entries of idle queues",
    ),
    (
        Fault::OverflowUntold,
        "R2",
        "a pattern is not told of queues that it has no cursor for",
    ),
    (
        Fault::ChecksOneByOne,
        "R11",
        "a stream is asked for one check at a time",
    ),
    (
        Fault::SnapshotBeforeRegister,
        "R4",
        "the snapshot comes before the registration",
    ),
    (
        Fault::PatternRegistersLate,
        "R4",
        "a pattern is registered after the scan",
    ),
    (
        Fault::MarkClearedAfterWalk,
        "R5",
        "a walk clears the dirty mark last",
    ),
    (
        Fault::AwakeNeverCleared,
        "R5",
        "a stream does not clear its awake mark",
    ),
    (
        Fault::MarkWithoutWake,
        "R5",
        "a new cursor marks its stream without waking it",
    ),
    (
        Fault::WalkLeavesMark,
        "R5",
        "an unfinished walk leaves its mark behind",
    ),
    (
        Fault::HeartbeatUnchecked,
        "R6",
        "a heartbeat compares no cursors",
    ),
    (
        Fault::LookPutOff,
        "R6",
        "each wake puts off the look at all cursors",
    ),
    (
        Fault::SilenceUnnoticed,
        "R6",
        "a silent stream is not noticed",
    ),
    (
        Fault::RestUntilHeartbeat,
        "R6",
        "a rest after many lasts until a heartbeat",
    ),
    (
        Fault::GoodbyeKeepsBackoff,
        "I18",
        "a good stream's Goodbye does not reset the back-off",
    ),
    (
        Fault::SilentConnectionKept,
        "R6",
        "the stream after a silent one uses the same connection",
    ),
    (
        Fault::ConnectionWindowNarrow,
        "section 2",
        "an unread stream takes up the whole connection's window",
    ),
    (
        Fault::TimersCancelled,
        "R7",
        "a new timer cancels those before it",
    ),
    (Fault::TimersMergeDown, "R7", "timers merge downwards"),
    (
        Fault::NoTimerForBusy,
        "R8",
        "a busy listener's end sets no timer",
    ),
    (
        Fault::NeverReportingIsIdle,
        "R8",
        "who never reports is taken to be idle",
    ),
    (
        Fault::SequenceAboveHeadAccepted,
        "R9",
        "a reported sequence above the head is believed",
    ),
    (
        Fault::VisibleNowIgnored,
        "R10",
        "`visible_in = 0` wakes no listener",
    ),
    (
        Fault::AskedCountsAsLooked,
        "R11",
        "a listener that was asked counts as if it had looked",
    ),
    (
        Fault::BusyCountedNotSent,
        "R12",
        "a busy member is counted and sent nothing",
    ),
    (
        Fault::UncoveredNotReassigned,
        "R13",
        "an uncovered wake-up goes to no other member",
    ),
    (
        Fault::LeaseNeverLapses,
        "R14",
        "a busy member's lease never lapses",
    ),
    (
        Fault::DrainedBehindIsDone,
        "R15",
        "what came after a drained sequence is not owed",
    ),
    (
        Fault::BusyEndNotReassigned,
        "R16",
        "a busy member's end hands nothing on",
    ),
    (
        Fault::PublisherGivesUp,
        "retry",
        "an unacknowledged notification is not sent again",
    ),
    (
        Fault::BatchDropped,
        "R19",
        "a refused batch is dropped whole",
    ),
    (
        Fault::ExhaustedRetriedWhole,
        "R19",
        "a request that a full relay refused is sent again whole",
    ),
    (
        Fault::SetAsideDropped,
        "R19",
        "what a full relay refused is dropped",
    ),
    (Fault::DeadlineSilent, "R19", "a deadline passes in silence"),
    (
        Fault::DelaySlotIgnored,
        "R19",
        "delayed and not delayed are conflated",
    ),
    (
        Fault::TokenTakenOnArrival,
        "resume",
        "a token is taken when its wake-up arrives",
    ),
    (
        Fault::BrokenKeepsArrived,
        "resume",
        "what a broken stream brought is handed over",
    ),
    (
        Fault::PositionsNotCut,
        "resume",
        "positions are sent that the request has no room for",
    ),
    (
        Fault::ExhaustedSendsAll,
        "resume",
        "a request that was refused for its size is sent as it was",
    ),
    (
        Fault::ResumeNumberTooNew,
        "resume",
        "the number is drawn when all cursors are compared, not before",
    ),
    (
        Fault::ResumePastForgotten,
        "resume",
        "a pattern resumes past what changed and was forgotten",
    ),
    (
        Fault::NewQueueNotStamped,
        "resume",
        "a new entry counts as unchanged since ever",
    ),
    (
        Fault::ResumeBeforeHandOver,
        "resume",
        "a number counts although wake-ups before it were not handed over",
    ),
    (
        Fault::MarkReplaces,
        "marks",
        "a mark replaces those before it",
    ),
    (
        Fault::SpentRoundDropped,
        "R14, R16",
        "what a member leaves is dropped where all others were asked",
    ),
    (
        Fault::RestKept,
        "R12",
        "messages that waited for a stream are owed although the queue was drained",
    ),
    (
        Fault::ParkedClaimForgotten,
        "R13",
        "a claim that waited for a stream is not redelivered",
    ),
    (
        Fault::UnansweredCheckDropped,
        "R11",
        "a check that no member answers is dropped",
    ),
    (
        Fault::CheckWaitsForReader,
        "R11",
        "a check waits for a member that does not read",
    ),
    (
        Fault::CheckStaysWithMembers,
        "R11",
        "a queue with a group never asks its other listeners",
    ),
    (
        Fault::NewGroupIsCurrent,
        "R2",
        "a new group is taken to be up to date",
    ),
    (
        Fault::OneGroupIsTold,
        "section 5",
        "of several groups on a queue one is told",
    ),
    (
        Fault::RefusalLeavesQueues,
        "R19",
        "a refused request leaves queues behind",
    ),
    (
        Fault::EndedStreamPinsQueue,
        "R3",
        "a pattern's stream that ends keeps idle queues in a full table",
    ),
    (
        Fault::LeaveUnarmed,
        "R17",
        "a task leaves although there was a cause since its get",
    ),
    (
        Fault::BusyNeverLooks,
        "R18",
        "a wake-up starts no look while tasks are at work",
    ),
    (
        Fault::LastTaskLeaves,
        "section 6",
        "the last task of a queue that is polled leaves",
    ),
    (
        Fault::NeverPolls,
        "section 6",
        "a listener without its relay stays in the mode `Pushed`",
    ),
    (
        Fault::ReportsNotRepeated,
        "section 3",
        "reports are not repeated after a Welcome",
    ),
    (
        Fault::BusyUnsaid,
        "R8",
        "who found work unasked does not say BUSY",
    ),
    (
        Fault::DrainedEarly,
        "R8",
        "DRAINED is said while another task holds messages",
    ),
    (
        Fault::HiddenUnsaid,
        "section 3",
        "the time when messages become visible again is not reported",
    ),
    (
        Fault::LostGetUnsaid,
        "section 3",
        "a get without an answer hides messages that are not reported",
    ),
    (
        Fault::LostGetRetried,
        "section 3",
        "a get without an answer is repeated by what tries again, and comes back empty",
    ),
    (
        Fault::AnnouncedForever,
        "section 6",
        "an announced end counts as one, however the next attempt fails",
    ),
    (
        Fault::LookerHandles,
        "section 6",
        "the task that looks also handles, and no other one looks",
    ),
    (
        Fault::DepthNotAskedAgain,
        "section 6",
        "a depth that needed no more tasks is not asked for again",
    ),
    (
        Fault::HolderNeverRoused,
        "R18",
        "a wake-up rouses no task that holds messages and has places left",
    ),
    (
        Fault::PlacesWaitForAll,
        "places",
        "a task gets nothing more before all of its messages are handled",
    ),
    (
        Fault::LeavesWhileHolding,
        "R8",
        "a task whose get found nothing ends with messages in its hands",
    ),
    (
        Fault::DismissedWhileHolding,
        "R8",
        "a task that is one too many ends with messages in its hands",
    ),
    (
        Fault::PauseForgets,
        "R18",
        "wake-ups of a paused listener are forgotten",
    ),
    (
        Fault::LeavingStays,
        "R18",
        "a task that was to end does not go on when its listener does",
    ),
    (
        Fault::UntriedGetCounted,
        "attempts",
        "a get without a try counts as an attempt",
    ),
    (
        Fault::TakenBackTwice,
        "attempts",
        "the listener also subtracts a get that the queue has removed from its count",
    ),
    (
        Fault::AbandonedGetCounted,
        "attempts",
        "messages that a stopping listener releases count as tried",
    ),
    (
        Fault::PoisonedUntried,
        "attempts",
        "a message that was got too often is poisoned without an attempt",
    ),
    (
        Fault::LastTryShared,
        "attempts",
        "a message's last attempt shares a run with other messages",
    ),
    (
        Fault::SettledHandledAgain,
        "attempts",
        "a handled message that was not deleted is handled again by the same listener",
    ),
];

const FLAG_FAULTS: [Row; 7] = [
    (
        Fault::FlagReadBeforeRegister,
        "R20",
        "the store is read before the watcher is registered",
    ),
    (
        Fault::FlagReadDuringWrite,
        "R20",
        "a read counts although a write ended during it",
    ),
    (
        Fault::FlagListDuringWrite,
        "R20",
        "a list of the store counts although a write ended during it",
    ),
    (
        Fault::FlagSetConflated,
        "R21",
        "a watcher is told the present state only",
    ),
    (
        Fault::FlagExpiryUnconditional,
        "R22",
        "an expired flag is deleted even if it has changed",
    ),
    (
        Fault::FlagTellsBeforeDurable,
        "durable first",
        "watchers are told before the flag is written",
    ),
    (
        Fault::FlagGenerationRepeats,
        "generation",
        "the time alone makes generations",
    ),
];

const LEASE_FAULTS: [Row; 12] = [
    (
        Fault::TenureBelievedFromAnswer,
        "section 9",
        "a write is believed from its answer on",
    ),
    (
        Fault::TenureMarginMissing,
        "section 9",
        "a holder believes for as long as its challengers wait",
    ),
    (
        Fault::TenureUnknownBelieved,
        "section 9",
        "a write of unknown outcome is taken to have succeeded",
    ),
    (
        Fault::TenureOldWriteAsNew,
        "section 9",
        "an older write that is found is believed from the newest one's sending",
    ),
    (
        Fault::TenureNonceIgnored,
        "section 9",
        "a write is taken for one's own by its token",
    ),
    (
        Fault::TenureNonceKept,
        "section 9",
        "a renewal has the nonce of what it renews",
    ),
    (
        Fault::TenureTokenKept,
        "section 9",
        "a contender that takes a lease keeps its token",
    ),
    (
        Fault::TenureSeenFromRequest,
        "section 9",
        "a challenger counts from before its read",
    ),
    (
        Fault::TenureRenewalUnseen,
        "section 9",
        "a renewal does not begin a challenger's wait anew",
    ),
    (
        Fault::TenureOwnDuration,
        "section 9",
        "a challenger waits for its own duration",
    ),
    (
        Fault::TenureTombstoneIgnored,
        "section 9",
        "a tombstone is waited for like a holder",
    ),
    (
        Fault::TenureBelievedInRelease,
        "section 9",
        "a holder believes until its tombstone is written",
    ),
];

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reliability.md");
const BEGIN: &str = "<!-- planted faults: written by the test -->\n";
const END: &str = "<!-- end of planted faults -->\n";

/// Returns the fault that `REVEILLE_FAULT` names, for a replay.
pub(super) fn fault_from_env() -> Fault {
    let Ok(name) = std::env::var("REVEILLE_FAULT") else {
        return Fault::None;
    };
    let mut rows = TABLES.iter().flat_map(|(_, rows)| *rows);
    let named = rows.find(|(fault, ..)| format!("{fault:?}") == name);
    named.expect("a planted fault's name").0
}

/// Every planted fault is found within so many seeds, and the page says by which.
#[test]
fn every_planted_fault_is_found() {
    let mut missed = Vec::new();
    let mut table = String::from("| fault | rule | first seed | what broke |\n|---|---|---|---|\n");
    let rows = TABLES
        .iter()
        .flat_map(|(run, rows)| rows.iter().map(move |row| (run, *row)));
    let within = super::number_from_env("REVEILLE_FIND_WITHIN").unwrap_or(FIND_WITHIN);
    // One fault by its name alone, to look for its seed.
    let only = std::env::var("REVEILLE_FAULT").ok();
    let rows = rows.filter(|(_, (fault, ..))| {
        only.as_ref()
            .is_none_or(|only| format!("{fault:?}") == *only)
    });
    for (run, (fault, rule, what)) in rows {
        let Some((seed, violation)) = first(within, |seed| run(seed, fault)) else {
            missed.push(fault);
            continue;
        };
        let broke = shorten(&violation);
        writeln!(table, "| `{fault:?}`: {what} | {rule} | {seed} | {broke} |").expect("a string");
    }
    println!("{table}");
    if only.is_some() {
        return assert!(missed.is_empty(), "not found: {missed:?}");
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the table has its place");
    let (_, after) = rest.split_once(END).expect("the table has its end");
    let fresh = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("REVEILLE_BLESS").is_some() {
        std::fs::write(PAGE, fresh).expect("the page can be written");
    } else {
        assert!(
            page == fresh,
            "{PAGE} is out of date: run it with REVEILLE_BLESS=1"
        );
    }
}

/// Returns a violation without its details, fit for a table.
fn shorten(violation: &str) -> String {
    let text = violation
        .split_once(" s: ")
        .map_or(violation, |(_, text)| text);
    let end = text.find(['{', '[', ',']).unwrap_or(text.len());
    let text: String = text[..end].chars().take(70).collect();
    text.replace('|', "/")
        .trim_end_matches([' ', ':', '('])
        .to_owned()
}
