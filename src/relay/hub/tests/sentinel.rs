//! The sentinel (R11: each queue is checked once per interval, and only a report counts).

mod groups;
mod patterns;

use super::*;
use ReportState::{Busy, Drained};
use WakeReason::{CatchUp, Notified, Sentinel};

const INTERVAL: Duration = Duration::from_secs(60);

/// The second, the listener and the reason of a wake-up.
type Asked = (u64, usize, WakeReason);

/// A hub with a sentinel, and listeners on `orders`.
struct Guarded {
    hub: Arc<Hub>,
    all: Vec<Arc<Subscription>>,
}

impl Guarded {
    /// Creates listeners that have polled and reported.
    fn new(count: usize) -> Self {
        let guarded = Self::on(&vec![["orders"]; count]);
        (0..count).for_each(|at| guarded.say(at, Drained, 0));
        guarded
    }

    /// Creates a listener that has polled for each list of selectors.
    fn on<S: AsRef<[&'static str]>>(selectors: &[S]) -> Self {
        let hub = guarded();
        let all = selectors.iter().map(|some| settled(&hub, some.as_ref()));
        let all = all.collect();
        Self { hub, all }
    }

    fn say(&self, listener: usize, state: ReportState, second: u64) {
        self.report(listener, &report("orders", state, 0, number()), second);
    }

    fn report(&self, listener: usize, report: &Report, second: u64) {
        say(&self.hub, &self.all[listener], report, at(second));
    }

    fn leave(&mut self, listener: usize, second: u64) {
        let left = self.all.remove(listener);
        self.hub.unsubscribe(&left, at(second));
    }

    /// Fires the timers second by second; returns which listeners were asked at which second.
    fn asked(&self, from: u64, to: u64) -> Vec<Asked> {
        let mut asked = Vec::new();
        for second in from..=to {
            self.hub.fire(at(second));
            for (listener, one) in self.all.iter().enumerate() {
                let work = take_sent(&self.hub, one, at(second));
                asked.extend(work.iter().map(|entry| (second, listener, entry.reason)));
            }
        }
        asked
    }

    /// Continues until a listener is asked.
    fn first_asked(&self, from: u64) -> Asked {
        let mut told = (from..from + 70).flat_map(|second| self.asked(second, second));
        told.next().expect("a listener is asked")
    }
}

/// Creates a hub with a sentinel.
fn guarded() -> Arc<Hub> {
    hub_where(|config| config.sentinel_interval = INTERVAL)
}

fn at(second: u64) -> Tick {
    after(Duration::from_secs(second))
}

fn by(asked: &[Asked]) -> Vec<usize> {
    asked.iter().map(|(_, listener, _)| *listener).collect()
}

/// A report of a drained listener with so many dequeue tasks.
fn polls(tasks: u32) -> Report {
    Report {
        active_dequeue_tasks: tasks,
        ..report("orders", Drained, 0, number())
    }
}

/// A report of a listener that has found so many messages more.
fn finds(depth: u64, sequence: u64) -> Report {
    Report {
        current_queue_depth: depth,
        ..report("orders", Busy, sequence, number())
    }
}

/// Options of a listener that comes back to these queues.
fn at_head<S: std::fmt::Display>(hub: &Arc<Hub>, names: &[S]) -> SubscribeOptions {
    let first = SubscribeOptions {
        // It does not count as busy when it leaves.
        visibility_timeout: Duration::from_nanos(1),
        ..options(names)
    };
    let first = subscribe_with(hub, &first, START);
    let resume = resume_number(hub, &first, START);
    hub.unsubscribe(&first, at(1));
    while hub.detach_some(at(1)) {}
    SubscribeOptions {
        resume,
        ..options(names)
    }
}

/// A stream every ten seconds, each of which ends after five; returns when one was asked.
fn come_and_go(hub: &Arc<Hub>, options: &SubscribeOptions, until: u64) -> Vec<Asked> {
    let mut told = Vec::new();
    for second in (0..until).step_by(10) {
        let mut stream = Guarded {
            hub: Arc::clone(hub),
            all: vec![subscribe_with(hub, options, at(second))],
        };
        told.extend(stream.asked(second, second + 5));
        stream.leave(0, second + 5);
        hub.fire(at(second + 9));
    }
    told
}

