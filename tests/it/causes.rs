//! A program that a relay does not serve states why: the relay's own words, once for each cause.

mod why;

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
};

use reveille::{Client, Subscription};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{
    binary::{Binary, free_address, limits, reveille, stderr},
    support::{listening, nats::NatsServer, until, within, woken},
};

/// A running verb and the lines of its stderr.
struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let mut read = BufReader::new(child.stderr.take().expect("piped")).lines();
        let collected = Arc::clone(&lines);
        tokio::spawn(async move {
            while let Ok(Some(line)) = read.next_line().await {
                collected.lock().expect("no panic").push(line);
            }
        });
        Self { child, lines }
    }

    /// Starts a listener of a queue in this directory.
    fn listen(relay: &Binary, home: &Path) -> Self {
        Self::start(listen(relay, home))
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic").clone()
    }

    async fn tells(&self, words: &str) {
        let has_told = async || self.lines().iter().any(|line| line.contains(words));
        let told = tokio::time::timeout(crate::support::PATIENCE, async {
            while !has_told().await {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        });
        assert!(told.await.is_ok(), "no {words:?} in {:#?}", self.lines());
    }

    /// Returns the number of lines with these words.
    fn count(&self, words: &str) -> usize {
        let lines = self.lines();
        lines.iter().filter(|line| line.contains(words)).count()
    }
}

fn listen(relay: &Binary, home: &Path) -> Command {
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.display());
    relay.verb(&["listen", &url, "--create", "--", "true"])
}

/// Takes all streams of a relay that allows one.
async fn take_the_stream(relay: &Binary) -> Subscription {
    let client = Client::new(&relay.url()).expect("a URL");
    let options = listening("first", &["acct/orders"]);
    let mut first = client.subscribe(options).expect("options");
    woken(&mut first).await;
    first
}

#[tokio::test]
async fn a_relay_without_room_for_a_stream_is_stated_by_each_verb_that_waits() {
    let relay = Binary::serve_with(&["--config", &limits("max_streams = 1")], &[]).await;
    let _first = take_the_stream(&relay).await;
    let home = tempfile::tempdir().expect("a directory");
    let full = "the limit of 1 streams of this relay is reached";
    let listening = Running::listen(&relay, home.path());
    listening.tells(full).await;
    let watching = Running::start(relay.verb(&["flag", "watch", "go"]));
    watching.tells(full).await;
    for (typed, code) in [
        (&["subscribe", "acct/orders", "--timeout", "2s"][..], 6),
        (&["flag", "watch", "go", "--timeout", "2s"], 6),
        (&["wait", "go", "--timeout", "2s"], 3),
    ] {
        let ended = relay.run(typed).await;
        let complaint = stderr(&ended);
        assert_eq!(ended.status.code(), Some(code), "{typed:?}: {complaint}");
        let last = complaint.lines().last().unwrap_or_default();
        assert!(last.contains(full), "{typed:?}: {complaint}");
    }
    // Each attempt is refused; the cause is the same.
    assert_eq!(listening.count("polling"), 1, "{:?}", listening.lines());
    assert_eq!(watching.count(full), 1, "{:?}", watching.lines());
}

#[tokio::test]
async fn an_expired_token_is_stated_by_the_listener_that_has_it() {
    let home = tempfile::tempdir().expect("a directory");
    let auth = home.path().join("auth.toml");
    let rules = "tokens = \"tokens.toml\"\n[[rule]]\nprincipals = [\"worker\"]\n\
                 actions = [\"notify\", \"subscribe\", \"report\"]\nqueues = [\"*/*\"]\n";
    std::fs::write(&auth, rules).expect("written");
    let auth = auth.display().to_string();
    let verb = [
        "auth",
        "token",
        "new",
        "worker",
        "--expires",
        "8s",
        "--auth",
        &auth,
    ];
    let token = within("a token", reveille(&home, &verb).output()).await;
    let token = token.expect("it starts");
    assert!(token.status.success(), "{}", stderr(&token));
    let relay = Binary::serve_with(&["--auth", &auth, "--insecure"], &[]).await;
    let mut command = listen(&relay, home.path());
    let token = String::from_utf8(token.stdout).expect("text");
    command.env("REVEILLE_TOKEN", token.trim());
    let listening = Running::start(command);
    listening.tells("pushed").await;
    listening.tells("polling: ").await;
    listening.tells("the token expired").await;
    assert_eq!(listening.count("the token expired"), 1);
}

