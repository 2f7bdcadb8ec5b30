//! The scaling machine: one test per rule.

use std::time::Duration;

use super::*;
use crate::{
    base::{clock::Tick, fault::Fault},
    error::ErrorKind,
    types::{ConnectionState, LinkState, ReportState},
};

/// A scaler and its time; the random number is always 0.5.
struct Bench {
    scaler: Scaler,
    now: Tick,
}

const VISIBILITY: Duration = Duration::from_secs(30);

impl Bench {
    fn new(relay: bool) -> Self {
        Self::away(relay, Duration::from_secs(30))
    }

    fn away(relay: bool, away: Duration) -> Self {
        let config = ScalerConfig {
            max_tasks: 5,
            idle: IdleBackoff::default(),
            away,
            empty_is_certain: true,
            fault: Fault::NONE,
        };
        Self {
            scaler: Scaler::new(config, relay),
            now: Tick::default() + Duration::from_secs(1),
        }
    }

    /// Makes a pushed scaler without tasks.
    fn pushed() -> Self {
        let mut bench = Self::new(true);
        bench.link(1, ConnectionState::Connected);
        assert_eq!(bench.scaler.mode(), ListenerMode::Pushed);
        bench
    }

    fn link(&mut self, welcomes: u64, connection: ConnectionState) {
        let link = LinkState {
            connection,
            degraded: false,
            welcomes,
            announced: false,
        };
        self.scaler.on_link_changed(link, self.now, 0.5);
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn step(&mut self) -> Step {
        self.scaler.step(self.now, 0.5)
    }

    fn started(&mut self) -> TaskId {
        match self.step() {
            Step::Start(task) => task,
            other => panic!("no task is started: {other:?}"),
        }
    }

    fn gets(&mut self) -> TaskId {
        let task = self.started();
        assert_eq!(self.scaler.begin(task, self.now), Begin::Get);
        task
    }

    fn finds_nothing(&mut self, task: TaskId) -> AfterEmpty {
        let (_, idle) = self.scaler.idle(task, self.now, 0.5);
        self.scaler.after_empty(task, idle, self.now, 0.5)
    }

    /// Takes the report that is due, and answers it with success.
    fn told(&mut self) -> PendingReport {
        let due = match self.step() {
            Step::Report(due) => due,
            other => panic!("nothing is reported: {other:?}"),
        };
        self.scaler.on_report_answered(None, self.now);
        due
    }

    fn waits(&mut self) -> Tick {
        match self.step() {
            Step::Wait(until) => until,
            other => panic!("it does not wait: {other:?}"),
        }
    }
}

#[test]
fn a_wake_up_starts_one_get_and_a_second_wake_up_during_it_none() {
    let mut bench = Bench::pushed();
    assert_eq!(bench.waits(), Tick::NEVER, "nothing to do");
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.on_wake_up(2, bench.now);
    bench.waits();
    assert_eq!(
        bench.finds_nothing(task),
        AfterEmpty::Again,
        "R17: it moved"
    );
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    assert_eq!(bench.finds_nothing(task), AfterEmpty::Leave);
    let due = bench.told();
    assert_eq!((due.state, due.sequence), (ReportState::Drained, 2));
    assert_eq!(bench.scaler.active(), (0, 1));
}

#[test]
fn a_stop_from_a_hook_does_not_override_the_generation() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.on_wake_up(2, bench.now);
    let rest = bench.scaler.after_empty(task, Idle::Stop, bench.now, 0.5);
    assert_eq!(rest, AfterEmpty::Again);
}

#[test]
fn a_wake_up_while_all_tasks_are_busy_starts_a_get() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    bench.waits();
    bench.scaler.on_wake_up(2, bench.now);
    bench.gets();
}

#[test]
fn a_wake_up_without_a_free_task_stays_pending() {
    let mut bench = Bench::pushed();
    let mut working = Vec::new();
    for sequence in 1..=5 {
        bench.scaler.on_wake_up(sequence, bench.now);
        let task = bench.gets();
        bench.scaler.found(task, false, bench.now);
        working.push(task);
    }
    bench.scaler.on_wake_up(6, bench.now);
    bench.waits();
    bench.scaler.done(working[0], bench.now);
    assert_eq!(bench.scaler.begin(working[0], bench.now), Begin::Get);
    assert_eq!(bench.finds_nothing(working[0]), AfterEmpty::Leave);
    bench.waits();
}

