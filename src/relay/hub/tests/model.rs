//! Random operations on the hub and on a naive log of all events. All that is taken must match the
//! log, in every sum, reason and sequence, and at the end no entry is left.

mod naive;

use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm::ChaCha, TestRng, TestRunner},
};

use self::naive::{Log, Owed, Worth};
use super::{super::counters::Counters, *};
use crate::{base::backoff::jitter, types::Selector};

const QUEUES: [&str; 4] = ["orders", "ordinary", "invoices", "jobs"];
const SELECTORS: [&str; 5] = ["orders", "jobs", "ord*", "in*", "*"];
const SLOTS: usize = 4;

/// One step; indices are taken modulo the number of elements.
#[derive(Debug, Clone)]
enum Step {
    /// Queue, delay in seconds, and the sums of each event of a batch.
    Notify(Vec<(usize, u64, [u64; 3])>),
    /// Slot, selectors, and queue and kind of each position.
    Subscribe(usize, Vec<usize>, Vec<(usize, Position)>),
    Take(usize),
    Disconnect(usize),
    /// Slot, queue, state, how far from its head, and seconds until something is visible.
    Report(usize, usize, ReportState, u64, Option<u64>),
    /// Seconds by which time goes on before timers fire.
    Advance(u64),
    Forget,
}

/// The token of a position.
#[derive(Debug, Clone, Copy)]
enum Position {
    /// The newest token of the queue.
    Newest,
    /// One of its older tokens.
    Stale(usize),
    /// Of another run of the relay.
    Foreign,
    Nonsense,
    /// A position that the queue has not reached.
    Above,
}

/// The hub and its model.
struct Pair {
    hub: Arc<Hub>,
    log: Log,
    now: Tick,
    slots: [Option<Arc<Subscription>>; SLOTS],
    /// Every token so far: its queue and position.
    tokens: Vec<(String, u64, Token)>,
    reports: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let event = (
        0..4usize,
        prop_oneof![3 => Just(0), 1 => 1..100u64],
        [1..9u64, 0..9, 1..9],
    );
    let position = prop_oneof![
        4 => Just(Position::Newest),
        2 => any::<usize>().prop_map(Position::Stale),
        1 => Just(Position::Foreign),
        1 => Just(Position::Nonsense),
        1 => Just(Position::Above),
    ];
    let positions = prop::collection::vec((0..4usize, position), 0..4);
    let state = prop_oneof![
        Just(ReportState::Unspecified),
        Just(ReportState::Busy),
        Just(ReportState::Drained),
    ];
    let visible = prop::option::of(0..100u64);
    prop_oneof![
        6 => prop::collection::vec(event, 1..4).prop_map(Step::Notify),
        3 => (0..SLOTS, prop::collection::vec(0..5usize, 1..4), positions)
            .prop_map(|(slot, selectors, positions)| Step::Subscribe(slot, selectors, positions)),
        5 => (0..SLOTS).prop_map(Step::Take),
        1 => (0..SLOTS).prop_map(Step::Disconnect),
        2 => (0..SLOTS, 0..4usize, state, 0..3u64, visible)
            .prop_map(|(slot, queue, state, back, visible)| {
                Step::Report(slot, queue, state, back, visible)
            }),
        2 => prop_oneof![0..60u64, 3000..9000u64].prop_map(Step::Advance),
        2 => Just(Step::Forget),
    ]
}

