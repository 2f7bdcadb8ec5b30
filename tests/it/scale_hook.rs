//! `scale --hook`: a real central agent, a real relay and a shell script as its hook.

use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::process::Child;

use crate::{
    binary::{Binary, reveille, stderr, stdout},
    support::{until, within},
};

/// A relay that knows that the queue is empty, and the files of a hook.
struct Place {
    home: TempDir,
    relay: Binary,
}

const POLICY: &str = "max = 5\nbacklog_per_node = 10\ncool_down = \"1s\"\n";
/// Writes its environment.
const HOOK: &str = "echo \"$DESIRED of ${CURRENT:-?} for $BACKLOG: $REASON\" >>$CALLS";

impl Place {
    async fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let relay = Binary::serve().await;
        let place = Self { home, relay };
        place.write("policy.toml", POLICY);
        place.drain().await;
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).expect("written");
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Reports that the queue was read until it was empty.
    async fn drain(&self) {
        let verb = ["subscribe", "local/orders", "--count", "1", "--", "true"];
        let drained = self.relay.run(&verb).await;
        assert!(drained.status.success(), "{}", stderr(&drained));
    }

    async fn notify(&self, messages: &str) {
        let verb = ["notify", "local/orders", "--messages", messages];
        let notified = self.relay.run(&verb).await;
        assert!(notified.status.success(), "{}", stderr(&notified));
    }

    /// Starts a central agent with further options.
    fn central(&self, hook: &str, options: &[&str]) -> Child {
        let file = |name| std::fs::File::create(self.file(name)).expect("a file");
        let policy = self.file("policy.toml");
        let policy = policy.to_str().expect("a path");
        let verb = [
            "scale",
            "local/orders",
            "--id",
            "central",
            "--policy",
            policy,
        ];
        let hook = ["--hook", hook, "--hook-interval", "1s"];
        let mut command = self.relay.verb(&[&verb[..], &hook, options].concat());
        command
            .env("CALLS", self.file("calls"))
            .env("PIDS", self.file("pids"))
            .stdout(Stdio::from(file("out")))
            .stderr(Stdio::from(file("log")));
        command.spawn().expect("it starts")
    }

    /// Starts a node that works until its file is gone, and waits until the relay knows.
    async fn busy_node(&self, id: &str) -> Child {
        self.write(id, "");
        let work = format!(
            "while test -e {}; do sleep 0.05; done",
            self.file(id).display()
        );
        let verb = [
            "subscribe",
            "local/orders",
            "--id",
            id,
            "--",
            "sh",
            "-c",
            &work,
        ];
        let mut command = self.relay.verb(&verb);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let node = command.spawn().expect("it starts");
        until("the node is busy", async || {
            let listed = stdout(&self.relay.run(&["listeners", "-o", "jsonl"]).await);
            let mut lines = listed.lines().filter(|line| line.contains(id));
            lines.any(|line| line.contains("\"busy\":1"))
        })
        .await;
        node
    }

    async fn called(&self, line: &str) {
        until(&format!("a call: {line}"), async || {
            self.read("calls")
                .lines()
                .any(|call| call.starts_with(line))
        })
        .await;
    }

    fn calls(&self) -> usize {
        self.read("calls").lines().count()
    }
}

