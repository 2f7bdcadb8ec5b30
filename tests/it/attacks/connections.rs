//! Connections that send nothing, too many of an address, and handshakes. Their deadlines are in
//! `deadlines`.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};

use super::{frames::RawPeer, harness::Trial, target::Scheme};
use crate::support::ready;

/// Time for which silent peers are held.
const HELD: Duration = Duration::from_millis(500);
/// Time of the handshakes.
const SPAN: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_do_not_block_a_regular_one() {
    let mut trial = Trial::start(Scheme::Plain, &["--max-connections", "20"]).await;
    let target = trial.target();
    let attack = async move {
        let mut silent = Vec::new();
        for _ in 0..500 {
            silent.push(RawPeer::silent(&target).await);
        }
        // Within a few round trips, before the deadline of the silent ones.
        let client = target.client();
        let answered = ready(&client, Duration::from_secs(2)).await;
        answered.expect("a regular client is served at once");
        tokio::time::sleep(HELD).await;
        drop(silent);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_an_address_beyond_its_limit_are_closed() {
    const MINE: [u8; 4] = [127, 0, 0, 9];
    let limit = ["--max-connections-per-address", "10"];
    let mut trial = Trial::start(Scheme::Tls, &limit).await;
    let target = trial.target();
    let attack = async move {
        let mut greeted = Vec::new();
        for _ in 0..25 {
            greeted.extend(RawPeer::greeting_from(MINE, &target).await);
        }
        let mut open = 0;
        for peer in &mut greeted {
            open += usize::from(!peer.is_closed_within(Duration::from_millis(20)).await);
        }
        assert_eq!(open, 10);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_handshakes_delays_no_wake_up() {
    let mut trial = Trial::start(Scheme::Tls, &[]).await;
    let target = trial.target();
    let attack = async move {
        let end = Instant::now() + SPAN;
        let mut attackers = JoinSet::new();
        for _ in 0..3 {
            let target = target.clone();
            attackers.spawn(async move {
                let mut handshakes = 0;
                while Instant::now() < end {
                    // Ended without a byte of HTTP/2.
                    drop(target.connect().await);
                    handshakes += 1;
                }
                handshakes
            });
        }
        attackers.join_all().await.into_iter().sum::<usize>()
    };
    let (handshakes, damage) = trial.under(attack).await;
    println!("{handshakes} handshakes");
    damage.is_within(16 * 1024);
}
