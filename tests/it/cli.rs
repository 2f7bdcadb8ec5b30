//! The command line against a relay that is a process: output, exit codes, crashes.

use std::time::{Duration, Instant};

use crate::{
    binary::{Binary, free_address, reveille, stderr, stdout},
    support::{until, within},
};

#[tokio::test]
async fn notify_prints_sequence_and_listeners() {
    let relay = Binary::serve().await;
    let output = relay.run(&["notify", "acct/orders", "-o", "json"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let stdout = stdout(&output);
    assert!(
        stdout.contains("\"sequence\"") && stdout.contains("acct/orders"),
        "{stdout}"
    );
    let hint = stderr(&output);
    assert!(hint.contains("no listener is connected yet"), "{hint}");
}

#[tokio::test]
async fn exit_codes_are_as_documented() {
    let relay = Binary::serve().await;
    let unreachable = format!("http://{}", free_address());
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
                unreachable.as_str(),
                "--timeout",
                "500ms",
            ],
            3,
        ),
        (&["wait", "lonely", "--", "sh", "-c", "exit 7"], 7),
    ] {
        let output = relay.run(arguments).await;
        let complaint = stderr(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {complaint}"
        );
    }
}

/// Every verb that calls a relay, and its exit code if the relay does not answer within --timeout.
const RELAY_VERBS: [(&[&str], i32); 13] = [
    (&["notify", "acct/orders"], 3),
    (&["health", "--wait"], 3),
    (&["health"], 3),
    (&["listeners"], 3),
    (&["queues"], 3),
    (&["flag", "get", "go"], 3),
    (&["flag", "list"], 3),
    (&["unleash", "go"], 3),
    (&["unleash", "go", "--expect", "1"], 3),
    (&["leash", "go"], 3),
    (&["wait", "go"], 3),
    // These wait for an event, so an unreachable relay is a time-out.
    (&["flag", "watch", "go"], 6),
    (&["subscribe", "acct/orders"], 6),
];

async fn timed(home: &tempfile::TempDir, relay: &str, typed: &[&str]) -> (Option<i32>, Duration) {
    let typed = [typed, &["--relay", relay, "--timeout", "1s"]].concat();
    let mut command = reveille(home, &typed);
    let began = Instant::now();
    let output = within("its end", command.output())
        .await
        .expect("it starts");
    println!("{typed:?}: {}", stderr(&output));
    (output.status.code(), began.elapsed())
}

