//! The scaling machine: one test per rule.

mod places;
mod reports;

use std::time::Duration;

use super::*;
use crate::{
    base::clock::Tick,
    error::ErrorKind,
    types::{ConnectionState, LinkState, ReportState},
};

use ConnectionState::{Connected, Reconnecting};
use ListenerMode::{Polling, Pushed};
use ReportState::{Busy, Drained};
use TaskAction::{Get, Leave, Sleep};

/// A scaler and its time; the random number is always 0.5.
struct Bench {
    scaler: Scaler,
    now: Tick,
}

const VISIBILITY: Duration = seconds(30);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Bench {
    fn new(relay: bool) -> Self {
        Self::away(relay, seconds(30))
    }

    fn away(relay: bool, away: Duration) -> Self {
        let config = ScalerConfig {
            max_tasks: 5,
            idle: IdleBackoff::default(),
            away,
            empty_is_certain: true,
        };
        Self {
            scaler: Scaler::new(config, relay),
            now: Tick::default() + seconds(1),
        }
    }

    /// Makes a pushed scaler without tasks.
    fn pushed() -> Self {
        let mut bench = Self::new(true);
        bench.link(1, Connected);
        assert_eq!(bench.scaler.mode(), Pushed);
        bench
    }

    fn link(&mut self, welcomes: u64, connection: ConnectionState) {
        let link = link(welcomes, connection);
        self.scaler.on_link_changed(&link, self.now, 0.5);
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn step(&mut self) -> Step {
        self.scaler.step(self.now, 0.5)
    }

    fn wake(&mut self, sequence: u64) {
        self.scaler.on_wake_up(sequence, self.now);
    }

    fn begin(&mut self, task: TaskId) -> TaskAction {
        self.scaler.begin(task, self.now)
    }

    fn polls(&mut self, task: TaskId) {
        assert_eq!(self.begin(task), Get);
    }

    fn finds(&mut self, task: TaskId, full: bool) -> bool {
        self.scaler.found(task, full, self.now)
    }

    fn done(&mut self, task: TaskId) -> TaskAction {
        self.scaler.done(task, self.now)
    }

    /// A task has handled its messages, and polls again.
    fn goes_on(&mut self, task: TaskId) {
        self.done(task);
        self.polls(task);
    }

    /// A wake-up starts a task that finds messages.
    fn works(&mut self, sequence: u64, full: bool) -> TaskId {
        self.wake(sequence);
        let task = self.gets();
        self.finds(task, full);
        task
    }

    /// Starts a task without a wake-up; it finds messages.
    fn works_unasked(&mut self) -> TaskId {
        self.scaler.start_more(1, self.now);
        let task = self.gets();
        self.finds(task, false);
        task
    }

    /// A get finds nothing, and its task ends.
    fn leaves(&mut self, task: TaskId) {
        assert_eq!(self.finds_nothing(task), Leave);
    }

    fn hides(&mut self, delay: Duration) {
        self.scaler.reporter.add_hidden(delay, self.now);
    }

    fn places_free(&mut self, task: TaskId, half: bool) {
        self.scaler.places_free(task, half, self.now, 0.5);
    }

    fn sleeps_until(&self, task: TaskId) -> Option<Tick> {
        self.scaler.sleeps_until(task, self.now)
    }

    /// The depth is asked for and answered.
    fn depth(&mut self, tasks: Option<usize>) {
        assert_eq!(self.step(), Step::QueryDepth);
        let wanted = tasks.map(|tasks| (tasks, usize::MAX));
        self.scaler.on_depth(wanted, self.now);
    }

    /// Takes the report that is due, and answers it with this error.
    fn refused(&mut self, error: ErrorKind) {
        assert!(matches!(self.step(), Step::Report(_)));
        self.scaler.reporter.on_answered(Some(error), self.now);
    }

    /// Takes the report that is due: its state and its sequence.
    fn told_state(&mut self) -> (ReportState, u64) {
        let due = self.told();
        (due.state, due.sequence)
    }

    fn started(&mut self) -> TaskId {
        match self.step() {
            Step::Start(task) => task,
            other => panic!("no task is started: {other:?}"),
        }
    }

    fn gets(&mut self) -> TaskId {
        let task = self.started();
        assert_eq!(self.scaler.begin(task, self.now), Get);
        task
    }

    fn finds_nothing(&mut self, task: TaskId) -> TaskAction {
        let (_, idle) = self.scaler.idle(task, self.now, 0.5);
        self.scaler.after_empty(task, idle, self.now, 0.5)
    }

    /// Takes the report that is due, and answers it with success.
    fn told(&mut self) -> PendingReport {
        let due = match self.step() {
            Step::Report(due) => due,
            other => panic!("nothing is reported: {other:?}"),
        };
        self.scaler.reporter.on_answered(None, self.now);
        due
    }

    fn waits(&mut self) -> Tick {
        match self.step() {
            Step::Wait(until) => until,
            other => panic!("it does not wait: {other:?}"),
        }
    }
}

fn link(welcomes: u64, connection: ConnectionState) -> LinkState {
    LinkState {
        connection,
        welcomes,
        ..LinkState::default()
    }
}

#[test]
fn a_wake_up_starts_one_get_and_a_second_wake_up_during_it_none() {
    let mut bench = Bench::pushed();
    assert_eq!(bench.waits(), Tick::NEVER, "nothing to do");
    bench.wake(1);
    let task = bench.gets();
    bench.wake(2);
    bench.waits();
    assert_eq!(bench.finds_nothing(task), Get, "R17: it moved");
    bench.polls(task);
    bench.leaves(task);
    assert_eq!(bench.told_state(), (Drained, 2));
    assert_eq!(bench.scaler.active(), (0, 1));
}

#[test]
fn a_stop_from_a_hook_does_not_override_the_generation() {
    let mut bench = Bench::pushed();
    bench.wake(1);
    let task = bench.gets();
    bench.wake(2);
    let rest = bench.scaler.after_empty(task, Idle::Stop, bench.now, 0.5);
    assert_eq!(rest, Get);
}

#[test]
fn a_wake_up_while_all_tasks_are_busy_starts_a_get() {
    let mut bench = Bench::pushed();
    bench.works(1, false);
    bench.waits();
    bench.wake(2);
    bench.gets();
}

#[test]
fn a_wake_up_without_a_free_task_stays_pending() {
    let mut bench = Bench::pushed();
    let mut working = Vec::new();
    for sequence in 1..=5 {
        working.push(bench.works(sequence, false));
    }
    bench.wake(6);
    bench.waits();
    bench.goes_on(working[0]);
    bench.leaves(working[0]);
    bench.waits();
}

#[test]
fn a_get_that_hangs_holds_up_no_wake_up_for_longer_than_a_second() {
    let mut bench = Bench::pushed();
    bench.wake(1);
    bench.gets();
    assert_eq!(bench.waits(), bench.now + seconds(1));
    bench.pass(1_000);
    bench.gets();
    bench.pass(60_000);
    assert_eq!(bench.waits(), Tick::NEVER, "two that hang are enough");
}

#[test]
fn a_full_batch_after_idleness_asks_for_the_depth_and_the_difference_is_started() {
    let mut bench = Bench::pushed();
    bench.wake(1);
    let task = bench.gets();
    assert!(bench.finds(task, true), "work detected");
    bench.depth(Some(3));
    bench.gets();
    let late = bench.started();
    bench.waits();
    // The queue is empty before the third task has a slot.
    bench.goes_on(task);
    bench.leaves(task);
    assert_eq!(bench.begin(late), Leave, "for nothing");
}

#[test]
fn a_batch_that_is_not_full_reads_no_depth_while_wake_ups_come() {
    let mut bench = Bench::pushed();
    bench.works(1, false);
    bench.waits();
    let mut alone = Bench::new(false);
    let task = alone.gets();
    alone.finds(task, false);
    alone.started();
    assert_eq!(
        alone.step(),
        Step::QueryDepth,
        "no other source reports more work"
    );
}

#[test]
fn a_depth_that_cannot_be_read_changes_nothing() {
    let mut bench = Bench::pushed();
    bench.works(1, true);
    bench.depth(None);
    bench.waits();
    bench.wake(2);
    bench.gets();
}

#[test]
fn the_last_task_stays_without_wake_ups() {
    let mut bench = Bench::new(false);
    let task = bench.gets();
    for idle_count in 1..=3 {
        let Sleep(until) = bench.finds_nothing(task) else {
            panic!("it ends after {idle_count}");
        };
        assert_eq!(bench.begin(task), Sleep(until));
        bench.now = until;
        bench.polls(task);
    }
    let Sleep(until) = bench.finds_nothing(task) else {
        panic!("it is the last one");
    };
    assert_eq!(until.since(bench.now), seconds(1));
}

#[test]
fn a_listener_without_its_relay_polls_within_half_a_minute_until_it_is_back() {
    let mut bench = Bench::pushed();
    bench.link(1, Reconnecting);
    assert_eq!(bench.scaler.mode(), Polling);
    let task = bench.started();
    let Sleep(until) = bench.begin(task) else {
        panic!("a fleet does not poll all at once");
    };
    assert!(until.since(bench.now) <= seconds(30));
    bench.link(2, Connected);
    let Sleep(soon) = bench.begin(task) else {
        panic!("spread");
    };
    assert!(soon.since(bench.now) <= seconds(2));
    bench.now = soon;
    bench.polls(task);
    bench.leaves(task);
}

#[test]
fn a_sleep_that_was_right_while_pushed_is_cut_short_when_the_relay_goes_away() {
    let mut bench = Bench::pushed();
    bench.wake(1);
    let task = bench.gets();
    let hour = Idle::Sleep(seconds(3600));
    assert!(matches!(
        bench.scaler.after_empty(task, hour, bench.now, 0.5),
        Sleep(_)
    ));
    bench.link(1, Reconnecting);
    let until = bench.sleeps_until(task).expect("it sleeps");
    assert!(until.since(bench.now) <= seconds(30));
}

#[test]
fn a_stream_that_ends_as_announced_changes_no_mode_and_costs_no_get() {
    let mut bench = Bench::pushed();
    let next = LinkState {
        announced: true,
        ..link(1, Reconnecting)
    };
    assert!(!bench.scaler.on_link_changed(&next, bench.now, 0.5));
    assert_eq!(bench.scaler.mode(), Pushed);
    bench.pass(1_000);
    bench.waits();
    bench.link(2, Connected);
    bench.waits();
    assert_eq!(bench.scaler.active(), (0, 0), "nothing has issued_wake");
    // When the next attempt fails, the relay counts as away.
    bench.scaler.on_link_changed(&next, bench.now, 0.5);
    bench.link(2, Reconnecting);
    assert_eq!(bench.scaler.mode(), Polling);
    bench.started();
    // A polling listener stays in its mode until the next Welcome.
    bench.scaler.on_link_changed(&next, bench.now, 0.5);
    assert_eq!(bench.scaler.mode(), Polling);
}

#[test]
fn a_sleep_without_an_end_asks_for_no_appointment_again_and_again() {
    let mut bench = Bench::away(true, Duration::MAX);
    let task = bench.started();
    bench.pass(60_000);
    bench.polls(task);
    for _ in 0..80 {
        bench.finds_nothing(task);
    }
    for _ in 0..10 {
        if matches!(bench.step(), Step::Wait(_)) {
            return;
        }
    }
    panic!("it never waits");
}

/// A depth counts messages that are delayed, or that others handle. With 60 of them each visible message
/// would start as many tasks as the policy allows, and each of those a get for nothing.
#[test]
fn a_depth_after_an_empty_get_starts_one_more_task_and_each_full_get_twice_as_many() {
    let mut bench = Bench::pushed();
    let task = bench.works(1, true);
    bench.depth(Some(60));
    assert_eq!(bench.scaler.target(), 60, "nothing is known against it");
    bench.goes_on(task);
    bench.leaves(task);
    assert_eq!(bench.scaler.target(), 0);

    bench.pass(10_000);
    let first = bench.works(2, true);
    bench.depth(Some(60));
    assert_eq!(bench.scaler.target(), 2);
    let second = bench.gets();
    bench.finds(second, true);
    assert_eq!(bench.scaler.target(), 4);
    bench.goes_on(first);
    bench.finds(first, true);
    assert_eq!(bench.scaler.target(), 6);
}