#[tokio::test]
async fn a_relay_that_is_cut_off_is_stated_by_listeners_and_publishers() {
    let home = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite:{}", home.path().join("flags.db").display());
    let mut broker = NatsServer::start();
    let url = broker.url();
    let arguments = [
        "--store",
        &store,
        "--cluster",
        &url,
        "--relay-id",
        "relay-7",
    ];
    let relay = Binary::serve_with(&arguments, &[]).await;
    let listening = Running::listen(&relay, home.path());
    let subscribed = Running::start(relay.verb(&["subscribe", "acct/orders"]));
    listening.tells("pushed").await;
    subscribed.tells("connected").await;
    broker.kill();
    listening.tells("relay `relay-7` is cut off").await;
    subscribed.tells("relay `relay-7` is cut off").await;
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
    let put = ["queue", "put", &url, "a", "--notify", "--timeout", "30s"];
    let putting = Running::start(relay.verb(&put));
    putting.tells("cut off from the others").await;
    putting.tells("still trying").await;
}

#[tokio::test]
async fn a_relay_that_ends_is_stated_once_with_its_last_words() {
    let mut relay = Binary::serve().await;
    let subscribed = Running::start(relay.verb(&["subscribe", "acct/orders"]));
    subscribed.tells("connected").await;
    relay.send_terminate().await;
    relay.ended().await;
    subscribed.tells("the relay shuts down").await;
    let refused = format!("relay `{}`: Connection refused", relay.url());
    subscribed.tells(&refused).await;
    relay.start().await;
    until("connected again", async || {
        subscribed.count("connected to") == 2
    })
    .await;
}

