//! Answers that Azurite never gives, from a scripted server.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{super::*, shown, shows_no_secret};
use crate::{
    azurite::{ACCOUNT, KEY, azurite},
    proxy::{Fault, Proxy},
    queue::{RetryConfig, Retrying},
};

/// Answers one request per connection with the next scripted answer, then no more.
struct Server {
    endpoint: String,
    asked: Arc<AtomicUsize>,
    tasks: tokio::task::JoinSet<()>,
}

impl Server {
    async fn start(answers: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}/{ACCOUNT}", listener.local_addr().expect("bound"));
        let asked = Arc::new(AtomicUsize::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        let mut answers: VecDeque<_> = answers.iter().copied().collect();
        let count = Arc::clone(&asked);
        tasks.spawn(async move {
            let mut silent = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("it listens");
                let mut bytes = [0; 4096];
                let _ = stream.read(&mut bytes).await.expect("a request");
                count.fetch_add(1, Ordering::AcqRel);
                match answers.pop_front() {
                    Some(answer) => {
                        let answer = format!(
                            "HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                        );
                        stream.write_all(answer.as_bytes()).await.expect("sent");
                    }
                    None => silent.push(stream),
                }
            }
        });
        Self {
            endpoint,
            asked,
            tasks,
        }
    }

    /// Opens queues on this server, one with each kind of credential.
    fn queues(&self) -> [AzureQueue; 2] {
        let by_key = format!("AccountKey={KEY}");
        let signature = crate::backend::azure::signature_of("q");
        let by_signature = format!("SharedAccessSignature={signature}");
        [by_key, by_signature].map(|credential| {
            let text = format!("QueueEndpoint={};{credential}", self.endpoint);
            let account = StorageAccount::from_connection_string(&text).expect("an account");
            let limit = Duration::from_millis(300);
            let queue = AzureQueue::open_with(&account, "faulty", MessageEncoding::Base64, limit);
            queue.expect("a queue")
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }
}

#[tokio::test]
async fn a_temporary_fault_is_returned_at_once_as_retryable() {
    for (answer, kind) in [
        (
            "503 Busy\r\nx-ms-error-code: ServerBusy\r\nretry-after: 7",
            ErrorKind::Exhausted,
        ),
        ("429 Slow down\r\nretry-after: 7", ErrorKind::Exhausted),
        (
            "409 Conflict\r\nx-ms-error-code: QueueBeingDeleted\r\nretry-after: 7",
            ErrorKind::Unavailable,
        ),
    ] {
        let server = Server::start(&[answer, answer]).await;
        for queue in server.queues() {
            let error = queue.get(1, WEEK).await.expect_err(answer);
            assert_eq!(error.kind(), kind, "{answer}");
            assert!(error.is_retryable());
            assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
            shows_no_secret(&shown(&error));
        }
        assert_eq!(server.asked(), 2, "each was asked once");
    }
}

#[tokio::test]
async fn a_large_queue_is_cleared_in_several_steps() {
    let step = "500 Internal\r\nx-ms-error-code: OperationTimedOut";
    let server = Server::start(&[step, step, "204 No Content"]).await;
    server.queues()[0].purge().await.expect("in the end");
    assert_eq!(server.asked(), 3);
    let server = Server::start(&[step; 20]).await;
    let error = server.queues()[0].purge().await.expect_err("never");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(server.asked(), PURGE_ATTEMPTS);
}

#[tokio::test]
async fn a_silent_server_is_a_time_out() {
    let server = Server::start(&[]).await;
    for queue in server.queues() {
        let error = queue.depth().await.expect_err("silence");
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let words = "queue `azure://devstoreaccount1/faulty` did not answer in time";
        assert_eq!(error.message(), words);
        shows_no_secret(&shown(&error));
    }
}

#[tokio::test]
async fn the_error_for_an_unreachable_server_has_the_cause() {
    let mut server = Server::start(&[]).await;
    server.tasks.shutdown().await;
    for queue in server.queues() {
        let error = queue.depth().await.expect_err("no server");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let words = "queue `azure://devstoreaccount1/faulty` cannot be reached";
        assert_eq!(error.message(), words);
        let shown = shown(&error);
        assert!(shown.contains("refused"), "{shown}");
        shows_no_secret(&shown);
    }
}

#[tokio::test]
async fn both_codes_for_a_missing_message_are_a_conflict() {
    for answer in [
        "404 Not found\r\nx-ms-error-code: MessageNotFound",
        "400 Bad request\r\nx-ms-error-code: PopReceiptMismatch",
    ] {
        let server = Server::start(&[answer; 3]).await;
        let queue = &server.queues()[0];
        let receipt = Receipt::new(MessageId::new("1"), "token");
        for outcome in [
            queue.delete(&receipt).await,
            queue.renew(&receipt, WEEK).await.map(|_| ()),
            queue.release(&receipt, WEEK).await,
        ] {
            let error = outcome.expect_err(answer);
            assert_eq!(error.kind(), ErrorKind::Conflict, "{answer}: {error}");
        }
    }
}

/// Opens a queue of Azurite behind a proxy, with short waits between attempts.
fn behind(proxy: &Proxy, name: &str) -> Retrying {
    let endpoint = format!("http://127.0.0.1:{}/{ACCOUNT}", proxy.port());
    let text = format!("QueueEndpoint={endpoint};AccountKey={KEY}");
    let queue = AzureQueue::from_connection_string(&text, name).expect("a queue");
    let retry = RetryConfig {
        base: Duration::from_millis(1),
        ..RetryConfig::default()
    };
    Retrying::new(Arc::new(queue), retry)
}

async fn bodies(queue: &impl WorkQueue) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let got = queue.get(32, WEEK).await.expect("get");
        if got.is_empty() {
            bodies.sort();
            return bodies;
        }
        let text = |message: &Message| String::from_utf8_lossy(&message.body).into_owned();
        bodies.extend(got.iter().map(text));
    }
}

