//! A log that is not read.

use reveille::Notification;

use super::harness::Trial;
use crate::support::{figure, get, queue, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_log_blocks_nothing() {
    // A line for every frame: far more than a pipe's buffer.
    let mut trial = Trial::with_stalled_log("info,h2=trace").await;
    let (target, admin) = (trial.target(), trial.admin());
    let attack = async move {
        let publisher = target.client().publisher("loud");
        for round in 0..200 {
            let name = |at| Notification::new(queue(&format!("unheard/q{round}-{at}")));
            let names = (0..50).map(name).collect();
            within("counted", publisher.notify_all(names))
                .await
                .expect("counted");
        }
        assert_eq!(get(admin, "/livez").await.0, 200);
        within("health", target.client().not_ready())
            .await
            .expect("an answer");
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(24 * 1024);
    let dropped = figure(trial.admin(), "reveille_log_lines_dropped_total").await;
    assert!(dropped > 0, "no line was dropped");
    // The relay's end does not wait for the reader either.
    let status = trial.relay.terminate().await;
    assert_eq!(status.code(), Some(0));
}
