//! Peers that try to delay a relay's shutdown.

use std::time::{Duration, Instant};

use prost::Message as _;

use super::{
    frames::{DATA, END_STREAM, HEADERS, RawPeer, frame, settings},
    peer::{Peer, Unfinished},
    target::Target,
};
use crate::binary::Binary;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_ends_without_waiting_for_health_watches_and_half_requests() {
    let mut relay = Binary::serve_with(&["--grace", "25s"], &[]).await;
    let target = Target::plain(&relay);
    let peer = Peer::connect(&target, 64 * 1024).await;
    let empty = || Unfinished::whole(&().encode_to_vec());
    let watch = peer.call("/grpc.health.v1.Health/Watch", empty()).await;
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let reflecting = peer.call(reflection, Unfinished::silence()).await;
    let notifying = peer
        .call("/reveille.v1.Relay/NotifyStream", Unfinished::message(1000))
        .await;
    let half = tokio::spawn({
        let peer = peer.clone();
        async move {
            let half = Unfinished::message(1000);
            peer.call("/reveille.v1.Relay/Subscribe", half).await
        }
    });
    // A peer that never answers the PING of a graceful close, and half a header block.
    let mut mute = RawPeer::greeting(&target).await;
    let block = frame(HEADERS, 0, 1, &[0x83]);
    mute.send(&block).await.expect("taken");
    tokio::time::sleep(Duration::from_millis(200)).await;

    let start = Instant::now();
    let status = relay.terminate().await;
    let took = start.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(6), "it took {took:?}");
    drop((watch, reflecting, notifying, half, mute));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_ends_without_waiting_for_peers_that_do_not_read() {
    let mut relay = Binary::serve_with(&["--grace", "25s"], &[]).await;
    let target = Target::plain(&relay);
    let mut peers = Vec::new();
    for path in [
        "/grpc.health.v1.Health/Watch",
        "/grpc.health.v1.Health/Check",
        "/reveille.v1.Relay/NotifyStream",
        "a refusal",
    ] {
        let mut peer = RawPeer::greeting(&target).await;
        peer.send(&settings(4, 0)).await.expect("taken");
        match path.starts_with('/') {
            true => {
                peer.open(1, path).await;
                let empty = frame(DATA, END_STREAM, 1, &[0; 5]);
                peer.send(&empty).await.expect("taken");
            }
            false => peer.get(1, "/").await,
        }
        peers.push(peer);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    let status = relay.terminate().await;
    let took = start.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(9), "it took {took:?}");
    drop(peers);
}
