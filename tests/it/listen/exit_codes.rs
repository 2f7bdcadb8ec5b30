//! What the end of a command says about its message, and what it does not.

use super::*;

/// Starts a command that is run without a shell.
fn listen_to(place: &Place, options: &[&str], command: &[&str]) -> Listening {
    place.listen_with(options, command, Stdio::null())
}

async fn poisoned(place: &Place) -> Vec<Value> {
    let poison = queue::open(&format!("{}-poison", place.url)).await;
    let peeked = poison.expect("opened").peek(10).await.unwrap_or_default();
    let body = |body: &[u8]| serde_json::from_slice(body).expect("JSON");
    peeked.iter().map(|message| body(&message.body)).collect()
}

#[tokio::test]
async fn code_65_rejects_a_message_at_its_first_attempt() {
    let place = Place::new().await;
    place.put(&[b"bad"]).await;
    let listening = place.listen(&["--no-relay"], "echo run >> out; exit 65");
    listening.tells("message", POISONED).await;
    until("moved", async || place.depth().await == 0).await;
    assert_eq!(place.written("out"), "run\n");
    let reason = poisoned(&place).await[0]["error"].to_string();
    assert!(reason.contains("the command rejected it"), "{reason}");
}

#[tokio::test]
async fn code_75_puts_a_message_back_without_an_attempt() {
    let place = Place::new().await;
    place.put(&[b"later"]).await;
    let options = ["--no-relay", "--postpone", "1s", "--count", "1"];
    let script =
        "echo $MESSAGE_DEQUEUE_COUNT >> out; test -e first && exit 0; touch first; exit 75";
    let began = Instant::now();
    let end = place.listen(&options, script).ends().await;
    assert_eq!(end.code, Some(0), "{:?}", end.events);
    assert!(began.elapsed() > Duration::from_secs(1));
    assert_eq!(place.written("out"), "1\n1\n");
    assert_eq!((end.figure("handled"), end.figure("failed")), (1, 0));
}

#[tokio::test]
async fn a_program_that_cannot_be_run_now_is_tried_again_without_an_attempt() {
    let place = Place::new().await;
    place.put(&[b"x"]).await;
    // A deployment copies the program: the system refuses to run a file that is written.
    let tool = place.file("tool");
    fs::copy("/bin/true", &tool).expect("copied");
    let written = fs::OpenOptions::new().append(true).open(&tool);
    let written = written.expect("opened");
    let options = ["--no-relay", "--count", "1", "--max-dequeue-count", "1"];
    let listening = listen_to(&place, &options, &["./tool"]);
    listening
        .tells("message", "no program was run; no attempt is counted")
        .await;
    drop(written);
    let end = listening.ends().await;
    assert_eq!(end.code, Some(0), "{:?}", end.events);
    assert_eq!((end.figure("handled"), end.figure("failed")), (1, 0));
    let told = serde_json::to_string(&end.events).expect("JSON");
    assert!(
        told.contains("Text file busy") && told.contains("no attempt is counted"),
        "{told}"
    );

    place.put(&[b"y"]).await;
    let script = "test -e tried && exit 0; touch tried; exec no-such-program";
    let end = place.listen(&options, script).ends().await;
    assert_eq!(end.code, Some(0), "{:?}", end.events);
    assert_eq!((end.figure("handled"), end.figure("failed")), (1, 0));
}

#[tokio::test]
async fn a_command_that_dies_of_sigterm_alone_has_failed() {
    let place = Place::new().await;
    place.put(&[b"x"]).await;
    let options = ["--no-relay", "--max-dequeue-count", "1"];
    let listening = place.listen(&options, "kill -TERM $$");
    listening.tells("message", POISONED).await;
}

#[tokio::test]
async fn until_empty_tells_of_messages_that_no_program_was_run_for() {
    let place = Place::new().await;
    place.put(&[b"x"]).await;
    // The tries end before the time that counts as a failed attempt.
    let options = [
        "--no-relay",
        "--until-empty",
        "--max-handling-time",
        "3s",
        "--max-dequeue-count",
        "1",
    ];
    let end = place.listen(&options, "exec no-such-program").ends().await;
    assert_eq!(end.code, Some(1), "{:?}", end.events);
    assert_eq!((end.figure("failed"), end.figure("poisoned")), (0, 0));
    assert_eq!(place.depth().await, 1);
}

#[tokio::test]
async fn a_command_that_a_service_manager_ends_with_the_listener_was_no_attempt() {
    let place = Place::new().await;
    place.put(&[b"x"]).await;
    let options = ["--no-relay", "--max-dequeue-count", "1"];
    let listening = place.listen(&options, "echo $$ > pid; touch up; exec sleep 600");
    until("up", async || place.file("up").exists()).await;
    signal("TERM", place.written("pid").trim());
    listening.signal("TERM");
    let end = listening.ends().await;
    assert_eq!(end.code, Some(143), "{:?}", end.events);
    assert_eq!((end.figure("failed"), end.figure("poisoned")), (0, 0));
    let got = place.queue.get(1, Duration::from_secs(60)).await;
    assert_eq!(
        got.expect("got")[0].dequeue_count,
        1,
        "visible, and not counted"
    );
}

#[tokio::test]
async fn a_listener_whose_output_nobody_reads_stops_and_counts_no_attempt() {
    let place = Place::new().await;
    place.put(&[&b"x"[..]; 10]).await;
    let options = ["--no-relay", "--max-dequeue-count", "1", "--max-tasks", "2"];
    let script = ["sh", "-c", "echo a line"];
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let listening = place.listen_with(&options, &script, writer.into());
    let end = listening.ends().await;
    assert_eq!(end.code, Some(0), "{:?}", end.events);
    assert_eq!((end.figure("failed"), end.figure("poisoned")), (0, 0));
    assert_eq!(place.depth().await, 10);
}

#[tokio::test]
async fn a_hangup_of_a_service_is_ignored() {
    let place = Place::new().await;
    let listening = place.listen(&["--no-relay"], "touch ran");
    listening.tells("message", "listening").await;
    listening.signal("HUP");
    place.put(&[b"x"]).await;
    until("ran", async || place.file("ran").exists()).await;
    listening.signal("TERM");
    assert_eq!(listening.ends().await.code, Some(0));
    let relay = Binary::serve().await;
    relay.hang_up().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let notified = relay.run(&["notify", "acct/orders"]).await;
    assert_eq!(notified.status.code(), Some(0));
}
