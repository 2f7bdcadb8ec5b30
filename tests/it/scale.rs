//! `scale`: real agents, real workers, a real relay and a queue in a SQLite file or on Azurite.

use std::{
    collections::BTreeSet,
    ops::Range,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    binary::{Binary, free_address, processor_of, reveille, stderr, stdout},
    support::{
        azurite::{ACCOUNT, azurite},
        nats::NatsServer,
        until, within,
    },
};

/// Agents of one queue, whose workers write a line at their start and read the queue until it is empty.
struct Place {
    home: TempDir,
    relay: Binary,
    queue: String,
}

impl Place {
    async fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let file = home.path().join("jobs.db");
        let queue = format!("sqlite:{}?queue=orders", file.display());
        Self::with(home, Binary::serve().await, queue).await
    }

    /// With a queue on Azurite.
    async fn on_azurite(name: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let connection = azurite().connection_string();
        let variables = [("AZURE_STORAGE_CONNECTION_STRING".to_owned(), connection)];
        let relay = Binary::serve_with(&[], &variables).await;
        Self::with(home, relay, format!("azure://{ACCOUNT}/{name}")).await
    }

    async fn with(home: TempDir, relay: Binary, queue: String) -> Self {
        let made = relay.run(&["queue", "create", &queue]).await;
        assert!(made.status.success(), "{}", stderr(&made));
        Self { home, relay, queue }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Starts an agent with these options and this script as its worker.
    fn agent(&self, name: &str, options: &[&str], script: &str) -> Child {
        let log = std::fs::File::create(self.file(&format!("{name}.log"))).expect("a file");
        let azure = self.queue.strip_prefix("azure://");
        let queue = azure.unwrap_or("local/orders");
        let id = ["--id", name, "--visibility-timeout", "2s"];
        let typed = [
            &["scale", queue],
            &id[..],
            options,
            &["--", "sh", "-c", script],
        ]
        .concat();
        let mut command = self.relay.verb(&typed);
        command
            .env("STARTS", self.file("starts"))
            .env("DONE", self.file("done"))
            .env("HOME", self.home.path())
            .env("AGENT", name)
            .env("QUEUE", &self.queue)
            .env("REVEILLE", env!("CARGO_BIN_EXE_reveille"))
            .stderr(Stdio::from(log));
        command.spawn().expect("it starts")
    }

    async fn put(&self, count: u32) {
        self.put_numbers(0..count).await;
    }

    async fn put_numbers(&self, numbers: Range<u32>) {
        let bodies: String = numbers.map(|number| format!("{number}\n")).collect();
        let mut command = self.relay.verb(&["queue", "put", &self.queue, "--notify"]);
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

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    fn lines(&self, name: &str) -> usize {
        self.text(name).lines().count()
    }

    /// Returns the number of different lines.
    fn different(&self, name: &str) -> usize {
        self.text(name).lines().collect::<BTreeSet<_>>().len()
    }

    /// Starts three agents, and waits until each has looked: for what is there already, and when hidden
    /// messages are visible.
    async fn idle_fleet(&self, options: &[&str], script: &str) -> Vec<Child> {
        let agents = ["a", "b", "c"].map(|name| self.agent(name, options, script));
        self.connected(3).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        agents.into()
    }

    /// Waits until no [`LOCKED`] worker runs, and ends the agents. No slot has had two workers at once.
    async fn end_without_doubles(&self, agents: &mut [Child]) {
        until("no worker runs", async || {
            self.lines("ends") == self.lines("starts")
        })
        .await;
        assert_eq!(self.text("doubled"), "");
        for agent in agents {
            terminate(agent).await;
        }
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
    let mut agents = place.idle_fleet(&["--max", "2"], WORKER).await;
    let before = place.lines("starts");
    place.put(1).await;
    until("it is handled", async || place.lines("done") == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(place.lines("starts"), before + 1);
    for agent in &mut agents {
        terminate(agent).await;
    }
}

#[tokio::test]
async fn an_idle_fleet_sends_no_request_to_its_queue_and_takes_no_processor_time() {
    let name = "agents-at-rest";
    let place = Place::on_azurite(name).await;
    let requests = || {
        let path = format!("/{ACCOUNT}/{name}");
        let all = azurite().requests().into_iter();
        all.filter(|request| request.contains(&path)).count()
    };
    let options = ["--max", "2", "--depth", &place.queue];
    let mut agents = place.idle_fleet(&options, WORKER).await;
    let used = |agents: &[Child]| -> Duration {
        let pids = agents.iter().map(|agent| agent.id().expect("it runs"));
        pids.map(|pid| processor_of(&pid.to_string())).sum()
    };
    for number in 1..=2 {
        let (before, starts, began) = (requests(), place.lines("starts"), Instant::now());
        assert!(before > 0, "the log names the queue");
        let used_before = used(&agents);
        tokio::time::sleep(Duration::from_secs(12)).await;
        let share = (used(&agents) - used_before).as_secs_f64() / began.elapsed().as_secs_f64();
        println!("three idle agents use {share} of a core");
        assert!(
            share < 3.0 * 0.001,
            "three idle agents use {share} of a core"
        );
        assert_eq!((requests(), place.lines("starts")), (before, starts));

        place.put(1).await;
        until("it is handled", async || place.lines("done") == number).await;
        // The worker has read the empty queue, and the agent its depth.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(requests() > before);
    }
    for agent in &mut agents {
        terminate(agent).await;
    }
}

/// As [`WORKER`], with a lock for each slot, and a line at its end.
const LOCKED: &str = "echo $AGENT $WAKE_SLOT >>$STARTS
    mkdir $HOME/$AGENT-$WAKE_SLOT || echo $AGENT $WAKE_SLOT >>$HOME/doubled
    $REVEILLE listen $QUEUE --no-relay --until-empty --max-tasks 1 -- \
        sh -c 'sleep 0.02; echo $(cat) >>$DONE'
    code=$?
    rmdir $HOME/$AGENT-$WAKE_SLOT
    echo $AGENT $WAKE_SLOT >>$HOME/ends
    exit $code";

#[tokio::test]
async fn a_relay_that_is_killed_loses_no_message_and_no_slot_has_two_workers() {
    let mut place = Place::new().await;
    let options = ["--max", "2", "--poll", "1s"];
    let mut agents = place.idle_fleet(&options, LOCKED).await;
    for round in 0..3 {
        place.put_numbers(round * 100..round * 100 + 100).await;
        let some = round as usize * 100 + 10;
        until("some are handled", async || place.lines("done") >= some).await;
        place.relay.crash().await;
    }
    until("all are handled", async || place.different("done") == 300).await;
    place.connected(3).await;
    place.put_numbers(300..310).await;
    until("the rest is handled", async || {
        place.different("done") == 310
    })
    .await;
    place.end_without_doubles(&mut agents).await;
}

#[tokio::test]
async fn a_broker_that_is_killed_strands_no_message_and_no_slot_has_two_workers() {
    let mut broker = NatsServer::start();
    let home = tempfile::tempdir().expect("a directory");
    let store = format!("sqlite:{}", home.path().join("flags.db").display());
    let url = broker.url();
    // A publisher is answered although the broker is away.
    let cluster = [
        "--store",
        &store,
        "--cluster",
        &url,
        "--cluster-ack",
        "local",
    ];
    let two = Binary::serve_with(&cluster, &[]).await;
    let one = Binary::serve_with(&cluster, &[]).await;
    let queue = format!(
        "sqlite:{}?queue=orders",
        home.path().join("jobs.db").display()
    );
    let place = Place::with(home, one, queue).await;
    let (here, there) = (["--max", "2"], ["--max", "2", "--relay", &two.url()]);
    let mut agents = vec![
        place.agent("a", &here, LOCKED),
        place.agent("b", &here, LOCKED),
        place.agent("c", &there, LOCKED),
    ];
    place.connected(3).await;
    for round in 0..3 {
        place.put_numbers(round * 100..round * 100 + 50).await;
        let some = round as usize * 100 + 10;
        until("some are handled", async || place.lines("done") >= some).await;
        broker.kill();
        place.put_numbers(round * 100 + 50..round * 100 + 100).await;
        broker.restart();
    }
    until("all are handled", async || place.different("done") == 300).await;
    place.end_without_doubles(&mut agents).await;
}

#[tokio::test]
async fn many_messages_start_all_workers_of_all_agents_and_then_none_is_left() {
    let place = Place::new().await;
    let mut agents = place.idle_fleet(&["--max", "3"], LOCKED).await;
    for file in ["starts", "ends"] {
        // What the first looks wrote.
        std::fs::remove_file(place.file(file)).expect("removed");
    }
    let began = Instant::now();
    place.put(1_000).await;
    until("nine workers run", async || place.different("starts") == 9).await;
    let took = began.elapsed();
    println!("nine workers run after {took:?}");
    until("all are handled", async || place.different("done") == 1_000).await;
    until("no worker runs", async || {
        place.lines("ends") == place.lines("starts")
    })
    .await;
    let starts = place.lines("starts");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(place.lines("starts"), starts, "no further one starts");
    assert_eq!(
        (place.lines("ends"), place.text("doubled")),
        (starts, String::new())
    );
    for agent in &mut agents {
        terminate(agent).await;
    }
}

#[tokio::test]
async fn a_killed_agents_work_is_done_by_another_one() {
    let place = Place::new().await;
    let slow = "echo $$ >>$STARTS; exec $REVEILLE listen $QUEUE --no-relay --until-empty \
                --max-tasks 1 --visibility-timeout 2s -- sh -c 'sleep 1; echo $(cat) >>$DONE'";
    let mut first = place.agent("first", &["--max", "1"], slow);
    place.connected(1).await;
    until("the first looks", async || place.lines("starts") >= 2).await;
    place.put(5).await;
    until("one is handled", async || place.lines("done") >= 1).await;
    let mut second = place.agent("second", &["--max", "1"], slow);
    place.connected(2).await;
    first.kill().await.expect("killed");
    until("all are handled", async || place.different("done") == 5).await;
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
    let depth = &place.queue;
    let options = ["--serve", "--idle", "1s", "--depth", depth];
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
    let purged = place.relay.run(&["queue", "purge", depth]).await;
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
