//! Frames that cost the relay an answer each.

use std::{net::SocketAddr, time::Duration};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    frames::{PING, RawPeer, SETTINGS, frame},
    harness::Trial,
};
use crate::support::figure;

/// Sends a frame again and again and reads the answers; returns how many bytes of them came until
/// the relay closed the connection.
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
        // Held open: it is the relay that closes.
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
    read.expect("the relay sends it away")
}

async fn flooded(flooding: Vec<u8>, least: usize) {
    let mut trial = Trial::start(&[]).await;
    let address = trial.address();
    let attack = async move {
        for _ in 0..10 {
            // Answers beside the relay's own settings and window.
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
async fn a_ping_flood_is_sent_away() {
    flooded(frame(PING, 0, 0, &[0; 8]), 17).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settings_flood_is_sent_away() {
    flooded(frame(SETTINGS, 0, 0, &[]), 9).await;
}

#[tokio::test]
async fn a_peer_that_pings_now_and_then_is_kept() {
    let relay = crate::binary::Binary::serve().await;
    let mut peer = RawPeer::greeting(relay.address().parse().expect("an address")).await;
    for _ in 0..190 {
        let ping = frame(PING, 0, 0, &[0; 8]);
        peer.0.write_all(&ping).await.expect("kept");
    }
    assert!(!peer.is_closed_within(Duration::from_millis(500)).await);
}
