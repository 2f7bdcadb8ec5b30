//! The choices of a seed: shape, constants, workload, and the half of the troubles that may happen.

use std::time::Duration;

use super::{attempts::AttemptPlan, groups};
use crate::types::{GroupName, QueueAddress, Selector};

/// The shape of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Few queues, mostly one listener each; long silences.
    Sparse,
    /// Some hundred queues on one stream (R1: a Wake is bounded).
    Wide,
    /// Some hundred listeners on one queue, so that a walk has several steps.
    Crowd,
    /// Several listeners on one queue or two, mostly of one group.
    Fleet,
}

/// A fault that may happen in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Reset,
    ResetUnseen,
    SilentBoth,
    SilentDown,
    SilentUp,
    Partition,
    PauseListener,
    PausePublisher,
    PauseRelay,
    RelayCrash,
    RelayVanish,
    RelayDrain,
    RelayRestored,
    ListenerCrash,
    ListenerLeave,
    PublisherCrash,
    FanoutStall,
    SlowReader,
    AppStall,
    ReportsLost,
    WalksLost,
    CrashHolding,
    GetsFail,
    GetsHang,
    HandlersHang,
    PauseBusy,
    /// All members of a fleet stop at once, and all but one for long.
    FleetStops,
    TableFull,
    /// The blob store with the bodies of messages is away.
    StoreAway,
    /// Handlers postpone messages.
    Postponing,
    /// Deletes, releases and puts into the poison queue fail, or their answers are lost.
    CallsFail,
}

/// An operation of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Put,
    PutTwice,
    PutDelayed,
    DelayedPair,
    Burst,
    Forbidden,
    FreshQueue,
    /// Of fleets only.
    PutBatch,
    /// A put by a publisher that crashes before it notifies; only with a sentinel.
    PutUntold,
}

/// All choices of a seed.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) listeners: Vec<ListenerPlan>,
    pub(super) publishers: usize,
    pub(super) queues: Vec<QueueAddress>,
    /// How long the workload and the faults last.
    pub(super) active: Duration,
    pub(super) inline: usize,
    pub(super) forget_after: Duration,
    pub(super) max_age: Duration,
    pub(super) troubles: Vec<Trouble>,
    pub(super) works: Vec<Work>,
    /// Milliseconds between two operations at most, and between two troubles.
    pub(super) work_gap: u64,
    pub(super) trouble_gap: u64,
    /// One queue gets a message at this interval, all the time.
    pub(super) steady: Option<Duration>,
    /// Troubles come close to an operation, instead of at any time.
    pub(super) aimed: bool,
    /// The most notifications of a publisher's request.
    pub(super) batch: usize,
    /// The sentinel's interval; zero: none.
    pub(super) sentinel: Duration,
    /// For how long a group without members is remembered.
    pub(super) keep: Duration,
    /// Milliseconds for which an application takes nothing, at most.
    pub(super) stall: u64,
    /// A low limit of cursors per stream: further queues are reported under the pattern's own name.
    pub(super) cursors: Option<usize>,
    /// A low limit of queues that the relay remembers.
    pub(super) max_queues: Option<usize>,
    /// The listeners belong to one client: this many streams share a connection.
    pub(super) shared: Option<usize>,
    /// Some troubles come close to a resume number.
    pub(super) resumes: bool,
    /// How messages are handled, and how often.
    pub(super) attempts: AttemptPlan,
}

/// One listener.
#[derive(Debug, Clone)]
pub(super) struct ListenerPlan {
    pub(super) selectors: Vec<Selector>,
    pub(super) heartbeat: Duration,
    pub(super) visibility: Duration,
    /// It never reports.
    pub(super) mute: bool,
    /// It reports no BUSY after a wake-up, which implies it.
    pub(super) terse: bool,
    /// After each Welcome it reports every queue, with the sequence that it saw last.
    pub(super) talkative: bool,
    /// Milliseconds until it takes a wake-up that has arrived, at most.
    pub(super) latency: u64,
    /// Handling a message takes this many milliseconds at most.
    pub(super) handling: u64,
    /// It polls its queues while it has no stream.
    pub(super) polls: bool,
    /// Its tasks are run by the production scaler.
    pub(super) scaled: bool,
    /// Messages of one get.
    pub(super) batch: usize,
    pub(super) group: Option<GroupName>,
    pub(super) capacity: u32,
}

const TROUBLES: [Trouble; 28] = [
    Trouble::Reset,
    Trouble::ResetUnseen,
    Trouble::SilentBoth,
    Trouble::SilentDown,
    Trouble::SilentUp,
    Trouble::Partition,
    Trouble::PauseListener,
    Trouble::PausePublisher,
    Trouble::PauseRelay,
    Trouble::RelayCrash,
    Trouble::RelayVanish,
    Trouble::RelayDrain,
    Trouble::RelayRestored,
    Trouble::ListenerCrash,
    Trouble::ListenerLeave,
    Trouble::PublisherCrash,
    Trouble::FanoutStall,
    Trouble::SlowReader,
    Trouble::AppStall,
    Trouble::ReportsLost,
    Trouble::WalksLost,
    Trouble::CrashHolding,
    Trouble::GetsFail,
    Trouble::GetsHang,
    Trouble::HandlersHang,
    Trouble::PauseBusy,
    Trouble::GetsFail,
    Trouble::HandlersHang,
];

