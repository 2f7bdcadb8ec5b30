//! Tests against Azurite, and against scripted servers for answers that Azurite never gives.

mod faults;
mod restart;

use super::*;
use crate::{
    azurite::{ACCOUNT, KEY, azurite},
    testing::queue_contract as contract,
};

fn account() -> StorageAccount {
    let text = azurite().connection_string();
    StorageAccount::from_connection_string(&text).expect("its own connection string")
}

fn queue(name: &str) -> AzureQueue {
    AzureQueue::open(&account(), name, MessageEncoding::Base64).expect("a queue")
}

fn text_queue(name: &str) -> AzureQueue {
    AzureQueue::open(&account(), name, MessageEncoding::Text).expect("a queue")
}

/// Waits until Azurite has answered this many requests for a queue; returns them.
async fn requests(name: &str, count: usize) -> Vec<String> {
    let path = format!("/{ACCOUNT}/{name}");
    loop {
        let mut requests = azurite().requests();
        requests.retain(|request| request.contains(&path));
        assert!(requests.len() <= count, "{requests:#?}");
        if requests.len() == count {
            return requests;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[track_caller]
fn shows_no_secret(shown: &str) {
    for secret in [&KEY[..20], "sig=", "SharedKey", "popreceipt"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

/// Shows an error with all of its causes.
fn shown(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    text
}

#[tokio::test]
async fn it_keeps_the_contract() {
    contract::check(&queue("contract")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_contract_among_many() {
    let queues = [(); 2].map(|()| Arc::new(queue("races")) as Arc<dyn WorkQueue>);
    contract::check_races(&queues).await;
}

#[tokio::test]
async fn text_is_put_and_returned_unchanged() {
    let queue = text_queue("text");
    queue.create().await.expect("create");
    let largest = "é".repeat(queue.limits().body / 2);
    let bodies = [
        "<&>\"'",
        "",
        " ",
        " a\tb\n ",
        "]]>",
        "\r",
        "a\r\nb\r\n",
        "\u{1F600}",
    ];
    for body in bodies.into_iter().chain([&*largest]) {
        let put = queue.put(vec![NewMessage::new(body.to_owned())]).await;
        put.expect("put");
        let got = queue.get(1, WEEK).await.expect("get").pop().expect("one");
        assert_eq!(got.body, body, "{} bytes", body.len());
        queue.delete(&got.receipt).await.expect("delete");
    }
    let bad = ["kept back", "\u{1b}"].map(NewMessage::new).to_vec();
    let error = queue.put(bad).await.expect_err("a control character");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(queue.depth().await.expect("depth"), 0, "none of them");
}

#[tokio::test]
async fn a_base64_queue_reads_plain_text_of_other_programs() {
    let (text, base64) = (text_queue("others"), queue("others"));
    text.create().await.expect("create");
    let put = text.put(vec![NewMessage::new("{\"order\": 7}")]).await;
    put.expect("put");
    let peeked = base64.peek(1).await.expect("peek");
    assert_eq!(peeked[0].body, "{\"order\": 7}");
    let got = base64.get(1, WEEK).await.expect("get");
    assert_eq!(got[0].body, "{\"order\": 7}");
    base64.put(vec![NewMessage::new("hi")]).await.expect("put");
    let got = text.get(1, WEEK).await.expect("get");
    assert_eq!(got[0].body, "aGk=", "the text that other programs read");
}

#[tokio::test]
async fn each_call_is_one_request_in_whole_seconds() {
    let queue = queue("requests");
    queue.create().await.expect("create");
    let short = Duration::from_millis(1100);
    let messages = vec![NewMessage::new("a"), NewMessage::new("b").after(short)];
    let ids = queue.put(messages).await.expect("put");
    assert_eq!(ids.len(), 2);
    let got = queue.get(usize::MAX, short).await.expect("get");
    assert_eq!(got[0].id, ids[0], "the second is delayed");
    let renewed = queue.renew(&got[0].receipt, short).await.expect("renew");
    queue
        .release(&renewed, Duration::ZERO)
        .await
        .expect("release");
    queue.depth().await.expect("depth");
    queue.peek(3).await.expect("peek");
    queue.purge().await.expect("purge");
    let mut requests = requests("requests", 9).await;
    // The two puts are sent at the same time.
    requests[1..3].sort();
    let at = format!("/{ACCOUNT}/requests");
    let message = format!("{at}/messages/{}?popreceipt=", ids[0]);
    for (request, start, end) in [
        (0, format!("PUT {at} 201"), ""),
        (
            1,
            format!("POST {at}/messages?messagettl=-1&visibilitytimeout=0"),
            " 201",
        ),
        (
            2,
            format!("POST {at}/messages?messagettl=-1&visibilitytimeout=2"),
            " 201",
        ),
        (
            3,
            format!("GET {at}/messages?numofmessages=32&visibilitytimeout=2"),
            " 200",
        ),
        (4, format!("PUT {message}"), "&visibilitytimeout=2 204"),
        (5, format!("PUT {message}"), "&visibilitytimeout=0 204"),
        (6, format!("GET {at}?comp=metadata"), " 200"),
        (
            7,
            format!("GET {at}/messages?numofmessages=3&peekonly=true"),
            " 200",
        ),
        (8, format!("DELETE {at}/messages"), " 204"),
    ] {
        let request = &requests[request];
        assert!(request.starts_with(&start), "{start}: {requests:#?}");
        assert!(request.ends_with(end), "{end}: {requests:#?}");
    }
}

#[tokio::test]
async fn a_wrong_key_is_denied_in_one_line_without_it() {
    let wrong = azurite().connection_string().replace("Eby8", "AAAA");
    let queue = AzureQueue::from_connection_string(&wrong, "denied");
    let queue = queue.expect("opening sends nothing");
    let error = queue.create().await.expect_err("another key");
    assert_eq!(error.kind(), ErrorKind::Denied);
    let words = "queue `azure://devstoreaccount1/denied` refuses the credential";
    assert!(error.message().starts_with(words), "{error}");
    let shown = shown(&error);
    assert!(shown.contains("403"), "{shown}");
    shows_no_secret(&shown);
    assert!(!shown.contains(&KEY[4..20]), "{shown}");
    let requests = requests("denied", 1).await;
    assert_eq!(requests.len(), 1, "no second attempt");
}

#[test]
fn queues_of_two_emulators_have_listeners_of_two_groups() {
    let group = |connection: &str| {
        let queue = AzureQueue::from_connection_string(connection, "orders").expect("a queue");
        queue.listener_group()
    };
    let here = group("UseDevelopmentStorage=true");
    assert_eq!(here, group("UseDevelopmentStorage=true"));
    let there = "QueueEndpoint=http://192.0.2.7:10001/devstoreaccount1;AccountKey=a2V5";
    assert_ne!(here, group(there));
    let cloud = "AccountName=acct;AccountKey=a2V5";
    assert_eq!(group(cloud).as_str(), "orders");
}

#[tokio::test]
async fn a_shared_access_signature_is_a_credential() {
    let signed = format!(
        "QueueEndpoint={};SharedAccessSignature={}",
        azurite().queue_endpoint(),
        crate::backend::azure::signature_of("q")
    );
    let queue = AzureQueue::from_connection_string(&signed, "signed").expect("a queue");
    assert!(queue.create().await.expect("create"));
    queue.put(vec![NewMessage::new("a")]).await.expect("put");
    let got = queue.get(1, Duration::from_secs(9)).await.expect("get");
    let receipt = queue.renew(&got[0].receipt, WEEK).await.expect("renew");
    queue.delete(&receipt).await.expect("delete");
    assert_eq!(queue.depth().await.expect("depth"), 0);
    let error = queue.delete(&receipt).await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    shows_no_secret(&format!("{} {queue:?} {queue}", shown(&error)));
}

#[tokio::test]
async fn the_error_for_a_missing_queue_names_it_and_the_remedy() {
    let (here, missing) = (queue("here"), queue("missing"));
    here.create().await.expect("create");
    here.put(vec![NewMessage::new("a")]).await.expect("put");
    let got = here.get(1, WEEK).await.expect("get");
    let receipt = &got[0].receipt;
    for (call, error) in [
        ("put", missing.put(vec![NewMessage::new("a")]).await.err()),
        ("get", missing.get(1, WEEK).await.err()),
        ("peek", missing.peek(1).await.err()),
        ("delete", missing.delete(receipt).await.err()),
        ("renew", missing.renew(receipt, WEEK).await.err()),
        ("release", missing.release(receipt, WEEK).await.err()),
        ("depth", missing.depth().await.err()),
        ("purge", missing.purge().await.err()),
    ] {
        let error = error.expect(call);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{call}: {error}");
        let words = "queue `azure://devstoreaccount1/missing` does not exist: create it first";
        assert!(error.message().starts_with(words), "{call}: {error}");
        shows_no_secret(&shown(&error));
    }
}

#[test]
fn seconds_are_rounded_up() {
    for (time, whole) in [
        (Duration::ZERO, 0),
        (Duration::from_millis(1), 1),
        (Duration::from_secs(1), 1),
        (Duration::from_nanos(1_000_000_001), 2),
        (WEEK, 604_800),
        (Duration::MAX, i32::MAX),
    ] {
        assert_eq!(seconds(time), whole, "{time:?}");
    }
}
