//! Signals, the grace period, and errors that end the command.

use super::*;

#[tokio::test]
async fn a_termination_waits_for_the_command_that_runs() {
    let place = Place::new().await;
    place.put(&[b"long"]).await;
    let script = "touch up; sleep 1; touch done";
    let listening = place.listen(&["--no-relay"], script);
    until("it runs", async || place.file("up").exists()).await;
    place.put(&[b"next"]).await;
    listening.signal("TERM");
    let end = listening.ends().await;
    assert_eq!((end.code, end.figure("handled")), (Some(0), 1));
    assert!(place.file("done").exists());
    assert_eq!(place.depth().await, 1, "nothing more was got");
}

#[tokio::test]
async fn a_command_is_ended_after_the_grace_and_its_message_is_visible_again() {
    let place = Place::new().await;
    place.put(&[b"endless"]).await;
    let script = "trap 'touch ended; exit 1' TERM; touch up; while :; do sleep 0.05; done";
    let listening = place.listen(&["--no-relay", "--grace", "200ms"], script);
    until("it runs", async || place.file("up").exists()).await;
    listening.signal("TERM");
    let end = listening.ends().await;
    assert_eq!(end.code, Some(143), "{:?}", end.events);
    assert!(place.file("ended").exists());
    let again = place.queue.get(1, Duration::from_secs(9)).await;
    assert_eq!(again.expect("got").len(), 1, "long before its time-out");
}

#[tokio::test]
async fn a_second_signal_kills_the_commands_at_once() {
    let place = Place::new().await;
    place.put(&[b"endless"]).await;
    let script = "trap '' INT TERM; echo $$ > pid; touch up; while :; do sleep 0.05; done";
    let listening = place.listen(&["--no-relay"], script);
    until("it runs", async || place.file("up").exists()).await;
    listening.signal("INT");
    listening
        .tells(
            "message",
            "stopping: waiting for commands; a second signal kills them",
        )
        .await;
    listening.signal("INT");
    let end = listening.ends().await;
    assert_eq!(end.code, Some(130), "{:?}", end.events);
    let process = place.written("pid");
    until("it is gone", async || {
        let alive = std::process::Command::new("kill")
            .args(["-0", process.trim()])
            .stderr(Stdio::null())
            .status();
        !alive.expect("kill").success()
    })
    .await;
}

#[tokio::test]
async fn an_error_of_a_queue_names_the_next_step() {
    let place = Place::new().await;
    let missing = format!(
        "sqlite:{}/jobs.db?queue=missing",
        place.home.path().display()
    );
    fs::write(place.file("policy.toml"), "policy = \"steps\"\nmots = 3").expect("written");
    let policy = place.file("policy.toml").display().to_string();
    for (arguments, code, words) in [
        (&[&missing, "--no-relay", "--", "true"][..], 5, "missing"),
        (&["redis:jobs", "--", "true"], 2, "`sqlite:PATH?queue=NAME`"),
        (
            &["memory:jobs", "--", "true"],
            2,
            "is lost when this command ends",
        ),
        (&[&place.url, "--", "no-such-command"], 1, "no-such-command"),
        (
            &[&place.url, "--policy", &policy, "--", "true"],
            2,
            "`mots`",
        ),
        (&[&place.url], 2, "CMD"),
        (
            &[&place.url, "--poison", &place.url, "--", "true"],
            2,
            "poison: must be a queue of another address",
        ),
        (
            &[&place.url, "--visibility-timeout", "8d", "--", "true"],
            2,
            "visibility_timeout",
        ),
    ] {
        let mut command = reveille(&place.home, &[&["listen"], arguments].concat());
        let output = within("the end", command.output()).await.expect("started");
        let complaint = stderr(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {complaint}"
        );
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
    let made = place.home.path().join("made.db");
    let made = format!("sqlite:{}?queue=made", made.display());
    let options = ["listen", &made, "--create", "--no-relay", "--until-empty"];
    let mut command = reveille(&place.home, &[&options[..], &["--", "true"]].concat());
    let output = within("the end", command.output()).await.expect("started");
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    assert!(
        complaint.contains("listening queue=local/made"),
        "{complaint}"
    );
}
