//! Bytes that are no HTTP/2, and frames of wrong lengths.

use std::time::Duration;

use super::{
    frames::{
        CONTINUATION, DATA, HEADERS, PING, PRIORITY, RST_STREAM, RawPeer, SETTINGS, WINDOW_UPDATE,
        frame,
    },
    harness::Trial,
    target::{Scheme, plain_and_tls},
};

/// Less than the deadlines of the relay: it must close the connection because of the bytes.
const AT_ONCE: Duration = Duration::from_secs(4);

plain_and_tls!(
    garbage_is_disconnected_at_once,
    frames_of_wrong_lengths_are_disconnected_at_once,
);

/// Random bytes in place of the preface, and after it.
async fn garbage_is_disconnected_at_once(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let mut random = fastrand::Rng::with_seed(7);
        let mut garbage = vec![0; 64 * 1024];
        for at in 0..60 {
            random.fill(&mut garbage);
            let mut peer = match at % 2 {
                0 => RawPeer::silent(&target).await,
                _ => RawPeer::greeting(&target).await,
            };
            // The relay may close it before all is written.
            let _ = peer.send(&garbage).await;
            assert!(peer.is_closed_within(AT_ONCE).await, "{at}");
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

/// The header of a frame that declares this length.
fn header(kind: u8, length: u32, stream: u32) -> Vec<u8> {
    let mut bytes = frame(kind, 0, stream, &[]);
    bytes[..3].copy_from_slice(&length.to_be_bytes()[1..]);
    bytes
}

/// Frames beyond 16 KiB, of which no byte is sent, and frames whose kind has another length.
async fn frames_of_wrong_lengths_are_disconnected_at_once(scheme: Scheme) {
    let longest = (1 << 24) - 1;
    let mut wrong: Vec<_> = [DATA, HEADERS, CONTINUATION, PING, 0x55]
        .iter()
        .flat_map(|kind| [header(*kind, longest, 1), header(*kind, 16 * 1024 + 1, 1)])
        .collect();
    wrong.extend([
        frame(SETTINGS, 0, 0, &[0; 5]),
        frame(PING, 0, 0, &[0; 7]),
        frame(WINDOW_UPDATE, 0, 0, &[1; 3]),
        frame(RST_STREAM, 0, 1, &[0; 5]),
        frame(PRIORITY, 0, 1, &[0; 4]),
    ]);
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        for _ in 0..5 {
            for bytes in &wrong {
                let mut peer = RawPeer::greeting(&target).await;
                peer.send(bytes).await.expect("taken");
                assert!(peer.is_closed_within(AT_ONCE).await, "{bytes:x?}");
            }
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}