async fn terminate(mut central: Child) {
    let pid = central.id().expect("it runs").to_string();
    let mut kill = tokio::process::Command::new("kill");
    let sent = kill.args(["-s", "TERM", &pid]).status().await;
    assert!(sent.expect("kill").success());
    let ended = within("its end", central.wait()).await.expect("it ends");
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test]
async fn a_notification_starts_the_first_nodes_within_a_second_and_they_end_without_work() {
    let place = Place::new().await;
    let central = place.central(HOOK, &[]);
    place.called("0 of ? for 0: there is no work").await;
    // At rest nothing is called, and only an event causes a look.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(place.calls(), 1, "{}", place.read("calls"));
    place.notify("25").await;
    let notified = Instant::now();
    place.called("3 of 0 for 25: the backlog is 25").await;
    let took = notified.elapsed();
    println!("the hook was called after {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    place.notify("20").await;
    place.called("5 of 3 for 45: the backlog is 45").await;
    place.drain().await;
    place.called("0 of 5 for 0: there is no work, for ").await;
    assert_eq!(place.calls(), 4, "{}", place.read("calls"));
    let listed = stdout(&place.relay.run(&["listeners", "-o", "jsonl"]).await);
    let central_line = listed.lines().find(|line| line.contains("central"));
    let line = central_line.expect("it is listed");
    assert!(
        line.contains("\"agent\":true") && line.contains("\"group\":null"),
        "{line}"
    );
    terminate(central).await;
}

#[tokio::test]
async fn a_relay_that_restarts_has_one_node_look() {
    let mut place = Place::new().await;
    let central = place.central(HOOK, &[]);
    place.called("0 of ?").await;
    place.relay.restart().await;
    place.called("1 of 0 for 1").await;
    place.drain().await;
    place.called("0 of 1").await;
    terminate(central).await;
}

#[tokio::test]
async fn a_hook_that_fails_is_called_again() {
    let place = Place::new().await;
    let fails = format!("{HOOK}; test $(wc -l <$CALLS) -gt 2");
    let central = place.central(&fails, &[]);
    until("it succeeds", async || place.calls() == 3).await;
    let again = "0 of ? for 0: there is no work; the call before failed";
    assert_eq!(place.read("calls").lines().nth(2), Some(again));
    let log = place.read("log");
    assert!(log.contains("the hook failed; it is called again"), "{log}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(place.calls(), 3, "{}", place.read("calls"));
    terminate(central).await;
}

#[tokio::test]
async fn a_hook_that_hangs_is_killed_with_its_children_and_called_again() {
    let place = Place::new().await;
    let hangs = format!("{HOOK}; sleep 300 & echo $! >>$PIDS; wait");
    let central = place.central(&hangs, &["--hook-timeout", "500ms"]);
    until("two calls were killed", async || {
        let log = place.read("log");
        log.matches("it took longer than 500ms, and was killed")
            .count()
            >= 2
    })
    .await;
    let first = place.read("pids").lines().next().map(str::to_owned);
    let stat = format!("/proc/{}/stat", first.expect("a child"));
    until("the hook's child has ended", async || {
        // The number of a process that nobody waits for stays as that of a zombie.
        std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    })
    .await;
    // It ends when the running call has ended.
    terminate(central).await;
}

#[tokio::test]
async fn a_dry_run_prints_decisions_with_their_reasons_and_calls_nothing() {
    let place = Place::new().await;
    let central = place.central(HOOK, &["--dry-run"]);
    let printed = async |line: &str| {
        until(line, async || {
            place.read("out").lines().any(|one| one == line)
        })
        .await;
    };
    printed("unknown -> 0: there is no work").await;
    place.notify("25").await;
    printed("0 -> 3: the backlog is 25").await;
    assert_eq!(place.read("calls"), "");
    terminate(central).await;
    let json = place.central(HOOK, &["--dry-run", "-o", "jsonl"]);
    printed("{\"backlog\":25,\"current\":null,\"desired\":3,\"reason\":\"the backlog is 25\"}")
        .await;
    terminate(json).await;
}

#[tokio::test]
async fn nodes_with_work_are_not_retired() {
    let place = Place::new().await;
    let policy = "max = 5\nbacklog_per_node = 10\ncool_down = \"0\"\n";
    place.write("policy.toml", policy);
    let mut one = place.busy_node("node-1").await;
    let mut two = place.busy_node("node-2").await;
    let central = place.central(HOOK, &[]);
    place.called("2 of ? for 0: 2 nodes have work").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(place.calls(), 1, "{}", place.read("calls"));
    std::fs::remove_file(place.file("node-1")).expect("removed");
    place.called("1 of 2 for 0: 1 node has work").await;
    std::fs::remove_file(place.file("node-2")).expect("removed");
    place.called("0 of 1 for 0: there is no work").await;
    assert_eq!(place.calls(), 3, "{}", place.read("calls"));
    terminate(central).await;
    one.kill().await.expect("killed");
    two.kill().await.expect("killed");
}

#[tokio::test]
async fn wrong_settings_are_refused_with_one_line() {
    let home = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path").to_owned()
    };
    let good = file("good.toml", POLICY);
    let turned = file("turned.toml", "min = 5\nmax = 3\nbacklog_per_node = 1\n");
    let unknown = file(
        "unknown.toml",
        "max = 3\nbacklog_per_node = 1\nmaximum = 3\n",
    );
    let text = file("text.toml", "max = \"many\"\n");
    let missing = home.path().join("missing.toml").display().to_string();
    for (typed, words) in [
        (vec!["--hook", "true"], "--policy <FILE>"),
        (
            vec!["--hook", "true", "--policy", &good, "--", "true"],
            "'--hook <CMD>' cannot be used with",
        ),
        (
            vec!["--hook", "true", "--policy", &good, "--max", "3"],
            "'--max <N>'",
        ),
        (
            vec!["--hook", "true", "--policy", &turned],
            "turned.toml`: min: must be at most max (3), not 5",
        ),
        (
            vec!["--hook", "true", "--policy", &unknown],
            "unknown field `maximum`",
        ),
        (
            vec!["--hook", "true", "--policy", &text],
            "invalid type: string \"many\", expected usize in `max`",
        ),
        (
            vec!["--hook", "true", "--policy", &missing],
            "missing.toml`: ",
        ),
        (vec!["--dry-run", "--", "true"], "--hook <CMD>"),
        (
            vec!["--policy", &good, "--", "true"],
            "--policy: needs --depth, or --hook",
        ),
    ] {
        let mut command = reveille(&home, &[&["scale", "a/q"], &typed[..]].concat());
        let ended = within("its end", command.output())
            .await
            .expect("it starts");
        let said = stderr(&ended);
        assert_eq!(ended.status.code(), Some(2), "{typed:?}: {said}");
        assert!(said.contains(words), "{typed:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{typed:?}: {said}");
    }
}
