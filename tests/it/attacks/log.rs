//! A log that nobody reads.

use reveille::{Client, Notification};

use super::harness::Trial;
use crate::support::{figure, get, queue, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_is_not_read_stops_nothing() {
    // Lines of every frame: far more than a pipe holds.
    let mut trial = Trial::with_stalled_log("info,h2=trace").await;
    let (url, admin) = (trial.relay.url(), trial.admin());
    let attack = async move {
        let publisher = Client::new(&url).expect("a URL").publisher("loud");
        for round in 0..200 {
            let name = |at| Notification::new(queue(&format!("unheard/q{round}-{at}")));
            let names = (0..50).map(name).collect();
            within("counted", publisher.notify_all(names))
                .await
                .expect("counted");
        }
        assert_eq!(get(admin, "/livez").await.0, 200);
        within("health", Client::new(&url).expect("a URL").health())
            .await
            .expect("an answer");
    };
    let ((), damage) = trial.under(attack).await;
    damage.is_within(24 * 1024);
    let dropped = figure(trial.admin(), "reveille_log_lines_dropped_total").await;
    assert!(dropped > 0, "nothing was dropped");
    // And its end does not wait for the reader.
    let status = trial.relay.terminate().await;
    assert_eq!(status.code(), Some(0));
}
