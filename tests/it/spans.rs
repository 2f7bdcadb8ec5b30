//! Spans: one subscriber, and one message, can be followed through a log.

use std::sync::Arc;

use reveille::{
    Client, Report, ReportState, WakeStream as _,
    listener::{Delivery, HandlerResult, Listener},
    queue::{MemoryQueue, NewMessage, WorkQueue as _},
};
use serde_json::Value;

use crate::{
    binary::Binary,
    support::{Log, listening, log_to, queue, until, woken},
};

/// Returns the messages of the lines with this field in one of their spans, and their peers.
fn followed(log: &str, span: &str, field: &str, value: &str) -> Vec<(String, String)> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_span = |line: &Value| {
        let spans = line["spans"].as_array()?;
        let find = |name: &str| spans.iter().find(|one| one["name"] == name);
        (find(span)?[field] == value).then(|| {
            let peer = find("connection").map(|one| one["peer"].to_string());
            (
                line["message"].as_str().unwrap_or_default().to_owned(),
                peer.unwrap_or_default(),
            )
        })
    };
    lines.filter_map(|line| of_span(&line)).collect()
}

#[tokio::test]
async fn one_subscriber_can_be_followed_through_the_relays_log() {
    let debug = ("RUST_LOG".to_owned(), "reveille=debug".to_owned());
    let relay = Binary::serve_with(&["--log", "json"], &[debug]).await;
    let client = Client::new(&relay.url()).expect("a URL");
    let mut wakes = client
        .subscribe(listening("worker-1", &["acct/orders"]))
        .expect("options");
    let mut others = client
        .subscribe(listening("worker-2", &["acct/orders"]))
        .expect("options");
    for wakes in [&mut wakes, &mut others] {
        woken(wakes).await;
    }
    let welcome = wakes.welcome().expect("a stream");
    let id = welcome.subscription_id.to_string();
    let busy = Report {
        state: ReportState::Busy,
        ..Report::new(queue("acct/orders"))
    };
    wakes.report(busy).await.expect("taken");
    drop((wakes, others));
    until("the end of both streams", async || {
        relay.log().matches("the stream has ended").count() == 2
    })
    .await;

    let log = relay.log();
    let lines = followed(&log, "stream", "listener", "worker-1");
    let told: Vec<_> = lines.iter().map(|(told, _)| told.as_str()).collect();
    assert_eq!(
        told,
        [
            "a stream is opened",
            "a Wake is sent",
            "the stream has ended"
        ],
        "{log}"
    );
    assert_eq!(
        followed(&log, "stream", "subscription", &id),
        lines,
        "{log}"
    );
    let peer = &lines[0].1;
    assert!(
        peer.contains("127.0.0.1:") && lines.iter().all(|line| line.1 == *peer),
        "{lines:?}"
    );
    let report = log
        .lines()
        .find(|line| line.contains("a report") && line.contains(&id));
    assert!(
        report.is_some_and(|line| line.contains("acct/orders")),
        "{log}"
    );
}

#[tokio::test]
async fn one_message_can_be_followed_through_a_listeners_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("reveille=debug,it=info")
        .json()
        .flatten_event(true)
        .with_writer(move || writer.clone())
        .finish();
    let _logs = log_to(subscriber);

    let orders = Arc::new(MemoryQueue::new(queue("acct/orders")));
    let put = orders.put(vec![NewMessage::new("first"), NewMessage::new("second")]);
    let ids = put.await.expect("put");
    let listener = Listener::builder(orders).start(|delivery: Delivery| async move {
        tracing::info!("from the handler");
        let first = delivery.message.body == "first" && delivery.message.dequeue_count == 1;
        if first {
            return Err("not now".into());
        }
        HandlerResult::Ok(())
    });
    let listener = listener.await.expect("started");
    until("both messages are deleted", async || {
        log.text().matches("the message is deleted").count() == 2
    })
    .await;
    listener.shutdown().await;

    let log = log.text();
    let tried = [
        "the handler begins",
        "from the handler",
        "the handler has ended",
    ];
    let first = [
        &tried[..],
        &[
            "a call failed; the listener continues",
            "the message is released",
        ],
        &tried,
        &["the message is deleted"],
    ];
    let second = [&tried[..], &["the message is deleted"]];
    for (id, expected) in [(&ids[0], first.concat()), (&ids[1], second.concat())] {
        let lines = followed(&log, "message", "id", id.as_str());
        let told: Vec<_> = lines.iter().map(|(told, _)| told.as_str()).collect();
        assert_eq!(told, expected, "{log}");
    }
}
