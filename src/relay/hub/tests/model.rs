//! Random operations on the hub and on a naive log of all events. All that is taken must match the
//! log, in every sum, reason and sequence, and at the end no entry is left.

mod naive;

use std::collections::BTreeSet;

use proptest::{
    prelude::*,
    test_runner::{RngAlgorithm::ChaCha, TestRng, TestRunner},
};

use self::naive::{Log, Owed, Worth};
use super::{super::resume, *};

const QUEUES: [&str; 4] = ["orders", "ordinary", "invoices", "jobs"];
const SELECTORS: [&str; 5] = ["orders", "jobs", "ord*", "in*", "*"];
const SLOTS: usize = 4;

/// One step; indices are taken modulo the number of elements.
#[derive(Debug, Clone)]
enum Step {
    /// Queue, delay in seconds, and the sums of each event of a batch.
    Notify(Vec<(usize, u64, [u64; 3])>),
    /// Slot, selectors, and the stated resume number.
    Subscribe(usize, Vec<usize>, Stated),
    Take(usize),
    /// The stream's resume number is stated.
    Number(usize),
    Disconnect(usize),
    /// Slot, queue, state, how far from its head, and seconds until something is visible.
    Report(usize, usize, ReportState, u64, Option<u64>),
    /// Seconds by which time goes on before timers fire.
    Advance(u64),
    Forget,
}

/// A stated resume number.
#[derive(Debug, Clone, Copy)]
enum Stated {
    /// The newest one.
    Newest,
    /// An older one, maybe of other selectors.
    Stale(usize),
    /// Of another run of the relay.
    Foreign,
    Nonsense,
    /// A revision that the hub has not reached.
    Above,
}

/// The hub and its model.
struct Pair {
    hub: Arc<Hub>,
    log: Log,
    now: Tick,
    slots: [Option<Arc<Subscription>>; SLOTS],
    /// Every sequence that was taken, with its queue.
    taken: Vec<(String, u64)>,
    /// Every resume number so far: its selectors, and the log's revision.
    numbers: Vec<(BTreeSet<usize>, u64, ResumeNumber)>,
    /// The selectors of each slot.
    selectors: [BTreeSet<usize>; SLOTS],
    reports: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let event = (
        0..4usize,
        prop_oneof![3 => Just(0), 1 => 1..100u64],
        [1..9u64, 0..9, 1..9],
    );
    let stated = prop_oneof![
        4 => Just(Stated::Newest),
        4 => any::<usize>().prop_map(Stated::Stale),
        1 => Just(Stated::Foreign),
        1 => Just(Stated::Nonsense),
        1 => Just(Stated::Above),
    ];
    let state = prop_oneof![
        Just(ReportState::Unspecified),
        Just(ReportState::Busy),
        Just(ReportState::Drained),
    ];
    let visible = prop::option::of(0..100u64);
    prop_oneof![
        6 => prop::collection::vec(event, 1..4).prop_map(Step::Notify),
        3 => (0..SLOTS, prop::collection::vec(0..5usize, 1..3), stated)
            .prop_map(|(slot, selectors, stated)| Step::Subscribe(slot, selectors, stated)),
        5 => (0..SLOTS).prop_map(Step::Take),
        2 => (0..SLOTS).prop_map(Step::Number),
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
            taken: Vec::new(),
            numbers: Vec::new(),
            selectors: Default::default(),
            reports: 0,
        }
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Notify(events) => self.notify(&events),
            Step::Subscribe(slot, selectors, stated) => {
                self.disconnect(slot);
                self.subscribe(slot, &selectors, stated);
            }
            Step::Take(slot) => self.take(slot),
            Step::Number(slot) => self.number(slot),
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

    fn subscribe(&mut self, slot: usize, selectors: &[usize], stated: Stated) {
        let names: Vec<_> = selectors.iter().map(|i| SELECTORS[*i]).collect();
        self.selectors[slot] = selectors.iter().copied().collect();
        let (worth, resume) = self.stated(&self.selectors[slot], stated);
        let options = SubscribeOptions {
            resume,
            ..options(&names)
        };
        let selectors = options.selectors.clone();
        let listener = self.log.subscribe(selectors, worth, self.now);
        self.log.listeners[slot] = Some(listener);
        self.slots[slot] = Some(subscribe_with(&self.hub, &options, self.now));
    }

    fn stated(&self, selectors: &BTreeSet<usize>, stated: Stated) -> (Worth, ResumeNumber) {
        let of = |index: usize| match self.numbers.get(index) {
            Some((of, revision, number)) if of == selectors => {
                (Worth::Since(*revision), number.clone())
            }
            Some((.., number)) => (Worth::Nothing, number.clone()),
            None => (Worth::Nothing, ResumeNumber::default()),
        };
        match stated {
            Stated::Newest => of(self.numbers.len().wrapping_sub(1)),
            Stated::Stale(index) => of(index.checked_rem(self.numbers.len()).unwrap_or(0)),
            Stated::Foreign => (Worth::Foreign, resume::number(8, u64::MAX)),
            Stated::Nonsense => (Worth::Nothing, ResumeNumber(vec![1; 31].into())),
            Stated::Above => (Worth::Nothing, resume::number(7, u64::MAX)),
        }
    }

    /// Takes what is due, and keeps the stream's number.
    fn number(&mut self, slot: usize) {
        let Some(subscription) = self.slots[slot].clone() else {
            return;
        };
        self.take(slot);
        let revision = self.log.number();
        let number = resume_number(&self.hub, &subscription, self.now);
        let selectors = self.selectors[slot].clone();
        self.numbers.push((selectors, revision, number));
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
            self.taken.push((name, entry.sequence));
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
        let newest = self.taken.iter().rev().find(|(queue, _)| queue == name);
        // One above the newest sequence that was sent, the newest, or one below.
        let sequence = newest.map_or(0, |(_, place)| (place + 1).saturating_sub(back));
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