#[tokio::test]
async fn every_verb_keeps_its_time_out_and_has_the_same_exit_code_for_the_same_cause() {
    // The system accepts the connections, but no process reads them.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = format!("http://{}", silent.local_addr().expect("bound"));
    let unreachable = format!("http://{}", free_address());
    let home = tempfile::tempdir().expect("a directory");
    for relay in [&silent, &unreachable] {
        // A few at a time: processes that start concurrently delay each other.
        for some in RELAY_VERBS.chunks(4) {
            let ended = some.iter().map(|(typed, _)| timed(&home, relay, typed));
            let ended = futures_util::future::join_all(ended).await;
            for ((typed, code), (ended, took)) in some.iter().zip(ended) {
                assert_eq!(ended, Some(*code), "{typed:?} {relay}");
                assert!(
                    took < Duration::from_millis(4000),
                    "{typed:?} {relay}: {took:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_put_without_an_acknowledged_notification_has_a_separate_exit_code() {
    let home = tempfile::tempdir().expect("a directory");
    let unreachable = format!("http://{}", free_address());
    let url = format!(
        "sqlite:{}?queue=orders",
        home.path().join("jobs.db").display()
    );
    let put = ["queue", "put", &url, "one", "two", "--create", "--notify"];
    let asks = ["--relay", &unreachable, "--timeout", "500ms", "-o", "json"];
    let mut command = reveille(&home, &[&put[..], &asks].concat());
    let output = within("its end", command.output())
        .await
        .expect("it starts");
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(8), "{complaint}");
    let told: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(
        (&told["messages"], &told["notified"]),
        (&2.into(), &false.into())
    );
    for words in [
        "do not put them again",
        "`reveille notify local/orders --messages 2 --relay",
        &unreachable,
    ] {
        assert!(complaint.contains(words), "no {words:?} in {complaint}");
    }
    let mut command = reveille(&home, &["queue", "depth", &url]);
    let depth = within("its end", command.output())
        .await
        .expect("it starts");
    assert_eq!(stdout(&depth), "2\n");
    // A bad relay URL is an error before any message is put.
    let mut command = reveille(&home, &[&put[..], &["--relay", "ftp://x"]].concat());
    let output = within("its end", command.output())
        .await
        .expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    let mut command = reveille(&home, &["queue", "depth", &url]);
    let depth = within("its end", command.output())
        .await
        .expect("it starts");
    assert_eq!(stdout(&depth), "2\n");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_log_that_cannot_be_written_stops_no_verb() {
    let relay = Binary::serve().await;
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("Linux")
    };
    let notify = ["notify", "acct/orders", "--timeout", "5s"];
    let mut command = relay.verb(&notify);
    command.env("RUST_LOG", "trace").stderr(full());
    let output = within("its end", command.output())
        .await
        .expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
}

#[tokio::test]
async fn a_wait_without_a_relay_does_not_say_that_the_flag_was_not_set() {
    let home = tempfile::tempdir().expect("a directory");
    let relay = format!("http://{}", free_address());
    let wait = ["wait", "go", "--relay", &relay, "--timeout", "1s"];
    let output = reveille(&home, &wait).output().await.expect("it starts");
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{complaint}");
    assert!(complaint.contains("it may have happened"), "{complaint}");
    let unleash = ["unleash", "go", "--relay", &relay, "--timeout", "1s"];
    let output = reveille(&home, &unleash).output().await.expect("it starts");
    let complaint = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{complaint}");
    assert!(!complaint.contains("may have happened"), "{complaint}");
}

#[tokio::test]
async fn an_error_of_serve_is_one_line() {
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
        let complaint = stderr(&output);
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
    let script = "echo \"$WAKE_ACCOUNT/$WAKE_QUEUE $WAKE_REASON $WAKE_NOTIFICATIONS\"";
    let mut subscriber = relay.verb(&["subscribe", "acct/orders", "--count", "2"]);
    subscriber.args(["--", "sh", "-c", script]);
    let subscriber = subscriber.stdout(std::process::Stdio::piped()).spawn();
    let subscriber = subscriber.expect("it starts");
    // The subscriber has its CATCH_UP once the relay has no pending wake-up for it.
    until("it listens", async || {
        let listeners = stdout(&relay.run(&["listeners", "-o", "json"]).await);
        listeners.contains("\"owed\":0") || listeners.contains("\"owed\": 0")
    })
    .await;
    relay.run(&["notify", "acct/orders"]).await;
    let output = within("two wake-ups", subscriber.wait_with_output()).await;
    let stdout = stdout(&output.expect("it ends"));
    for line in ["acct/orders CATCH_UP 0", "acct/orders NOTIFIED 1"] {
        assert!(
            stdout.lines().any(|printed| printed == line),
            "no {line:?} in {stdout}"
        );
    }
}

#[tokio::test]
async fn the_exit_code_of_a_counted_subscriber_is_that_of_its_last_command() {
    let relay = Binary::serve().await;
    for (command, code) in [("false", 1), ("true", 0)] {
        let arguments = ["subscribe", "acct/orders", "--count", "1", "--", command];
        let ended = relay.run(&arguments).await;
        let complaint = stderr(&ended);
        assert_eq!(ended.status.code(), Some(code), "{command}: {complaint}");
    }
}

#[tokio::test]
async fn a_flag_survives_a_crash_of_the_relay() {
    let mut relay = Binary::serve().await;
    let unleashed = relay
        .run(&["unleash", "go-live", "--reason", "crash"])
        .await;
    assert_eq!(unleashed.status.code(), Some(0), "{}", stderr(&unleashed));
    relay.crash().await;
    let released = relay
        .run(&["wait", "go-live", "--", "echo", "released"])
        .await;
    assert_eq!(stdout(&released), "released\n", "{}", stderr(&released));
    assert_eq!(
        relay.run(&["leash", "go-live"]).await.status.code(),
        Some(0)
    );
    relay.crash().await;
    let unset = relay.run(&["flag", "get", "go-live", "--check"]).await;
    assert_eq!(unset.status.code(), Some(5));
}

#[tokio::test]
async fn a_bad_variable_is_named_and_an_empty_variable_is_ignored() {
    let relay = Binary::serve().await;
    let run = async |variable: &str, value: &str, typed: &[&str]| {
        let mut command = relay.verb(typed);
        command.env(variable, value);
        let output = within("its end", command.output())
            .await
            .expect("it starts");
        (output.status.code(), stderr(&output))
    };
    let flags = &["flag", "list"][..];
    let (code, complaint) = run("REVEILLE_TIMEOUT", "soon", flags).await;
    assert_eq!(code, Some(2), "{complaint}");
    assert!(complaint.contains("--timeout"), "{complaint}");
    for variable in ["REVEILLE_TIMEOUT", "REVEILLE_OUTPUT", "REVEILLE_CONFIG"] {
        let (code, complaint) = run(variable, "", flags).await;
        assert_eq!(code, Some(0), "{variable}: {complaint}");
    }
    let (code, complaint) = run("REVEILLE_RELAY", "", &["flag", "list", "--timeout", "1s"]).await;
    // The default relay, which may run here or not.
    assert_ne!(code, Some(2), "{complaint}");
}

#[tokio::test]
async fn an_address_and_a_time_to_live_are_printed_as_json() {
    let home = tempfile::tempdir().expect("a directory");
    let url = "sqlite:jobs.db?queue=orders";
    let address = ["queue", "address", url, "-o", "json"];
    let mut command = reveille(&home, &address);
    let output = within("its end", command.output())
        .await
        .expect("it starts");
    assert_eq!(stdout(&output), "{\"queue\":\"local/orders\"}\n");

    let store = format!("sqlite:{}", home.path().join("shop.db").display());
    let opened = reveille::store::open(&store).await.expect("a store");
    let name = reveille::store::BlobName::new("session").expect("a name");
    opened.create(&name, "x".into()).await.expect("made");
    let blob = format!("{store}#session");
    for (marks, is_marked) in [(&["--after", "1w"][..], true), (&["--clear"], false)] {
        let typed = [&["sweep", "ttl", &blob], marks, &["-o", "json"]].concat();
        let mut command = reveille(&home, &typed);
        let output = within("its end", command.output())
            .await
            .expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let row: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!(row["blob"], blob.as_str());
        assert_eq!(row["time_to_live"].is_string(), is_marked, "{row}");
    }
}

#[tokio::test]
async fn a_signal_ends_the_command_of_a_subscriber_with_its_children() {
    let relay = Binary::serve().await;
    let home = tempfile::tempdir().expect("a directory");
    let script = "sleep 600 & echo $! > child; wait";
    let typed = ["subscribe", "acct/orders", "--", "sh", "-c", script];
    let mut subscribe = relay.verb(&typed);
    let mut subscribe = subscribe
        .current_dir(home.path())
        .spawn()
        .expect("it starts");
    let child = home.path().join("child");
    until("the command runs", async || {
        relay.run(&["notify", "acct/orders"]).await;
        std::fs::read_to_string(&child).is_ok_and(|text| text.ends_with('\n'))
    })
    .await;
    let child = std::fs::read_to_string(&child).expect("a number");
    let id = subscribe.id().expect("it runs").to_string();
    let signalled = std::process::Command::new("kill").arg(&id).status();
    assert!(signalled.expect("kill").success());
    let status = within("its end", subscribe.wait()).await.expect("a status");
    assert_eq!(status.code(), Some(143));
    let stat = format!("/proc/{}/stat", child.trim());
    until("the child has ended", async || {
        std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    })
    .await;
}

/// Each verb that runs a command, which must not get the credential of the verb.
#[tokio::test]
async fn a_command_does_not_inherit_the_token() {
    const SAY: &str = "echo \"token=[$REVEILLE_TOKEN] file=[$REVEILLE_TOKEN_FILE]\"";
    let relay = Binary::serve().await;
    let home = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite:{}", home.path().join("store.db").display());
    let queue = format!(
        "sqlite:{}?queue=orders",
        home.path().join("jobs.db").display()
    );
    let put = relay
        .run(&["queue", "put", &queue, "--create", "first"])
        .await;
    assert!(put.status.success(), "{}", stderr(&put));
    assert!(relay.run(&["unleash", "go"]).await.status.success());
    for arguments in [
        &["wait", "go"][..],
        &["lease", "run", "leader", "--store", &store],
        &["listen", &queue, "--until-empty"],
        &["subscribe", "acct/orders", "--count", "1"],
    ] {
        let verb = [arguments, &["--", "sh", "-c", SAY]].concat();
        let mut command = relay.verb(&verb);
        command
            .env("REVEILLE_TOKEN", "planted-token")
            .env("REVEILLE_TOKEN_FILE", "");
        let output = within("its end", command.output()).await;
        let output = output.expect("it starts");
        let shown = stdout(&output) + &stderr(&output);
        assert!(shown.contains("token=[]"), "{verb:?}: {shown}");
        assert!(!shown.contains("planted"), "{verb:?}: {shown}");
    }
}

#[tokio::test]
async fn what_would_be_open_or_shown_is_refused_with_its_rule() {
    let home = tempfile::tempdir().expect("a directory");
    let queue = format!(
        "sqlite:{}?queue=orders",
        home.path().join("jobs.db").display()
    );
    for (arguments, words) in [
        (
            &[
                "notify",
                "acct/orders",
                "--relay",
                "https://me:planted@localhost:1",
            ][..],
            &["relay", "no login"][..],
        ),
        (
            &["sweep", "job.json", "--admin-listen", "0.0.0.0:0"],
            &["--admin-listen: 0.0.0.0:0 is open to other machines"],
        ),
        (
            &[
                "listen",
                &queue,
                "--metrics-listen",
                "192.0.2.2:0",
                "--",
                "true",
            ],
            &[
                "--metrics-listen: 192.0.2.2:0 is open to other machines",
                "--insecure",
            ],
        ),
    ] {
        let output = reveille(&home, arguments)
            .output()
            .await
            .expect("it starts");
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        for word in words {
            assert!(complaint.contains(word), "{arguments:?}: {complaint}");
        }
        assert!(!complaint.contains("planted"), "{complaint}");
    }
}

#[tokio::test]
async fn many_queues_without_a_listener_are_one_hint() {
    let relay = Binary::serve().await;
    let queues: Vec<_> = (0..1000).map(|number| format!("acct/q{number}")).collect();
    let mut typed = vec!["notify"];
    typed.extend(queues.iter().map(String::as_str));
    let output = relay.run(&typed).await;
    let hint = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{hint}");
    assert_eq!(hint.lines().count(), 1, "{hint}");
    assert!(hint.contains("acct/q0 and 999 other queues"), "{hint}");
}

#[tokio::test]
async fn a_server_that_is_no_relay_is_named_and_ends_each_verb() {
    let relay = Binary::serve().await;
    let ssh = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let other = format!("http://{}", ssh.local_addr().expect("bound"));
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = ssh.accept().await {
            tokio::spawn(async move {
                use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
                let _ = stream.write_all(b"SSH-2.0-test\r\n").await;
                let _ = stream.read(&mut [0; 1024]).await;
            });
        }
    });
    let admin = format!("http://{}", relay.admin());
    for (url, code, words) in [
        (&*admin, 3, "error: relay `"),
        (&other, 3, "error: relay `"),
        ("ftp://127.0.0.1:7600", 2, "http[s]://HOST:PORT"),
    ] {
        for verb in [
            &["notify", "acct/orders"][..],
            &["flag", "list"],
            &["health", "--wait"],
        ] {
            let typed = [verb, &["--relay", url, "--timeout", "2s"]].concat();
            let output = relay.run(&typed).await;
            let complaint = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{typed:?}: {complaint}");
            assert!(complaint.contains(words), "{typed:?}: {complaint}");
        }
    }
    serving.abort();
    // A URL without a scheme means plain text.
    let output = relay
        .run(&["health", "--wait=5s", "--relay", relay.address()])
        .await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
