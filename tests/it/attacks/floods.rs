//! Floods of control frames.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};

use super::{
    frames::{
        DATA, END_STREAM, PING, PRIORITY, RST_STREAM, RawPeer, SETTINGS, WINDOW_UPDATE, frame,
        settings,
    },
    harness::Trial,
};
use crate::support::figure;

/// Sends a frame repeatedly and reads the answers; returns the bytes of answers until the relay
/// closed the connection.
async fn flood(address: SocketAddr, frame: Vec<u8>, count: usize) -> usize {
    let peer = RawPeer::greeting(address).await;
    let (mut answers, mut out) = peer.0.into_split();
    let write = async move {
        let hundred = frame.repeat(100);
        for _ in 0..count / 100 {
            if out.write_all(&hundred).await.is_err() {
                break;
            }
        }
        // Kept open, so that the relay closes the connection.
        out
    };
    let read = async move {
        let (mut bytes, mut read) = (vec![0; 16 * 1024], 0);
        while let Ok(more @ 1..) = answers.read(&mut bytes).await {
            read += more;
        }
        read
    };
    let both = async { tokio::join!(write, read).1 };
    let read = tokio::time::timeout(Duration::from_secs(20), both).await;
    read.expect("the relay closes the connection")
}

async fn flooded(flooding: Vec<u8>, least: usize) {
    let mut trial = Trial::start(&[]).await;
    let address = trial.address();
    let attack = async move {
        for _ in 0..10 {
            // Answers in addition to the relay's settings and window.
            let answered = flood(address, flooding.clone(), 100_000).await;
            assert!(answered <= 300 * least, "{answered} bytes of answers");
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
    let floods = figure(trial.admin(), "reveille_connections_flooding_total").await;
    assert_eq!(floods, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ping_flood_is_disconnected() {
    flooded(frame(PING, 0, 0, &[0; 8]), 17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settings_flood_is_disconnected() {
    flooded(frame(SETTINGS, 0, 0, &[]), 9).await;
}

#[tokio::test]
async fn a_peer_with_occasional_pings_is_kept() {
    let relay = crate::binary::Binary::serve().await;
    let mut peer = RawPeer::greeting(relay.address().parse().expect("an address")).await;
    for _ in 0..190 {
        let ping = frame(PING, 0, 0, &[0; 8]);
        peer.0.write_all(&ping).await.expect("kept");
    }
    assert!(!peer.is_closed_within(Duration::from_millis(500)).await);
}

/// Floods with frames that the relay does not answer, repeatedly from three concurrent connections,
/// for some seconds.
async fn flooded_in_silence(flooding: Vec<u8>) {
    let mut trial = Trial::start(&[]).await;
    let address = trial.address();
    let attack = async move {
        let end = Instant::now() + Duration::from_secs(6);
        let mut attackers = JoinSet::new();
        for _ in 0..3 {
            let flooding = flooding.clone();
            attackers.spawn(async move {
                while Instant::now() < end {
                    let peer = RawPeer::greeting(address).await;
                    silent_flood(peer, &flooding).await;
                    // Reconnects soon; the test does not measure the rate of connections.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            });
        }
        attackers.join_all().await;
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
    let floods = figure(trial.admin(), "reveille_connections_flooding_total").await;
    assert!(floods >= 3, "{floods}");
}

/// Opens a stream and sends a frame on it repeatedly, until the relay closes the connection.
async fn silent_flood(mut peer: RawPeer, flooding: &[u8]) {
    peer.open(1, "/reveille.v1.Relay/NotifyStream").await;
    let many = flooding.repeat(64 * 1024 / flooding.len());
    for written in 0..256 {
        if peer.0.write_all(&many).await.is_err() {
            return;
        }
        assert!(written < 200, "no end of the flood");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_window_updates_is_disconnected() {
    flooded_in_silence(frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_priorities_is_disconnected() {
    flooded_in_silence(frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_unknown_frames_is_disconnected() {
    flooded_in_silence(frame(0x55, 0, 0, &[])).await;
}

#[tokio::test]
async fn a_peer_that_widens_its_windows_for_each_frame_and_resets_each_stream_is_kept() {
    const STREAMS: u32 = 5_000;
    let relay = crate::binary::Binary::serve().await;
    let mut peer = RawPeer::greeting(relay.address().parse().expect("an address")).await;
    peer.0
        .write_all(&settings(4, 1 << 20))
        .await
        .expect("taken");
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        peer.open(stream, "/grpc.health.v1.Health/Watch").await;
        let request = frame(DATA, END_STREAM, stream, &[0; 5]);
        peer.0.write_all(&request).await.expect("kept");
        // The answer, in its one DATA frame.
        while peer.next_frame().await.0 != DATA {}
        let update = |of| frame(WINDOW_UPDATE, 0, of, &[0, 0, 0, 7]);
        let reset = frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
        let all = [update(0), update(stream), reset].concat();
        peer.0.write_all(&all).await.expect("kept");
    }
    assert!(!peer.is_closed_within(Duration::from_millis(500)).await);
}
