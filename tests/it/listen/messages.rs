//! Commands that fail, counts, and the end of an empty queue.

use super::*;

#[tokio::test]
async fn the_message_of_a_failing_command_is_redelivered_and_then_poisoned() {
    let place = Place::new().await;
    place.put(&[b"bad"]).await;
    let options = ["--no-relay", "--max-dequeue-count", "2"];
    let script = "echo $MESSAGE_DEQUEUE_COUNT >> out; exit 3";
    let listening = place.listen(&options, script);
    listening.tells("message", POISONED).await;
    until("moved", async || place.depth().await == 0).await;
    assert_eq!(place.written("out"), "1\n2\n");
    let poison = queue::open(&format!("{}-poison", place.url)).await;
    let poisoned = poison.expect("opened").peek(2).await.expect("made");
    let poisoned: Value = serde_json::from_slice(&poisoned[0].body).expect("JSON");
    assert_eq!(poisoned["body"], "bad");
    assert_eq!(poisoned["error"], "the command failed: exit status: 3");
    listening.signal("TERM");
    let end = listening.ends().await;
    let figures = ["handled", "failed", "poisoned"].map(|name| end.figure(name));
    assert_eq!((end.code, figures), (Some(0), [0, 2, 1]));
}

#[tokio::test]
async fn messages_beyond_the_count_stay_in_the_queue() {
    let place = Place::new().await;
    place.put(&[b"a", b"b", b"c", b"d", b"e"]).await;
    let many = ["--no-relay", "--count", "2", "--max-tasks", "4"];
    let more = ["--concurrency", "4"];
    let script = "echo run >> out; sleep 0.1";
    let end = place
        .listen(&[&many[..], &more].concat(), script)
        .ends()
        .await;
    assert_eq!((end.code, end.figure("handled")), (Some(0), 2));
    assert_eq!(place.written("out"), "run\nrun\n");
    let rest = place.queue.get(9, Duration::from_secs(9)).await;
    assert_eq!(rest.expect("got").len(), 3, "and visible");
}

#[tokio::test]
async fn until_empty_handles_all_messages_and_then_ends() {
    let place = Place::new().await;
    let unreachable = format!("http://{}", free_address());
    place.put(&[&b"x"[..]; 12]).await;
    let options = ["--until-empty", "--relay", &unreachable, "--max-tasks", "3"];
    let end = place.listen(&options, "sleep 0.1").ends().await;
    assert_eq!((end.code, end.figure("handled")), (Some(0), 12));
    assert_eq!(place.depth().await, 0);
    let options = ["--until-empty", "--no-relay"];
    let end = place.listen(&options, "exit 1").ends().await;
    assert_eq!((end.code, end.figure("gets")), (Some(0), 1));
    place.put(&[b"job"]).await;
    let end = place.listen(&options, "exit 1").ends().await;
    assert_eq!(
        (end.code, end.figure("failed")),
        (Some(1), 1),
        "it is told apart from a success"
    );
    assert_eq!(place.depth().await, 1);
}

#[tokio::test]
async fn a_redelivery_is_an_event_with_its_attempt() {
    let place = Place::new().await;
    place.put(&[b"job"]).await;
    let script = "[ $MESSAGE_DEQUEUE_COUNT = 2 ]";
    let end = place
        .listen(&["--no-relay", "--count", "1"], script)
        .ends()
        .await;
    assert_eq!(end.code, Some(0));
    let again = end
        .events
        .iter()
        .filter(|event| event["message"] == "redelivered");
    let again: Vec<_> = again.collect();
    assert_eq!(again.len(), 1, "{:?}", end.events);
    assert_eq!(again[0]["attempt"], 2);
    assert!(again[0]["id"].is_string());
}
