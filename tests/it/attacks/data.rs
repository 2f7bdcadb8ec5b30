//! DATA frames that carry almost nothing, and messages that would grow when they are unpacked.

use std::{io::Write as _, time::Duration};

use flate2::{Compression, write::GzEncoder};
use http::Request;

use super::{
    frames::{DATA, RawPeer, frame, repeatedly},
    harness::Trial,
    peer::{Peer, Unfinished, ended},
    target::{Scheme, plain_and_tls},
};
use crate::support::within;

const NOTIFY_STREAM: &str = "/reveille.v1.Relay/NotifyStream";
const SPAN: Duration = Duration::from_secs(1);

plain_and_tls!(
    a_flood_of_empty_data_is_disconnected,
    a_compressed_message_is_refused_and_not_unpacked,
);

async fn a_flood_of_empty_data_is_disconnected(scheme: Scheme) {
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        repeatedly(SPAN, &target, |mut peer: RawPeer| async move {
            peer.open(1, NOTIFY_STREAM).await;
            let empty = frame(DATA, 0, 1, &[]).repeat(1_000);
            peer.closed_after(std::iter::repeat_n(empty, 1_000)).await;
        })
        .await
    };
    let (_, damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}

/// 64 MiB of zeros as one gRPC message of 64 KiB with the flag of compression.
fn bomb() -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..64 {
        encoder.write_all(&[0; 1024 * 1024]).expect("memory");
    }
    let packed = encoder.finish().expect("memory");
    let mut message = Unfinished::prefix(packed.len());
    message[0] = 1;
    message.extend(packed);
    message
}

async fn a_compressed_message_is_refused_and_not_unpacked(scheme: Scheme) {
    let bomb = bomb();
    let mut trial = Trial::start(scheme, &[]).await;
    let target = trial.target();
    let attack = async move {
        let peer = Peer::connect(&target, 64 * 1024).await;
        for number in 0..200 {
            let mut request = Request::post("http://relay/reveille.v1.Relay/Notify")
                .header("content-type", "application/grpc")
                .header("te", "trailers");
            // Without a name of the compression the flag is an error (INTERNAL).
            let code = match number % 2 {
                0 => {
                    request = request.header("grpc-encoding", "gzip");
                    "12"
                }
                _ => "13",
            };
            let body = Unfinished::ending(bomb.clone());
            let request = request.body(body).expect("a request");
            let answer = within("an answer", peer.send(request)).await;
            let (status, message) = ended(answer.expect("answered")).await;
            assert_eq!(status, code, "{message}");
        }
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(8 * 1024);
}
