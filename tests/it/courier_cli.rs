//! Store and forward from the command line: hosts are processes, and each verb is the real binary.

mod ages;
mod restores;
mod routes;
mod slow_line;
mod tls;

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Child;

use crate::{
    binary::{Binary, free_address, reveille, stderr, stdout},
    support::{until, within},
};

/// A machine: a directory of queues, and a process that hosts them.
struct Machine {
    home: TempDir,
    address: String,
    host: Option<Child>,
}

impl Machine {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        Self {
            home,
            address: free_address(),
            host: None,
        }
    }

    /// Starts a machine that hosts its queues.
    async fn hosted(arguments: &[&str]) -> Self {
        let mut machine = Self::new();
        machine.host(arguments).await;
        machine
    }

    /// Hosts the queues by `courier serve`.
    async fn host(&mut self, arguments: &[&str]) {
        let mut typed = vec!["courier", "serve", self.place(), "--listen", &self.address];
        typed.extend(arguments);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.home.path().join("host.log"))
            .expect("a log");
        let host = reveille(&self.home, &typed).stderr(log).spawn();
        self.host = Some(host.expect("it starts"));
        until("the host listens", async || {
            let connected = tokio::net::TcpStream::connect(&self.address).await;
            connected.is_ok()
        })
        .await;
    }

    /// Ends the host by SIGTERM, and waits for its end.
    async fn terminate(&mut self) {
        let mut host = self.host.take().expect("it runs");
        let id = host.id().expect("it runs").to_string();
        let mut kill = tokio::process::Command::new("kill");
        let sent = kill.args(["-TERM", &id]).status().await.expect("kill runs");
        assert!(sent.success());
        let status = within("its end", host.wait()).await.expect("its status");
        assert!(status.success(), "{}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("host.log")).expect("a log")
    }

    fn place(&self) -> &str {
        self.home.path().to_str().expect("text")
    }

    fn queue(&self, name: &str) -> String {
        format!("sqlite:{}/queues.db?queue={name}", self.place())
    }

    /// Returns the destination of a queue of this machine for other machines.
    fn destination(&self, queue: &str) -> String {
        format!("reveille://{}/{queue}", self.address)
    }

    /// Runs a verb to its end.
    async fn output(&self, arguments: &[&str]) -> Output {
        let mut command = reveille(&self.home, arguments);
        let output = command.output();
        within("the verb's end", output).await.expect("it starts")
    }

    /// Runs a verb that succeeds; returns its stdout.
    async fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments).await;
        assert_eq!(
            output.status.code(),
            Some(0),
            "{arguments:?}: {}",
            stderr(&output)
        );
        stdout(&output)
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let mut typed = arguments.to_vec();
        typed.extend(["-o", "json"]);
        serde_json::from_str(&self.run(&typed).await).expect("JSON")
    }

    async fn create(&self, queue: &str) {
        self.run(&["queue", "create", &self.queue(queue)]).await;
    }

    /// Returns the only destination of the status.
    async fn destination_status(&self) -> Value {
        self.json(&["courier", "status", self.place()]).await["destinations"][0].clone()
    }

    /// Returns the status of a message.
    async fn message(&self, id: &str) -> Value {
        self.json(&["courier", "status", self.place(), id]).await
    }

    /// Returns whether the queue file has the message.
    async fn knows(&self, id: &str) -> bool {
        let status = ["courier", "status", self.place(), id];
        self.output(&status).await.status.success()
    }

    /// Writes a configuration file; returns its path.
    fn configure(&self, text: &str) -> String {
        let file = self.home.path().join("reveille.toml");
        std::fs::write(&file, text).expect("written");
        file.to_str().expect("text").to_owned()
    }

    /// Receives all messages of a queue; returns their bodies.
    async fn receive(&self, queue: &str) -> Vec<String> {
        let verb = ["courier", "receive", self.place(), queue, "--max", "100"];
        let rows = self.json(&verb).await;
        let rows = rows.as_array().expect("a list");
        let body = |row: &Value| row["body"].as_str().expect("text").to_owned();
        rows.iter().map(body).collect()
    }
}

