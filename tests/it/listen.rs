//! `listen`: the real binary with real commands, queues and relays.

mod settings;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use reveille::queue::{self, NewMessage, WorkQueue};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Child,
};

use crate::{
    binary::{Binary, free_address, reveille, stderr},
    support::{figure, get, until, within},
};

/// A directory, a queue in it, and a file that commands write to.
struct Place {
    home: TempDir,
    url: String,
    queue: Arc<dyn WorkQueue>,
}

/// A running `reveille listen`.
struct Listening {
    child: Child,
    events: Arc<Mutex<Vec<Value>>>,
    reader: tokio::task::JoinHandle<()>,
}

/// The exit code and all events of an ended `listen`.
struct End {
    code: Option<i32>,
    events: Vec<Value>,
}

impl Place {
    async fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
        let queue = queue::open(&url).await.expect("opened");
        queue.create().await.expect("made");
        Self { home, url, queue }
    }

    async fn put(&self, bodies: &[&[u8]]) {
        let messages = bodies.iter().map(|body| NewMessage::new(body.to_vec()));
        self.queue.put(messages.collect()).await.expect("put");
    }

    async fn depth(&self) -> u64 {
        self.queue.depth().await.expect("a depth")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns the content of a file that commands write.
    fn written(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Starts a listener whose command is this script, run in the directory.
    fn listen(&self, options: &[&str], script: &str) -> Listening {
        let verb = ["listen", &self.url, "-o", "json"];
        let command = ["--", "sh", "-c", script];
        let mut command = reveille(&self.home, &[&verb, options, &command].concat());
        command.current_dir(self.home.path()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let events = Arc::<Mutex<Vec<Value>>>::default();
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let collected = Arc::clone(&events);
        let reader = tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                collected.lock().expect("no panic").push(event);
            }
        });
        Listening {
            child,
            events,
            reader,
        }
    }
}

impl Listening {
    fn has_told(&self, key: &str, value: &str) -> bool {
        let events = self.events.lock().expect("no panic");
        events.iter().any(|event| event[key] == value)
    }

    async fn tells(&self, key: &str, value: &str) {
        let what = format!("{key} {value}");
        until(&what, async || self.has_told(key, value)).await;
    }

    fn signal(&self, name: &str) {
        signal(name, &self.child.id().expect("it runs").to_string());
    }

    async fn ends(mut self) -> End {
        let status = within("its end", self.child.wait()).await.expect("ended");
        let read = within("its last lines", self.reader).await;
        read.expect("no panic");
        let events = self.events.lock().expect("no panic").clone();
        End {
            code: status.code(),
            events,
        }
    }
}

impl End {
    /// Returns a figure of the summary.
    fn figure(&self, name: &str) -> u64 {
        let ended = self.events.iter().find(|event| event["event"] == "ended");
        let ended = ended.unwrap_or_else(|| panic!("no summary in {:?}", self.events));
        ended[name].as_u64().expect("a number")
    }
}

fn signal(name: &str, process: &str) {
    let sent = std::process::Command::new("kill")
        .args(["-s", name, "--", process])
        .status();
    assert!(sent.expect("kill").success());
}

#[tokio::test]
async fn an_idle_listener_makes_no_gets_and_handles_what_is_notified_at_once() {
    let relay = Binary::serve().await;
    let place = Place::new().await;
    let url = relay.url();
    // A batch that is not full shows that the queue is empty, so the counts below are exact.
    let options = ["--relay", &url, "--dequeue-batch-size", "16"];
    let script = "echo \"$MESSAGE_QUEUE $MESSAGE_DEQUEUE_COUNT $(cat)\" >> out";
    let listening = place.listen(&options, script);
    listening.tells("mode", "pushed").await;
    // A polling listener would make about one get a second.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let put = ["queue", "put", &place.url, "hello", "--notify"];
    assert_eq!(relay.run(&put).await.status.code(), Some(0));
    let notified = Instant::now();
    until("handled", async || {
        place.written("out") == "local/orders 1 hello\n"
    })
    .await;
    assert!(notified.elapsed() < Duration::from_secs(1), "{notified:?}");
    until("deleted", async || place.depth().await == 0).await;
    listening.signal("TERM");
    let end = listening.ends().await;
    assert_eq!(end.code, Some(0), "{:?}", end.events);
    let figures = ["handled", "gets", "empty_gets"].map(|name| end.figure(name));
    assert_eq!(
        figures,
        [1, 3, 2],
        "the first get, the get of the message, and an empty one after it"
    );
}

