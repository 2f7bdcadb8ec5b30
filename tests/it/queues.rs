//! The `queue` verbs: reading and writing a queue on the command line.

use std::process::{Output, Stdio};

use reveille::WakeStream;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use crate::{
    binary::{Binary, free_address, reveille, stderr, stdout},
    support::{
        azurite::{ACCOUNT, KEY, azurite},
        listening, until, within, woken,
    },
};

/// A new directory, and the URL of a queue in it.
fn place() -> (TempDir, String) {
    let home = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
    (home, url)
}

async fn queue(home: &TempDir, arguments: &[&str]) -> Output {
    let mut command = reveille(home, &[&["queue"], arguments].concat());
    let output = within("the end", command.output()).await;
    output.expect("it starts")
}

async fn json(home: &TempDir, arguments: &[&str]) -> serde_json::Value {
    let output = queue(home, &[arguments, &["-o", "json"]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

#[tokio::test]
async fn messages_are_put_peeked_got_and_deleted() {
    let (home, url) = place();
    assert_eq!(json(&home, &["create", &url]).await["created"], true);
    assert_eq!(json(&home, &["create", &url]).await["created"], false);
    let put = json(&home, &["put", &url, "first", "second"]).await;
    assert_eq!(
        (&put["messages"], &put["queue"]),
        (&2.into(), &"local/orders".into())
    );
    assert_eq!(
        json(&home, &["peek", &url, "--max", "9"]).await[0]["body"],
        "first"
    );
    let got = json(&home, &["get", &url, "--delete"]).await;
    assert_eq!(
        (&got[0]["body"], &got[0]["dequeue_count"]),
        (&"first".into(), &1.into())
    );
    assert_eq!(json(&home, &["depth", &url]).await["depth"], 1);
    let got = json(&home, &["get", &url, "--visibility-timeout", "1h"]).await;
    assert_eq!(got[0]["body"], "second");
    assert_eq!(
        json(&home, &["get", &url]).await,
        serde_json::json!([]),
        "hidden"
    );
    json(&home, &["purge", &url]).await;
    assert_eq!(json(&home, &["depth", &url]).await["depth"], 0);
    let address = queue(&home, &["address", &url]).await;
    assert_eq!(stdout(&address).trim(), "local/orders");
}

#[tokio::test]
async fn put_creates_a_missing_queue_with_create_only() {
    let (home, url) = place();
    let put = json(&home, &["put", &url, "first", "--create"]).await;
    assert_eq!(
        (&put["created"], &put["messages"]),
        (&true.into(), &1.into())
    );
    let put = json(&home, &["put", &url, "second", "--create"]).await;
    assert_eq!(put["created"], false);
    assert_eq!(json(&home, &["depth", &url]).await["depth"], 2);
    let put = json(&home, &["put", &url, "third"]).await;
    assert_eq!(put["created"], serde_json::Value::Null, "without --create");
}

#[tokio::test]
async fn each_line_of_the_standard_input_is_a_message() {
    let (home, url) = place();
    queue(&home, &["create", &url]).await;
    let mut command = reveille(&home, &["queue", "put", &url]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    let lines: String = (0..2_500).map(|number| format!("{number}\n")).collect();
    input.write_all(lines.as_bytes()).await.expect("it reads");
    drop(input);
    let status = within("the end", child.wait()).await.expect("it ends");
    assert!(status.success());
    assert_eq!(json(&home, &["depth", &url]).await["depth"], 2_500);
}

#[tokio::test]
async fn the_lines_of_an_input_that_goes_on_are_put_at_once() {
    let (home, url) = place();
    queue(&home, &["create", &url]).await;
    let mut command = reveille(&home, &["queue", "put", &url]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    for (part, depth) in [("one\ntwo\nhal", 2), ("f\n", 3)] {
        input.write_all(part.as_bytes()).await.expect("it reads");
        until("it is put", async || {
            json(&home, &["depth", &url]).await["depth"] == depth
        })
        .await;
    }
    drop(input);
    let status = within("the end", child.wait()).await.expect("it ends");
    assert!(status.success());
}

/// Runs `queue put` with this standard input.
async fn piped(home: &TempDir, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = reveille(home, &[&["queue", "put"], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut pipe = child.stdin.take().expect("piped");
    pipe.write_all(input).await.expect("it reads");
    drop(pipe);
    let output = within("the end", child.wait_with_output()).await;
    output.expect("it ends")
}

#[tokio::test]
async fn a_body_of_any_bytes_is_read_unchanged() {
    let (home, url) = place();
    queue(&home, &["create", &url]).await;
    let bytes: Vec<u8> = (0..=255).chain(*b"\r\n\n").collect();
    let base64 =
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0-Pw";
    for _ in 0..4 {
        let output = piped(&home, &[&url, "--stdin"], &bytes).await;
        assert!(output.status.success(), "{}", stderr(&output));
    }
    assert_eq!(json(&home, &["depth", &url]).await["depth"], 4);
    for verb in ["peek", "get"] {
        let shown = json(&home, &[verb, &url]).await;
        assert_eq!(shown[0]["body"], serde_json::Value::Null);
        assert_eq!(shown[0]["bytes"], bytes.len());
        let encoded = shown[0]["body_base64"].as_str().expect("base64");
        assert_eq!(encoded[..80], base64.replace('-', "+")[..80]);
    }
    let peeked = queue(&home, &["peek", &url, "--raw"]).await;
    assert_eq!(peeked.stdout, bytes);
    for left in [2, 1, 0] {
        let got = queue(&home, &["get", &url, "--raw", "--delete"]).await;
        assert_eq!(got.stdout, bytes, "{}", stderr(&got));
        // The message that was got above is still hidden.
        assert_eq!(json(&home, &["depth", &url]).await["depth"], left + 1);
    }
    let none = queue(&home, &["get", &url, "--raw"]).await;
    assert_eq!((none.status.code(), none.stdout), (Some(5), Vec::new()));
    for refused in [
        &["get", &url, "--raw", "--max", "2"][..],
        &["put", &url, "a body", "--stdin"],
    ] {
        let output = queue(&home, refused).await;
        assert_eq!(output.status.code(), Some(2), "{refused:?}");
    }
    json(&home, &["put", &url, "text"]).await;
    let shown = json(&home, &["get", &url]).await;
    assert_eq!(
        (&shown[0]["body"], &shown[0]["body_base64"]),
        (&"text".into(), &"dGV4dA==".into())
    );
}

#[tokio::test]
async fn a_get_of_more_messages_than_one_call_returns_is_repeated() {
    let azure = azurite().connection_string();
    let variables = [("AZURE_STORAGE_CONNECTION_STRING", &*azure)];
    let url = &*format!("azure://{ACCOUNT}/a-hundred");
    on_azure(&variables, &["create", url]).await;
    let bodies: Vec<_> = (0..120).map(|number| number.to_string()).collect();
    let bodies: Vec<_> = bodies.iter().map(String::as_str).collect();
    on_azure(&variables, &[&["put", url], &bodies[..]].concat()).await;
    let got = ["get", url, "--max", "100", "--delete", "-o", "jsonl"];
    for count in [100, 20] {
        let output = on_azure(&variables, &got).await;
        assert_eq!(
            stdout(&output).lines().count(),
            count,
            "{}",
            stderr(&output)
        );
    }
}

#[tokio::test]
async fn put_and_notify_are_one_step() {
    let relay = Binary::serve().await;
    let (home, url) = place();
    queue(&home, &["create", &url]).await;
    let client = reveille::Client::new(&relay.url()).expect("a client");
    let mut wakes = client
        .subscribe(listening("worker-1", &["local/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let relay = relay.url();
    let put = ["put", &url, "one", "two!", "--notify", "--relay", &relay];
    let put = json(&home, &put).await;
    assert_eq!(
        (&put["messages"], &put["listeners"]),
        (&2.into(), &1.into())
    );
    let work = within("a wake-up", WakeStream::next(&mut wakes)).await;
    let work = work.expect("it goes on").expect("a wake-up");
    assert_eq!((work.messages, work.payload_size), (2, 7));
}

#[tokio::test]
async fn an_error_names_the_next_step() {
    let (home, url) = place();
    let unreachable = format!("http://{}", free_address());
    for (arguments, code, words) in [
        (&["depth", "redis:jobs"][..], 2, "`sqlite:PATH?queue=NAME`"),
        (
            &["put", "memory:jobs", "lost"],
            2,
            "is lost when this command ends",
        ),
        (&["depth", &url], 5, "`queue create`"),
        (
            &["depth", "sqlite:/proc/no/q.db?queue=a"],
            5,
            "/proc/no/q.db",
        ),
        (&["get", &url, "--max", "0"], 2, "max"),
    ] {
        let output = queue(&home, arguments).await;
        let complaint = stderr(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {complaint}"
        );
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
    queue(&home, &["create", &url]).await;
    let put = [
        "put",
        &url,
        "kept",
        "--notify",
        "--relay",
        &unreachable,
        "--timeout",
        "300ms",
    ];
    let output = queue(&home, &put).await;
    let complaint = stderr(&output);
    assert!(
        complaint.contains("did not acknowledge the notification"),
        "{complaint}"
    );
    assert_eq!(stdout(&output), "put 1 message into local/orders\n");
    assert_eq!(output.status.code(), Some(8));
    assert_eq!(
        json(&home, &["depth", &url]).await["depth"],
        1,
        "the message is stored"
    );
}

/// A reader that goes away leaves what it has not read in the queue.
#[tokio::test]
async fn many_messages_are_printed_and_then_deleted() {
    const ALL: usize = 1_024;
    let (home, url) = place();
    let (stored, _) = reveille::queue::create(&url).await.expect("made");
    for first in (0..2 * ALL).step_by(128) {
        let bodies = first..first + 128;
        let messages = bodies.map(|body| reveille::queue::NewMessage::new(body.to_string()));
        stored.put(messages.collect()).await.expect("put");
    }
    let get = [
        "queue", "get", &url, "--max", "1024", "--delete", "-o", "jsonl",
    ];
    let mut unread = reveille(&home, &get);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = within("the end", unread.stdout(writer).status()).await;
    assert_eq!(status.expect("it starts").code(), Some(0));
    let got = queue(&home, &get[1..]).await;
    assert_eq!(got.status.code(), Some(0), "{}", stderr(&got));
    assert_eq!(stdout(&got).lines().count(), ALL);
    assert_eq!(stored.depth().await.expect("a depth"), 1_024);
}

#[tokio::test]
async fn a_default_poison_queue_that_breaks_a_rule_is_named() {
    let home = tempfile::tempdir().expect("a directory");
    let url = format!("azure://acct/{}", "q".repeat(58));
    let mut listen = reveille(&home, &["listen", &url, "--no-relay", "--", "true"]);
    // Of an account that nobody asks: the name is refused before.
    let connection = "AccountName=acct;AccountKey=a2V5";
    listen.env("AZURE_STORAGE_CONNECTION_STRING", connection);
    let output = within("the end", listen.output()).await.expect("it starts");
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.contains("--poison") && complaint.contains("-poison`"),
        "{complaint}"
    );
}

/// Runs a verb with these variables, such as an Azure credential.
async fn on_azure(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = reveille(&home, &[&["queue"], arguments].concat());
    command.envs(variables.iter().copied());
    within("the end", command.output())
        .await
        .expect("it starts")
}

#[tokio::test]
async fn all_verbs_work_with_a_queue_of_azure() {
    let connection = azurite().connection_string();
    let variables = [("AZURE_STORAGE_CONNECTION_STRING", &*connection)];
    let json = async |arguments: &[&str]| -> serde_json::Value {
        let output = on_azure(&variables, &[arguments, &["-o", "json"]].concat()).await;
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).expect("JSON")
    };
    let url = &*format!("azure://{ACCOUNT}/By-Hand");
    assert_eq!(json(&["create", url]).await["created"], true);
    assert_eq!(json(&["create", url]).await["created"], false);
    let put = json(&["put", url, "<first>", "second"]).await;
    assert_eq!(put["queue"], "devstoreaccount1/by-hand");
    assert_eq!(json(&["depth", url]).await["depth"], 2);
    let peeked = json(&["peek", url, "--max", "9"]).await;
    assert_eq!(peeked.as_array().map(Vec::len), Some(2));
    let got = json(&["get", url, "--max", "9", "--delete"]).await;
    let mut bodies = [0, 1].map(|at| got[at]["body"].as_str().expect("text"));
    bodies.sort_unstable();
    assert_eq!(bodies, ["<first>", "second"]);
    let text = &*format!("{url}?encoding=text");
    json(&["put", text, "as it is"]).await;
    assert_eq!(json(&["peek", url]).await[0]["body"], "as it is");
    json(&["purge", url]).await;
    assert_eq!(json(&["depth", url]).await["depth"], 0);
    let address = on_azure(&[], &["address", url]).await;
    assert_eq!(stdout(&address).trim(), "devstoreaccount1/by-hand");
}

#[tokio::test]
async fn an_error_of_azure_names_the_missing_setting_and_no_secret() {
    let connection = azurite().connection_string();
    let url = &*format!("azure://{ACCOUNT}/unknown");
    let wrong = connection.replace("Eby8", "AAAA");
    let wrong = [("AZURE_STORAGE_CONNECTION_STRING", &*wrong)];
    let right = [("AZURE_STORAGE_CONNECTION_STRING", &*connection)];
    for (variables, url, code, words) in [
        (&[][..], url, 4, "set AZURE_STORAGE_CONNECTION_STRING"),
        (
            &right,
            url,
            5,
            "create it first, for example with `reveille queue create`",
        ),
        (
            &right,
            "azure://other/unknown",
            2,
            "is for account `devstoreaccount1`",
        ),
        (&wrong, url, 4, "refuses the credential"),
        (&right, "azure://acct", 2, "azure://ACCOUNT/QUEUE"),
    ] {
        let output = on_azure(variables, &["depth", url]).await;
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{words}: {complaint}");
        assert!(complaint.contains(words), "{words}: {complaint}");
        assert!(!complaint.contains(&KEY[4..20]), "{complaint}");
        assert!(!complaint.contains("SharedKey"), "{complaint}");
    }
}

#[tokio::test]
async fn poisoned_messages_are_moved_back_to_their_queue_and_its_listeners_wake() {
    let relay = Binary::serve().await;
    let (home, orders) = place();
    let poison = format!("{orders}-poison");
    json(&home, &["create", &orders]).await;
    let poisoned = serde_json::json!({
        "queue": "local/orders", "id": "7", "dequeue_count": 5,
        "inserted_at": 1, "error": "the bank is closed", "body": "order 7",
    });
    let bodies = [poisoned.to_string(), "as it was".to_owned()];
    json(&home, &["put", &poison, &bodies[0], &bodies[1], "--create"]).await;
    let client = reveille::Client::new(&relay.url()).expect("a URL");
    let mut wakes = client
        .subscribe(listening("worker-1", &["local/orders"]))
        .expect("options");
    woken(&mut wakes).await;
    let mut moving = relay.verb(&["queue", "move", &poison, &orders, "--notify", "-o", "json"]);
    let moved = within("the end", moving.output()).await.expect("it starts");
    assert_eq!(moved.status.code(), Some(0), "{}", stderr(&moved));
    let moved: serde_json::Value = serde_json::from_str(&stdout(&moved)).expect("JSON");
    assert_eq!((&moved["moved"], &moved["left"]), (&2.into(), &0.into()));
    assert_eq!(moved["listeners"], 1);
    let woken = woken(&mut wakes).await;
    assert_eq!(woken.queue.to_string(), "local/orders");
    let got = json(&home, &["get", &orders, "--max", "9"]).await;
    let mut got: Vec<_> = (0..2).map(|at| got[at]["body"].to_string()).collect();
    got.sort();
    assert_eq!(got, [r#""as it was""#, r#""order 7""#]);
    assert_eq!(json(&home, &["depth", &poison]).await["depth"], 0);
    let same = queue(&home, &["move", &orders, &orders]).await;
    assert_eq!(same.status.code(), Some(2), "{}", stdout(&same));
    assert!(stderr(&same).contains("another queue"), "{}", stderr(&same));
}

#[tokio::test]
async fn messages_are_moved_without_a_relay_and_a_wrong_url_creates_no_queue() {
    let (home, orders) = place();
    let poison = format!("{orders}-poison");
    json(&home, &["put", &poison, "one", "--create"]).await;
    let slip = orders.replace("jobs.db", "slip.db");
    for typed in [[&poison[..], &slip], [&slip, &poison]] {
        let output = queue(&home, &[&["move"], &typed[..]].concat()).await;
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        assert!(stderr(&output).contains("slip.db"));
        assert!(!home.path().join("slip.db").exists());
    }
    json(&home, &["create", &orders]).await;
    let relay = format!("http://{}", free_address());
    let aimed = ["--notify", "--relay", &relay, "--timeout", "500ms"];
    let output = queue(&home, &[&["move", &poison, &orders], &aimed[..]].concat()).await;
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(8), "{complaint}");
    assert!(
        complaint.contains("reveille notify local/orders"),
        "{complaint}"
    );
    assert_eq!(json(&home, &["depth", &orders]).await["depth"], 1);
    assert_eq!(json(&home, &["depth", &poison]).await["depth"], 0);
}