#[test]
fn a_get_that_hangs_holds_up_no_wake_up_for_longer_than_a_second() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    bench.gets();
    assert_eq!(bench.waits(), bench.now + Duration::from_secs(1));
    bench.pass(1_000);
    bench.gets();
    bench.pass(60_000);
    assert_eq!(bench.waits(), Tick::NEVER, "two that hang are enough");
}

#[test]
fn a_full_batch_after_idleness_asks_for_the_depth_and_the_difference_is_started() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    assert!(bench.scaler.found(task, true, bench.now), "work detected");
    assert_eq!(bench.step(), Step::QueryDepth);
    bench.scaler.on_depth(Some(3), bench.now);
    bench.gets();
    let late = bench.started();
    bench.waits();
    // The queue is empty before the third task has a slot.
    bench.scaler.done(task, bench.now);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    assert_eq!(bench.finds_nothing(task), AfterEmpty::Leave);
    assert_eq!(
        bench.scaler.begin(late, bench.now),
        Begin::Leave,
        "for nothing"
    );
}

#[test]
fn a_batch_that_is_not_full_reads_no_depth_while_wake_ups_come() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    bench.waits();
    let mut alone = Bench::new(false);
    let task = alone.gets();
    alone.scaler.found(task, false, alone.now);
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
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, true, bench.now);
    assert_eq!(bench.step(), Step::QueryDepth);
    bench.scaler.on_depth(None, bench.now);
    bench.waits();
    bench.scaler.on_wake_up(2, bench.now);
    bench.gets();
}

#[test]
fn the_last_task_stays_without_wake_ups() {
    let mut bench = Bench::new(false);
    let task = bench.gets();
    for idle_count in 1..=3 {
        let AfterEmpty::Sleep(until) = bench.finds_nothing(task) else {
            panic!("it ends after {idle_count}");
        };
        assert_eq!(bench.scaler.begin(task, bench.now), Begin::Sleep(until));
        bench.now = until;
        assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    }
    let AfterEmpty::Sleep(until) = bench.finds_nothing(task) else {
        panic!("it is the last one");
    };
    assert_eq!(until.since(bench.now), Duration::from_secs(1));
}

#[test]
fn a_listener_without_its_relay_polls_within_half_a_minute_until_it_is_back() {
    let mut bench = Bench::pushed();
    bench.link(1, ConnectionState::Reconnecting);
    assert_eq!(bench.scaler.mode(), ListenerMode::Polling);
    let task = bench.started();
    let Begin::Sleep(until) = bench.scaler.begin(task, bench.now) else {
        panic!("a fleet does not poll all at once");
    };
    assert!(until.since(bench.now) <= Duration::from_secs(30));
    bench.link(2, ConnectionState::Connected);
    let Begin::Sleep(soon) = bench.scaler.begin(task, bench.now) else {
        panic!("spread");
    };
    assert!(soon.since(bench.now) <= Duration::from_secs(2));
    bench.now = soon;
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    assert_eq!(bench.finds_nothing(task), AfterEmpty::Leave);
}

#[test]
fn an_error_has_one_task_try_again_and_the_others_leave() {
    let mut bench = Bench::pushed();
    let mut rng = fastrand::Rng::with_seed(1);
    bench.scaler.start_more(3, bench.now);
    let tasks = [bench.gets(), bench.gets(), bench.gets()];
    let kind = ErrorKind::Unavailable;
    let rests = tasks.map(|task| {
        let (now, rng) = (bench.now, &mut rng);
        bench.scaler.failed(task, kind, VISIBILITY, now, rng)
    });
    assert!(
        matches!(
            rests,
            [AfterEmpty::Sleep(_), AfterEmpty::Leave, AfterEmpty::Leave]
        ),
        "{rests:?}"
    );
    let due = bench.told();
    let visible_in = due.visible_in.expect("what they may have got comes back");
    assert!(visible_in >= VISIBILITY, "{visible_in:?}");
    bench.scaler.on_wake_up(1, bench.now);
    bench.waits();
    bench.pass(5_000);
    assert_eq!(bench.scaler.begin(tasks[0], bench.now), Begin::Get);
}

#[test]
fn quick_work_is_reported_once_and_long_work_twice() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(7, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    assert_eq!(bench.waits(), bench.now + Duration::from_millis(250));
    bench.pass(250);
    let due = bench.told();
    assert_eq!((due.state, due.sequence), (ReportState::Busy, 7));
    bench.scaler.done(task, bench.now);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    assert_eq!(bench.finds_nothing(task), AfterEmpty::Leave);
    assert_eq!(bench.told().state, ReportState::Drained);
    bench.waits();
}

