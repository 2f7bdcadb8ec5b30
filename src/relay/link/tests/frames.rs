//! Frames: numbers, repetition, confirmation (C2, C3).

use super::{
    Outcome, check, ensure,
    world::{Kind, World, hash, millis},
};
use crate::{
    base::fault::Fault,
    relay::link::{Action, BURST_PAUSE, Output, Resync},
    types::cluster::LifeId,
};

#[test]
fn a_frame_is_applied_by_all_others_and_confirmed_by_its_return() {
    check(
        |fault| {
            let mut world = World::settled(3, fault);
            world.notify(0, 1, 5);
            world.run(1);
            for node in [1, 2] {
                let applied = world.nodes[node].applied.get(&(LifeId(1), 1));
                ensure!(applied == Some(&5), "relay {node}: {applied:?}");
            }
            ensure!(world.nodes[0].applied.is_empty(), "its own is not applied");
            let confirmed = world.first(0, &Action::Confirmed(1));
            ensure!(confirmed.is_some(), "not confirmed");
            Ok(())
        },
        &[],
    );
}

/// The other relay has the frame, and its sender does not know that. Causes that are counted then
/// must go into the next frame.
fn return_is_lost(fault: Fault) -> Outcome {
    let mut world = World::settled(2, fault);
    let until = world.now + millis(600);
    world.drop_if(move |passage| {
        passage.at < until && passage.to == Some(0) && matches!(passage.kind, Kind::Frame(_))
    });
    world.notify(0, 1, 1);
    world.run(300);
    world.notify(0, 2, 1);
    world.run(1_500);
    let copies = world.published(0, 1);
    ensure!(copies.len() >= 3, "published {} times", copies.len());
    ensure!(copies.iter().all(|copy| *copy == copies[0]), "other bytes");
    for queue in [1, 2] {
        let applied = world.nodes[1].applied.get(&(LifeId(1), queue));
        ensure!(applied == Some(&1), "queue {queue}: {applied:?}");
    }
    let confirmed = world.first(0, &Action::Confirmed(2));
    ensure!(confirmed.is_some(), "not confirmed");
    ensure!(world.resyncs(1).is_empty(), "{:?}", world.resyncs(1));
    Ok(())
}

#[test]
fn a_frame_whose_return_is_lost_is_repeated_with_the_same_bytes() {
    check(
        return_is_lost,
        &[Fault::LinkFrameNotRepeated, Fault::LinkFrameAppliedTwice],
    );
}

#[test]
fn a_frame_that_never_reached_the_broker_comes_a_quarter_second_later() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        let until = world.now + millis(100);
        world.drop_if(move |passage| passage.at < until && passage.to.is_none());
        world.notify(0, 1, 1);
        world.run(300);
        let applied = world.nodes[1].applied.get(&(LifeId(1), 1));
        ensure!(applied == Some(&1), "{applied:?}");
        Ok(())
    };
    check(scenario, &[Fault::LinkFrameNotRepeated]);
}

#[test]
fn one_frame_is_in_flight_and_later_increments_share_the_next() {
    let mut world = World::settled(2, Fault::None);
    for _ in 0..1_000 {
        world.notify(0, 1, 1);
    }
    world.run(20);
    assert_eq!(world.nodes[0].link().newest_frame(), 2);
    assert_eq!(world.nodes[1].applied[&(LifeId(1), 1)], 1_000);
}

#[test]
fn after_a_burst_the_next_frame_waits() {
    let mut world = World::settled(2, Fault::None);
    for (causes, waits) in [(15, false), (16, true)] {
        world.notify(0, 1, causes);
        let made = world.now;
        // The return takes 0.4 ms.
        world.run_until(made + std::time::Duration::from_micros(500));
        let due = world.nodes[0].link().frame_due_at().expect("returned");
        assert_eq!(due > made, waits, "{causes}");
        assert!(due <= made + BURST_PAUSE);
        world.run(10);
    }
}

#[test]
fn after_a_connect_a_heartbeat_returns_before_a_new_frame_is_made() {
    let mut world = World::settled(2, Fault::None);
    world.drop_if(|passage| passage.to.is_none() && matches!(passage.kind, Kind::Heartbeat(_)));
    world.cut(0, millis(100));
    world.run(100);
    world.notify(0, 1, 1);
    world.run(600);
    assert_eq!(world.nodes[0].link().newest_frame(), 0);
    world.drop_if(|_| false);
    world.run(1_200);
    assert_eq!(world.nodes[1].applied[&(LifeId(1), 1)], 1);
}

