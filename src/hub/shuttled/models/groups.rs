//! Groups: members that take, report, leave and come while a publisher notifies (R12 to R16).
//!
//! What may not be lost: a message that is visible in the end, when the members that are left have
//! nothing to do and their claims and leases have ended.

use std::{sync::Arc, time::Duration};

use shuttle::thread::{self, JoinHandle};

use super::{
    super::{
        checks::{finds, holds_in},
        core::Hub,
        listener::NOW,
        worker::{CLAIM, LEASE, Manner, Queues, VISIBLE_AGAIN, Worker, hub_with, member, pass},
    },
    join,
};
use crate::fault::Fault;

/// Schedules of each kind for a model that has to hold.
const SCHEDULES: usize = 400;
/// Two rounds of two members, with a claim that waits for the one before.
const REDELIVERED: Duration = CLAIM.saturating_mul(5);

type World = (Arc<Hub>, Arc<Queues>);

fn world(fault: Fault) -> World {
    (hub_with(fault, |_| {}), Arc::default())
}

fn join_group((hub, queues): &World, number: u128, manner: Manner) -> Worker {
    Worker::settled(hub, queues, &member(&["a/q"]), number, manner)
}

/// Publishes one message in a thread of its own.
fn spawn_publish((hub, queues): &World, bits: &'static [u32]) -> JoinHandle<()> {
    let (hub, queues) = (Arc::clone(hub), Arc::clone(queues));
    thread::spawn(move || {
        for bit in bits {
            queues.publish(&hub, "q", *bit);
            thread::yield_now();
        }
    })
}

fn spawn_worker(
    mut worker: Worker,
    act: impl FnOnce(&mut Worker) + Send + 'static,
) -> JoinHandle<Worker> {
    thread::spawn(move || {
        act(&mut worker);
        worker
    })
}

/// A member that is busy is told of what it is counted for (R12): no timer is needed.
fn member_reports(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let worker = join_group(&world, 1, Manner::Reads);
    let worker = worker.serve();
    let publishers = [&[0, 1][..], &[2]].map(|bits| spawn_publish(&world, bits));
    publishers.into_iter().for_each(join);
    pass(&world.0, &world.1, &mut [worker.stop()], NOW, NOW);
    world.1.all_read()
}

/// Two members share. One of them drains at any time, whatever it was given: that is the other one's
/// at once (R16).
fn member_drains(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let draining = join_group(&world, 1, Manner::Hangs);
    let staying = join_group(&world, 2, Manner::Reads).serve();
    let draining = spawn_worker(draining, |worker| {
        worker.rounds(1);
        worker.goodbye();
    });
    let publisher = spawn_publish(&world, &[0, 1]);
    join(publisher);
    join(draining);
    pass(&world.0, &world.1, &mut [staying.stop()], NOW, NOW);
    world.1.all_read()
}

/// A member crashes with its first wake-up.
fn member_crashes(fault: Fault) -> Result<(), String> {
    crashes(fault, Manner::Hangs, Duration::ZERO)
}

/// The same when it has got one message and reported BUSY: what it got is read when it is visible
/// again (R8).
fn busy_member_crashes(fault: Fault) -> Result<(), String> {
    crashes(fault, Manner::HangsBusy, VISIBLE_AGAIN)
}

fn crashes(fault: Fault, manner: Manner, hidden: Duration) -> Result<(), String> {
    let world = world(fault);
    let crashing = join_group(&world, 1, manner).serve_once();
    let staying = join_group(&world, 2, Manner::Reads).serve();
    let publisher = spawn_publish(&world, &[0, 1]);
    join(publisher);
    crashing.stop();
    let staying = &mut [staying.stop()];
    pass(&world.0, &world.1, staying, NOW, NOW);
    world.1.all_read()?;
    pass(&world.0, &world.1, staying, NOW, NOW + hidden);
    world.1.all_read()
}

/// The only member leaves while another one comes.
fn members_change(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let leaving = join_group(&world, 1, Manner::Reads);
    let leaving = spawn_worker(leaving, |worker| {
        worker.rounds(1);
        worker.close();
    });
    let coming = {
        let (hub, queues) = (Arc::clone(&world.0), Arc::clone(&world.1));
        thread::spawn(move || Worker::subscribe(&hub, &queues, &member(&["a/q"]), 2, Manner::Reads))
    };
    let publisher = spawn_publish(&world, &[0, 1]);
    join(publisher);
    join(leaving);
    pass(&world.0, &world.1, &mut [join(coming)], NOW, NOW);
    world.1.all_read()
}

