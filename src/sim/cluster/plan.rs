//! What a seed chooses: the relays and servers, the listeners and queues, the workload, and a random
//! half of the troubles.

use std::time::Duration;

use super::groups;
use crate::{
    sim::plan::{address, seconds},
    types::{GroupName, QueueAddress, Selector},
};

/// The settings of one run.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) relays: usize,
    pub(super) servers: usize,
    pub(super) listeners: Vec<ListenerPlan>,
    pub(super) queues: Vec<QueueAddress>,
    pub(super) works: Vec<Work>,
    /// Handlers fail, and release their messages.
    pub(super) fails: bool,
    pub(super) troubles: Vec<Trouble>,
    /// The longest waits between two operations and two troubles, in milliseconds.
    pub(super) work_gap: u64,
    pub(super) trouble_gap: u64,
    pub(super) active: Duration,
    /// In the end the troubles stop, and all must converge.
    pub(super) heals: bool,
    pub(super) forget_after: Duration,
    pub(super) inline: usize,
    pub(super) max_age: Duration,
    pub(super) sentinel: Duration,
    /// No troubles: the numbers of wake-ups and checks are exact (J6, J7).
    pub(super) quiet: bool,
    pub(super) group_keep: Duration,
    /// The client of the broker does not tell of its connects.
    pub(super) events_hidden: bool,
    /// Added to each message of the broker, at most, in milliseconds.
    pub(super) jitter: u64,
    /// Each message arrives a second time by the other server, up to this much later.
    pub(super) copies: Option<Duration>,
    /// The first relay is of the version before groups and checks were announced.
    pub(super) older: bool,
}

/// One listener.
#[derive(Debug, Clone)]
pub(super) struct ListenerPlan {
    pub(super) selectors: Vec<Selector>,
    pub(super) group: Option<GroupName>,
    pub(super) visibility: Duration,
    pub(super) heartbeat: Duration,
    /// It knows one address, of the relay that it connects to first.
    pub(super) sticky: bool,
    /// The longest handling of a message, in milliseconds.
    pub(super) handling: u64,
}

/// An operation of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Put,
    PutTwice,
    Burst,
    PutDelayed,
    /// Into a queue that no relay knows.
    FreshQueue,
}

/// A kind of trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// Messages of a relay are dropped before its server.
    DropBefore,
    /// Messages are dropped in the client of a relay.
    DropInClient,
    /// Messages are dropped between the servers.
    DropBetween,
    /// Messages of a relay, or to it, are late.
    Delay,
    /// A relay's connection breaks, and its messages in flight are lost: both ways, or one.
    Break,
    BreakUp,
    BreakDown,
    /// A break that isolates no relay, in a calm time (J9).
    ShortBreak,
    /// All connections of a server break.
    ServerRestart,
    Parted,
    /// Each message arrives a second time for a while.
    Copies,
    /// A relay ends: at a random time, or between the count of a notification and the frame, before
    /// its confirmation, or after the OK.
    Crash,
    CrashBeforeFrame,
    CrashBeforeConfirmed,
    CrashAfterOk,
    /// It ends, and a copy of its memory at its start continues in its place.
    Restore,
    /// A new relay starts while another one is cut off, gives an OK, and ends before that is over.
    ComesAndGoes,
    /// It starts during a short break of another one, and stays.
    MetLate,
    /// A relay gives an OK and ends during a short break of another one.
    DeathInBreak,
    /// A copy of a relay's machine runs beside it.
    Clone,
    /// A relay dies while a group has no members at another one, and some return there later.
    EmptyGroup,
    /// A relay ends in good order (C15).
    Drain,
    Pause,
    /// A stream breaks, or its client does not read.
    StreamBreak,
    SlowReader,
    ListenerCrash,
    /// The last member of a group leaves its relay before it takes the work that it serves.
    LastMemberLeaves,
}