#[test]
fn work_found_without_a_wake_up_is_reported_at_once() {
    let mut bench = Bench::pushed();
    bench.scaler.start_more(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    let due = bench.told();
    assert_eq!((due.state, due.sequence), (ReportState::Busy, 0));
}

#[test]
fn nothing_is_drained_while_another_task_holds_messages() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let holds = bench.gets();
    bench.scaler.found(holds, false, bench.now);
    bench.scaler.on_wake_up(2, bench.now);
    let looks = bench.gets();
    assert_eq!(bench.finds_nothing(looks), AfterEmpty::Leave);
    bench.pass(250);
    assert_eq!(bench.told().state, ReportState::Busy);
    bench.scaler.done(holds, bench.now);
    assert_eq!(bench.scaler.begin(holds, bench.now), Begin::Get);
    assert_eq!(bench.finds_nothing(holds), AfterEmpty::Leave);
    assert_eq!(bench.told().state, ReportState::Drained);
}

#[test]
fn a_new_stream_gets_all_valid_reports_and_no_older_sequence() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(40, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    bench.scaler.add_hidden(Duration::from_secs(60), bench.now);
    let due = bench.told();
    assert_eq!((due.state, due.sequence), (ReportState::Busy, 40));
    assert!(due.visible_in >= Some(Duration::from_secs(60)));
    bench.pass(1_000);
    bench.link(1, ConnectionState::Reconnecting);
    bench.link(2, ConnectionState::Connected);
    let again = bench.told();
    assert_eq!((again.state, again.sequence), (ReportState::Busy, 0));
    assert!(
        again.visible_in >= Some(Duration::from_secs(59)),
        "{again:?}"
    );
}

#[test]
fn a_report_that_found_no_stream_waits_for_the_next_welcome() {
    let mut bench = Bench::pushed();
    bench.scaler.add_hidden(Duration::ZERO, bench.now);
    assert!(matches!(bench.step(), Step::Report(_)));
    bench
        .scaler
        .on_report_answered(Some(ErrorKind::NotFound), bench.now);
    bench.pass(60_000);
    bench.waits();
    bench.link(2, ConnectionState::Connected);
    assert_eq!(bench.told().visible_in, Some(Duration::ZERO));
}

#[test]
fn a_report_without_an_answer_is_made_again() {
    let mut bench = Bench::pushed();
    bench.scaler.add_hidden(Duration::ZERO, bench.now);
    assert!(matches!(bench.step(), Step::Report(_)));
    bench
        .scaler
        .on_report_answered(Some(ErrorKind::Timeout), bench.now);
    assert_eq!(bench.waits(), bench.now + Duration::from_secs(1));
    bench.pass(1_000);
    assert_eq!(bench.told().visible_in, Some(Duration::ZERO));
}

#[test]
fn a_lease_is_renewed_by_gets() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    bench.pass(250);
    bench.told();
    for _ in 0..2 {
        bench.scaler.done(task, bench.now);
        assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
        bench.scaler.found(task, false, bench.now);
        assert_eq!(
            bench.waits(),
            Tick::NEVER,
            "it is known, and no timer renews it"
        );
        bench.pass(5_000);
    }
    bench.scaler.done(task, bench.now);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    bench.scaler.found(task, false, bench.now);
    assert_eq!(bench.told().state, ReportState::Busy);
    bench.pass(60_000);
    bench.waits();
}

#[test]
fn messages_that_became_visible_without_a_stream_are_one_report() {
    let mut bench = Bench::pushed();
    bench.link(1, ConnectionState::Reconnecting);
    for _ in 0..10_000 {
        bench.scaler.add_hidden(Duration::from_secs(1), bench.now);
        bench.pass(100);
    }
    bench.pass(10_000);
    bench.link(2, ConnectionState::Connected);
    assert_eq!(bench.told().visible_in, Some(Duration::ZERO));
    bench.waits();
}

