//! Missing peers and interruptions of this relay's own connection (C7).

use super::{
    check, ensure,
    world::{Kind, World, millis},
};
use crate::{
    base::fault::Fault,
    relay::link::{Action, PeerStats, Resync},
    types::cluster::LifeId,
    wire::{proto::RelayState, span_from_wire},
};

#[test]
fn groups_check_once_when_a_relay_dies() {
    let scenario = |fault| {
        let mut world = World::settled(3, fault);
        world.notify(0, 1, 1);
        world.run(1_000);
        let died = world.now;
        world.crash(0);
        world.run(20_000);
        for node in [1, 2] {
            ensure!(
                world.checks(node) == 1,
                "relay {node}: {}",
                world.checks(node)
            );
            let checked = world.first(node, &Action::CheckGroups(LifeId(1)));
            let after = checked.map(|checked| checked.since(died));
            ensure!(
                after.is_some_and(|after| after <= millis(5_600)),
                "relay {node}: {after:?}"
            );
            ensure!(world.resyncs(node).is_empty(), "more than the groups");
        }
        Ok(())
    };
    check(scenario, &[Fault::LinkMissingNoCheck]);
}

/// Such as one that fails at each start.
#[test]
fn a_relay_that_counted_nothing_is_missing_and_no_group_checks() {
    let mut world = World::settled(2, Fault::None);
    for _ in 0..5 {
        let node = world.start();
        world.run(1_200);
        world.crash(node);
    }
    world.run(20_000);
    assert_eq!((world.checks(1), world.resyncs(1)), (0, vec![]));
    let peers = world.nodes[1].link().peers(world.now);
    assert_eq!(
        peers
            .filter(|peer| peer.info.state() == RelayState::Missing)
            .count(),
        5
    );
}

#[test]
fn a_relay_dies_after_the_client_of_another_has_dropped_its_frame() {
    let mut world = World::settled(3, Fault::None);
    world.drop_if(|passage| passage.to == Some(1) && passage.kind == Kind::Frame(1));
    world.notify(0, 1, 1);
    world.run(5);
    world.nodes[1].link.as_mut().expect("runs").on_drop();
    world.crash(0);
    world.run(20_000);
    assert_eq!(
        world.resyncs(1),
        [Resync::All],
        "it may have missed a frame"
    );
    assert_eq!((world.checks(2), world.resyncs(2)), (1, vec![]));
}

#[test]
fn a_relay_that_has_left_is_not_missing() {
    let mut world = World::settled(2, Fault::None);
    world.notify(0, 1, 1);
    world.run(5);
    let now = world.now;
    world.nodes[0].link.as_mut().expect("runs").leave(now);
    world.wake(0);
    world.run(5);
    assert!(world.nodes[0].link().frame_due_at().is_none());
    let left: Vec<_> = world.nodes[1].link().peers(world.now).collect();
    assert_eq!(left[0].info.state(), RelayState::Left);
    world.crash(0);
    world.run(20_000);
    assert_eq!((world.checks(1), world.resyncs(1)), (0, vec![]));
    // Ten minutes later it is forgotten.
    world.run(700_000);
    assert_eq!(world.nodes[1].link().peers(world.now).count(), 0);
}

#[test]
fn a_frame_is_missed_and_its_sender_dies_before_its_heartbeat() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        world.drop_if(|passage| {
            let heartbeat = matches!(passage.kind, Kind::Heartbeat(_)) && passage.from == 0;
            passage.to == Some(1) && (passage.kind == Kind::Frame(1) || heartbeat)
        });
        for queue in [1, 2] {
            world.notify(0, queue, 1);
            world.run(5);
        }
        world.crash(0);
        world.run(6_000);
        let woken = world.nodes[1].woken(1);
        ensure!(woken >= world.nodes[0].counted[&1].1, "queue 1 is left out");
        Ok(())
    };
    check(scenario, &[Fault::LinkGapForgotten]);
}

/// The connection of relay 1 breaks, another relay counts and dies during that time.
fn interrupted(hidden: bool, fault: Fault) -> super::Outcome {
    let mut world = World::settled(3, fault);
    world.nodes[1].events_hidden = hidden;
    world.cut(1, millis(1_500));
    world.run(300);
    world.notify(0, 1, 1);
    world.run(100);
    let confirmed = world.first(0, &Action::Confirmed(1));
    ensure!(confirmed.is_some(), "not confirmed");
    world.crash(0);
    world.run(9_000);
    let woken = world.nodes[1].woken(1);
    ensure!(woken >= world.nodes[0].counted[&1].1, "queue 1 is left out");
    ensure!(world.resyncs(2).is_empty(), "relay 2 missed nothing");
    ensure!(world.checks(2) == 1, "the groups of relay 2 check");
    Ok(())
}