#[tokio::test]
async fn messages_go_from_one_machine_to_another_in_their_order() {
    let (rome, berlin) = (Machine::hosted(&[]).await, Machine::hosted(&[]).await);
    berlin.create("orders").await;
    let to = berlin.destination("orders");
    let sent = rome
        .run(&["courier", "send", rome.place(), &to, "first", "second"])
        .await;
    let ids: Vec<_> = sent.lines().collect();
    assert_eq!(ids.len(), 2, "{sent}");
    until("both are visible", async || {
        rome.destination_status().await["confirmed"] == 2
    })
    .await;
    let status = rome.destination_status().await;
    assert_eq!(status["hop"], Value::from(&*berlin.address), "{status}");
    assert_eq!((&status["ready"], &status["sent"]), (&0.into(), &0.into()));
    let table = rome.run(&["courier", "status", rome.place()]).await;
    assert!(
        table.contains("CONFIRMED") && table.contains(&to),
        "{table}"
    );

    let one = rome
        .json(&["courier", "status", rome.place(), ids[0]])
        .await;
    assert_eq!(one["state"], "confirmed");
    assert_eq!(one["hop"], Value::from(&*berlin.address));
    assert_eq!(one["last_known"], Value::from(&*berlin.address));
    assert!(one["changed_at"].is_string(), "{one}");
    let one = berlin
        .json(&["courier", "status", berlin.place(), ids[0]])
        .await;
    assert_eq!(
        (&one["state"], &one["last_known"]),
        (&"arrived".into(), &"this machine".into())
    );

    assert_eq!(berlin.receive("orders").await, ["first", "second"]);
    let status = berlin.json(&["courier", "status", berlin.place()]).await;
    let queue = &status["queues"][0];
    assert_eq!(
        (&queue["arrived"], &queue["received"]),
        (&0.into(), &2.into())
    );
    let history = berlin.json(&["courier", "history", berlin.place()]).await;
    for entry in history.as_array().expect("a list") {
        let id = entry["message_id"].as_str().expect("an id");
        assert!(ids.contains(&id), "{entry}");
        assert_eq!(entry["state"], "received");
    }
    let history = rome
        .run(&["courier", "history", rome.place(), "--max", "1"])
        .await;
    assert!(history.contains("confirmed"), "{history}");
    let unknown = "0".repeat(32);
    let output = rome
        .output(&["courier", "status", rome.place(), &unknown])
        .await;
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
}

/// Waits until a machine has two dead letters, and returns them.
async fn two_dead_letters(machine: &Machine) -> Value {
    let dead = async || machine.json(&["courier", "dead", machine.place()]).await;
    until("they are refused", async || {
        dead().await.as_array().expect("a list").len() == 2
    })
    .await;
    dead().await
}

#[tokio::test]
async fn a_refused_message_is_a_dead_letter_and_is_sent_again() {
    let (rome, berlin) = (Machine::hosted(&[]).await, Machine::hosted(&[]).await);
    let to = berlin.destination("orders");
    let send = ["courier", "send", rome.place(), &to, "tea", "milk"];
    rome.run(&send).await;
    let dead = two_dead_letters(&rome).await;
    assert_eq!(dead[0]["destination"], Value::from(&*to));
    let reason = dead[0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("orders"), "{reason}");
    let table = rome.run(&["courier", "dead", rome.place()]).await;
    assert!(table.contains(reason), "{table}");
    let status = rome.run(&["courier", "status", rome.place()]).await;
    assert!(status.contains("2 dead letters"), "{status}");

    berlin.create("orders").await;
    // The newest is first.
    let oldest = dead[1]["message_id"].as_str().expect("an id");
    let again = ["courier", "requeue", rome.place(), oldest];
    let requeued = rome.json(&again).await;
    assert_eq!(requeued["requeued"], 1);
    assert_eq!(requeued["dead_letters"], 1);
    // The host says what has happened.
    until("the log counts the dead letters", async || {
        rome.log().contains("messages could not be delivered")
    })
    .await;
    let newest = dead[0]["message_id"].as_str().expect("an id");
    let shown = rome.json(&["courier", "dead", rome.place(), newest]).await;
    assert_eq!(shown["body"], "milk");
    let line = rome
        .run(&["courier", "requeue", rome.place(), "--all"])
        .await;
    assert_eq!(line, "sent 1 message again\n");
    until("both are visible", async || {
        rome.destination_status().await["confirmed"] == 2
    })
    .await;
    assert_eq!(berlin.receive("orders").await, ["tea", "milk"]);
    assert_eq!(rome.output(&again).await.status.code(), Some(5));

    // To another queue, and away.
    let missing = berlin.destination("missing");
    let send = ["courier", "send", rome.place(), &missing, "tea", "milk"];
    rome.run(&send).await;
    let dead = two_dead_letters(&rome).await;
    let oldest = dead[1]["message_id"].as_str().expect("an id");
    let redirect = ["courier", "requeue", rome.place(), oldest, "--to", &to];
    rome.run(&redirect).await;
    until("it is visible", async || {
        berlin.receive("orders").await == ["tea"]
    })
    .await;
    let remove = ["courier", "dead", rome.place(), "--remove"];
    assert_eq!(rome.output(&remove).await.status.code(), Some(2));
    let line = rome.run(&[&remove[..], &["--all"]].concat()).await;
    assert_eq!(line, "removed 1 dead letter\n");
    let dead = rome.json(&["courier", "dead", rome.place()]).await;
    assert_eq!(dead.as_array().expect("a list").len(), 0);
}