#[tokio::test]
async fn a_command_of_subscribe_runs_while_the_relay_is_away_and_soon_after_it_failed() {
    let home = tempfile::tempdir().expect("a directory");
    let relay = format!("http://{}", free_address());
    let script = r#"echo "$WAKE_REASON $WAKE_SELECTOR" >> out; [ $(wc -l < out) -ne 2 ]"#;
    let typed = [
        "subscribe",
        "acct/orders",
        "--relay",
        &relay,
        "--poll",
        "5m",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut command = reveille(&home, &typed);
    command.current_dir(home.path());
    let mut subscribed = Running::start(command);
    let runs = || {
        let out = std::fs::read_to_string(home.path().join("out")).unwrap_or_default();
        out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    until("a run without a relay", async || !runs().is_empty()).await;
    assert_eq!(runs()[0], "CATCH_UP acct/orders");
    subscribed.child.kill().await.expect("killed");

    // The second run fails, and the next poll is minutes away.
    let mut command = reveille(&home, &typed);
    command.current_dir(home.path());
    let subscribed = Running::start(command);
    until("a run after the failed one", async || runs().len() == 3).await;
    assert_eq!(subscribed.count("the command failed"), 1);
}

#[tokio::test]
async fn a_failed_command_of_subscribe_is_tried_again_without_a_wake_up() {
    let relay = Binary::serve_with(&["--sentinel", "0"], &[]).await;
    let home = tempfile::tempdir().expect("a directory");
    let script = "echo run >> out; [ $(wc -l < out) -ge 3 ]";
    let mut command = relay.verb(&["subscribe", "acct/orders", "--", "sh", "-c", script]);
    command.current_dir(home.path());
    let subscribed = Running::start(command);
    subscribed.tells("connected").await;
    until("the third run", async || {
        let out = std::fs::read_to_string(home.path().join("out")).unwrap_or_default();
        out.lines().count() == 3
    })
    .await;
    assert_eq!(subscribed.count("the command failed"), 2);
    let listed = async || {
        let listed = relay.run(&["listeners", "-o", "json"]).await;
        String::from_utf8(listed.stdout).expect("text")
    };
    until("it has reported the end of its work", async || {
        listed().await.contains("\"busy\": 0")
    })
    .await;
}

/// Returns a row of `reveille listeners`.
async fn state(relay: &Binary, listener: &str) -> serde_json::Value {
    let listed = relay.run(&["listeners", "-o", "json"]).await;
    assert!(listed.status.success(), "{}", stderr(&listed));
    let rows: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let mut rows = rows.as_array().expect("a list").iter();
    let row = rows.find(|row| row["listener_id"] == listener);
    row.cloned().unwrap_or_default()
}

/// A process that is stopped keeps its connections, and answers nothing.
#[cfg(unix)]
#[tokio::test]
async fn a_listener_that_hangs_is_silent_and_then_gone_until_it_comes_back() {
    let relay = Binary::serve().await;
    let home = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
    let typed = ["listen", &url, "--create", "--id", "worker-1", "--", "true"];
    let hanging = Running::start(relay.verb(&typed));
    hanging.tells("pushed").await;
    until("it has reported the end of its first check", async || {
        let listed = relay.run(&["queues", "-o", "json"]).await;
        let rows: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        rows[0]["depth"] == 0
    })
    .await;
    let process = hanging.child.id().expect("it runs").to_string();
    let signal = |name: &'static str| Command::new("kill").args(["-s", name, &process]).status();
    signal("STOP").await.expect("sent");
    let notified = relay.run(&["notify", "local/orders"]).await;
    assert!(notified.status.success(), "{}", stderr(&notified));
    until("it is silent", async || {
        let row = state(&relay, "worker-1").await;
        row["state"] == "silent" && row["silent_for_ms"].as_u64() > Some(2_000)
    })
    .await;
    until("it is gone", async || {
        state(&relay, "worker-1").await["state"] == "gone"
    })
    .await;
    until("the log names it", async || {
        relay
            .log()
            .contains("a listener is gone: it answered no heartbeat")
    })
    .await;
    let table = relay.run(&["listeners"]).await;
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(table.contains("(no heartbeat)"), "{table}");
    signal("CONT").await.expect("sent");
    until("it is back", async || {
        state(&relay, "worker-1").await["state"] == "pushed"
    })
    .await;
}

#[tokio::test]
async fn a_command_that_hangs_shows_since_when_and_the_depth_is_as_old_as_it_is() {
    let relay = Binary::serve_with(&["--sentinel", "0"], &[]).await;
    let home = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
    let script = "read -r job; [ \"$job\" != slow ] || while [ ! -e go ]; do sleep 0.1; done";
    let typed = [
        "listen",
        &url,
        "--create",
        "--id",
        "worker-1",
        "--max-tasks",
        "2",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut command = relay.verb(&typed);
    command.current_dir(home.path());
    let listening = Running::start(command);
    listening.tells("pushed").await;
    let put = async |body: &str| {
        let put = relay.run(&["queue", "put", &url, body, "--notify"]).await;
        assert!(put.status.success(), "{}", stderr(&put));
    };
    put("slow").await;
    let began = std::time::Instant::now();
    until("it is busy", async || {
        state(&relay, "worker-1").await["state"] == "busy"
    })
    .await;
    // Peers that are handled meanwhile do not make it younger.
    while began.elapsed() < std::time::Duration::from_secs(4) {
        put("quick").await;
    }
    let busy_for = state(&relay, "worker-1").await["busy_for_ms"].as_u64();
    assert!(busy_for > Some(3_000), "{busy_for:?}");
    std::fs::write(home.path().join("go"), "").expect("written");
    let depth = async || {
        let listed = relay.run(&["queues", "-o", "json"]).await;
        let rows: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        rows[0]["depth"].clone()
    };
    until("the queue is empty in the list", async || {
        depth().await == 0
    })
    .await;
    until("it is not busy", async || {
        state(&relay, "worker-1").await["state"] == "pushed"
    })
    .await;
    // A notification without a reading leaves the depth, which grows older.
    let ages = async || {
        let listed = relay.run(&["queues", "-o", "json"]).await;
        let rows: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        rows[0]["depth_age_ms"].as_u64().expect("an age")
    };
    let (first, second) = (ages().await, ages().await);
    assert!(first < second, "{first} {second}");
}

#[tokio::test]
async fn health_ready_and_the_admin_port_agree_without_a_credential() {
    let home = tempfile::tempdir().expect("a directory");
    let auth = home.path().join("auth.toml");
    let rules = "tokens = \"tokens.toml\"\n[[rule]]\nprincipals = [\"worker\"]\n\
                 actions = [\"subscribe\"]\nqueues = [\"*/*\"]\n";
    std::fs::write(&auth, rules).expect("written");
    let auth = auth.display().to_string();
    let verb = ["auth", "token", "new", "worker", "--auth", &auth];
    let token = within("a token", reveille(&home, &verb).output()).await;
    let token = String::from_utf8(token.expect("it starts").stdout).expect("text");
    let file = limits("max_streams = 1");
    let arguments = ["--auth", &auth, "--insecure", "--config", &file];
    let relay = Binary::serve_with(&arguments, &[]).await;
    let verdicts = async || {
        let page = crate::support::get(relay.admin(), "/readyz").await.0 == 200;
        let health = relay.run(&["health", "-o", "json"]).await;
        let ready = relay.run(&["health", "--wait=3s"]).await;
        let text = String::from_utf8(health.stdout).expect("text");
        (page, health.status.code(), ready.status.code(), text)
    };
    let (page, health, ready, _) = verdicts().await;
    assert_eq!((page, health, ready), (true, Some(0), Some(0)));
    let mut subscribe = relay.verb(&["subscribe", "acct/orders"]);
    subscribe.env("REVEILLE_TOKEN", token.trim());
    let mut subscribed = Running::start(subscribe);
    subscribed.tells("connected").await;
    let (page, health, ready, text) = verdicts().await;
    assert_eq!((page, health, ready), (false, Some(1), Some(1)));
    assert!(
        text.contains("full: the limit of 1 streams is reached"),
        "{text}"
    );
    let waiting = Running::start(relay.verb(&["health", "--wait"]));
    waiting
        .tells("not ready: full: the limit of 1 streams")
        .await;
    subscribed.child.kill().await.expect("killed");
    let mut waiting = waiting;
    let ended = within("it is ready", waiting.child.wait()).await;
    assert_eq!(ended.expect("ended").code(), Some(0));
}

#[tokio::test]
async fn tips_and_hints_lead_to_what_the_user_meant() {
    let relay = Binary::serve().await;
    let home = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
    let put = relay
        .run(&["queue", "put", &url, "a", "--create", "--notify"])
        .await;
    let put = String::from_utf8(put.stdout).expect("text");
    assert!(put.contains("no listener is connected yet"), "{put}");
    let listed = relay.run(&["queue", "list", &url, "-o", "json"]).await;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert_eq!(listed[0]["url"], url.as_str());
    assert_eq!(listed[0]["depth"], 1);
    let refused = stderr(&relay.run(&["unleashed"]).await);
    assert!(refused.contains("'unleash'"), "{refused}");
}

#[tokio::test]
async fn a_denied_notification_is_not_said_to_wait_for_the_relay() {
    let home = tempfile::tempdir().expect("a directory");
    let auth = home.path().join("auth.toml");
    let rules = "tokens = \"tokens.toml\"\n[[rule]]\nprincipals = [\"billing\"]\n\
                 actions = [\"notify\"]\nqueues = [\"acct/*\"]\n";
    std::fs::write(&auth, rules).expect("written");
    let auth = auth.display().to_string();
    let verb = ["auth", "token", "new", "billing", "--auth", &auth];
    let token = within("a token", reveille(&home, &verb).output()).await;
    let token = String::from_utf8(token.expect("it starts").stdout).expect("text");
    let relay = Binary::serve_with(&["--auth", &auth, "--insecure"], &[]).await;
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
    let mut put = relay.verb(&["queue", "put", &url, "a", "--create", "--notify"]);
    put.env("REVEILLE_TOKEN", token.trim());
    let put = within("its end", put.output()).await.expect("it starts");
    let complaint = stderr(&put);
    assert_eq!(put.status.code(), Some(8), "{complaint}");
    assert!(
        complaint.contains("`billing` may not notify local/orders"),
        "{complaint}"
    );
    assert!(!complaint.contains("once the relay is back"), "{complaint}");
}

#[tokio::test]
async fn a_certificate_of_an_authority_and_the_settings_of_a_client_are_named() {
    let home = tempfile::tempdir().expect("a directory");
    let path = |name: &str| home.path().join(name).display().to_string();
    let (certificate, key) = (path("relay.pem"), path("relay.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args([
            "ec_paramgen_curve:P-256",
            "-noenc",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .await
        .expect("openssl runs");
    assert!(made.status.success(), "{}", stderr(&made));
    let relay = Binary::serve_with(&["--tls-cert", &certificate, "--tls-key", &key], &[]).await;
    let notify = ["notify", "acct/orders", "--timeout", "2s"];
    let complaint = stderr(
        &relay
            .run(&[&notify[..], &["--ca", &certificate]].concat())
            .await,
    );
    assert!(
        complaint.contains("basicConstraints=critical,CA:FALSE"),
        "{complaint}"
    );
    let complaint = stderr(&relay.run(&notify).await);
    assert!(
        complaint.contains("invalid peer certificate"),
        "{complaint}"
    );
    assert!(!complaint.contains("ERROR"), "{complaint}");
    let plain = Binary::serve_with(&["--cert", &certificate, "--key", &key], &[]).await;
    let log = plain.log();
    assert!(log.contains("certificate is --tls-cert"), "{log}");
}