#[test]
fn a_relay_dies_while_the_connection_of_another_is_broken() {
    check(
        |fault| interrupted(false, fault),
        &[Fault::LinkInterruptionIgnored],
    );
}

#[test]
fn a_relay_dies_while_a_connection_is_broken_and_the_client_says_nothing() {
    check(
        |fault| interrupted(true, fault),
        &[Fault::LinkInterruptionIgnored],
    );
}

#[test]
fn an_interruption_that_a_heartbeat_has_followed_costs_nothing() {
    let mut world = World::settled(3, Fault::None);
    world.notify(0, 1, 1);
    world.run(10);
    world.cut(1, millis(500));
    world.run(3_500);
    world.crash(0);
    world.run(8_000);
    assert_eq!(world.checks(1), 1);
    assert_eq!(world.resyncs(1), []);
}

#[test]
fn a_peer_two_of_whose_heartbeats_are_lost_is_not_missing() {
    let scenario = |fault| {
        for seed in 0..20 {
            let mut world = World::new(seed, fault);
            let (peer, relay) = (world.start(), world.start());
            world.run(8_000);
            world.forget_log();
            let next = u64::try_from(world.heartbeats(peer)).expect("small") + 1;
            world.drop_if(move |passage| {
                let lost = [next, next + 1]
                    .map(Kind::Heartbeat)
                    .contains(&passage.kind);
                (passage.from, passage.to) == (peer, Some(relay)) && lost
            });
            // A connect is followed by a further heartbeat of the relay.
            world.run(1_000);
            world.cut(relay, millis(1));
            world.run(6_000);
            ensure!(world.checks(relay) == 0, "seed {seed}: it is missing");
            ensure!(world.resyncs(relay).is_empty(), "seed {seed}: a resync");
        }
        Ok(())
    };
    check(scenario, &[]);
}

#[test]
fn own_heartbeats_with_a_gap_are_an_interruption() {
    let scenario = |fault| {
        let mut world = World::settled(2, fault);
        // One of two heartbeats within 250 ms does not return.
        let next = u64::try_from(world.heartbeats(1)).expect("small") + 1;
        world.drop_if(move |passage| {
            passage.to == Some(1)
                && (passage.kind == Kind::Heartbeat(next) && passage.from == 1 || passage.from == 0)
        });
        world.notify(0, 1, 1);
        while u64::try_from(world.heartbeats(1)).expect("small") < next {
            world.run(1);
        }
        world.crash(0);
        world.cut(1, millis(1));
        world.run(9_000);
        let woken = world.nodes[1].woken(1);
        ensure!(woken >= world.nodes[0].counted[&1].1, "queue 1 is left out");
        Ok(())
    };
    check(scenario, &[Fault::LinkInterruptionIgnored]);
}

#[test]
fn a_relay_reborn_under_its_name_is_a_new_life_and_the_old_one_goes_missing() {
    let mut world = World::settled(2, Fault::None);
    world.notify(0, 1, 1);
    world.run(5);
    world.crash(0);
    let reborn = world.start();
    world.run(10);
    world.notify(reborn, 2, 1);
    world.run(7_000);
    assert_eq!(world.checks(1), 1);
    assert_eq!(world.nodes[1].applied[&(LifeId(1), 1)], 1);
    assert_eq!(world.nodes[1].applied[&(LifeId(3), 2)], 1);
    assert_eq!(world.resyncs(1), Vec::<Resync>::new());
}

#[test]
fn the_list_of_relays_has_what_their_heartbeats_state() {
    let mut world = World::settled(2, Fault::None);
    let link = world.nodes[0].link.as_mut().expect("runs");
    link.set_load(7, 9);
    world.run(1_200);
    let peers: Vec<PeerStats> = world.nodes[1].link().peers(world.now).collect();
    let [peer] = &peers[..] else {
        panic!("{peers:?}")
    };
    let info = &peer.info;
    assert_eq!((peer.life, &*info.relay_id), (LifeId(1), "relay-1"));
    assert_eq!((info.streams, info.queues), (7, 9));
    assert!(peer.is_present() && span_from_wire(info.silent_for) < millis(1_200));
}
