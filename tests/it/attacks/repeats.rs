//! The same attacks again and again: the relay's memory does not add up.

use std::time::Duration;

use tokio::task::JoinSet;

use super::{
    frames::{RST_STREAM, RawPeer, frame, request, settings},
    harness::Trial,
    peer::{Peer, Unfinished},
    target::{Scheme, Target, plain_and_tls},
    unread::subscribe_unread,
};

const SUBSCRIBE: &str = "/reveille.v1.Relay/Subscribe";
const ROUNDS: u64 = 5;
const MIB: usize = 1024 * 1024;
/// Time that a round holds its connections.
const HELD: Duration = Duration::from_millis(700);

/// Unfinished requests, streams that are never read, and resets; then all connections are closed.
async fn round(target: Target) {
    let mut unfinished = JoinSet::new();
    for at in 0..16 {
        let target = target.clone();
        unfinished.spawn(async move {
            // Spread, as this tests memory and not a burst of 64 MiB.
            tokio::time::sleep(at * Duration::from_millis(40)).await;
            let peer = Peer::connect(&target, 64 * 1024).await;
            let half = || Unfinished::message(MIB);
            // They are answered after their deadline only.
            let calls = peer.call_often(4, SUBSCRIBE, half);
            let _ = tokio::time::timeout(HELD, calls).await;
        });
    }
    let mut unread = RawPeer::greeting(&target).await;
    unread.send(&settings(4, 0)).await.expect("taken");
    subscribe_unread(&mut unread, 900).await;
    let resets = (0..1_000).map(|number| {
        let stream = 2 * number + 1;
        let reset = frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        [request(stream, SUBSCRIBE), reset].concat()
    });
    let peer = RawPeer::greeting(&target).await;
    peer.closed_after(resets).await;
    unfinished.join_all().await;
}

plain_and_tls!(memory_does_not_add_up_over_repeated_attacks);

async fn memory_does_not_add_up_over_repeated_attacks(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let before = trial.relay.resident();
    let (mut growth, mut resident) = (0, Vec::new());
    for _ in 0..ROUNDS {
        let ((), damage) = trial.under(round(target.clone())).await;
        damage.is_within(128 * 1024);
        growth = growth.max(damage.growth);
        resident.push(trial.relay.resident());
    }
    println!("resident {before} KiB, and after each round {resident:?}");
    assert!(growth > 16 * 1024, "the attack took only {growth} KiB");
    // The allocator keeps freed pages, up to the peaks of all threads, and then no more: measured was
    // 0.7 to 1.5 times the growth of a round. Without any return it would be five times.
    let kept = resident.last().expect("rounds").saturating_sub(before);
    assert!(
        kept < 3 * growth,
        "{kept} KiB after {ROUNDS} rounds, {growth} in one"
    );
}
