//! Heartbeats: the numbers and the queues in them (C4, C5).

use super::{
    check, ensure,
    world::{Kind, World, at, hash, millis},
};
use crate::{
    base::{clock::Tick, fault::Fault},
    relay::link::{Action, Output, Resync, recent_queues::RecentQueues},
    types::cluster::LifeId,
};

#[test]
fn a_missed_newest_frame_is_found_by_the_next_heartbeat() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        world.drop_if(|passage| passage.to == Some(1) && passage.kind == Kind::Frame(2));
        world.notify(0, 1, 1);
        world.run(5);
        world.notify(0, 2, 1);
        world.run(1_200);
        let resyncs = world.resyncs(1);
        let wanted = [Resync::Queues(vec![hash(2)])];
        ensure!(resyncs == wanted, "{resyncs:?}");
        Ok(())
    };
    check(scenario, &[Fault::LinkHeartbeatUnread]);
}

#[test]
fn a_relay_that_missed_more_queues_than_a_heartbeat_names_resyncs_all() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        world.drop_if(|passage| passage.to == Some(1) && matches!(passage.kind, Kind::Frame(_)));
        for queue in 0..5_100 {
            world.notify(0, queue, 1);
        }
        world.run(1_200);
        let frames = world.nodes[0].link().newest_frame();
        ensure!((10..=13).contains(&frames), "{frames} frames");
        let resyncs = world.resyncs(1);
        ensure!(resyncs.contains(&Resync::All), "queues were left out");
        Ok(())
    };
    check(scenario, &[Fault::LinkRecentCutSilently]);
}

#[test]
fn a_relay_that_missed_frames_for_longer_than_the_list_reaches_resyncs_all() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        let until = world.now + millis(7_000);
        world.drop_if(move |passage| {
            passage.at < until && passage.from == 0 && passage.to == Some(1)
        });
        world.notify(0, 1, 1);
        world.run(8_200);
        ensure!(
            world.resyncs(1).contains(&Resync::All),
            "queue 1 is left out"
        );
        Ok(())
    };
    check(scenario, &[Fault::LinkRecentCutSilently]);
}

#[test]
fn a_new_life_whose_first_frame_was_missed_is_a_resync() {
    let scenario = |fault| {
        let mut world = World::settled(1, fault);
        let fresh = world.start();
        world.drop_if(move |passage| {
            let early = matches!(passage.kind, Kind::Frame(1) | Kind::Heartbeat(1));
            passage.from == fresh && passage.to == Some(0) && early
        });
        world.run(1);
        world.notify(fresh, 1, 1);
        world.run(5);
        world.notify(fresh, 2, 1);
        world.run(1_200);
        let resyncs = world.resyncs(0);
        let wanted = [Resync::Queues(vec![hash(1)])];
        ensure!(resyncs == wanted, "{resyncs:?}");
        Ok(())
    };
    check(scenario, &[]);
}

#[test]
fn a_life_that_is_met_in_the_middle_is_a_resync_of_all() {
    let scenario = |fault| {
        let mut world = World::settled(1, fault);
        world.notify(0, 1, 1);
        world.run(8_000);
        let late = world.start();
        // The end of its start, as that of an isolation, is one resync; this is the other.
        world.run(3_000);
        let resyncs = world.resyncs(late);
        ensure!(resyncs == [Resync::All, Resync::All], "{resyncs:?}");
        Ok(())
    };
    check(scenario, &[]);
}

#[test]
fn a_restored_relay_whose_numbers_go_back_is_a_resync_of_all() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        for queue in 0..5 {
            world.notify(0, queue, 1);
            world.run(5);
        }
        world.crash(0);
        world.run(1_000);
        world.forget_log();
        world.restore(0);
        world.run(10);
        world.notify(0, 9, 1);
        world.run(1_200);
        let woken = world.nodes[1].woken(9);
        ensure!(woken >= world.nodes[0].counted[&9].1, "queue 9 is left out");
        Ok(())
    };
    check(scenario, &[Fault::LinkNumberBackTrusted]);
}

#[test]
fn a_heartbeat_that_arrives_late_for_the_first_time_is_a_resync_of_all() {
    let mut world = World::settled(2, Fault::None);
    let heartbeat = world.nodes[0].last_published();
    world.drop_if(|passage| passage.to == Some(1) && matches!(passage.kind, Kind::Heartbeat(_)));
    world.run(1_100);
    let missed = world.nodes[0].last_published();
    assert_ne!(heartbeat, missed);
    world.drop_if(|_| false);
    world.run(1_100);
    world.forget_log();
    // A copy of the known one changes nothing.
    world.hand(1, &heartbeat);
    assert!(world.resyncs(1).is_empty());
    world.hand(1, &missed);
    assert_eq!(world.resyncs(1), [Resync::All]);
    world.run(1_200);
    assert_eq!(world.resyncs(1).len(), 1);
}

