//! The sentinel: a check that is assigned while its listener sends, leaves or reports (R11: only a
//! report completes a check).
//!
//! A message is put and its publisher dies before it notifies. Must not be lost: the check that
//! finds it, within the rule's bound.

use std::time::Duration;

use super::{
    super::{
        checks::{finds, holds_in},
        listener::NOW,
        worker::{Manner, Worker},
        world::{World, member, plain},
    },
    join,
};
use crate::{
    base::{clock::Tick, fault::Fault},
    types::{ReportState, SubscribeOptions},
};

/// Schedules of each kind for a model that must hold.
const SCHEDULES: usize = 300;
/// The interval between two checks of a queue.
const INTERVAL: Duration = Duration::from_secs(20);
/// The longest interval: a tenth later, and on a grid of 1/64.
const AT_MOST: Duration = Duration::from_millis(22_400);
/// When the checks of all queues are due.
const DUE: Tick = Tick::from_nanos(NOW.as_nanos() + 22_400_000_000);

fn world(fault: Fault) -> World {
    World::with(fault, |config| {
        config.sentinel_interval = INTERVAL;
    })
}

/// Subscribes a worker that is idle until the checks are due.
fn idle(world: &World, options: &SubscribeOptions, number: u128, manner: Manner) -> Worker {
    let mut worker = world.settled(options, number, manner);
    worker.now = DUE;
    worker
}

/// The checks of a member's two queues, while its stream sends a wake-up of one of them: they follow
/// when it has sent, which needs no timer.
fn check_while_sending(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let worker = idle(&world, &member(&["a/x", "a/y"]), 1, Manner::Reads);
    world.queues.put("y", 1);
    world.publish("x", 0);
    let worker = worker.serve();
    let timers = world.spawn(|world| world.hub.fire(DUE));
    join(timers);
    world.pass(&mut [worker.stop()], DUE, DUE);
    world.all_read()
}

/// The listener that may be asked leaves: the next one is asked at once.
fn check_while_leaving(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let leaving = idle(&world, &plain(&["a/q"]), 1, Manner::Hangs);
    let staying = idle(&world, &plain(&["a/q"]), 2, Manner::Reads).serve();
    world.queues.put("q", 1);
    let leaving = leaving.spawn(|worker| {
        worker.rounds(1);
        worker.close();
    });
    let timers = world.spawn(|world| world.hub.fire(DUE));
    join(leaving);
    join(timers);
    world.pass(&mut [staying.stop()], DUE, DUE);
    world.all_read()
}

/// The asked listener reports an earlier read, takes the check and hangs: another one is asked an
/// interval later, or two where the report comes first.
fn check_while_reporting(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let hanging = idle(&world, &plain(&["a/q"]), 1, Manner::Hangs);
    let staying = idle(&world, &plain(&["a/q"]), 2, Manner::Reads).serve();
    world.queues.put("q", 1);
    let hanging = hanging.spawn(|worker| {
        let reported = worker.report("q", ReportState::Drained, 0);
        worker.rounds(1);
        reported.expect("its stream lives");
    });
    let timers = world.spawn(|world| world.hub.fire(DUE));
    join(timers);
    let (hanging, ()) = join(hanging);
    world.pass(&mut [hanging, staying.stop()], DUE, DUE + AT_MOST * 2);
    world.all_read()
}

/// The same for two members of a group: the asked member hangs, or leaves.
fn check_of_a_group(fault: Fault, leaves: bool) -> Result<(), String> {
    let world = world(fault);
    let staying = idle(&world, &member(&["a/q"]), 1, Manner::Reads).serve();
    // It was never woken, so it is first among the reporting members.
    let mut hanging = world.settled(&member(&["a/q"]), 2, Manner::Hangs);
    let reported = hanging.report("q", ReportState::Drained, 0);
    reported.expect("its stream lives");
    hanging.now = DUE;
    world.queues.put("q", 1);
    let hanging = hanging.spawn(move |worker| {
        worker.rounds(1);
        if leaves {
            worker.close();
        }
    });
    let timers = world.spawn(|world| world.hub.fire(DUE));
    join(timers);
    let (hanging, ()) = join(hanging);
    let until = DUE + if leaves { Duration::ZERO } else { AT_MOST };
    world.pass(&mut [hanging, staying.stop()], DUE, until);
    world.all_read()
}

fn check_of_a_group_that_shrinks(fault: Fault) -> Result<(), String> {
    check_of_a_group(fault, true)
}

fn check_of_a_group_that_hangs(fault: Fault) -> Result<(), String> {
    check_of_a_group(fault, false)
}

/// A pattern's listener reports a queue that the hub does not know, or that is being forgotten. The
/// queue is checked within two intervals, under its own name or the pattern's.
fn check_of_a_new_queue(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let worker = world.settled(&plain(&["a/*"]), 1, Manner::Reads);
    world.publish("q", 0);
    let reporting = worker.spawn(|worker| {
        worker.listen();
        let reported = worker.report("y", ReportState::Drained, 0);
        reported.expect("its stream lives");
        worker.listen();
    });
    let forgetter = world.spawn(|world| world.hub.forget(DUE));
    let timers = world.spawn(|world| world.hub.fire(NOW + INTERVAL));
    join(forgetter);
    join(timers);
    let (worker, ()) = join(reporting);
    world.queues.put("q", 1);
    world.queues.put("y", 1);
    world.pass(&mut [worker], DUE, DUE + AT_MOST * 2);
    world.all_read()
}

/// The first check of a new group under its pattern's name, while the asked member leaves with it:
/// another one is asked at once.
fn check_of_a_new_group(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    world.queues.put("q", 1);
    let leaving = world.spawn(|world| {
        let mut worker = Worker::subscribe(world, &member(&["a/*"]), 1, Manner::Hangs);
        worker.rounds(1);
        worker.close();
    });
    let staying =
        world.spawn(|world| Worker::subscribe(world, &member(&["a/*"]), 2, Manner::Reads));
    join(leaving);
    world.pass(&mut [join(staying)], NOW, NOW);
    world.all_read()
}

#[test]
fn a_check_that_is_due_while_its_stream_sends_comes_after_it() {
    holds_in(SCHEDULES, check_while_sending);
}

#[test]
fn a_check_of_a_listener_that_leaves_is_the_next_ones_at_once() {
    holds_in(SCHEDULES, check_while_leaving);
    holds_in(SCHEDULES, check_of_a_group_that_shrinks);
    holds_in(SCHEDULES, check_of_a_new_group);
}

#[test]
fn a_check_of_a_listener_that_hangs_is_the_next_ones_in_time() {
    holds_in(SCHEDULES, check_while_reporting);
    holds_in(SCHEDULES, check_of_a_group_that_hangs);
}

#[test]
fn a_queue_that_only_a_report_names_is_checked() {
    holds_in(SCHEDULES, check_of_a_new_queue);
}

#[test]
fn a_listener_that_counts_as_checked_when_asked_is_found() {
    finds(check_while_leaving, Fault::AskedCountsAsLooked);
}

#[test]
fn checks_that_stay_with_the_first_listener_are_found() {
    finds(check_while_reporting, Fault::CheckTurnStuck);
}

#[test]
fn a_stream_that_has_sent_before_its_queue_is_listed_is_found() {
    finds(check_while_sending, Fault::AwaitedBeforeListed);
}