#[tokio::test]
async fn listeners_of_a_queue_are_one_group_by_default() {
    let (relay, place) = (Binary::serve().await, Place::new().await);
    let url = relay.url();
    let mut all = Vec::new();
    for (id, options) in [
        ("by-default", &[][..]),
        ("named", &["--group", "night"][..]),
        ("alone", &["--no-group"][..]),
    ] {
        let options = [&["--relay", &url, "--id", id], options].concat();
        all.push(place.listen(&options, "cat"));
    }
    for listener in &all {
        listener.tells("mode", "pushed").await;
    }
    let listed = relay.run(&["listeners", "-o", "jsonl"]).await.stdout;
    let listed = String::from_utf8(listed).expect("UTF-8");
    let group = |id: &str| {
        let lines = listed.lines().map(serde_json::from_str::<Value>);
        let mut lines = lines.map(|line| line.expect("JSON"));
        let line = lines.find(|line| line["listener_id"] == id);
        line.unwrap_or_else(|| panic!("no {id} in {listed}"))["group"].clone()
    };
    let by_default = group("by-default").as_str().expect("a group").to_owned();
    assert!(by_default.starts_with("orders-"), "{by_default}");
    assert_eq!(group("named"), "night");
    assert_eq!(group("alone"), Value::Null);
    let both = place.listen(&["--group", "night", "--no-group"], "cat");
    assert_eq!(both.ends().await.code, Some(2));
}

#[tokio::test]
async fn queues_of_two_files_with_one_address_get_their_own_wake_ups() {
    let relay = Binary::serve().await;
    let (url, places) = (relay.url(), [Place::new().await, Place::new().await]);
    let options = ["--relay", &url, "--poll", "10m"];
    let all = [0, 1].map(|at: usize| places[at].listen(&options, "cat >> out"));
    for listener in &all {
        listener.tells("mode", "pushed").await;
    }
    for number in 0..10 {
        for place in &places {
            let body = format!("{number};");
            let put = ["queue", "put", &place.url, &body, "--notify"];
            assert_eq!(relay.run(&put).await.status.code(), Some(0));
            until("handled", async || place.written("out").contains(&body)).await;
        }
    }
}

#[tokio::test]
async fn the_message_of_a_failing_command_is_redelivered_and_then_poisoned() {
    let place = Place::new().await;
    place.put(&[b"bad"]).await;
    let options = ["--no-relay", "--max-dequeue-count", "2"];
    let script = "echo $MESSAGE_DEQUEUE_COUNT >> out; exit 3";
    let listening = place.listen(&options, script);
    listening.tells("event", "poisoned").await;
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
async fn a_batch_is_one_run_and_its_exit_code_counts_for_all_messages() {
    let place = Place::new().await;
    place.put(&[b"one", b"two", b"\xff\x00"]).await;
    let options = ["--no-relay", "--batch", "--count", "3"];
    let script =
        "test -e first && exec cat > /dev/null; echo $MESSAGE_COUNT > count; cat > first; exit 1";
    let end = place.listen(&options, script).ends().await;
    assert_eq!(end.code, Some(0), "{:?}", end.events);
    assert_eq!(place.written("count"), "3\n");
    let lines = place.written("first");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert_eq!(lines[0]["body"], "one");
    assert_eq!(lines[1]["dequeue_count"], 1);
    assert_eq!(lines[2]["body_base64"], "/wA=");
    assert!(lines[2]["body"].is_null(), "{lines:?}");
    assert_eq!(
        (&lines[2]["bytes"], &lines[0]["message_id"]),
        (&2.into(), &"1".into())
    );
    assert_eq!(
        lines[0]["inserted_at"].as_str().map(|at| &at[..2]),
        Some("20")
    );
    let figures = ["handled", "failed"].map(|name| end.figure(name));
    assert_eq!(figures, [3, 3], "all messages were redelivered");
    assert_eq!(place.depth().await, 0);
}

#[tokio::test]
async fn messages_beyond_the_count_stay_in_the_queue() {
    let place = Place::new().await;
    place.put(&[b"a", b"b", b"c", b"d", b"e"]).await;
    let many = ["--no-relay", "--count", "2", "--max-tasks", "4"];
    let more = ["--concurrency", "4", "--dequeue-batch-size", "4"];
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
    let options = [
        "--until-empty",
        "--relay",
        &unreachable,
        "--max-tasks",
        "3",
        "--dequeue-batch-size",
        "5",
    ];
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
async fn the_message_of_a_listener_that_was_killed_is_handled_by_another() {
    let relay = Binary::serve().await;
    let place = Place::new().await;
    let url = relay.url();
    let options = ["--relay", &url, "--visibility-timeout", "2s"];
    let first = "echo $$ > pid.new; mv pid.new pid; exec sleep 60";
    let mut dying = place.listen(&options, first);
    dying.tells("mode", "pushed").await;
    place.put(&[b"job"]).await;
    relay.run(&["notify", "local/orders"]).await;
    until("it runs", async || !place.written("pid").is_empty()).await;
    let second = "echo \"$MESSAGE_DEQUEUE_COUNT $(cat)\" >> out";
    let heir = place.listen(&options, second);
    heir.tells("mode", "pushed").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(place.written("out"), "", "the claim was renewed");
    dying.child.kill().await.expect("killed");
    signal("KILL", place.written("pid").trim());
    until("handled", async || place.written("out") == "2 job\n").await;
    until("deleted", async || place.depth().await == 0).await;
}

#[tokio::test]
async fn without_its_relay_it_polls_and_writes_an_event() {
    let relay = Binary::serve().await;
    let place = Place::new().await;
    let url = relay.url();
    let options = ["--relay", &url, "--poll", "500ms"];
    let listening = place.listen(&options, "cat >> out");
    listening.tells("mode", "pushed").await;
    assert!(!listening.has_told("mode", "polling"));
    drop(relay);
    listening.tells("mode", "polling").await;
    place.put(&[b"job"]).await;
    until("handled", async || place.written("out") == "job").await;
    // A relay that was never reachable is reported as well.
    let late = place.listen(&options, "cat >> out");
    late.tells("mode", "polling").await;
    place.put(&[b", again"]).await;
    until("handled", async || place.written("out") == "job, again").await;
}

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
    listening.tells("event", "stopping").await;
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
        (
            &[&missing, "--no-relay", "--", "true"][..],
            5,
            "--create creates it",
        ),
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
            "mots: ",
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
        complaint.starts_with("listening to local/made; no relay, pull-only\n"),
        "{complaint}"
    );
}