#[tokio::test]
async fn only_the_refused_messages_of_a_put_are_sent_again() {
    let proxy = Proxy::start(azurite().queue_port(), 7);
    let queue = behind(&proxy, "turned-away");
    queue.create().await.expect("create");
    for _ in 0..5 {
        proxy.plan("POST", "messages", Fault::Answer(503));
    }
    let all: Vec<_> = (10..50).map(|number| number.to_string()).collect();
    let messages = all.iter().cloned().map(NewMessage::new).collect();
    let ids = queue.put(messages).await.expect("put");
    assert_eq!(ids.len(), 40);
    assert_eq!(proxy.count(Fault::Answer(503)), 5);
    assert_eq!(bodies(&queue).await, all, "each of them once");
}

#[tokio::test]
async fn only_a_message_without_an_answer_may_be_put_twice() {
    let proxy = Proxy::start(azurite().queue_port(), 7);
    let queue = behind(&proxy, "no-answer");
    queue.create().await.expect("create");
    proxy.plan("POST", "messages", Fault::CutAfter);
    let messages: Vec<_> = (10..50).map(|number| number.to_string()).collect();
    let put = messages.iter().cloned().map(NewMessage::new).collect();
    assert_eq!(queue.put(put).await.expect("put").len(), 40);
    let mut all = bodies(&queue).await;
    assert_eq!(all.len(), 41);
    all.dedup();
    assert_eq!(all, messages);
}

#[tokio::test]
async fn a_refused_get_is_repeated_and_one_without_an_answer_is_not() {
    let proxy = Proxy::start(azurite().queue_port(), 7);
    let queue = behind(&proxy, "gets");
    queue.create().await.expect("create");
    queue.put(vec![NewMessage::new("a")]).await.expect("put");
    proxy.plan("GET", "messages", Fault::Answer(503));
    proxy.plan("GET", "messages", Fault::CutAfter);
    let error = queue.get(1, WEEK).await.expect_err("no answer");
    assert!(!error.kind().is_refusal(), "{error:?}");
    assert!(queue.get(1, WEEK).await.expect("get").is_empty(), "hidden");
    assert_eq!(proxy.seen().len(), 5);
}
