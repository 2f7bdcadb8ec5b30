//! Groups: members that take, report, leave and join while a publisher notifies (R12 to R16: the
//! rules of groups).
//!
//! Must not be lost: a message that is visible at the end, when the remaining members are idle and
//! their redeliveries and leases have ended.

use std::time::Duration;

use super::{
    super::{
        checks::{finds, holds_in},
        listener::NOW,
        worker::{Manner, Worker},
        world::{CLAIM, LEASE, VISIBLE_AGAIN, World, member},
    },
    join,
};
use crate::base::fault::Fault;

/// Schedules of each kind for a model that must hold.
const SCHEDULES: usize = 300;
/// Two rounds of two members, with a redelivery that waits for the one before.
const REDELIVERED: Duration = CLAIM.saturating_mul(5);

fn join_group(world: &World, number: u128, manner: Manner) -> Worker {
    world.settled(&member(&["a/q"]), number, manner)
}

/// R12: a busy member that is counted is sent the wake-up, so no timer is needed.
fn member_reports(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let worker = join_group(&world, 1, Manner::Reads).serve();
    let publishers = [&[0, 1][..], &[2]].map(|bits| world.spawn_publish("q", bits));
    publishers.into_iter().for_each(join);
    world.pass(&mut [worker.stop()], NOW, NOW);
    world.all_read()
}

/// Two members share. One of them drains at any time, with any wake-up. R16: its work is
/// redelivered to the other one at once.
fn member_drains(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let draining = join_group(&world, 1, Manner::Hangs);
    let staying = join_group(&world, 2, Manner::Reads).serve();
    let draining = draining.spawn(|worker| {
        worker.rounds(1);
        worker.goodbye();
    });
    let publisher = world.spawn_publish("q", &[0, 1]);
    join(publisher);
    join(draining);
    world.pass(&mut [staying.stop()], NOW, NOW);
    world.all_read()
}

/// A member crashes with its first wake-up.
fn member_crashes(fault: Fault) -> Result<(), String> {
    crashes(fault, Manner::Hangs, Duration::ZERO)
}

/// The same when it has got one message and reported BUSY: that message is read when it is visible
/// again (R8: a busy listener's end sets a timer).
fn busy_member_crashes(fault: Fault) -> Result<(), String> {
    crashes(fault, Manner::HangsBusy, VISIBLE_AGAIN)
}

fn crashes(fault: Fault, manner: Manner, hidden: Duration) -> Result<(), String> {
    let world = World::new(fault);
    let crashing = join_group(&world, 1, manner).serve_once();
    let staying = join_group(&world, 2, Manner::Reads).serve();
    let publisher = world.spawn_publish("q", &[0, 1]);
    join(publisher);
    crashing.stop();
    let staying = &mut [staying.stop()];
    world.pass(staying, NOW, NOW);
    world.all_read()?;
    world.pass(staying, NOW, NOW + hidden);
    world.all_read()
}

/// The only member leaves while another one joins.
fn members_change(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let leaving = join_group(&world, 1, Manner::Reads);
    let leaving = leaving.spawn(|worker| {
        worker.rounds(1);
        worker.close();
    });
    let coming = world.spawn(|world| Worker::subscribe(world, &member(&["a/q"]), 2, Manner::Reads));
    let publisher = world.spawn_publish("q", &[0, 1]);
    join(publisher);
    join(leaving);
    world.pass(&mut [join(coming)], NOW, NOW);
    world.all_read()
}

/// A member hangs. R13: its uncovered wake-up is redelivered after the claim time-out, though the
/// timers run while the other one reports.
fn member_hangs(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let hanging = join_group(&world, 1, Manner::Hangs);
    let staying = join_group(&world, 2, Manner::Reads);
    let (hanging, staying) = (hanging.serve(), staying.serve());
    let late = NOW + CLAIM;
    let timers = world.spawn(move |world| world.hub.fire(late));
    let publisher = world.spawn_publish("q", &[0, 1]);
    join(publisher);
    join(timers);
    let members = &mut [hanging.stop(), staying.stop()];
    world.pass(members, late, late + REDELIVERED);
    world.all_read()
}

/// A member reports BUSY, which covers its wake-up, and hangs. R14: BUSY is a lease, which ends.
fn busy_member_hangs(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let hanging = join_group(&world, 1, Manner::HangsBusy).serve();
    let coming = world.spawn(|world| join_group(world, 2, Manner::Reads));
    let publisher = world.spawn_publish("q", &[0, 1, 2]);
    join(publisher);
    let members = &mut [hanging.stop(), join(coming)];
    world.pass(members, NOW, NOW + LEASE + REDELIVERED);
    world.all_read()
}

/// A member drains the queue at a sequence below the head, while another one hangs with the rest.
/// R15: the rest is pending at once, not after the claim time-out.
fn member_drains_behind(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let hanging = join_group(&world, 1, Manner::Hangs);
    let reading = join_group(&world, 2, Manner::Reads);
    let publisher = world.spawn_publish("q", &[0, 1]);
    let (hanging, reading) = (hanging.serve(), reading.serve());
    join(publisher);
    let (hanging, reading) = (hanging.stop(), reading.stop());
    let behind = reading.drained_behind;
    world.pass(&mut [hanging, reading], NOW, NOW);
    match behind {
        true => world.all_read(),
        // It was idle when the rest was assigned, and is asked when the claim time-out has ended.
        false => Ok(()),
    }
}

/// A pattern's only member hangs, and another one joins while the claim ends: it takes up the work.
fn member_comes(fault: Fault) -> Result<(), String> {
    let world = World::new(fault);
    let hanging = world
        .settled(&member(&["a/*"]), 1, Manner::Hangs)
        .serve_once();
    let late = NOW + CLAIM;
    let publisher = world.spawn_publish("q", &[0]);
    join(publisher);
    let hanging = hanging.stop();
    let timers = world.spawn(move |world| world.hub.fire(late));
    let coming = world.spawn(|world| Worker::subscribe(world, &member(&["a/*"]), 2, Manner::Reads));
    join(timers);
    world.pass(&mut [hanging, join(coming)], late, late + REDELIVERED);
    world.all_read()
}

#[test]
fn a_member_that_comes_takes_up_what_waits_for_one() {
    holds_in(SCHEDULES, member_comes);
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
    finds(busy_member_crashes, Fault::NoTimerForBusy);
}
