//! Reports that arrive while their stream ends or their queue is forgotten (R8: a woken listener
//! counts as busy until it reports DRAINED; R10: a listener reports messages that become visible
//! again).
//!
//! Must not be lost: the timer of a listener that ends while it is busy, or a message that is
//! visible again at once. A report that was refused with NOT_FOUND is repeated after the next
//! Welcome, so only an accepted report counts.

use std::time::Duration;

use shuttle::thread::JoinHandle;

use super::{
    super::{
        checks::{finds, holds_in},
        listener::{NOW, notify, queue},
        subscription::SubscriptionId,
        worker::{Manner, Worker},
        world::{CLAIM, HIDDEN, VISIBLE_AGAIN, World, plain},
    },
    join,
};
use crate::{
    base::fault::Fault,
    types::{Report, ReportState},
};

/// Schedules of each kind for a model that must hold.
const SCHEDULES: usize = 300;

/// Sends the newest report of the first worker's dequeue task; returns whether it was accepted.
fn report(world: &World, state: ReportState, sequence: u64, visible_in: Option<Duration>) -> bool {
    let report = Report {
        state,
        sequence,
        number: u64::MAX,
        visible_in,
        ..Report::new(queue("q"))
    };
    world.hub.report(SubscriptionId(1), &report, NOW).is_ok()
}

/// Gets a message without a wake-up, and reports BUSY; returns whether the report was accepted.
fn spawn_busy(world: &World) -> JoinHandle<bool> {
    world.spawn(|world| {
        world.queues.put("q", 1);
        world.queues.hide("q", NOW + HIDDEN);
        report(world, ReportState::Busy, 0, None)
    })
}

/// Checks that a later worker reads all messages when they are visible again.
fn read_again(world: &World) -> Result<(), String> {
    let later = world.settled(&plain(&["a/q"]), 2, Manner::Reads);
    world.pass(&mut [later], NOW, NOW + VISIBLE_AGAIN);
    world.all_read()
}

/// A listener gets a message without a wake-up and reports BUSY, while its stream ends and the
/// queue is forgotten.
fn busy_while_ending(fault: Fault, selector: &str) -> Result<(), String> {
    let world = World::new(fault);
    let worker = world.settled(&plain(&[selector]), 1, Manner::Hangs);
    let task = spawn_busy(&world);
    let stream = worker.spawn(Worker::close);
    let forgetter = world.spawn(|world| world.hub.forget(NOW + CLAIM));
    let taken = join(task);
    join(stream);
    join(forgetter);
    match taken {
        true => read_again(&world),
        false => Ok(()),
    }
}

fn busy_by_name(fault: Fault) -> Result<(), String> {
    busy_while_ending(fault, "a/q")
}

fn busy_by_pattern(fault: Fault) -> Result<(), String> {
    busy_while_ending(fault, "a/*")
}

/// The same where it has drained the queue before, which only its pattern matches. Its cursor is
/// released with the queue, unless it is busy. Its stream ends afterwards.
fn busy_while_forgotten(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    world.publish("q", 0);
    let mut worker = world.settled(&plain(&["a/*"]), 1, Manner::Hangs);
    let task = spawn_busy(&world);
    let forgetter = world.spawn(|world| world.hub.forget(NOW + CLAIM));
    let taken = join(task);
    join(forgetter);
    worker.close();
    assert!(taken, "its stream lives");
    read_again(&world)
}

/// The report of a drained queue arrives while the stream takes the next wake-up; the listener gets
/// a message for that and crashes.
fn drained_while_woken(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let mut worker = world.settled(&plain(&["a/q"]), 1, Manner::Hangs);
    notify(&world.hub, "q", &[0], Duration::ZERO);
    worker.listen();
    worker.settle(Manner::GetsOne);
    let stream = worker.serve_once();
    let task = world.spawn(|world| report(world, ReportState::Drained, 1, None));
    let publisher = world.spawn_publish("q", &[1]);
    let forgetter = world.spawn(|world| world.hub.forget(NOW + CLAIM));
    join(publisher);
    join(task);
    join(forgetter);
    stream.stop();
    read_again(&world)
}

/// A listener gives a message back and reports that it is visible, while another listener joins and
/// the queue is forgotten.
fn visible_while_forgotten(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let _hanging = world.settled(&plain(&["a/*"]), 1, Manner::Hangs);
    let task = world.spawn(|world| {
        world.queues.put("q", 1);
        report(world, ReportState::Drained, 0, Some(Duration::ZERO))
    });
    let forgetter = world.spawn(|world| world.hub.forget(NOW + CLAIM));
    let coming = world.spawn(|world| world.settled(&plain(&["a/q"]), 2, Manner::Reads));
    let taken = join(task);
    join(forgetter);
    world.pass(&mut [join(coming)], NOW, NOW);
    assert!(taken, "its stream lives");
    world.all_read()
}

#[test]
fn a_busy_report_that_was_taken_wakes_its_queue_after_the_stream_has_ended() {
    holds_in(SCHEDULES, busy_by_name);
    holds_in(SCHEDULES, busy_by_pattern);
    holds_in(SCHEDULES, busy_while_forgotten);
}

#[test]
fn a_drained_report_does_not_speak_for_the_next_wake_up() {
    holds_in(SCHEDULES, drained_while_woken);
}

#[test]
fn a_message_that_is_given_back_is_read() {
    holds_in(SCHEDULES, visible_while_forgotten);
}

#[test]
fn a_report_that_is_taken_after_the_end_is_found() {
    finds(busy_by_name, Fault::ReportAfterEnd);
    finds(busy_by_pattern, Fault::ReportAfterEnd);
}

#[test]
fn a_busy_end_without_a_timer_is_found() {
    finds(busy_by_name, Fault::NoTimerForBusy);
    finds(busy_by_pattern, Fault::NoTimerForBusy);
    finds(busy_while_forgotten, Fault::NoTimerForBusy);
    finds(drained_while_woken, Fault::NoTimerForBusy);
}