/// A member hangs. What it was given is the other one's after the claim time-out (R13), though the
/// timers run while the other one reports.
fn member_hangs(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let manners = [Manner::Hangs, Manner::Reads];
    let [hanging, staying] = [0, 1].map(|at| join_group(&world, at as u128, manners[at]));
    let hanging = hanging.serve();
    let staying = staying.serve();
    let timers = {
        let hub = Arc::clone(&world.0);
        thread::spawn(move || hub.fire(NOW + CLAIM))
    };
    let publisher = spawn_publish(&world, &[0, 1]);
    join(publisher);
    join(timers);
    let members = &mut [hanging.stop(), staying.stop()];
    pass(
        &world.0,
        &world.1,
        members,
        NOW + CLAIM,
        NOW + CLAIM + REDELIVERED,
    );
    world.1.all_read()
}

/// A member reports BUSY, which covers its claim, and hangs. Its lease ends (R14).
fn busy_member_hangs(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let hanging = join_group(&world, 1, Manner::HangsBusy);
    let hanging = hanging.serve();
    let coming = {
        let world = (Arc::clone(&world.0), Arc::clone(&world.1));
        thread::spawn(move || join_group(&world, 2, Manner::Reads))
    };
    let publisher = spawn_publish(&world, &[0, 1, 2]);
    join(publisher);
    let members = &mut [hanging.stop(), join(coming)];
    let until = NOW + LEASE + REDELIVERED;
    pass(&world.0, &world.1, members, NOW, until);
    world.1.all_read()
}

/// A member drains the queue at a sequence below the head, while another one hangs with the rest:
/// the rest is pending at once (R15), not after the claim time-out.
fn member_drains_behind(fault: Fault) -> Result<(), String> {
    let world = world(fault);
    let hanging = join_group(&world, 1, Manner::Hangs);
    let reading = join_group(&world, 2, Manner::Reads);
    let publisher = spawn_publish(&world, &[0, 1]);
    let hanging = hanging.serve();
    let reading = reading.serve();
    join(publisher);
    let (hanging, reading) = (hanging.stop(), reading.stop());
    let behind = reading.drained_behind;
    pass(&world.0, &world.1, &mut [hanging, reading], NOW, NOW);
    match behind {
        true => world.1.all_read(),
        // It was idle when the rest was given, and is asked when the claim has ended.
        false => Ok(()),
    }
}

#[test]
fn a_member_that_reports_meanwhile_reads_all() {
    holds_in(SCHEDULES, member_reports);
}

#[test]
fn what_a_member_leaves_behind_is_read_at_once() {
    holds_in(SCHEDULES, member_crashes);
    holds_in(SCHEDULES, member_drains);
}

#[test]
fn what_a_busy_member_leaves_behind_is_read_when_it_is_visible() {
    holds_in(SCHEDULES, busy_member_crashes);
}

#[test]
fn a_member_that_comes_while_the_last_one_leaves_reads_all() {
    holds_in(SCHEDULES, members_change);
}

#[test]
fn what_a_member_that_hangs_was_given_is_read_after_its_claim() {
    holds_in(SCHEDULES, member_hangs);
}

#[test]
fn what_a_busy_member_that_hangs_leaves_is_read_after_its_lease() {
    holds_in(SCHEDULES, busy_member_hangs);
}

#[test]
fn what_was_counted_behind_a_drained_sequence_is_read_at_once() {
    holds_in(SCHEDULES, member_drains_behind);
}

#[test]
fn a_busy_member_that_is_counted_and_not_sent_is_found() {
    finds(member_reports, Fault::BusyCountedNotSent);
}

#[test]
fn a_claim_that_is_not_handed_on_is_found() {
    finds(member_hangs, Fault::UncoveredNotReassigned);
}

#[test]
fn a_lease_that_never_ends_is_found() {
    finds(busy_member_hangs, Fault::LeaseNeverLapses);
}

#[test]
fn a_rest_behind_a_drained_sequence_that_waits_is_found() {
    finds(member_drains_behind, Fault::DrainedBehindIsDone);
}

#[test]
fn a_busy_member_whose_end_is_not_noticed_is_found() {
    finds(member_crashes, Fault::BusyEndNotReassigned);
    finds(busy_member_crashes, Fault::NoTimerForBusy);
}
