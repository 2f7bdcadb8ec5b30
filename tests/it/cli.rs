//! The command line against a relay that is a process: output, exit codes, crashes.

use crate::{
    binary::{Binary, complained, free_address, reveille, said},
    support::{until, within},
};

#[tokio::test]
async fn notify_prints_sequence_and_listeners() {
    let relay = Binary::serve().await;
    let output = relay.run(&["notify", "acct/orders", "-o", "json"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", complained(&output));
    let said = said(&output);
    assert!(
        said.contains("\"sequence\"") && said.contains("acct/orders"),
        "{said}"
    );
    let hint = complained(&output);
    assert!(hint.contains("nobody listens"), "{hint}");
}

#[tokio::test]
async fn exit_codes_are_as_documented() {
    let relay = Binary::serve().await;
    let nobody = format!("http://{}", free_address());
    for (arguments, code) in [
        (&["notify", "acct"][..], 2),
        (&["notify", "acct/or*ers"], 2),
        (&["notify", "acct/orders", "--delay", "15d"], 2),
        (&["subscribe", "acct/o*s"], 2),
        (&["sing"], 2),
        (&["unleash", "/../"], 2),
        (&["flag", "get", "never-set"], 0),
        (&["flag", "get", "never-set", "--check"], 5),
        (&["wait", "never-set", "--timeout", "200ms"], 6),
        (
            &["unleash", "lonely", "--expect", "1", "--timeout", "300ms"],
            6,
        ),
        (
            &[
                "notify",
                "acct/orders",
                "--relay",
                nobody.as_str(),
                "--timeout",
                "500ms",
            ],
            3,
        ),
        (&["wait", "lonely", "--", "sh", "-c", "exit 7"], 7),
    ] {
        let output = relay.run(arguments).await;
        let complaint = complained(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {complaint}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_served_is_said_in_one_line() {
    let relay = Binary::serve().await;
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("reveille.toml");
    std::fs::write(&file, "[serve]\nlisten_on = \"127.0.0.1:0\"\n").expect("written");
    let file = file.to_str().expect("a plain path");
    for (arguments, code, word) in [
        (
            &[
                "serve",
                "--listen",
                relay.address(),
                "--admin-listen",
                "off",
            ][..],
            1,
            relay.address(),
        ),
        (
            &[
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--store",
                "sqlite:/proc/no/flags.db",
            ],
            1,
            "/proc/no",
        ),
        (&["serve", "--config", file], 2, "listen_on"),
    ] {
        let mut command = reveille(&home, arguments);
        let output = within("the end", command.output())
            .await
            .expect("it starts");
        let complaint = complained(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {complaint}"
        );
        assert_eq!(complaint.trim_end().lines().count(), 1, "{complaint}");
        assert!(complaint.contains(word), "{complaint}");
    }
}

#[tokio::test]
async fn a_subscriber_runs_a_command_on_each_wake_up() {
    let relay = Binary::serve().await;
    let told = "echo \"$WAKE_ACCOUNT/$WAKE_QUEUE $WAKE_REASON $WAKE_NOTIFICATIONS\"";
    let arguments = ["subscribe", "acct/orders", "--count", "2", "--exec", told];
    let mut subscriber = relay.verb(&arguments);
    let subscriber = subscriber.stdout(std::process::Stdio::piped()).spawn();
    let subscriber = subscriber.expect("it starts");
    // Its first look is behind it when the relay owes it nothing.
    until("it listens", async || {
        let listeners = said(&relay.run(&["listeners", "-o", "json"]).await);
        listeners.contains("\"owed\":0") || listeners.contains("\"owed\": 0")
    })
    .await;
    relay.run(&["notify", "acct/orders"]).await;
    let output = within("two wake-ups", subscriber.wait_with_output()).await;
    let said = said(&output.expect("it ends"));
    for line in ["acct/orders CATCH_UP 0", "acct/orders NOTIFIED 1"] {
        assert!(
            said.lines().any(|told| told == line),
            "no {line:?} in {said}"
        );
    }
}

#[tokio::test]
async fn a_flag_survives_a_crash_of_the_relay() {
    let mut relay = Binary::serve().await;
    let unleashed = relay
        .run(&["unleash", "go-live", "--reason", "crash"])
        .await;
    assert_eq!(
        unleashed.status.code(),
        Some(0),
        "{}",
        complained(&unleashed)
    );
    relay.crash().await;
    let released = relay
        .run(&["wait", "go-live", "--", "echo", "released"])
        .await;
    assert_eq!(said(&released), "released\n", "{}", complained(&released));
    assert_eq!(
        relay.run(&["leash", "go-live"]).await.status.code(),
        Some(0)
    );
    relay.crash().await;
    let unset = relay.run(&["flag", "get", "go-live", "--check"]).await;
    assert_eq!(unset.status.code(), Some(5));
}