impl Trouble {
    pub(super) const ALL: &[Self] = &[
        Self::DropBefore,
        Self::DropInClient,
        Self::DropBetween,
        Self::Delay,
        Self::Break,
        Self::BreakUp,
        Self::BreakDown,
        Self::ShortBreak,
        Self::ServerRestart,
        Self::Parted,
        Self::Copies,
        Self::Crash,
        Self::CrashBeforeFrame,
        Self::CrashBeforeConfirmed,
        Self::CrashAfterOk,
        Self::Restore,
        Self::ComesAndGoes,
        Self::MetLate,
        Self::DeathInBreak,
        Self::Clone,
        Self::EmptyGroup,
        Self::Drain,
        Self::Pause,
        Self::StreamBreak,
        Self::SlowReader,
        Self::ListenerCrash,
        Self::LastMemberLeaves,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DropBefore => "DropBefore",
            Self::DropInClient => "DropInClient",
            Self::DropBetween => "DropBetween",
            Self::Delay => "Delay",
            Self::Break => "Break",
            Self::BreakUp => "BreakUp",
            Self::BreakDown => "BreakDown",
            Self::ShortBreak => "ShortBreak",
            Self::ServerRestart => "ServerRestart",
            Self::Parted => "Parted",
            Self::Copies => "Copies",
            Self::Crash => "Crash",
            Self::CrashBeforeFrame => "CrashBeforeFrame",
            Self::CrashBeforeConfirmed => "CrashBeforeConfirmed",
            Self::CrashAfterOk => "CrashAfterOk",
            Self::Restore => "Restore",
            Self::ComesAndGoes => "ComesAndGoes",
            Self::MetLate => "MetLate",
            Self::DeathInBreak => "DeathInBreak",
            Self::Clone => "Clone",
            Self::EmptyGroup => "EmptyGroup",
            Self::Drain => "Drain",
            Self::Pause => "Pause",
            Self::StreamBreak => "StreamBreak",
            Self::SlowReader => "SlowReader",
            Self::ListenerCrash => "ListenerCrash",
            Self::LastMemberLeaves => "LastMemberLeaves",
        }
    }

    /// Limits 1 to 3 of the promise: a message that is lost without a trace, whose sender then dies.
    fn loses_silently(self, servers: usize) -> bool {
        match self {
            Self::DropInClient | Self::DropBetween | Self::Parted => true,
            // The other server may not have what the sender saw confirmed.
            Self::ServerRestart => servers > 1,
            _ => false,
        }
    }

    pub(super) fn ends_relay(self) -> bool {
        matches!(
            self,
            Self::Crash
                | Self::CrashBeforeFrame
                | Self::CrashBeforeConfirmed
                | Self::CrashAfterOk
                | Self::ComesAndGoes
                | Self::MetLate
                | Self::DeathInBreak
                | Self::EmptyGroup
                | Self::Drain
        )
    }

    fn is_rare(self) -> bool {
        let composite = matches!(
            self,
            Self::ComesAndGoes
                | Self::MetLate
                | Self::DeathInBreak
                | Self::EmptyGroup
                | Self::Drain
                | Self::Crash
        );
        composite || self.needs_two_servers()
    }

    fn is_rarest(self) -> bool {
        matches!(self, Self::ComesAndGoes | Self::MetLate | Self::Drain)
    }

    fn needs_two_servers(self) -> bool {
        matches!(self, Self::DropBetween | Self::Parted | Self::Copies)
    }

    /// Returns whether two runs of a relay have one life: its memory is an older copy.
    pub(super) fn copies_life(self) -> bool {
        matches!(self, Self::Restore | Self::Clone)
    }

    /// Returns whether it can lose a message between relays, or a relay's memory.
    pub(super) fn loses(self) -> bool {
        self.ends_relay()
            || self.copies_life()
            || matches!(
                self,
                Self::DropBefore
                    | Self::DropInClient
                    | Self::DropBetween
                    | Self::Break
                    | Self::BreakUp
                    | Self::BreakDown
                    | Self::ShortBreak
                    | Self::ServerRestart
                    | Self::Parted
            )
    }
}

impl Plan {
    pub(super) fn of(rng: &mut fastrand::Rng) -> Self {
        let servers = if rng.u32(0..3) == 0 { 1 } else { 2 };
        let relays = match rng.u32(0..4) {
            0 => 4,
            1 => 2,
            _ => 3,
        };
        let queues: Vec<_> = (0..rng.usize(1..=4))
            .map(|number| address(&format!("q{number}")))
            .collect();
        let sparse = rng.u32(0..4) != 0;
        let deaths = rng.bool();
        let mut troubles = troubles(rng, servers, deaths);
        let fleet = rng.u32(0..3) == 0;
        troubles.retain(|one| *one != Trouble::LastMemberLeaves);
        // It needs a group, and happens at its moment only.
        if fleet && rng.u32(0..4) != 0 {
            troubles.push(Trouble::LastMemberLeaves);
        }
        let listeners = match fleet {
            true => groups::fleet(rng, &queues),
            false => listeners(rng, &queues, sparse),
        };
        let copies = servers == 2 && rng.u32(0..6) == 0;
        Self {
            relays,
            servers,
            listeners,
            works: works(rng, sparse),
            fails: rng.u32(0..3) == 0,
            queues,
            troubles,
            work_gap: if sparse { 8_000 } else { 600 },
            trouble_gap: [3_000, 8_000, 16_000][rng.usize(0..3)],
            active: seconds(rng.u64(550..950)),
            heals: rng.u32(0..3) != 0,
            forget_after: match rng.u32(0..3) {
                // The least that a relay of a cluster takes.
                0 => seconds(rng.u64(60..80)),
                _ => seconds(3_600),
            },
            inline: if rng.bool() { 0 } else { 64 },
            max_age: match rng.u32(0..4) {
                0 => seconds(20),
                _ => seconds(3_600),
            },
            sentinel: Duration::ZERO,
            quiet: false,
            group_keep: seconds(600),
            events_hidden: rng.u32(0..4) == 0,
            jitter: match rng.u32(0..3) {
                0 => rng.u64(1..40),
                _ => 0,
            },
            copies: copies.then(|| Duration::from_millis(rng.u64(1..800))),
            older: rng.u32(0..8) == 0,
        }
    }