/// Troubles that lead to outdated reports.
const RESTLESS: [Trouble; 4] = [
    Trouble::RelayCrash,
    Trouble::Reset,
    Trouble::CrashHolding,
    Trouble::ListenerCrash,
];

/// Troubles that leave listeners without a relay.
const STRANDED: [Trouble; 3] = [
    Trouble::RelayCrash,
    Trouble::RelayVanish,
    Trouble::Partition,
];

/// Troubles that break a stream while its wake-ups wait for their application.
const UNREAD: [Trouble; 3] = [Trouble::AppStall, Trouble::Reset, Trouble::SlowReader];

/// Troubles that keep a listener away with its resume number.
const FORGETFUL: [Trouble; 4] = [
    Trouble::Reset,
    Trouble::SilentBoth,
    Trouble::Partition,
    Trouble::PauseListener,
];

const WORKS: [Work; 7] = [
    Work::Put,
    Work::PutTwice,
    Work::PutDelayed,
    Work::DelayedPair,
    Work::Burst,
    Work::Forbidden,
    Work::FreshQueue,
];

/// Queues of a wide stream: more than one wake holds.
const WIDE: usize = 300;
/// Listeners of a crowd, without the working one: more than one step of a walk wakes.
const CROWD: usize = 70;

impl Plan {
    /// A quarter of the runs meet the relay's limits, or share connections; in half of them a
    /// comparison of all cursors takes several steps. One in sixteen is a fleet that hangs, one a full table under
    /// streams that rotate, and one a queue with a poison queue whose listeners share its counts.
    pub(super) fn of(seed: u64, rng: &mut fastrand::Rng) -> Self {
        let shape = match seed % 16 {
            5 => Shape::Fleet,
            12 | 13 => Shape::Sparse,
            _ => match rng.u32(0..50) {
                0 => Shape::Wide,
                1 => Shape::Crowd,
                2..=18 => Shape::Fleet,
                _ => Shape::Sparse,
            },
        };
        let mut plan = Self::new(shape, rng);
        let mut own = fastrand::Rng::with_seed(seed);
        match seed % 16 {
            5 => plan.hang_all(&mut own),
            12 => plan.share_queue(seed, &mut own),
            13 => plan.rotate_in_full_table(&mut own),
            _ if seed % 4 == 3 => plan.limit(&mut own),
            _ => {}
        }
        plan.resumes = seed % 8 < 4;
        plan
    }

    fn new(shape: Shape, rng: &mut fastrand::Rng) -> Self {
        let small = matches!(shape, Shape::Sparse | Shape::Fleet);
        let mut works: Vec<Work> = WORKS.into_iter().filter(|_| rng.bool()).collect();
        if works.is_empty() {
            works = vec![Work::Put];
        }
        if shape == Shape::Crowd {
            works = vec![Work::PutTwice];
        }
        let sentinel = groups::sentinel(rng);
        if shape != Shape::Crowd && !sentinel.is_zero() {
            works.push(Work::PutUntold);
        }
        if shape == Shape::Fleet && rng.u32(0..3) != 0 {
            works.extend([Work::PutBatch; 3]);
        }
        if shape == Shape::Wide {
            works.push(Work::Burst);
        }
        let (mut listeners, queues) = match shape {
            Shape::Sparse => sparse(rng),
            Shape::Wide => wide(rng),
            Shape::Crowd => crowd(rng),
            Shape::Fleet => groups::fleet(rng),
        };
        // Relays with short lives, and listeners that repeat their reports to each of them.
        let special = (shape == Shape::Sparse).then(|| rng.u32(0..20));
        let restless = matches!(special, Some(0 | 1));
        // Queues that are forgotten while a listener is away that has seen a few of their messages.
        let forgetful = matches!(special, Some(2 | 3));
        // Relays that are away for long, and streams that break while wake-ups lie unread.
        let stranded = matches!(special, Some(4 | 5));
        let unread = matches!(special, Some(6));
        if forgetful {
            works = vec![Work::Put];
        }
        let troubles = match special {
            _ if stranded => STRANDED.to_vec(),
            _ if unread => UNREAD.to_vec(),
            _ if restless => RESTLESS.to_vec(),
            _ if forgetful => FORGETFUL.to_vec(),
            _ => TROUBLES.into_iter().filter(|_| rng.bool()).collect(),
        };
        for listener in listeners.iter_mut().filter(|_| restless) {
            (listener.talkative, listener.mute) = (true, false);
        }
        let mut plan = Self {
            shape,
            listeners,
            publishers: rng.usize(1..=3),
            queues,
            active: Duration::from_secs(if small { rng.u64(20..90) } else { 20 }),
            inline: if rng.bool() || shape == Shape::Crowd {
                0
            } else {
                64
            },
            forget_after: seconds(if forgetful || rng.u32(0..3) == 0 {
                rng.u64(1..8)
            } else {
                3600
            }),
            max_age: seconds(if rng.u32(0..4) == 0 {
                rng.u64(10..40)
            } else {
                3600
            }),
            troubles,
            works,
            work_gap: [2_000, 8_000, 20_000][rng.usize(0..3)],
            trouble_gap: [2_000, 10_000, 30_000][rng.usize(0..3)],
            steady: (small && rng.u32(0..6) == 0).then(|| seconds(rng.u64(1..4))),
            aimed: rng.bool(),
            batch: if rng.u32(0..4) == 0 { 64 } else { 256 },
            sentinel,
            keep: groups::keep(rng),
            stall: 10_000,
            cursors: None,
            max_queues: None,
            shared: None,
            resumes: false,
            attempts: AttemptPlan::default(),
        };
        if shape == Shape::Fleet {
            plan.strain(rng);
        }
        let mut selectors = plan.listeners.iter().flat_map(|one| &one.selectors);
        if shape == Shape::Sparse && selectors.all(Selector::is_pattern) && rng.bool() {
            plan.cursors = Some(rng.usize(0..3));
        }
        plan
    }