#[test]
fn one_of_those_that_report_is_asked_once_an_interval_give_or_take_a_tenth() {
    let first = Guarded::new(3).first_asked(1);
    assert!(matches!(first, (54..=66, 0, Sentinel)), "{first:?}");
}

#[test]
fn an_unreported_check_goes_to_the_next_listener_an_interval_later() {
    let guarded = Guarded::on(&[["orders"]; 3]);
    (0..2).for_each(|at| guarded.say(at, Drained, 0));
    let told = guarded.asked(1, 8 * 67);
    // A listener that never reports has its turn where none of the others has answered.
    assert_eq!(by(&told)[..6], [0, 1, 2, 0, 1, 0]);
    let gaps = told.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(
        gaps.into_iter().all(|gap| (54..=67).contains(&gap)),
        "{told:?}"
    );
}

#[test]
fn a_report_ends_the_question_and_the_next_one_has_the_next_turn() {
    let guarded = Guarded::new(3);
    let (mut order, mut now) = (Vec::new(), 0);
    for _ in 0..4 {
        let (second, who, _) = guarded.first_asked(now + 1);
        now = second;
        order.push(who);
        guarded.say(who, Drained, now);
    }
    assert_eq!(order, [0, 1, 2, 0]);
}

#[test]
fn an_unrequested_poll_puts_the_check_off() {
    for state in [Busy, Drained] {
        let guarded = Guarded::new(1);
        assert_eq!(guarded.asked(1, 50), []);
        guarded.say(0, state, 50);
        assert_eq!(guarded.asked(51, 103), []);
        assert_eq!(by(&guarded.asked(104, 116)), [0]);
    }
}

#[test]
fn a_report_repeated_on_a_new_stream_is_no_look() {
    let stays = Guarded::new(1);
    let options = at_head(&stays.hub, &["orders"]);
    let mut told = Vec::new();
    for second in 1..=66 {
        let now = at(second);
        told.extend(stays.asked(second, second));
        let again = subscribe_with(&stays.hub, &options, now);
        say(&stays.hub, &again, &polls(0), now);
        stays.hub.unsubscribe(&again, now);
    }
    let is_check = |asked: &Asked| asked.2 == Sentinel;
    assert!(told.iter().any(is_check), "{told:?}");
}

#[test]
fn a_polling_listener_is_not_asked_until_it_reports_otherwise() {
    let guarded = Guarded::new(2);
    guarded.report(0, &polls(1), 0);
    assert!(guarded.hub.listeners(None, 10, START)[0].polling);
    assert_eq!(by(&guarded.asked(1, 70)), [1]);
    guarded.report(0, &polls(0), 70);
    assert_eq!(by(&guarded.asked(71, 210)), [0, 1]);
}

#[test]
fn a_listener_counts_as_polling_for_two_intervals() {
    let guarded = Guarded::new(1);
    guarded.report(0, &polls(1), 0);
    assert_eq!(guarded.asked(1, 119), []);
    assert_eq!(guarded.first_asked(120).2, Sentinel);
}

#[test]
fn the_end_of_the_asked_ones_stream_asks_the_next_at_once() {
    let mut guarded = Guarded::new(2);
    let now = guarded.first_asked(1).0;
    guarded.leave(0, now);
    guarded.hub.fire(at(now));
    let told = entries(&drain(&guarded.all[0], at(now)));
    assert_eq!(told, [entry("orders", Sentinel, 0)]);
}

#[test]
fn a_check_that_finds_more_than_its_listeners_capacity_wakes_all() {
    let guarded = Guarded::new(5);
    let now = guarded.first_asked(1).0;
    guarded.report(0, &finds(3, 0), now);
    assert_eq!(by(&guarded.asked(now, now)), [0, 1, 2, 3, 4]);
}

#[test]
fn a_question_is_no_cause_and_moves_no_counter() {
    let Guarded { hub, all } = Guarded::new(1);
    let next = |now| take_sent(&hub, &all[0], now)[0].clone();
    notify(&hub, "orders");
    let before = next(START);
    hub.fire(at(67));
    let check = next(at(67));
    assert_eq!((check.reason, check.notifications), (Sentinel, 0));
    assert_eq!(check.sequence, before.sequence);
    notify_with(&hub, notification("orders"), at(67));
    let after = next(at(67));
    assert_eq!((after.reason, after.notifications), (Notified, 1));
    assert_eq!(after.sequence, 2);
}