#[test]
fn an_interrupted_burst_is_one_resync_of_its_queues_within_its_bound() {
    let scenario = |fault| {
        let mut world = World::settled(3, fault);
        world.cut(2, millis(2_000));
        for step in 0..40 {
            world.notify(step % 2, u64::try_from(step).expect("small") % 10, 1);
            world.run(50);
        }
        world.run(1_300);
        for queue in 0..10 {
            for sender in [0, 1] {
                let Some((_, counted)) = world.nodes[sender].counted.get(&queue) else {
                    continue;
                };
                let woken = world.nodes[2].woken(queue);
                ensure!(woken >= *counted, "queue {queue} of relay {sender}");
            }
        }
        let all = world.resyncs(2).contains(&Resync::All);
        ensure!(!all, "all queues, after a short interruption");
        Ok(())
    };
    check(scenario, &[Fault::LinkHeartbeatUnread]);
}

#[test]
fn a_missed_frame_is_a_resync_of_its_queues_and_of_no_others() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        world.drop_if(|passage| passage.to == Some(1) && passage.kind == Kind::Frame(2));
        for queue in [1, 2, 3] {
            world.notify(0, queue, 1);
            world.run(5);
        }
        world.run(1_200);
        let resyncs = world.resyncs(1);
        let wanted = [Resync::Queues(vec![hash(2)])];
        ensure!(resyncs == wanted, "{resyncs:?}");
        Ok(())
    };
    check(scenario, &[Fault::LinkGapForgotten]);
}

#[test]
fn a_missed_queue_that_a_later_frame_names_again_is_no_resync() {
    let mut world = World::settled(2, Fault::None);
    world.drop_if(|passage| passage.to == Some(1) && passage.kind == Kind::Frame(1));
    for queue in [1, 1, 2] {
        world.notify(0, queue, 1);
        world.run(5);
    }
    world.run(1_200);
    assert_eq!(world.resyncs(1), [Resync::Queues(vec![])]);
    assert!(world.nodes[1].woken(1) >= world.nodes[0].counted[&1].1);
}

#[test]
fn groups_are_given_a_frame_in_full_after_a_missed_one() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        world.drop_if(|passage| passage.to == Some(1) && passage.kind == Kind::Frame(2));
        for _ in 0..3 {
            world.notify(0, 1, 1);
            world.run(5);
        }
        world.run(1_200);
        world.notify(0, 1, 1);
        world.run(5);
        let full: Vec<_> = world.nodes[1]
            .log
            .iter()
            .filter_map(|(_, action)| match action {
                Action::Apply { frame, in_full, .. } => Some((frame.number, *in_full)),
                _ => None,
            })
            .collect();
        ensure!(full == [(1, false), (3, true), (4, false)], "{full:?}");
        Ok(())
    };
    check(scenario, &[]);
}

#[test]
fn every_message_twice_changes_neither_sums_nor_causes_resyncs() {
    let scenario = |fault| {
        let mut world = World::settled(3, fault);
        world.copies = Some(millis(500));
        for step in 0..200 {
            world.notify(step % 3, u64::try_from(step).expect("small") % 7, 1);
            world.run(20);
        }
        world.run(3_000);
        for node in 0..3 {
            let twice = world.nodes[node].frames.values().any(|count| *count > 1);
            ensure!(!twice, "relay {node} applied a frame twice");
            let resyncs = world.resyncs(node);
            ensure!(resyncs.is_empty(), "relay {node}: {resyncs:?}");
        }
        Ok(())
    };
    check(scenario, &[Fault::LinkFrameAppliedTwice]);
}

/// Both machines of a clone count work; at least the one whose frame came second ends.
fn clone_runs(fault: Fault) -> Outcome {
    let mut world = World::settled(2, fault);
    let clone = world.start_as(LifeId(1));
    for step in 0..20 {
        world.notify(0, step, 1);
        world.notify(clone, 100 + step, 1);
        world.run(100);
    }
    let end = Action::Output(Output::End);
    let ended = [0, clone].map(|node| world.first(node, &end).is_some());
    ensure!(ended.contains(&true), "both machines run on");
    Ok(())
}

#[test]
fn of_two_machines_that_run_one_life_one_ends() {
    check(clone_runs, &[]);
}

#[test]
fn a_clone_that_counts_nothing_ends_by_its_heartbeats() {
    let mut world = World::settled(2, Fault::None);
    let clone = world.start_as(LifeId(1));
    world.run(3_000);
    let end = Action::Output(Output::End);
    assert!(
        [0, clone]
            .iter()
            .any(|node| world.first(*node, &end).is_some())
    );
}
