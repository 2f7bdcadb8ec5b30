//! The end of a subscription: while queues of its pattern are made, while one is forgotten, and
//! by a Goodbye while a publisher notifies.
//!
//! Must not be lost: a wake-up that the next stream resumes. Must not be left behind: a pattern's
//! node, or a cursor in the hub's count.

use shuttle::thread;

use super::{
    super::{
        checks::holds_in,
        listener::{Listener, NOW, hub, notify, queue},
        subscription::SubscriptionId,
        worker::{Manner, Worker},
        world::{CLAIM, World, plain},
    },
    AT_ONCE, join, resume_after,
};
use crate::{
    base::fault::Fault,
    types::{Report, ReportState},
};

/// Schedules of each kind for a model that must hold.
const SCHEDULES: usize = 300;

/// Checks that nothing is left of the subscriptions, all of which have ended.
fn nothing_left(world: &World) -> Result<(), String> {
    while world.hub.detach_some(NOW) {}
    let stats = world.hub.stats();
    let no_patterns = world.hub.shared.patterns.is_empty();
    match (stats.cursors, stats.subscriptions, no_patterns) {
        (0, 0, true) => Ok(()),
        left => Err(format!("cursors, subscriptions, no patterns: {left:?}")),
    }
}

/// A subscription with at most one cursor ends while two queues of its pattern are made.
fn close_while_making(fault: Fault) -> Result<(), String> {
    let world = World::with(fault, |config| config.max_cursors_per_stream = 1);
    let worker = world.settled(&plain(&["a/*"]), 1, Manner::Reads);
    let publishers = ["x", "y"].map(|name| world.spawn_publish(name, &[0]));
    let stream = worker.spawn(Worker::close);
    publishers.into_iter().for_each(join);
    join(stream);
    nothing_left(&world)
}

/// The same while the queue of its cursor is forgotten, made again, and reported.
fn close_while_forgetting(fault: Fault) -> Result<(), String> {
    let world = World::with(fault, |config| config.max_cursors_per_stream = 1);
    world.publish("x", 0);
    let worker = world.settled(&plain(&["a/*"]), 1, Manner::Reads);
    let forgetter = world.spawn(|world| world.hub.forget(NOW + CLAIM));
    let publisher = world.spawn_publish("x", &[1]);
    let task = world.spawn(|world| {
        let report = Report {
            state: ReportState::Busy,
            number: 9,
            ..Report::new(queue("y"))
        };
        _ = world.hub.report(SubscriptionId(1), &report, NOW);
    });
    let stream = worker.spawn(Worker::close);
    join(forgetter);
    join(publisher);
    join(task);
    join(stream);
    nothing_left(&world)
}

/// A stream ends in a Goodbye while two threads publish; the next one resumes by the number.
fn goodbye_and_resume(fault: Fault) -> Result<(), String> {
    resume_after(fault, Listener::goodbye)
}

#[test]
fn nothing_is_left_of_a_subscription_that_ends_while_its_queues_are_made() {
    holds_in(SCHEDULES, close_while_making);
    holds_in(SCHEDULES, close_while_forgetting);
}

#[test]
fn a_goodbye_loses_nothing() {
    holds_in(SCHEDULES, goodbye_and_resume);
}

/// A busy listener's stream ends while the relay waits for the timers that it hands over.
fn close_and_hand_over(fault: Fault) -> Result<(), String> {
    let hub = hub(64, fault);
    notify(&hub, "q", &[0], AT_ONCE);
    let mut busy = Listener::settled(&hub, "a/q", 1);
    busy.rounds(1);
    let ending = thread::spawn(move || busy.close(NOW));
    while hub.stats().subscriptions > 0 || hub.has_deferred_work() {
        thread::yield_now();
    }
    let timer = hub.next_timer();
    join(ending);
    match timer {
        Some(_) => Ok(()),
        None => Err("the timer of the busy listener was set too late".to_owned()),
    }
}

#[test]
fn a_relay_hands_no_timers_over_before_ended_streams_have_set_theirs() {
    holds_in(SCHEDULES, close_and_hand_over);
}