/// Returns whether a process runs. A process that has ended but is not reaped does not run.
#[cfg(target_os = "linux")]
fn is_alive(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.trim()));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.starts_with(" Z"))
    })
}

/// Returns the guard process of a `listen` process.
#[cfg(target_os = "linux")]
fn guard_of(parent: u32) -> Option<String> {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let mut names = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{name}/{file}"));
        let of = read("status").is_ok_and(|status| status.contains(&format!("PPid:\t{parent}\n")));
        of && is_alive(name) && read("cmdline").is_ok_and(|line| line.contains("guard"))
    })
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_listener_that_is_killed_takes_its_commands_and_their_children_with_it() {
    let place = Place::new().await;
    let script = "trap '' TERM; sleep 60 & echo $! > child; echo $$ > pid.new; mv pid.new pid; \
                  sleep 60; :";
    let mut dying = place.listen(&["--no-relay"], script);
    place.put(&[b"job"]).await;
    until("it runs", async || !place.written("pid").is_empty()).await;
    let (command, child) = (place.written("pid"), place.written("child"));
    assert!(is_alive(&command) && is_alive(&child));
    dying.child.kill().await.expect("killed");
    until("both have ended", async || {
        !is_alive(&command) && !is_alive(&child)
    })
    .await;
}

/// Returns whether a process has this working directory.
#[cfg(target_os = "linux")]
fn is_in_use(directory: &Path) -> bool {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let mut places = processes.filter_map(|entry| fs::read_link(entry.path().join("cwd")).ok());
    places.any(|place| place == directory)
}