#[test]
fn a_task_that_waits_on_one_queue_keeps_no_other_from_being_looked_at() {
    let guarded = Guarded::on(&[["orders", "bills"]]);
    guarded.report(0, &polls(1), 0);
    let told = guarded.asked(1, 67);
    assert_eq!(told.len(), 2, "one look at each queue: {told:?}");
}

#[test]
fn an_interval_of_zero_is_none() {
    let (hub, all) = (hub(), Vec::new());
    let mut unguarded = Guarded { hub, all };
    unguarded.all.push(settled(&unguarded.hub, &["orders"]));
    unguarded.say(0, Drained, 0);
    assert_eq!(unguarded.hub.next_timer(), None);
    assert_eq!(unguarded.asked(1, 200), []);
}

#[test]
fn a_queue_without_listeners_is_not_checked() {
    let mut guarded = Guarded::new(1);
    guarded.leave(0, 0);
    notify(&guarded.hub, "orders");
    guarded.hub.fire(after(HOUR));
    assert_eq!(guarded.hub.next_timer(), None);
}

#[test]
fn an_asked_listener_is_taken_to_be_busy() {
    let mut guarded = Guarded::new(1);
    let second = guarded.asked(1, 66)[0].0;
    guarded.leave(0, second);
    let due = guarded.hub.next_timer().expect("set");
    assert!(due >= at(second + 32), "{due:?}");
}

#[test]
fn a_queue_that_was_left_and_forgotten_comes_up_no_more() {
    let hub = hub_where(|config| {
        config.forget_after = SECOND;
        config.sentinel_interval = INTERVAL;
    });
    let listener = settled(&hub, &["orders"]);
    say(&hub, &listener, &polls(0), START);
    hub.unsubscribe(&listener, START);
    hub.forget(at(2));
    assert_eq!(hub.stats().queues, 0);
    assert_eq!(hub.fire(after(HOUR)), None);
    assert_eq!(hub.stats().queues, 0);
}

#[test]
fn streams_that_come_and_go_do_not_put_it_off() {
    let hub = guarded();
    let told = come_and_go(&hub, &at_head(&hub, &["orders"]), 90);
    let is_check = |asked: &Asked| asked.2 == Sentinel;
    assert!(told.iter().any(is_check), "{told:?}");
}

/// Polls a stream second by second. Returns which queues had checks, the time of the last one, and
/// the number of Wakes.
fn checked(hub: &Arc<Hub>, feed: &mut SubscriberStream, from: u64, to: u64) -> (usize, u64, usize) {
    let (_, waker) = Alarm::new();
    let mut queues = std::collections::HashSet::new();
    let (mut last, mut wakes) = (0, 0);
    for second in from..=to {
        while hub.fire(at(second)).is_some_and(|next| next <= at(second)) {}
        let (events, _) = sent(feed, at(second), &waker);
        for event in events {
            let SubscribeEvent::Wake(work) = event else {
                continue;
            };
            (wakes, last) = (wakes + 1, second);
            assert!(work.iter().all(|entry| entry.reason == Sentinel));
            queues.extend(work.into_iter().map(|entry| entry.queue));
        }
    }
    (queues.len(), last, wakes)
}

#[test]
fn a_stream_of_many_queues_is_asked_to_check_all_of_them_within_an_interval() {
    const QUEUES: usize = 2_000;
    let (hub, names) = (guarded(), numbered("q", QUEUES));
    // It is away for 75 s, so all checks are due when it comes back.
    let options = at_head(&hub, &names);
    while hub.fire(at(75)).is_some_and(|next| next <= at(75)) {}
    let mut feed = feed_at(&hub, &options, at(75));
    let (queues, last, wakes) = checked(&hub, &mut feed, 75, 75 + 66);
    assert_eq!(queues, QUEUES, "the last one at {last} s");
    assert!(wakes <= 200, "checks come together: {wakes}");
}

#[test]
fn a_count_in_the_same_moment_as_a_check_is_told_as_a_count() {
    let hub = guarded();
    let listener = settled(&hub, &["orders"]);
    notify_with(&hub, delayed("orders", 50 * SECOND), START);
    hub.fire(at(67));
    let told = entries(&drain(&listener, at(67)));
    assert_eq!(told, [entry("orders", WakeReason::Timed, 1)]);
}
