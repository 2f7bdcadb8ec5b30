//! No message is lost when the service is killed and restarted.

use std::collections::HashSet;

use super::super::*;
use crate::{
    azurite::Azurite,
    queue::{RetryConfig, Retrying},
};

fn names(prefix: &str) -> HashSet<String> {
    (0..60).map(|number| format!("{prefix}{number}")).collect()
}

async fn put_all(queue: &Retrying, bodies: &HashSet<String>) {
    for body in bodies {
        let put = queue.put(vec![NewMessage::new(body.clone())]).await;
        put.expect("put in the end");
    }
}

/// Gets and deletes until all of these messages were seen; publishes the count after each change.
async fn handle_all(queue: &Retrying, mut missing: HashSet<String>, left: impl Fn(usize)) {
    while !missing.is_empty() {
        // The retry wrapper does not repeat a get that may have taken effect.
        let got = match queue.get(4, Duration::from_secs(2)).await {
            Err(error) if error.is_retryable() => Vec::new(),
            got => got.expect("get"),
        };
        if got.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for message in got {
            match queue.delete(&message.receipt).await {
                Ok(()) => {}
                // The message's time-out ended before the service was back.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => panic!("{error}"),
            }
            missing.remove(&*String::from_utf8_lossy(&message.body));
        }
        left(missing.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_in_mid_flight_loses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut azurite = Azurite::on_disk(directory.path());
    let queue = AzureQueue::from_connection_string(&azurite.connection_string(), "mid-flight");
    let config = RetryConfig {
        tries: 200,
        max: Duration::from_millis(300),
        ..RetryConfig::default()
    };
    let queue = Retrying::new(Arc::new(queue.expect("a queue")), config);
    queue.create().await.expect("create");
    let (early, late) = (names("early"), names("late"));
    put_all(&queue, &early).await;
    while !azurite.has_written_down(early.len()) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let (progress, mut left) = tokio::sync::watch::channel(usize::MAX);
    let all = &early | &late;
    let handling = handle_all(&queue, all, |missing| {
        progress.send_replace(missing);
    });
    let breaking = async {
        let some = early.len() + late.len() - 20;
        left.wait_for(|left| *left <= some)
            .await
            .expect("it handles");
        azurite.kill();
        let putting = put_all(&queue, &late);
        let starting = tokio::task::spawn_blocking(move || {
            azurite.restart();
            azurite
        });
        tokio::join!(putting, starting).1.expect("it starts again")
    };
    let both = async { tokio::join!(handling, breaking) };
    let time = Duration::from_secs(90);
    let ended = tokio::time::timeout(time, both).await;
    ended.expect("all of them are handled");
}
