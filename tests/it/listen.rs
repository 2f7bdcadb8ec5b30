//! `listen`: the real binary with real commands, queues and relays.

mod ends;
mod exit_codes;
mod messages;
mod settings;

use std::{
    fs,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use reveille::queue::{self, NewMessage, WorkQueue};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
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

/// Lines of the log.
const PUSHED: &str = "pushed: the relay sends wake-ups";
const POLLING: &str = "polling: the relay cannot send wake-ups at the moment";
const POISONED: &str = "a message was moved to the poison queue";

/// The exit code and all events of an ended `listen`.
struct End {
    code: Option<i32>,
    events: Vec<Value>,
}

impl Place {
    async fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
        let (queue, _) = queue::create(&url).await.expect("made");
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
        self.listen_with(options, &["sh", "-c", script], Stdio::inherit())
    }

    fn listen_with(&self, options: &[&str], command: &[&str], stdout: Stdio) -> Listening {
        let mut command = self.command(options, command);
        command.stdout(stdout);
        Listening::start(command)
    }

    fn command(&self, options: &[&str], command: &[&str]) -> Command {
        let verb = ["listen", &self.url, "-o", "json"];
        let mut command = reveille(&self.home, &[&verb, options, &["--"], command].concat());
        command.current_dir(self.home.path()).stderr(Stdio::piped());
        command
    }
}

impl Listening {
    fn start(mut command: Command) -> Self {
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
        Self {
            child,
            events,
            reader,
        }
    }

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
        let ended = self.events.iter().find(|event| event["message"] == "ended");
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
    let options = ["--relay", &url, "--concurrency", "16"];
    let script = "echo \"$MESSAGE_QUEUE $MESSAGE_DEQUEUE_COUNT $(cat)\" >> out";
    let listening = place.listen(&options, script);
    listening.tells("message", PUSHED).await;
    // A polling listener would make about one get a second.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let put = ["queue", "put", &place.url, "hello", "--notify"];
    assert_eq!(relay.run(&put).await.status.code(), Some(0));
    let notified = Instant::now();
    until("handled", async || {
        place.written("out") == "local/orders 1 hello\n"
    })
    .await;
    assert!(notified.elapsed() < Duration::from_secs(5), "{notified:?}");
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
        listener.tells("message", PUSHED).await;
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
        listener.tells("message", PUSHED).await;
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
async fn the_message_of_a_listener_that_was_killed_is_handled_by_another() {
    let relay = Binary::serve().await;
    let place = Place::new().await;
    let url = relay.url();
    let options = ["--relay", &url, "--visibility-timeout", "2s"];
    let first = "echo $$ > pid.new; mv pid.new pid; exec sleep 60";
    let mut dying = place.listen(&options, first);
    dying.tells("message", PUSHED).await;
    place.put(&[b"job"]).await;
    relay.run(&["notify", "local/orders"]).await;
    until("it runs", async || !place.written("pid").is_empty()).await;
    let second = "echo \"$MESSAGE_DEQUEUE_COUNT $(cat)\" >> out";
    let heir = place.listen(&options, second);
    heir.tells("message", PUSHED).await;
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
    listening.tells("message", PUSHED).await;
    assert!(!listening.has_told("mode", "polling"));
    drop(relay);
    listening.tells("message", POLLING).await;
    place.put(&[b"job"]).await;
    until("handled", async || place.written("out") == "job").await;
    // A relay that was never reachable is reported as well.
    let late = place.listen(&options, "cat >> out");
    late.tells("message", POLLING).await;
    place.put(&[b", again"]).await;
    until("handled", async || place.written("out") == "job, again").await;
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
    listening.tells("message", PUSHED).await;
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
    listening.tells("message", PUSHED).await;
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
    assert!(table.contains("DEPTH AGE"), "{table}");
}