#[test]
fn a_refusal_that_may_pass_forgets_no_timer() {
    let mut bench = Bench::pushed();
    bench.scaler.add_hidden(Duration::from_secs(600), bench.now);
    assert!(matches!(bench.step(), Step::Report(_)));
    bench
        .scaler
        .on_report_answered(Some(ErrorKind::Unsupported), bench.now);
    assert_eq!(bench.waits(), bench.now + Duration::from_secs(30));
    assert!(
        !bench.scaler.has_pending_report(bench.now),
        "no shutdown waits for it"
    );
    bench.pass(30_000);
    assert!(bench.told().visible_in >= Some(Duration::from_secs(570)));
}

#[test]
fn work_found_while_drained_is_in_flight_is_reported() {
    let mut bench = Bench::pushed();
    bench.scaler.start_more(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    assert_eq!(bench.told().state, ReportState::Busy);
    bench.scaler.done(task, bench.now);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    assert_eq!(bench.finds_nothing(task), AfterEmpty::Leave);
    assert!(matches!(bench.step(), Step::Report(_)), "drained");
    bench.scaler.start_more(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    bench.scaler.on_report_answered(None, bench.now);
    assert_eq!(bench.told().state, ReportState::Busy);
}

#[test]
fn a_sleep_that_was_right_while_pushed_is_cut_short_when_the_relay_goes_away() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    let hour = Idle::Sleep(Duration::from_secs(3600));
    assert!(matches!(
        bench.scaler.after_empty(task, hour, bench.now, 0.5),
        AfterEmpty::Sleep(_)
    ));
    bench.link(1, ConnectionState::Reconnecting);
    let until = bench
        .scaler
        .sleeps_until(task, bench.now)
        .expect("it sleeps");
    assert!(until.since(bench.now) <= Duration::from_secs(30));
}

#[test]
fn a_stream_that_ends_as_announced_changes_no_mode_and_costs_no_get() {
    let mut bench = Bench::pushed();
    let announced = |connection, welcomes, announced| LinkState {
        connection,
        degraded: false,
        welcomes,
        announced,
    };
    let next = announced(ConnectionState::Reconnecting, 1, true);
    assert!(!bench.scaler.on_link_changed(next, bench.now, 0.5));
    assert_eq!(bench.scaler.mode(), ListenerMode::Pushed);
    bench.pass(1_000);
    bench.waits();
    bench.link(2, ConnectionState::Connected);
    bench.waits();
    assert_eq!(bench.scaler.active(), (0, 0), "nothing has issued_wake");
    // When the next attempt fails, the relay counts as away.
    bench.scaler.on_link_changed(next, bench.now, 0.5);
    bench.link(2, ConnectionState::Reconnecting);
    assert_eq!(bench.scaler.mode(), ListenerMode::Polling);
    bench.started();
    // A polling listener stays in its mode until the next Welcome.
    bench.scaler.on_link_changed(next, bench.now, 0.5);
    assert_eq!(bench.scaler.mode(), ListenerMode::Polling);
}

#[test]
fn a_task_gets_more_when_half_of_its_places_are_free_and_there_was_more() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, true, bench.now);
    assert_eq!(bench.step(), Step::QueryDepth);
    bench.scaler.on_depth(Some(1), bench.now);
    bench.scaler.places_free(task, false, bench.now, 0.5);
    let soon = bench.scaler.sleeps_until(task, bench.now).expect("not yet");
    assert!(
        soon.since(bench.now) <= Duration::from_millis(200),
        "{soon:?}"
    );
    bench.scaler.places_free(task, true, bench.now, 0.5);
    assert_eq!(bench.scaler.sleeps_until(task, bench.now), None);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    assert_eq!(
        bench.finds_nothing(task),
        AfterEmpty::Sleep(Tick::NEVER),
        "it holds some"
    );
    bench.pass(250);
    assert_eq!(bench.told().state, ReportState::Busy);
    assert_eq!(
        bench.scaler.done(task, bench.now),
        AfterEmpty::Leave,
        "it has issued_wake"
    );
    assert_eq!(bench.told().state, ReportState::Drained);
    bench.waits();
}

#[test]
fn a_task_with_an_empty_get_while_it_handled_polls_again_after_a_wake() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, true, bench.now);
    bench.step();
    bench.scaler.on_depth(Some(1), bench.now);
    bench.scaler.places_free(task, true, bench.now, 0.5);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    bench.finds_nothing(task);
    bench.scaler.on_wake_up(2, bench.now);
    assert_eq!(bench.scaler.sleeps_until(task, bench.now), None, "itself");
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
    assert_eq!(bench.finds_nothing(task), AfterEmpty::Sleep(Tick::NEVER));
    bench.scaler.on_wake_up(3, bench.now);
    assert_ne!(bench.scaler.done(task, bench.now), AfterEmpty::Leave, "R17");
    assert_eq!(bench.scaler.sleeps_until(task, bench.now), None);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
}

