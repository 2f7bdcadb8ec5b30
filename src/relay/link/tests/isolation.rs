//! Isolation and the state `degraded` (C9).

use super::{
    check, ensure,
    world::{Kind, World, at, millis},
};
use crate::{
    base::fault::Fault,
    relay::link::{Action, Output, Resync},
    types::cluster::LifeId,
};

#[test]
fn a_cut_of_four_seconds_is_degraded_in_time_and_ends_with_one_resync_of_all() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        let cut = world.now;
        world.cut(1, millis(6_000));
        world.notify(0, 1, 1);
        world.run(8_000);
        let began = world.first(1, &Action::Degraded(true));
        ensure!(
            began.is_some_and(|began| began.since(cut) <= millis(3_500)),
            "told at {began:?}"
        );
        let ended = world.first(1, &Action::Degraded(false));
        ensure!(
            ended.is_some_and(|ended| ended.since(cut) <= millis(6_100)),
            "ended at {ended:?}"
        );
        let all = world.first(1, &Action::Resync(Resync::All));
        ensure!(all.is_some() && all <= ended, "resync at {all:?}");
        Ok(())
    };
    check(
        scenario,
        &[Fault::LinkIsolationUntold, Fault::LinkIsolationEndTrusted],
    );
}

#[test]
fn a_life_that_comes_and_goes_during_an_isolation_is_covered_by_its_end() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        world.cut(1, millis(9_000));
        world.run(1_000);
        let short = world.start();
        world.run(1_000);
        world.notify(short, 7, 1);
        world.run(1_000);
        ensure!(
            world.nodes[short].confirmed_at >= world.nodes[short].counted[&7].1,
            "not confirmed"
        );
        world.crash(short);
        world.run(8_000);
        let woken = world.nodes[1].woken(7);
        ensure!(
            woken >= world.nodes[short].counted[&7].1,
            "queue 7 is left out"
        );
        Ok(())
    };
    check(scenario, &[Fault::LinkIsolationEndTrusted]);
}

#[test]
fn a_break_of_three_seconds_is_not_degraded_and_no_resync_of_all() {
    let mut world = World::settled(2, Fault::None);
    world.cut(1, millis(2_200));
    world.notify(0, 1, 1);
    world.run(5_000);
    assert_eq!(world.first(1, &Action::Degraded(true)), None);
    assert!(!world.resyncs(1).contains(&Resync::All));
    assert!(world.nodes[1].woken(1) >= world.nodes[0].counted[&1].1);
}

#[test]
fn a_half_open_link_is_degraded_either_way() {
    for inward in [true, false] {
        let mut world = World::settled(2, Fault::None);
        let until = world.now + millis(8_000);
        world.drop_if(move |passage| {
            let dropped = if inward {
                passage.to == Some(1)
            } else {
                passage.from == 1 && passage.to.is_none()
            };
            passage.at < until && dropped
        });
        world.run(4_500);
        assert!(world.nodes[1].is_degraded(world.now));
        world.run(5_500);
        assert!(!world.nodes[1].is_degraded(world.now));
        assert!(world.resyncs(1).contains(&Resync::All));
    }
}

#[test]
fn a_frame_that_the_broker_always_drops_is_degraded_until_it_is_confirmed() {
    let mut world = World::settled(2, Fault::None);
    let until = world.now + millis(10_000);
    world.drop_if(move |passage| {
        passage.at < until && passage.from == 0 && matches!(passage.kind, Kind::Frame(_))
    });
    world.notify(0, 1, 1);
    world.run(9_000);
    // Heartbeats return, and do not end it.
    assert!(world.nodes[0].is_degraded(world.now));
    assert!(world.resyncs(0).is_empty());
    world.run(2_000);
    assert!(!world.nodes[0].is_degraded(world.now));
    assert_eq!(world.resyncs(0), [Resync::All]);
    assert!(world.nodes[1].woken(1) >= world.nodes[0].counted[&1].1);
}