impl Pair {
    fn new(fault: Fault) -> Self {
        fault.plant();
        let mut log = Log::default();
        log.listeners.resize_with(SLOTS, || None);
        Self {
            hub: hub(),
            log,
            now: Tick::default(),
            slots: Default::default(),
            tokens: Vec::new(),
            reports: 0,
        }
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Notify(events) => self.notify(&events),
            Step::Subscribe(slot, selectors, positions) => {
                self.disconnect(slot);
                self.subscribe(slot, &selectors, &positions);
            }
            Step::Take(slot) => self.take(slot),
            Step::Disconnect(slot) => self.disconnect(slot),
            Step::Report(slot, queue, state, back, visible) => {
                self.report(slot, QUEUES[queue], state, back, visible);
            }
            Step::Advance(seconds) => {
                self.now += Duration::from_secs(seconds);
                self.hub.fire(self.now);
                self.log.fire(self.now);
            }
            Step::Forget => {
                self.hub.forget(self.now);
                self.log.forget(self.now);
            }
        }
    }

    fn notify(&mut self, events: &[(usize, u64, [u64; 3])]) {
        let mut batch = Vec::new();
        for (queue, delay, sums) in events {
            let (name, delay) = (QUEUES[*queue], Duration::from_secs(*delay));
            self.log.notify(name, delay, *sums, self.now);
            batch.push(Notification {
                notifications: sums[0],
                payload_size: sums[1],
                messages: sums[2],
                delay,
                ..notification(name)
            });
        }
        let accepted = self.hub.notify_all(&Arc::from("p"), &batch, self.now);
        accepted.expect("within the limits");
    }

    fn subscribe(&mut self, slot: usize, selectors: &[usize], positions: &[(usize, Position)]) {
        let selectors: Vec<_> = selectors.iter().map(|i| SELECTORS[*i]).collect();
        let mut options = options(&selectors);
        let mut worths = Vec::new();
        for (queue, position) in positions {
            let (name, (worth, token)) = (QUEUES[*queue], self.position(QUEUES[*queue], *position));
            worths.push((name.to_owned(), worth));
            let queue = Selector::from(super::queue(name));
            options
                .positions
                .push(crate::types::Position { queue, token });
        }
        let spread = self.now + jitter(2 * SECOND, &mut fastrand::Rng::with_seed(1));
        let selectors = options.selectors.clone();
        let listener = self.log.subscribe(selectors, &worths, self.now, spread);
        self.log.listeners[slot] = Some(listener);
        self.slots[slot] = Some(subscribe_with(&self.hub, &options, self.now));
    }

    fn position(&self, name: &str, position: Position) -> (Worth, Token) {
        let given: Vec<_> = self
            .tokens
            .iter()
            .filter(|(queue, ..)| queue == name)
            .collect();
        let of = |index: usize| match given.get(index) {
            Some((_, place, token)) => (Worth::Place(*place), token.clone()),
            None => (Worth::Nothing, Token::default()),
        };
        match position {
            Position::Newest => of(given.len().wrapping_sub(1)),
            Position::Stale(index) => of(index.checked_rem(given.len()).unwrap_or(0)),
            Position::Foreign => (Worth::Foreign, Counters::starting_at(1).token(Epoch(8))),
            Position::Nonsense => (
                Worth::Nothing,
                Token(bytes::Bytes::from_static(b"nonsense")),
            ),
            Position::Above => (Worth::Nothing, Counters::starting_at(u64::MAX).token(EPOCH)),
        }
    }

    /// Takes all entries; they must match the log.
    fn take(&mut self, slot: usize) {
        let Some(subscription) = &self.slots[slot] else {
            return;
        };
        let work = drain(subscription, self.now);
        let mut told: Vec<Owed> = work.iter().map(owed).collect();
        told.sort();
        assert_eq!(told, self.log.take(slot, self.now));
        for entry in work.into_iter().filter(|entry| !entry.queue.is_pattern()) {
            let name = entry.queue.queue_name().to_owned();
            self.tokens.push((name, entry.sequence, entry.token));
        }
    }

    fn disconnect(&mut self, slot: usize) {
        if let Some(subscription) = self.slots[slot].take() {
            self.hub.unsubscribe(&subscription, self.now);
            let listener = self.log.listeners[slot].take().expect("the same");
            self.log.unsubscribe(listener, self.now);
        }
    }

    fn report(
        &mut self,
        slot: usize,
        name: &str,
        state: ReportState,
        back: u64,
        visible: Option<u64>,
    ) {
        let (Some(subscription), Some(listener)) = (&self.slots[slot], &self.log.listeners[slot])
        else {
            return;
        };
        self.reports += 1;
        let newest = self.tokens.iter().rev().find(|(queue, ..)| queue == name);
        // One above the newest sequence that was sent, the newest, or one below.
        let sequence = newest.map_or(0, |(_, place, _)| (place + 1).saturating_sub(back));
        let report = Report {
            visible_in: visible.map(Duration::from_secs),
            ..report(name, state, sequence, self.reports)
        };
        let answer = self.hub.report(subscription.id, &report, self.now);
        assert_eq!(answer.is_ok(), listener.wants(name));
        if answer.is_ok() {
            self.log.report(slot, &report, self.now);
        }
    }

    /// Lets all time pass, and compares every subscriber's last entries.
    fn settle(&mut self) {
        self.play(Step::Advance(30 * 24 * 3600));
        for slot in 0..SLOTS {
            self.take(slot);
            if let Some(subscription) = &self.slots[slot] {
                verify(&self.hub, subscription, self.now);
                assert_eq!(drain(subscription, self.now), []);
            }
        }
    }
}

fn owed(entry: &WorkDetected) -> Owed {
    let name = entry.queue.queue_name().to_owned();
    let sums = [entry.notifications, entry.payload_size, entry.messages];
    (name, entry.reason, entry.sequence, sums)
}

fn play(steps: Vec<Step>, fault: Fault) {
    let mut pair = Pair::new(fault);
    steps.into_iter().for_each(|step| pair.play(step));
    pair.settle();
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn every_subscriber_gets_the_entries_of_the_log(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        play(steps, Fault::None);
    }
}

#[test]
fn the_log_tells_each_fault_apart_from_the_rules() {
    for fault in [
        Fault::ForeignEpochAccepted,
        Fault::FloorForgotten,
        Fault::TimersMergeDown,
        Fault::NoTimerForBusy,
        Fault::SequenceAboveHeadAccepted,
    ] {
        let config = ProptestConfig {
            max_shrink_iters: 0,
            ..config(10_000)
        };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(ChaCha));
        let steps = prop::collection::vec(step(), 1..60);
        let outcome = runner.run(&steps, |steps| {
            let lost = std::panic::catch_unwind(|| play(steps, fault)).is_err();
            prop_assert!(!lost);
            Ok(())
        });
        assert!(outcome.is_err(), "{fault:?} was not found");
    }
}
