//! Floods of control frames.

use std::time::Duration;

use super::{
    frames::{
        DATA, END_STREAM, PING, PRIORITY, RST_STREAM, RawPeer, SETTINGS, WINDOW_UPDATE, frame,
        repeatedly, settings,
    },
    harness::Trial,
    target::{Scheme, Target, plain_and_tls},
};
use crate::support::figure;

/// Time of a flood that the relay does not answer.
const FLOOD: Duration = Duration::from_secs(1);

async fn flooded(scheme: Scheme, flooding: Vec<u8>, least: usize) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        for _ in 0..10 {
            let hundred = std::iter::repeat_n(flooding.repeat(100), 1_000);
            let peer = RawPeer::greeting(&target).await;
            // Answers in addition to the relay's settings and window.
            let answered = peer.closed_after(hundred).await;
            assert!(answered <= 300 * least, "{answered} bytes of answers");
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
    let floods = figure(trial.admin(), "reveille_connections_flooding_total").await;
    assert_eq!(floods, 10);
}

plain_and_tls!(a_ping_flood_is_disconnected);

async fn a_ping_flood_is_disconnected(scheme: Scheme) {
    flooded(scheme, frame(PING, 0, 0, &[0; 8]), 17).await;
}

plain_and_tls!(a_settings_flood_is_disconnected);

async fn a_settings_flood_is_disconnected(scheme: Scheme) {
    flooded(scheme, frame(SETTINGS, 0, 0, &[]), 9).await;
}

#[tokio::test]
async fn a_peer_with_occasional_pings_is_kept() {
    let relay = crate::binary::Binary::serve().await;
    let mut peer = RawPeer::greeting(&Target::plain(&relay)).await;
    for _ in 0..190 {
        let ping = frame(PING, 0, 0, &[0; 8]);
        peer.send(&ping).await.expect("kept");
    }
    assert!(!peer.is_closed_within(Duration::from_millis(500)).await);
}

/// Floods with frames that the relay does not answer.
async fn flooded_in_silence(scheme: Scheme, flooding: Vec<u8>) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        repeatedly(FLOOD, &target, move |mut peer| {
            let many = flooding.repeat(64 * 1024 / flooding.len());
            async move {
                peer.open(1, "/reveille.v1.Relay/NotifyStream").await;
                peer.closed_after(std::iter::repeat_n(many, 200)).await;
            }
        })
        .await
    };
    let (connections, damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
    let floods = figure(trial.admin(), "reveille_connections_flooding_total").await;
    assert_eq!(floods, connections as u64);
}

plain_and_tls!(a_flood_of_window_updates_is_disconnected);

async fn a_flood_of_window_updates_is_disconnected(scheme: Scheme) {
    flooded_in_silence(scheme, frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).await;
}

plain_and_tls!(a_flood_of_priorities_is_disconnected);

async fn a_flood_of_priorities_is_disconnected(scheme: Scheme) {
    flooded_in_silence(scheme, frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])).await;
}

plain_and_tls!(a_flood_of_unknown_frames_is_disconnected);

async fn a_flood_of_unknown_frames_is_disconnected(scheme: Scheme) {
    flooded_in_silence(scheme, frame(0x55, 0, 0, &[])).await;
}

#[tokio::test]
async fn a_peer_that_widens_its_windows_for_each_frame_and_resets_each_stream_is_kept() {
    const STREAMS: u32 = 5_000;
    let relay = crate::binary::Binary::serve().await;
    let mut peer = RawPeer::greeting(&Target::plain(&relay)).await;
    peer.send(&settings(4, 1 << 20)).await.expect("taken");
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        peer.open(stream, "/grpc.health.v1.Health/Watch").await;
        let request = frame(DATA, END_STREAM, stream, &[0; 5]);
        peer.send(&request).await.expect("kept");
        // The answer, in its one DATA frame.
        while peer.next_frame().await.0 != DATA {}
        let update = |of| frame(WINDOW_UPDATE, 0, of, &[0, 0, 0, 7]);
        let reset = frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        let all = [update(0), update(stream), reset].concat();
        peer.send(&all).await.expect("kept");
    }
    assert!(!peer.is_closed_within(Duration::from_millis(500)).await);
}
