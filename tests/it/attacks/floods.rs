//! Floods of frames that HTTP/2 allows. They cost the relay processor time, and no other connection waits
//! for it.

use std::time::Duration;

use super::{
    frames::{PING, PRIORITY, RawPeer, SETTINGS, WINDOW_UPDATE, frame, repeatedly},
    harness::Trial,
    target::{Scheme, plain_and_tls},
};

const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
/// Time of each flood.
const FLOOD: Duration = Duration::from_secs(1);
/// Bytes that a flooding connection sends.
const BYTES: usize = 4 * 1024 * 1024;

plain_and_tls!(floods_of_frames_delay_no_other_connection);

async fn floods_of_frames_delay_no_other_connection(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    for flooding in [
        frame(PING, 0, 0, &[0; 8]),
        frame(SETTINGS, 0, 0, &[]),
        frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 16]),
        frame(0x55, 0, 0, &[]),
    ] {
        let target = trial.target();
        let attack = async move {
            repeatedly(FLOOD, &target, move |mut peer: RawPeer| {
                let many = flooding.repeat(64 * 1024 / flooding.len());
                async move {
                    peer.open(1, NOTIFY_STREAM).await;
                    peer.flood(&many, BYTES / many.len()).await;
                }
            })
            .await
        };
        let (_, damage) = trial.under(attack).await;
        damage.is_within(8 * 1024);
    }
}
