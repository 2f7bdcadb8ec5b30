//! The limits of cursors: for further queues, a pattern gets wake-ups under its own name.
//!
//! Must not be lost: a message in a queue that a pattern matches without a cursor.

use shuttle::thread::{self, JoinHandle};

use super::{
    super::{
        checks::{finds, holds_in},
        config::HubConfig,
        listener::{NOW, walk},
        worker::{Manner, Worker},
        world::{CLAIM, World, plain},
    },
    join,
};
use crate::base::fault::Fault;

/// Schedules of each kind for a model that must hold.
const SCHEDULES: usize = 300;

fn one_a_stream(config: &mut HubConfig) {
    (config.max_cursors_per_stream, config.inline) = (1, 0);
}

/// Runs the fan-out a few times, as the relay's task does when it is woken.
fn spawn_walks(world: &World) -> JoinHandle<()> {
    world.spawn(|world| {
        for _ in 0..3 {
            walk(&world.hub);
            thread::yield_now();
        }
    })
}

/// A pattern with its one cursor gets wake-ups for two other queues.
fn parked_over_its_cap(fault: Fault) -> Result<(), String> {
    let world = World::with(fault, one_a_stream);
    world.publish("x", 0);
    let worker = world.settled(&plain(&["a/*"]), 1, Manner::Reads).serve();
    let publishers = [
        world.spawn_publish("y", &[0, 1]),
        world.spawn_publish("z", &[0]),
    ];
    let walks = spawn_walks(&world);
    publishers.into_iter().for_each(join);
    join(walks);
    world.pass(&mut [worker.stop()], NOW, NOW);
    world.all_read()
}

/// A pattern is subscribed over its limit, while its queues are notified.
fn subscribed_over_its_cap(fault: Fault) -> Result<(), String> {
    let world = World::with(fault, one_a_stream);
    let publishers = [
        world.spawn_publish("x", &[0, 1]),
        world.spawn_publish("y", &[0, 1]),
    ];
    let coming = world.spawn(|world| world.settled(&plain(&["a/*"]), 1, Manner::Reads));
    let walks = spawn_walks(&world);
    publishers.into_iter().for_each(join);
    join(walks);
    world.pass(&mut [join(coming)], NOW, NOW);
    world.all_read()
}

/// Two patterns compete for the relay's last cursor; each gets wake-ups for both queues.
fn last_cursor(fault: Fault) -> Result<(), String> {
    for told in [1, 2] {
        last_cursor_of(fault, told)?;
    }
    Ok(())
}

/// Only the worker of this number reads.
fn last_cursor_of(fault: Fault, told: u128) -> Result<(), String> {
    let world = World::with(fault, |config| config.max_cursors = 1);
    let manner = |number| match number == told {
        true => Manner::Reads,
        false => Manner::Hangs,
    };
    let settled = |number| world.settled(&plain(&["a/*"]), number, manner(number));
    let workers = [1, 2].map(|number| settled(number).serve());
    let publishers = ["x", "y"].map(|name| world.spawn_publish(name, &[0]));
    publishers.into_iter().for_each(join);
    world.pass(&mut workers.map(|worker| worker.stop()), NOW, NOW);
    world.all_read()
}

/// The queue with the one cursor is forgotten, while it and another one are notified.
fn cursor_that_is_released(fault: Fault) -> Result<(), String> {
    let world = World::with(fault, one_a_stream);
    world.publish("x", 0);
    let mut worker = world.settled(&plain(&["a/*"]), 1, Manner::Reads);
    worker.now = NOW + CLAIM;
    let worker = worker.serve();
    let publishers = ["x", "y"].map(|name| world.spawn_publish(name, &[0]));
    let forgetter = world.spawn(|world| world.hub.forget(NOW + CLAIM));
    publishers.into_iter().for_each(join);
    join(forgetter);
    world.pass(&mut [worker.stop()], NOW + CLAIM, NOW + CLAIM);
    world.all_read()
}

/// A pattern over its limit ends, and comes back while its queues are notified.
fn comes_back_over_its_cap(fault: Fault) -> Result<(), String> {
    let world = World::with(fault, one_a_stream);
    world.publish("x", 0);
    world.publish("y", 0);
    let worker = world.settled(&plain(&["a/*"]), 1, Manner::Reads);
    let publisher = world.spawn_publish("y", &[1, 2]);
    let back = world.spawn(|world| world.settled(&plain(&["a/*"]), 2, Manner::Reads));
    let leaving = worker.spawn(Worker::close);
    let walks = spawn_walks(&world);
    join(publisher);
    join(leaving);
    join(walks);
    world.pass(&mut [join(back)], NOW, NOW);
    world.all_read()
}

#[test]
fn a_pattern_over_its_cap_is_woken_under_its_own_name() {
    holds_in(SCHEDULES, parked_over_its_cap);
    holds_in(SCHEDULES, cursor_that_is_released);
}

#[test]
fn a_pattern_that_exceeds_its_cap_is_woken_under_its_own_name() {
    holds_in(SCHEDULES, subscribed_over_its_cap);
    holds_in(SCHEDULES, comes_back_over_its_cap);
}

#[test]
fn patterns_that_want_the_last_cursor_get_all_queues() {
    holds_in(SCHEDULES, last_cursor);
}

#[test]
fn a_pattern_without_a_wake_under_its_own_name_is_found() {
    finds(parked_over_its_cap, Fault::OverflowUntold);
    finds(subscribed_over_its_cap, Fault::OverflowUntold);
    finds(last_cursor, Fault::OverflowUntold);
    finds(comes_back_over_its_cap, Fault::OverflowUntold);
}

#[test]
fn a_dirty_mark_that_is_cleared_late_is_found_over_the_cap() {
    finds(parked_over_its_cap, Fault::MarkClearedAfterWalk);
}
