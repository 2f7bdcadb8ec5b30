//! `scale`: real agents, real workers, a real relay and a queue in a SQLite file.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    binary::{Binary, free_address, processor_of, reveille, stderr, stdout},
    support::{until, within},
};

/// Agents of one queue, whose workers write a line at their start and read the queue until it is empty.
struct Place {
    home: TempDir,
    relay: Binary,
}

impl Place {
    async fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let relay = Binary::serve().await;
        let place = Self { home, relay };
        let url = place.queue();
        let made = place.relay.run(&["queue", "create", &url]).await;
        assert!(made.status.success(), "{}", stderr(&made));
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn queue(&self) -> String {
        format!("sqlite:{}?queue=orders", self.file("jobs.db").display())
    }

    /// Starts an agent with these options and this script as its worker.
    fn agent(&self, name: &str, options: &[&str], script: &str) -> Child {
        let log = std::fs::File::create(self.file(&format!("{name}.log"))).expect("a file");
        let typed = [
            &[
                "scale",
                "local/orders",
                "--id",
                name,
                "--visibility-timeout",
                "2s",
            ][..],
            options,
            &["--", "sh", "-c", script],
        ]
        .concat();
        let mut command = self.relay.verb(&typed);
        command
            .env("STARTS", self.file("starts"))
            .env("DONE", self.file("done"))
            .env("QUEUE", self.queue())
            .env("REVEILLE", env!("CARGO_BIN_EXE_reveille"))
            .stderr(Stdio::from(log));
        command.spawn().expect("it starts")
    }