    pub(super) fn may(&self, trouble: Trouble) -> bool {
        self.troubles.contains(&trouble)
    }
}

impl ListenerPlan {
    pub(super) fn new(selectors: Vec<Selector>, rng: &mut fastrand::Rng) -> Self {
        let mute = rng.u32(0..5) == 0;
        Self {
            selectors,
            heartbeat: seconds([0, 2, 5, 10][rng.usize(0..4)]),
            visibility: seconds(rng.u64(4..12)),
            mute,
            terse: rng.u32(0..3) == 0,
            talkative: rng.u32(0..4) != 0,
            latency: [1, 20, 200][rng.usize(0..3)],
            handling: [20, 500, 3_000][rng.usize(0..3)],
            polls: false,
            scaled: false,
            batch: rng.usize(1..=3),
            group: None,
            capacity: 1,
        }
    }
}

/// One to four listeners with a few queues each, by name or by pattern; now and then a queue has
/// two listeners.
fn sparse(rng: &mut fastrand::Rng) -> (Vec<ListenerPlan>, Vec<QueueAddress>) {
    let mut queues = Vec::new();
    let mut selectors: Vec<Vec<Selector>> = Vec::new();
    for listener in 0..rng.usize(1..=4) {
        let own: Vec<_> = (0..rng.usize(1..=3))
            .map(|number| address(&format!("l{listener}-{number}")))
            .collect();
        let pattern = rng.u32(0..3) == 0;
        selectors.push(if pattern {
            vec![Selector::new("acct", &format!("l{listener}-*")).expect("a selector")]
        } else {
            own.iter().map(Selector::from).collect()
        });
        queues.extend(own);
    }
    if selectors.len() > 1 && rng.u32(0..4) == 0 {
        let shared = selectors[0][0].clone();
        selectors[1].push(shared);
    }
    let mut plan = |selectors| {
        let mut plan = ListenerPlan::new(selectors, rng);
        let exact = plan.selectors.iter().all(|selector| !selector.is_pattern());
        plan.scaled = exact && rng.u32(0..3) == 0;
        plan.mute &= !plan.scaled;
        plan.polls = !plan.scaled && rng.u32(0..20) == 0;
        plan
    };
    (selectors.into_iter().map(&mut plan).collect(), queues)
}

fn wide(rng: &mut fastrand::Rng) -> (Vec<ListenerPlan>, Vec<QueueAddress>) {
    let queues: Vec<_> = (0..WIDE)
        .map(|number| address(&format!("l0-{number}")))
        .collect();
    let selectors = queues.iter().map(Selector::from).collect();
    let mut plan = ListenerPlan::new(selectors, rng);
    (plan.latency, plan.handling) = (1, 20);
    (vec![plan], queues)
}

fn crowd(rng: &mut fastrand::Rng) -> (Vec<ListenerPlan>, Vec<QueueAddress>) {
    let queue = address("l0-0");
    let selectors = vec![Selector::from(&queue)];
    let plan = |_| {
        let mut plan = ListenerPlan::new(selectors.clone(), rng);
        (plan.latency, plan.handling, plan.mute) = (20, 20, true);
        plan
    };
    ((0..=CROWD).map(plan).collect(), vec![queue])
}

pub(super) fn address(queue: &str) -> QueueAddress {
    QueueAddress::new("acct", queue).expect("an address")
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