    pub(super) fn may(&self, trouble: Trouble) -> bool {
        self.troubles.contains(&trouble)
    }

    pub(super) fn loses_silently(&self) -> bool {
        let mut troubles = self.troubles.iter();
        troubles.any(|one| one.loses_silently(self.servers))
    }

    pub(super) fn has_deaths(&self) -> bool {
        self.troubles.iter().any(|one| one.ends_relay())
    }

    /// Returns whether all sums must be equal in the end (J4).
    pub(super) fn is_lossless(&self) -> bool {
        let forgets = self.forget_after < self.active;
        !forgets && !self.troubles.iter().any(|one| one.loses())
    }

    /// Returns whether no relay may count more than was notified (J2).
    pub(super) fn is_exact(&self) -> bool {
        let copies = self.copies.is_some() || self.may(Trouble::Copies);
        let lost = self.troubles.iter().any(|one| one.loses());
        let copied = self.troubles.iter().any(|one| one.copies_life());
        // A sender that goes to the other server overtakes its earlier messages.
        // A timer may fire at both relays while it is handed over.
        let handed_over = self.may(Trouble::Drain);
        !copied && !handed_over && !(lost && (copies || self.servers == 2))
    }
}

impl ListenerPlan {
    /// Chooses a listener of the queue, by its name or by a pattern.
    pub(super) fn new(
        rng: &mut fastrand::Rng,
        queue: &QueueAddress,
        queues: &[QueueAddress],
    ) -> Self {
        let selectors = match rng.u32(0..5) {
            0 => vec![Selector::new("acct", "q*").expect("a selector")],
            1 => vec![Selector::new("acct", "*").expect("a selector")],
            2 => queues.iter().map(Selector::from).collect(),
            _ => vec![Selector::from(queue)],
        };
        Self {
            selectors,
            group: None,
            visibility: seconds(rng.u64(5..20)),
            heartbeat: seconds([2, 5, 10][rng.usize(0..3)]),
            sticky: rng.u32(0..3) == 0,
            handling: 300,
        }
    }
}

/// A random half of the troubles. Deaths of relays, or silent losses: never both.
fn troubles(rng: &mut fastrand::Rng, servers: usize, deaths: bool) -> Vec<Trouble> {
    let allowed = Trouble::ALL.iter().copied().filter(|one| {
        let fits = match deaths {
            true => !one.loses_silently(servers),
            false => !one.ends_relay(),
        };
        fits && (servers == 2 || !one.needs_two_servers())
    });
    let all: Vec<_> = allowed.collect();
    let mut some: Vec<_> = all.iter().copied().filter(|_| rng.bool()).collect();
    if rng.u32(0..16) == 0 {
        some.retain(|one| !one.loses());
    }
    // They are possible in fewer runs than the others.
    let rare: Vec<_> = some.iter().copied().filter(|one| one.is_rare()).collect();
    some.extend(rare.iter().chain(&rare).chain(&rare));
    some.extend(rare.iter().filter(|one| one.is_rarest()));
    // Few kinds of trouble leave the time that a single one needs.
    if rng.u32(0..3) == 0 {
        rng.shuffle(&mut some);
        some.truncate(2);
    }
    some
}

fn works(rng: &mut fastrand::Rng, sparse: bool) -> Vec<Work> {
    let mut works = vec![Work::Put];
    for work in [Work::PutTwice, Work::PutDelayed, Work::FreshQueue] {
        if rng.u32(0..3) == 0 {
            works.push(work);
        }
    }
    if !sparse {
        works.push(Work::Burst);
    }
    works
}

/// Mostly one listener for each queue: a second one could hide the first one's lost wake-up.
fn listeners(rng: &mut fastrand::Rng, queues: &[QueueAddress], sparse: bool) -> Vec<ListenerPlan> {
    let count = if sparse {
        queues.len()
    } else {
        rng.usize(2..=5)
    };
    let mut one = |number: usize| {
        let queue = &queues[number % queues.len()];
        ListenerPlan::new(rng, queue, queues)
    };
    (0..count).map(&mut one).collect()
}