#[test]
fn a_paused_relay_is_degraded_at_once_and_old_returns_do_not_end_that() {
    let scenario = |fault| {
        let mut world = World::settled(3, fault);
        // Its newest heartbeat is in the client's channel during the pause.
        let sent = world.heartbeats(1);
        while world.heartbeats(1) == sent {
            world.run_until(world.now + std::time::Duration::from_micros(50));
        }
        world.pause(1, millis(60_000));
        world.run(59_000);
        world.forget_log();
        ensure!(
            world.nodes[1].is_degraded(world.now),
            "its streams are told nothing"
        );
        let resumed = at(0) + world.now.since(at(0)) + millis(1_000);
        world.run_until(resumed);
        let ended = world.first(1, &Action::Degraded(false));
        ensure!(
            ended.is_none_or(|ended| ended > resumed),
            "an old return ended it"
        );
        let early = world.checks(1);
        ensure!(
            early == 0,
            "it judges its peers by the messages of its pause"
        );
        world.run(1_200);
        ensure!(!world.nodes[1].is_degraded(world.now), "it stays degraded");
        ensure!(world.resyncs(1).contains(&Resync::All), "no resync");
        ensure!(
            world.checks(1) == 0,
            "groups check although no peer was missing"
        );
        Ok(())
    };
    check(scenario, &[Fault::LinkIsolationEndTrusted]);
}

#[test]
fn a_relay_without_a_broker_is_ready_after_three_seconds_and_degraded() {
    let mut world = World::new(1, Fault::None);
    world.drop_if(|_| true);
    world.start();
    world.run(2_900);
    let link = world.nodes[0].link();
    assert!(!link.is_ready(world.now) && link.is_degraded(world.now));
    world.run(200);
    let link = world.nodes[0].link();
    assert!(link.is_ready(world.now) && link.is_degraded(world.now));
    world.drop_if(|_| false);
    world.run(1_200);
    assert!(!world.nodes[0].is_degraded(world.now));
}

#[test]
fn a_relay_that_starts_is_ready_after_two_heartbeats() {
    let mut world = World::new(1, Fault::None);
    world.start();
    world.run(500);
    assert!(!world.nodes[0].link().is_ready(world.now));
    world.run(800);
    let link = world.nodes[0].link();
    assert!(link.is_ready(world.now) && !link.is_degraded(world.now));
}

#[test]
fn parted_brokers_wake_all_when_they_are_joined() {
    let mut world = World::settled(4, Fault::None);
    for node in 0..4 {
        world.notify(node, 9, 1);
    }
    world.run(100);
    for node in [2, 3] {
        world.nodes[node].side = 1;
    }
    for step in 0..100 {
        world.notify(step % 4, u64::try_from(step).expect("small") % 5, 1);
        world.run(100);
    }
    for node in 0..4 {
        assert_eq!(
            world.checks(node),
            2,
            "relay {node}: one for each missing peer"
        );
        assert!(!world.nodes[node].is_degraded(world.now));
        world.nodes[node].side = 0;
    }
    world.run(1_300);
    for node in 0..4 {
        for queue in 0..5 {
            for sender in 0..4 {
                let counted = world.nodes[sender].counted.get(&queue);
                let counted = counted.map(|(_, at)| *at).unwrap_or_default();
                let own = sender == node;
                assert!(
                    own || world.nodes[node].woken(queue) >= counted,
                    "{node} {queue}"
                );
            }
        }
    }
    assert!(
        world.nodes[0]
            .frames
            .keys()
            .any(|(life, _)| *life == LifeId(2))
    );
}

/// Its packets to the broker are lost on their way, and the client does not notice: it hears the others.
#[test]
fn a_connection_that_only_hears_is_replaced_after_six_seconds_and_each_ten_seconds() {
    let mut world = World::settled(2, Fault::None);
    world.run(10_000);
    let cut = world.now;
    world.drop_if(|passage| passage.from == 0 && passage.to.is_none());
    world.run(30_000);
    let replaced = |world: &World| {
        let log = world.nodes[0].log.iter();
        let replaced = log.filter(|(_, action)| *action == Action::Output(Output::Replace));
        let after = replaced.map(|(at, _)| at.since(cut).as_secs());
        after.collect::<Vec<_>>()
    };
    let after = replaced(&world);
    assert!(after.len() == 3 && (5..=6).contains(&after[0]), "{after:?}");
    world.drop_if(|_| false);
    world.run(60_000);
    assert_eq!(replaced(&world).len(), 3, "it is a good one again");
}