#[test]
fn a_frame_that_arrives_late_is_covered_by_the_resync_and_not_applied() {
    let mut world = World::settled(2, Fault::None);
    world.drop_if(|passage| passage.to == Some(1) && passage.kind == Kind::Frame(1));
    world.notify(0, 1, 1);
    world.run(5);
    world.notify(0, 2, 1);
    world.run(5);
    let late = world.published(0, 1);
    world.hand(1, &late[0]);
    assert_eq!(world.nodes[1].applied.get(&(LifeId(1), 1)), None);
    world.run(1_200);
    assert_eq!(world.resyncs(1), [Resync::Queues(vec![hash(1)])]);
}

#[test]
fn queues_leave_the_list_five_seconds_after_their_newest_frame_was_confirmed() {
    let mut recent = RecentQueues::default();
    recent.add(1, [10, 11].into_iter());
    recent.confirm(1, at(0));
    recent.add(2, [11].into_iter());
    recent.expire(at(4_900));
    let list = |recent: &RecentQueues| {
        let (hashes, ages) = recent.list(2);
        hashes.into_iter().zip(ages).collect::<Vec<_>>()
    };
    assert_eq!(list(&recent), [(10, 1), (11, 0)]);
    recent.expire(at(5_000));
    assert_eq!((list(&recent), recent.complete_above), (vec![(11, 0)], 1));
    // An unconfirmed frame stays.
    recent.expire(at(60_000));
    assert_eq!(list(&recent).len(), 1);
    recent.confirm(2, at(60_000));
    recent.expire(at(65_000));
    assert_eq!((list(&recent), recent.complete_above), (vec![], 2));
}

#[test]
fn a_heartbeat_comes_every_second_and_at_once_after_a_connect() {
    let mut world = World::settled(1, Fault::None);
    let before = world.heartbeats(0);
    world.run(10_000);
    let count = world.heartbeats(0) - before;
    assert!((9..=11).contains(&count), "{count}");
    world.cut(0, millis(10));
    world.run(11);
    assert_eq!(world.heartbeats(0) - before, count + 1);
}

#[test]
fn the_frame_in_flight_goes_before_each_heartbeat() {
    let mut world = World::settled(2, Fault::None);
    world.drop_if(|passage| passage.to == Some(0) && matches!(passage.kind, Kind::Frame(_)));
    world.notify(0, 1, 1);
    world.run(3_000);
    let kinds = world.kinds_published(0);
    for (at, kind) in kinds.iter().enumerate().skip(1) {
        if matches!(kind, Kind::Heartbeat(_)) && kinds.contains(&Kind::Frame(1)) {
            let first = kinds.iter().position(|kind| *kind == Kind::Frame(1));
            let follows = first.is_none_or(|first| at < first) || kinds[at - 1] == Kind::Frame(1);
            assert!(follows, "{kinds:?}");
        }
    }
}

/// The client's count of connects may rise a moment before it takes messages.
#[test]
fn a_heartbeat_that_the_client_did_not_take_is_due_again_soon() {
    let mut world = World::settled(1, Fault::None);
    let link = world.nodes[0].link.as_mut().expect("runs");
    let mut rng = fastrand::Rng::with_seed(1);
    let number = |action: Option<Action>| match action {
        Some(Action::Output(Output::Publish(bytes))) => (super::world::kind(&bytes), bytes),
        other => panic!("{other:?}"),
    };
    let now = world.now;
    link.on_tick(7, now, &mut rng);
    let (kind, bytes) = number(link.next_action());
    assert!(!link.unsent(&bytes, now), "it does not leave");
    assert_eq!(link.deadline().since(now), millis(50));
    link.on_tick(7, now + millis(50), &mut rng);
    let (again, bytes) = number(link.next_action());
    assert_eq!(again, kind, "its number is free again");
    link.leave(now + millis(60));
    let (_, last) = number(link.next_action());
    assert!(!link.unsent(&bytes, now), "not the newest");
    assert!(link.unsent(&last, now + millis(60)), "it has not left");
    assert!(link.deadline() < Tick::NEVER);
}