#[test]
fn while_polling_one_task_polls_although_others_handle_messages() {
    let mut bench = Bench::new(false);
    let mut task = bench.started();
    for _ in 0..4 {
        bench.pass(1_000);
        assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
        bench.scaler.found(task, false, bench.now);
        task = bench.started();
    }
    assert_eq!(bench.scaler.tasks().len(), 5, "as many as there may be");
}

#[test]
fn no_task_polls_beyond_the_number_of_the_policy() {
    let mut bench = Bench::new(false);
    let task = bench.gets();
    bench.scaler.found(task, true, bench.now);
    let beside = bench.started();
    assert_eq!(bench.step(), Step::QueryDepth);
    bench.scaler.set_policy_limit(1);
    bench.scaler.on_depth(Some(1), bench.now);
    bench.pass(500);
    assert_eq!(bench.scaler.begin(beside, bench.now), Begin::Leave);
    bench.waits();
    assert_eq!(bench.scaler.done(task, bench.now), AfterEmpty::Again);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
}

#[test]
fn where_all_tasks_that_the_policy_had_hold_messages_the_depth_is_asked_again() {
    let mut bench = Bench::new(false);
    let task = bench.gets();
    bench.scaler.found(task, true, bench.now);
    let beside = bench.started();
    assert_eq!(bench.step(), Step::QueryDepth);
    bench.scaler.set_policy_limit(1);
    bench.scaler.on_depth(Some(1), bench.now);
    bench.pass(500);
    assert_eq!(bench.scaler.begin(beside, bench.now), Begin::Leave);
    let until = bench.waits();
    assert!(
        until.since(bench.now) <= Duration::from_secs(2),
        "{until:?}"
    );
    bench.now = until;
    assert_eq!(bench.step(), Step::QueryDepth);
    bench.scaler.set_policy_limit(3);
    bench.scaler.on_depth(Some(3), bench.now);
    bench.gets();
}

#[test]
fn a_sleep_without_an_end_asks_for_no_appointment_again_and_again() {
    let mut bench = Bench::away(true, Duration::MAX);
    let task = bench.started();
    bench.pass(60_000);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
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

#[test]
fn a_task_that_is_one_too_many_gets_nothing_more_and_ends_when_it_holds_nothing() {
    let mut bench = Bench::new(false);
    let mut tasks = Vec::new();
    let mut task = bench.started();
    for _ in 0..3 {
        bench.pass(1_000);
        assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
        bench.scaler.found(task, false, bench.now);
        tasks.push(task);
        task = bench.started();
    }
    bench.scaler.set_max_tasks(2, bench.now);
    bench.pass(1_000);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Leave);
    bench.scaler.places_free(tasks[0], true, bench.now, 0.5);
    assert_eq!(
        bench.scaler.begin(tasks[0], bench.now),
        Begin::Sleep(Tick::NEVER),
        "it holds messages"
    );
    assert_eq!(bench.scaler.begin(tasks[1], bench.now), Begin::Get);
    bench.scaler.found(tasks[1], false, bench.now);
    assert_eq!(bench.scaler.done(tasks[0], bench.now), AfterEmpty::Again);
    assert_eq!(bench.scaler.begin(tasks[0], bench.now), Begin::Leave);
    assert_eq!(bench.scaler.tasks().len(), 2);
}

#[test]
fn a_task_that_was_to_end_goes_on_with_its_places_when_the_listener_does() {
    let mut bench = Bench::pushed();
    bench.scaler.on_wake_up(1, bench.now);
    let task = bench.gets();
    bench.scaler.found(task, false, bench.now);
    bench.scaler.places_free(task, true, bench.now, 0.5);
    bench.scaler.pause();
    bench.scaler.on_wake_up(2, bench.now);
    assert_eq!(
        bench.scaler.begin(task, bench.now),
        Begin::Sleep(Tick::NEVER)
    );
    bench.pass(60_000);
    assert!(bench.scaler.resume(bench.now), "it is woken early");
    assert_eq!(bench.scaler.sleeps_until(task, bench.now), None);
    assert_eq!(bench.scaler.begin(task, bench.now), Begin::Get);
}