    async fn put(&self, count: u32) {
        let bodies: String = (0..count).map(|number| format!("{number}\n")).collect();
        let mut command = self
            .relay
            .verb(&["queue", "put", &self.queue(), "--notify"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        tokio::io::AsyncWriteExt::write_all(&mut stdin, bodies.as_bytes())
            .await
            .expect("written");
        drop(stdin);
        let ended = within("put", child.wait()).await.expect("it ends");
        assert!(ended.success());
    }

    fn lines(&self, name: &str) -> usize {
        let text = std::fs::read_to_string(self.file(name)).unwrap_or_default();
        text.lines().count()
    }

    async fn connected(&self, agents: usize) {
        until("the agents are connected", async || {
            let listed = self.relay.run(&["listeners", "-o", "jsonl"]).await;
            let listed = stdout(&listed);
            listed
                .lines()
                .filter(|line| line.contains("\"agent\":true"))
                .count()
                == agents
        })
        .await;
    }
}

/// Reads the queue until it is empty.
const WORKER: &str = "echo $$ >>$STARTS; exec $REVEILLE listen $QUEUE --no-relay --until-empty \
                      --max-tasks 1 -- sh -c 'cat >>$DONE; echo >>$DONE'";

async fn terminate(agent: &mut Child) {
    let pid = agent.id().expect("it runs");
    signal(pid, "TERM").await;
    let ended = within("the agent ends", agent.wait())
        .await
        .expect("it ends");
    assert_eq!(ended.code(), Some(0));
}

async fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status();
    assert!(sent.await.expect("kill").success());
}

#[tokio::test]
async fn one_message_starts_one_worker_on_one_of_three_machines_and_it_ends() {
    let place = Place::new().await;
    let options = ["--max", "2"];
    let mut agents: Vec<_> = ["a", "b", "c"]
        .map(|name| place.agent(name, &options, WORKER))
        .into();
    place.connected(3).await;
    // Each looks once: for what is there already, and when hidden messages are visible.
    until("the first looks", async || place.lines("starts") >= 3).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = place.lines("starts");
    let cpu = |agents: &[Child]| -> Duration {
        let pids = agents.iter().map(|agent| agent.id().expect("it runs"));
        pids.map(|pid| processor_of(&pid.to_string())).sum()
    };
    let (began, used) = (Instant::now(), cpu(&agents));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let share = (cpu(&agents) - used).as_secs_f64() / began.elapsed().as_secs_f64();
    assert!(share < 0.02, "three idle agents use {share} of a core");
    assert_eq!(place.lines("starts"), before);

    place.put(1).await;
    until("it is handled", async || place.lines("done") == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(place.lines("starts"), before + 1);
    for agent in &mut agents {
        terminate(agent).await;
    }
}

#[tokio::test]
async fn a_killed_agents_work_is_done_by_another_one() {
    let place = Place::new().await;
    let slow = "echo $$ >>$STARTS; exec $REVEILLE listen $QUEUE --no-relay --until-empty \
                --max-tasks 1 --visibility-timeout 2s -- sh -c 'sleep 1; cat >>$DONE; echo >>$DONE'";
    let mut first = place.agent("first", &["--max", "1"], slow);
    place.connected(1).await;
    until("the first looks", async || place.lines("starts") >= 2).await;
    place.put(5).await;
    until("one is handled", async || place.lines("done") >= 1).await;
    let mut second = place.agent("second", &["--max", "1"], slow);
    place.connected(2).await;
    first.kill().await.expect("killed");
    until("all are handled", async || place.lines("done") >= 5).await;
    terminate(&mut second).await;
}

#[tokio::test]
async fn a_crashing_command_strands_nothing_and_its_slot_rests() {
    let place = Place::new().await;
    let crashes = "echo $$ >>$STARTS; exit 3";
    let mut bad = place.agent("bad", &["--max", "1"], crashes);
    place.connected(1).await;
    place.put(3).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let starts = place.lines("starts");
    assert!((1..10).contains(&starts), "{starts}");
    let mut good = place.agent("good", &["--max", "1"], WORKER);
    until("all are handled", async || place.lines("done") == 3).await;
    let log = std::fs::read_to_string(place.file("bad.log")).expect("a log");
    assert!(log.contains("a worker failed; its slot rests"), "{log}");
    terminate(&mut bad).await;
    terminate(&mut good).await;
}

#[tokio::test]
async fn a_machine_without_room_gives_its_work_to_others() {
    let place = Place::new().await;
    let gate = place.file("gate");
    let when = format!("test -e {}", gate.display());
    let mut full = place.agent(
        "full",
        &["--when-cmd", &when],
        "echo full >>$STARTS; exit 1",
    );
    let mut free = place.agent("free", &[], WORKER);
    place.connected(2).await;
    for number in 1..=5 {
        place.put(1).await;
        until("it is handled", async || place.lines("done") == number).await;
    }
    let starts = std::fs::read_to_string(place.file("starts")).expect("starts");
    assert!(!starts.contains("full"), "{starts}");
    let log = std::fs::read_to_string(place.file("full.log")).expect("a log");
    assert!(log.contains("no room for a worker"), "{log}");
    std::fs::write(&gate, "").expect("written");
    until("it has room again", async || {
        let log = std::fs::read_to_string(place.file("full.log")).expect("a log");
        log.contains("there is room for workers again")
    })
    .await;
    terminate(&mut full).await;
    terminate(&mut free).await;
}

#[tokio::test]
async fn a_serving_worker_gets_sigterm_when_it_is_idle() {
    let place = Place::new().await;
    let serves = "echo $$ >>$STARTS; trap 'echo ended >>$DONE; exit 0' TERM; \
                  while :; do sleep 0.1; done";
    let depth = place.queue();
    let options = ["--serve", "--idle", "1s", "--depth", &depth];
    let mut agent = place.agent("serving", &options, serves);
    place.connected(1).await;
    until("it has ended once", async || place.lines("done") >= 1).await;
    // With a message in the queue it serves on.
    let starts = place.lines("starts");
    place.put(1).await;
    until("it is started", async || place.lines("starts") > starts).await;
    let ended = place.lines("done");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(place.lines("done"), ended);
    let purged = place.relay.run(&["queue", "purge", &depth]).await;
    assert!(purged.status.success(), "{}", stderr(&purged));
    until("it has ended", async || place.lines("done") > ended).await;
    terminate(&mut agent).await;
}

#[tokio::test]
async fn wrong_settings_start_nothing() {
    let home = tempfile::tempdir().expect("a directory");
    let missing = Path::new("/no/such/queue.db");
    let depth = format!("sqlite:{}?queue=q", missing.display());
    let relay = format!("http://{}", free_address());
    for (typed, code, words) in [
        (
            &["scale", "a/q", "--", "/no/such/command"][..],
            1,
            "`/no/such/command` cannot be run",
        ),
        (&["scale", "a/*", "--", "true"], 2, "a/*"),
        (
            &[
                "scale", "a/q", "--min", "2", "--max", "1", "--serve", "--", "true",
            ],
            2,
            "min: must be at most max (1), not 2",
        ),
        (
            &["scale", "a/q", "--depth", &depth, "--", "true"],
            5,
            "does not exist",
        ),
    ] {
        let mut command = reveille(&home, typed);
        command.env("REVEILLE_RELAY", &relay);
        let ended = within("its end", command.output())
            .await
            .expect("it starts");
        assert_eq!(
            ended.status.code(),
            Some(code),
            "{typed:?}: {}",
            stderr(&ended)
        );
        assert!(
            stderr(&ended).contains(words),
            "{typed:?}: {}",
            stderr(&ended)
        );
    }
}