#[tokio::test]
async fn a_relay_counts_the_dead_letters_and_the_waiting_messages_of_its_queues() {
    let berlin = Machine::hosted(&[]).await;
    let home = tempfile::tempdir().expect("a directory");
    let place = home.path().display().to_string();
    let relay = Binary::serve_with(&["--queues", &place], &[]).await;
    let nobody = Machine::new();
    let count = async |name| crate::support::figure(relay.admin(), name).await;
    let waits = nobody.destination("orders");
    let refused = berlin.destination("missing");
    for (to, dead, outgoing) in [(&waits, 0, 1), (&refused, 1, 1)] {
        let sent = relay.run(&["courier", "send", &place, to, "tea"]).await;
        assert!(sent.status.success(), "{}", stderr(&sent));
        until("both figures", async || {
            let dead_letters = count("reveille_dead_letters").await;
            (dead_letters, count("reveille_outgoing_messages").await) == (dead, outgoing)
        })
        .await;
    }
}

/// A copy of a machine with its queue file, as from one image.
#[tokio::test]
async fn a_cloned_machine_is_told_and_gets_an_identity_of_its_own() {
    let berlin = Machine::hosted(&[]).await;
    berlin.create("orders").await;
    let to = berlin.destination("orders");
    let mut rome = Machine::new();
    let send = ["courier", "send", rome.place(), &to, "tea", "--create"];
    rome.run(&send).await;
    let mut clone = Machine::new();
    std::fs::copy(file(&rome), file(&clone)).expect("copied");
    rome.host(&[]).await;
    clone.host(&[]).await;
    let told = "run `reveille courier new-identity` there";
    until("one of them is told", async || {
        for machine in [&rome, &clone] {
            machine
                .run(&["courier", "send", machine.place(), &to, "milk"])
                .await;
        }
        rome.log().contains(told) || clone.log().contains(told)
    })
    .await;
    let place = clone.place().to_owned();
    let verb = ["courier", "new-identity", &place];
    assert_eq!(
        clone.output(&verb).await.status.code(),
        Some(5),
        "it is hosted"
    );
    clone.terminate().await;
    clone.run(&verb).await;
    clone.host(&[]).await;
    until("both are settled", async || {
        rome.destination_status().await["ready"] == 0
            && clone.destination_status().await["ready"] == 0
    })
    .await;
    // The message that was in both files is there once.
    let received = berlin.receive("orders").await;
    assert_eq!(received.iter().filter(|body| *body == "tea").count(), 1);
}

/// Else any user of the machine could lock them, and no host would start.
#[tokio::test]
async fn the_files_of_a_host_are_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let rome = Machine::hosted(&[]).await;
    rome.create("orders").await;
    let files = std::fs::read_dir(rome.place()).expect("a directory");
    let files: Vec<_> = files.map(|file| file.expect("an entry")).collect();
    let names: Vec<_> = files.iter().map(|file| file.file_name()).collect();
    assert!(
        names.iter().any(|name| name == "queues.db.host"),
        "{names:?}"
    );
    for file in files {
        let name = file.file_name();
        // Not the log of this test. A lock of a process may have gone with it.
        if name.to_string_lossy().starts_with("queues.db")
            && let Ok(metadata) = file.metadata()
        {
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name:?}");
        }
    }
}

#[tokio::test]
async fn messages_wait_for_a_machine_that_is_away() {
    let (rome, mut berlin) = (Machine::hosted(&[]).await, Machine::new());
    let to = berlin.destination("orders");
    let sent = rome
        .run(&["courier", "send", rome.place(), &to, "tea"])
        .await;
    until("the attempt has failed", async || {
        rome.destination_status().await["last_error"].is_string()
    })
    .await;
    let status = rome.destination_status().await;
    let error = status["last_error"].as_str().expect("an error");
    assert!(error.contains(&berlin.address), "{error}");
    assert_eq!((&status["ready"], &status["sent"]), (&1.into(), &0.into()));
    assert!(status["oldest_ms"].is_number(), "{status}");
    let one = rome.message(sent.trim()).await;
    assert_eq!(one["state"], "ready");
    assert_eq!(one["hop"], Value::from(&*berlin.address));
    assert_eq!(one["last_known"], "this machine");
    let reason = one["reason"].as_str().expect("why it waits");
    assert!(reason.contains(&berlin.address), "{reason}");
    let verb = ["courier", "status", rome.place(), sent.trim()];
    let table = rome.run(&verb).await;
    assert!(
        table.contains("LAST KNOWN") && table.contains(reason),
        "{table}"
    );

    rome.run(&["courier", "send", rome.place(), &to, "milk"])
        .await;
    berlin
        .run(&[
            "courier",
            "send",
            berlin.place(),
            "orders",
            "own",
            "--create",
        ])
        .await;
    berlin.host(&[]).await;
    until("the messages are visible", async || {
        rome.destination_status().await["confirmed"] == 2
    })
    .await;
    assert_eq!(berlin.receive("orders").await, ["own", "tea", "milk"]);
}

