//! Attacks on the handshake of TLS.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::Instant,
};

use super::{
    frames::{PREFACE, RawPeer, SETTINGS, frame},
    harness::Trial,
    target::Scheme,
};
use crate::support::figure;

/// The start of a ClientHello that announces 200 bytes.
const HALF_HELLO: &[u8] = &[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
const SPAN: Duration = Duration::from_secs(1);
const FAILED: &str = "reveille_connections_without_tls_total";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_handshakes_do_not_block_a_regular_client() {
    let mut trial = Trial::start(Scheme::Tls, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut peers = Vec::new();
        for number in 0..500 {
            let mut peer = TcpStream::connect(target.address())
                .await
                .expect("it listens");
            // Some peers send nothing, some half a message, and some its first byte.
            let sent = [0, HALF_HELLO.len(), 1][number % 3];
            // A newer connection may have displaced it.
            let _ = peer.write_all(&HALF_HELLO[..sent]).await;
            peers.push(peer);
        }
        let ready = target.client().ready(Duration::from_secs(2)).await;
        ready.expect("a regular client is served at once");
        tokio::time::sleep(SPAN).await;
        drop(peers);
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(16 * 1024);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_text_on_the_port_of_tls_is_closed_at_once() {
    let mut trial = Trial::start(Scheme::Tls, &[]).await;
    let target = trial.target();
    let attack = async move {
        let greeting = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        for round in 0..100 {
            for garbage in [&greeting[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 4096]] {
                let mut peer = TcpStream::connect(target.address())
                    .await
                    .expect("it listens");
                // The relay may close it before all is written.
                let _ = peer.write_all(garbage).await;
                let mut peer = RawPeer(Box::new(peer));
                assert!(
                    peer.is_closed_within(Duration::from_secs(4)).await,
                    "{round}"
                );
            }
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
    assert_eq!(figure(trial.admin(), FAILED).await, 300);
}

/// Node's TLS can ask for a renegotiation; rustls cannot. All connections are open at the same time:
/// the relay refuses with a warning, which some versions of Node wait upon until the relay closes the
/// connection.
const RENEGOTIATE: &str = "
const [ca, port, count] = process.argv.slice(1);
const options = { ca: require('fs').readFileSync(ca), port, host: '127.0.0.1',
  servername: 'localhost', maxVersion: 'TLSv1.2', ALPNProtocols: ['h2'] };
let refused = 0;
for (let at = 0; at < Number(count); at += 1) {
  let ended = false;
  const end = () => {
    if (ended) return;
    ended = true;
    socket.destroy();
    refused += 1;
    if (refused === Number(count)) console.log(`${refused} refused`);
  };
  const socket = require('tls').connect(options, () => {
    socket.renegotiate({}, (error) => { error ? end() : console.log('renegotiated'); });
  });
  socket.on('error', end);
  socket.on('close', end);
}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renegotiations_are_refused() {
    let mut trial = Trial::start(Scheme::Tls, &[]).await;
    let mut node = tokio::process::Command::new("node");
    node.args(["-e", RENEGOTIATE])
        .arg(trial.certificates().ca())
        .args([trial.target().address().port().to_string(), "50".to_owned()]);
    let attack = async move { crate::python::run(&mut node, "node").await };
    let (output, damage) = trial.under(attack).await;
    assert_eq!(output.trim(), "50 refused");
    damage.is_within(8 * 1024);
}

/// TLS 1.3 has no renegotiation, but a peer may demand new keys, and the relay must answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_key_updates_is_disconnected() {
    let mut trial = Trial::start(Scheme::Tls, &[]).await;
    let target = trial.target();
    let updates = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&updates);
    let attack = async move {
        for _ in 0..20 {
            let stream = TcpStream::connect(target.address())
                .await
                .expect("it listens");
            let mut stream = target.handshake(stream).await.expect("a handshake");
            stream.write_all(PREFACE).await.expect("taken");
            let flood = async {
                for _ in 0..10_000 {
                    let session = stream.get_mut().1;
                    if session.refresh_traffic_keys().is_err() || stream.flush().await.is_err() {
                        break;
                    }
                    counted.fetch_add(1, Ordering::Relaxed);
                    // Lets the session read what the relay answers, also that it has ended.
                    let mut bytes = [0; 1024];
                    let read = stream.read(&mut bytes);
                    let read = tokio::time::timeout(Duration::from_millis(1), read).await;
                    if matches!(read, Ok(Ok(0) | Err(_))) {
                        break;
                    }
                }
            };
            flood.await;
        }
    };
    let ((), damage) = trial.under(attack).await;
    let updates = updates.load(Ordering::Relaxed);
    assert!(updates < 20 * 1_000, "{updates} updates in 20 connections");
    damage.is_within(8 * 1024);
}