/// Each command first kills its listener, before the guard gets the command's group number.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_listener_that_is_killed_while_it_starts_a_command_takes_that_with_it() {
    for _ in 0..10 {
        let place = Place::new().await;
        place.put(&[b"job"]).await;
        let script = "kill -KILL $PPID; sleep 60; :";
        let killed = place.listen(&["--no-relay"], script).ends().await;
        assert_eq!(killed.code, None, "{:?}", killed.events);
        until("the command has ended", async || {
            !is_in_use(place.home.path())
        })
        .await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_guard_that_was_killed_is_replaced_and_gets_all_running_groups() {
    let (relay, place) = (Binary::serve().await, Place::new().await);
    let url = relay.url();
    let script = "n=$(cat); echo $$ > $n.new; mv $n.new $n; exec sleep 60";
    let mut dying = place.listen(&["--relay", &url, "--max-tasks", "2"], script);
    dying.tells("mode", "pushed").await;
    let listener = dying.child.id().expect("it runs");
    let runs = async |name: &str| {
        place.put(&[name.as_bytes()]).await;
        relay.run(&["notify", "local/orders"]).await;
        until("it runs", async || !place.written(name).is_empty()).await;
    };
    runs("one").await;
    let guard = guard_of(listener).expect("a guard");
    signal("KILL", &guard);
    until("it is gone", async || !is_alive(&guard)).await;
    assert!(
        is_alive(&place.written("one")),
        "the end of a guard ends no command"
    );
    runs("two").await;
    until("another guard", async || guard_of(listener).is_some()).await;
    dying.child.kill().await.expect("killed");
    for name in ["one", "two"] {
        let command = place.written(name);
        until(name, async || !is_alive(&command)).await;
    }
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
        .filter(|event| event["event"] == "redelivered");
    let again: Vec<_> = again.collect();
    assert_eq!(again.len(), 1, "{:?}", end.events);
    assert_eq!(again[0]["dequeue_count"], 2);
    assert!(again[0]["message_id"].is_string());
}

#[tokio::test]
async fn the_metrics_of_a_listener_follow_what_it_handles() {
    let (relay, place) = (Binary::serve().await, Place::new().await);
    let (url, metrics) = (relay.url(), free_address());
    let options = [
        "--relay",
        &url,
        "--metrics-listen",
        &metrics,
        "--max-dequeue-count",
        "1",
    ];
    let listening = place.listen(&options, "[ $(cat) != bad ]");
    listening.tells("mode", "pushed").await;
    listening
        .tells("url", &format!("http://{metrics}/metrics"))
        .await;
    place.put(&[b"good", b"bad", b"good"]).await;
    relay
        .run(&["notify", "local/orders", "--messages", "3"])
        .await;
    let admin = metrics.parse().expect("an address");
    for (name, value) in [
        ("reveille_listener_handled_total", 2),
        ("reveille_listener_failed_total", 1),
        ("reveille_listener_poisoned_total", 1),
        ("reveille_listener_handling_seconds_count", 3),
        ("reveille_listener_pushed", 1),
    ] {
        until(name, async || figure(admin, name).await == value).await;
    }
    assert!(figure(admin, "reveille_listener_wake_ups_total").await >= 1);
    let (status, text) = get(admin, "/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("reveille_build_info{version="), "{text}");
    assert!(
        text.contains("reveille_listener_handling_seconds_bucket{le="),
        "{text}"
    );
    assert_eq!(get(admin, "/livez").await.0, 200);
    let ready = get(admin, "/readyz?verbose").await;
    assert_eq!(
        (ready.0, ready.1.contains("[+]relay ok")),
        (200, true),
        "{ready:?}"
    );
    drop(relay);
    until("the relay is reported as failed", async || {
        get(admin, "/readyz?verbose")
            .await
            .1
            .contains("[-]relay failed (not required)")
    })
    .await;
    assert_eq!(get(admin, "/readyz").await.0, 200);
}

#[tokio::test]
async fn a_reported_depth_is_shown_with_its_age() {
    let (relay, place) = (Binary::serve().await, Place::new().await);
    let url = relay.url();
    let listening = place.listen(&["--relay", &url], "cat >> out");
    listening.tells("mode", "pushed").await;
    place.put(&[b"job"]).await;
    relay.run(&["notify", "local/orders"]).await;
    until("a report", async || {
        let listed = crate::binary::stdout(&relay.run(&["queues", "-o", "json"]).await);
        let queues: Value = serde_json::from_str(&listed).expect("JSON");
        let queue = &queues[0];
        assert_eq!(queue["queue"], "local/orders");
        assert_eq!(
            queue["depth"].is_null(),
            queue["depth_age_ms"].is_null(),
            "{queue}"
        );
        queue["depth_age_ms"].is_u64()
    })
    .await;
    let table = crate::binary::stdout(&relay.run(&["queues"]).await);
    assert!(table.contains(" ago"), "{table}");
}

#[tokio::test]
async fn queues_of_two_files_under_one_address_are_warned_of() {
    let place = Place::new().await;
    let other = format!(
        "sqlite:{}/other.db?queue=orders",
        place.home.path().display()
    );
    let made = reveille(&place.home, &["queue", "create", &other])
        .output()
        .await;
    assert!(made.expect("it starts").status.success());
    let warned = async |poison: &str| {
        let options = ["--no-relay", "--until-empty", "--poison", poison];
        let end = place.listen(&options, "true").ends().await;
        end.events.iter().any(|event| {
            event
                .to_string()
                .contains("two files have the same address")
        })
    };
    assert!(warned(&other).await);
    assert!(!warned(&format!("{other}&account=archive")).await);
}