#[tokio::test]
async fn a_relay_hosts_queues_and_its_listener_is_woken_from_another_machine() {
    let home = tempfile::tempdir().expect("a directory");
    let place = home.path().to_str().expect("text");
    let arguments = ["--queues", place];
    let berlin = Binary::serve_with(&arguments, &[]).await;
    let file = home.path().join("queues.db");
    let named = file.to_str().expect("text");
    until("the log names the file", async || {
        berlin.log().contains(named)
    })
    .await;
    let queue = format!("sqlite:{}?queue=orders", file.display());
    let created = berlin.run(&["queue", "create", &queue]).await;
    assert!(created.status.success(), "{}", stderr(&created));
    let handled = home.path().join("handled");
    let write = format!("cat >> {0}; echo >> {0}", handled.display());
    // A poll would come too late for this test.
    let listen = ["listen", &queue, "--poll", "1h", "--", "sh", "-c", &write];
    let mut listener = berlin.verb(&listen);
    let _listener = listener.stderr(Stdio::null()).spawn().expect("it starts");
    until("it listens", async || {
        stdout(&berlin.run(&["listeners"]).await).contains("local/orders")
    })
    .await;

    let rome = Machine::hosted(&[]).await;
    let to = format!("reveille://{}/orders", berlin.address());
    rome.run(&["courier", "send", rome.place(), &to, "tea"])
        .await;
    until("it is handled", async || read(&handled) == "tea\n").await;
    let status = rome.destination_status().await;
    assert_eq!(status["hop"], berlin.address());
}

#[tokio::test]
async fn a_host_with_a_relay_is_woken_and_wakes_its_listeners() {
    let relay = Binary::serve().await;
    let rome = Machine::hosted(&[]).await;
    let berlin = Machine::hosted(&["--relay", &relay.url()]).await;
    until("the relay is logged", async || {
        berlin.log().contains(&relay.url())
    })
    .await;
    berlin.create("orders").await;
    let queue = berlin.queue("orders");
    let handled = berlin.home.path().join("handled");
    let write = format!("cat >> {0}; echo >> {0}", handled.display());
    let listen = ["listen", &queue, "--poll", "1h", "--", "sh", "-c", &write];
    let mut listener = relay.verb(&listen);
    let _listener = listener.stderr(Stdio::null()).spawn().expect("it starts");
    until("it listens", async || {
        stdout(&relay.run(&["listeners"]).await).contains("local/orders")
    })
    .await;
    let to = berlin.destination("orders");
    rome.run(&["courier", "send", rome.place(), &to, "tea"])
        .await;
    until("it is handled", async || read(&handled) == "tea\n").await;

    let place = berlin.place();
    let send = ["courier", "send", place, "orders", "own", "-o", "json"];
    let sent = relay.run(&send).await;
    assert!(sent.status.success(), "{}", stderr(&sent));
    assert!(
        stdout(&sent).contains("\"notified\":true"),
        "{}",
        stdout(&sent)
    );
    until("it is handled", async || read(&handled) == "tea\nown\n").await;

    let nowhere = free_address();
    let mut send = send.to_vec();
    send.extend(["--relay", &nowhere, "--timeout", "300ms"]);
    let sent = relay.run(&send).await;
    assert_eq!(sent.status.code(), Some(8), "{}", stderr(&sent));
    assert!(stderr(&sent).contains("do not send them again"));
}

#[tokio::test]
async fn a_message_that_cannot_be_printed_stays() {
    let rome = Machine::new();
    let send = ["courier", "send", rome.place(), "orders", "tea", "--create"];
    rome.run(&send).await;
    let full = OpenOptions::new().write(true).open("/dev/full");
    let receive = ["courier", "receive", rome.place(), "orders"];
    let mut command = reveille(&rome.home, &receive);
    let output = command
        .stdout(full.expect("a device"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
        .wait_with_output()
        .await;
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("in the queue again"), "{error}");
    assert_eq!(rome.receive("orders").await, ["tea"]);
    assert!(rome.receive("orders").await.is_empty());
}

#[tokio::test]
async fn the_configuration_file_gives_aliases_and_limits() {
    let (rome, berlin) = (Machine::hosted(&[]).await, Machine::hosted(&[]).await);
    berlin.create("orders").await;
    let file = rome.home.path().join("queues.toml");
    let text = format!(
        "[queues]\nmax_outgoing = 2\n[queues.aliases]\nberlin = \"{}\"\nnowhere = \"reveille://127.0.0.1:1/orders\"\n",
        berlin.destination("invoices")
    );
    std::fs::write(&file, text).expect("written");
    let config = file.to_str().expect("text");
    let send = [
        "courier",
        "send",
        rome.place(),
        "orders@berlin",
        "tea",
        "--config",
        config,
    ];
    rome.run(&send).await;
    until("it is visible", async || {
        rome.destination_status().await["confirmed"] == 1
    })
    .await;
    assert_eq!(berlin.receive("orders").await, ["tea"]);
    // No machine is there.
    let mut waiting = send.to_vec();
    waiting[3] = "orders@nowhere";
    rome.run(&[&waiting[..], &["a"]].concat()).await;
    let output = rome.output(&waiting).await;
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains('2'), "{error}");
}

#[tokio::test]
async fn no_verb_but_serve_and_send_with_create_makes_a_file() {
    let rome = Machine::new();
    let id = "0".repeat(32);
    for arguments in [
        &["send", rome.place(), "orders", "tea"][..],
        &["receive", rome.place(), "orders"],
        &["status", rome.place()],
        &["history", rome.place()],
        &["dead", rome.place()],
        &["requeue", rome.place(), &id],
        &["forget", rome.place(), "berlin:7610"],
    ] {
        let verb: Vec<_> = ["courier"].iter().chain(arguments).copied().collect();
        let output = rome.output(&verb).await;
        assert_eq!(output.status.code(), Some(5), "{arguments:?}");
        let error = stderr(&output);
        assert!(error.contains("does not exist"), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(!file(&rome).exists());
    let missing = rome.home.path().join("missing");
    let missing = missing.to_str().expect("text");
    for (arguments, code) in [
        (&["courier", "serve", missing][..], 2),
        (&["serve", "--queues", missing], 2),
        (
            &["courier", "send", missing, "orders", "tea", "--create"],
            5,
        ),
        (&["courier", "status", missing], 5),
    ] {
        let output = rome.output(arguments).await;
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains("there is no directory"), "{error}");
    }
}

#[tokio::test]
async fn one_process_hosts_a_file_and_ends_at_once() {
    let mut rome = Machine::hosted(&[]).await;
    let berlin = Machine::hosted(&[]).await;
    berlin.create("orders").await;
    let address = free_address();
    let second = ["courier", "serve", rome.place(), "--listen", &address];
    let output = rome.output(&second).await;
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("hosted by another process"), "{error}");
    // An open connection from another machine does not delay the end.
    rome.create("invoices").await;
    let to = rome.destination("invoices");
    berlin
        .run(&["courier", "send", berlin.place(), &to, "bill"])
        .await;
    until("it is visible", async || {
        berlin.destination_status().await["confirmed"] == 1
    })
    .await;
    let began = std::time::Instant::now();
    rome.terminate().await;
    let elapsed = began.elapsed();
    assert!(elapsed < std::time::Duration::from_secs(5), "{elapsed:?}");
}

/// While a connection is open, only the other machine knows which messages it has.
#[tokio::test]
async fn a_host_that_ends_in_order_leaves_no_message_uncertain() {
    let (rome, mut berlin) = (Machine::hosted(&[]).await, Machine::hosted(&[]).await);
    rome.create("invoices").await;
    let to = rome.destination("invoices");
    berlin
        .run(&["courier", "send", berlin.place(), &to, "bill"])
        .await;
    until("it is visible", async || {
        berlin.destination_status().await["confirmed"] == 1
    })
    .await;
    let path = file(&berlin);
    let uncertain = || -> i64 {
        let berlin = rusqlite::Connection::open(&path).expect("a file");
        let select = "SELECT max(uncertain_upto) FROM hops";
        let read = berlin.query_row(select, [], |row| row.get(0));
        read.expect("a connection was noted")
    };
    assert_eq!(uncertain(), i64::MAX, "the connection is open");
    berlin.terminate().await;
    assert_eq!(uncertain(), 0);
}

fn file(machine: &Machine) -> PathBuf {
    machine.home.path().join("queues.db")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
