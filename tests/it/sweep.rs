//! `sweep` and `sweep ttl`: real processes on SQLite files and a real Azurite.

use std::{
    path::PathBuf,
    process::{Output, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{io::AsyncBufReadExt, process::Command};

use crate::{
    binary::{free_address, reveille, stderr, stdout},
    support::{
        azurite::{Azurite, azurite},
        get, until, within,
    },
};

/// A directory with a job's file.
struct Place {
    home: TempDir,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        Self { home }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn store(&self, name: &str) -> String {
        format!("sqlite:{}", self.file(name).display())
    }

    fn write_job(&self, job: &Value) -> String {
        let path = self.file("job.json");
        std::fs::write(&path, job.to_string()).expect("written");
        path.display().to_string()
    }

    /// A job of `source`, with its document and its dead blobs in separate files.
    fn job(&self) -> Value {
        json!({
            "name": "job", "state": self.store("state"), "interval": "1s",
            "containers": [{ "url": self.store("source") }],
            "dead": { "account": self.store("dead") },
        })
    }

    fn command(&self, typed: &[&str]) -> Command {
        let mut command = reveille(&self.home, typed);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn run(&self, typed: &[&str]) -> Output {
        let output = within("its end", self.command(typed).output()).await;
        output.expect("it starts")
    }

    /// Makes blobs with the verb for SQLite stores.
    async fn blob(&self, name: &str, marks: &[&str]) {
        let store = reveille::store::open(&self.store("source"))
            .await
            .expect("a store");
        let blob = reveille::store::BlobName::new(name).expect("a name");
        store.create(&blob, "body".into()).await.expect("made");
        let url = format!("{}#{name}", self.store("source"));
        let typed = [&["sweep", "ttl", &url][..], marks].concat();
        let marked = self.run(&typed).await;
        assert_eq!(marked.status.code(), Some(0), "{}", stderr(&marked));
    }

    async fn names(&self, store: &str) -> Vec<String> {
        let store = reveille::store::open(&self.store(store))
            .await
            .expect("a store");
        let listed = store.list("", &Default::default()).await.expect("a list");
        listed.entries.iter().map(|e| e.name.to_string()).collect()
    }
}

fn json_lines(output: &Output) -> Vec<Value> {
    let lines = stdout(output);
    let parsed = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    parsed.collect()
}

#[tokio::test]
async fn a_single_round_is_checked_planned_and_run() {
    let place = Place::new();
    place.blob("gone", &["--after", "0s"]).await;
    place
        .blob(
            "moved",
            &["--after", "0s", "--dead-container", "graves/2026/"],
        )
        .await;
    place.blob("alive", &["--after", "1h"]).await;
    let mut job = place.job();
    job["interval"] = "1h".into();
    let job = place.write_job(&job);

    let checked = place.run(&["sweep", &job, "--check"]).await;
    assert_eq!(checked.status.code(), Some(0), "{}", stderr(&checked));
    let planned = place
        .run(&["sweep", &job, "--dry-run", "-o", "jsonl"])
        .await;
    let plan: Vec<_> = json_lines(&planned)
        .iter()
        .map(|row| format!("{} {} {}", row["action"], row["blob"], row["detail"]).replace('"', ""))
        .collect();
    assert_eq!(plan, ["delete gone ", "move moved graves/2026/moved"]);
    assert!(stderr(&planned).contains("would check 3, delete 1, move 1, leave 0"));
    assert_eq!(place.names("source").await.len(), 3, "nothing was changed");

    let swept = place.run(&["sweep", &job, "--once", "-o", "jsonl"]).await;
    let row = &json_lines(&swept)[0];
    let counts = ["seen", "alive", "deleted", "moved", "failed"].map(|name| row[name].as_u64());
    assert_eq!(counts, [3, 1, 1, 1, 0].map(Some), "{row}");
    assert_eq!(place.names("source").await, ["alive"]);
    assert_eq!(place.names("dead").await, ["graves/2026/moved"]);

    place.blob("late", &["--after", "0s"]).await;
    let done = place.run(&["sweep", &job, "--once"]).await;
    assert!(
        stderr(&done).contains("is already done"),
        "{}",
        stderr(&done)
    );
    let again = place.run(&["sweep", &job, "--once", "--again"]).await;
    assert!(stdout(&again).contains("FINISHED"), "{}", stdout(&again));
    assert_eq!(place.names("source").await, ["alive"]);
}

#[tokio::test]
async fn a_container_that_was_mistyped_is_not_made_and_what_is_ours_is_not_marked() {
    let place = Place::new();
    let job = place.write_job(&place.job());
    for verb in ["--check", "--dry-run", "--once"] {
        let refused = place.run(&["sweep", &job, verb]).await;
        assert_eq!(refused.status.code(), Some(5), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("does not exist"));
    }
    let blob = format!("{}#a", place.store("source"));
    let refused = place.run(&["sweep", "ttl", &blob, "--after", "1h"]).await;
    assert_eq!(refused.status.code(), Some(5), "{}", stderr(&refused));
    assert!(!place.file("source").exists());
    for ours in [
        "ids/orders",
        "leases/billing",
        "flags/go",
        "flags-ended/go",
        "sweeps/job",
    ] {
        let blob = format!("{}#{ours}", place.store("source"));
        place.names("source").await;
        let refused = place.run(&["sweep", "ttl", &blob, "--after", "1h"]).await;
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    }
}

#[tokio::test]
async fn a_service_sweeps_each_interval_and_ends_when_told_to() {
    let place = Place::new();
    place.names("source").await;
    let job = place.write_job(&place.job());
    let admin = free_address();
    let mut child = place
        .command(&["sweep", &job, "--admin-listen", &admin, "-o", "jsonl"])
        .spawn()
        .expect("it starts");
    let mut lines = tokio::io::BufReader::new(child.stdout.take().expect("piped")).lines();
    for name in ["a", "b"] {
        place.blob(name, &["--after", "0s"]).await;
        let row = loop {
            let line = within("a round", lines.next_line()).await.expect("a line");
            let row: Value = serde_json::from_str(&line.expect("it runs")).expect("JSON");
            if row["deleted"] != 0 {
                break row;
            }
        };
        assert_eq!(row["deleted"], 1, "{row}");
    }
    let address = admin.parse().expect("an address");
    let (status, metrics) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    assert!(
        metrics.contains("reveille_sweep_deleted_total 2"),
        "{metrics}"
    );
    assert_eq!(get(address, "/readyz").await.0, 200);
    let id = child.id().expect("it runs").to_string();
    let killed = std::process::Command::new("kill")
        .args(["-INT", &id])
        .status();
    assert!(killed.expect("kill runs").success());
    let ended = within("its end", child.wait()).await.expect("it ended");
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test]
async fn each_error_has_its_message_and_exit_code() {
    let place = Place::new();
    place.names("source").await;
    let good = place.job();
    let with = |field: &str, value: Value| {
        let mut job = good.clone();
        job[field] = value;
        job.to_string()
    };
    for (text, words) in [
        ("nonsense".to_owned(), "expected ident"),
        (
            with("interval", "soon".into()),
            "interval: `soon` is no duration",
        ),
        (with("pages", 3.into()), "unknown field `pages`"),
        (
            with("containers", json!([])),
            "containers: must have at least one entry",
        ),
    ] {
        let path = place.file("bad.json");
        std::fs::write(&path, &text).expect("written");
        let refused = place
            .run(&["sweep", &path.display().to_string(), "--once"])
            .await;
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(stderr(&refused).contains(words), "{}", stderr(&refused));
    }
    let none = place.run(&["sweep", "no-such-file.json"]).await;
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("`no-such-file.json` cannot be read"));
    let url = format!("{}#none", place.store("source"));
    let missing = place.run(&["sweep", "ttl", &url, "--after", "1h"]).await;
    assert_eq!(missing.status.code(), Some(5), "{}", stderr(&missing));
    let schema = place.run(&["sweep", "--schema"]).await;
    let schema: Value = serde_json::from_str(&stdout(&schema)).expect("JSON");
    assert_eq!(schema["properties"]["interval"]["default"], "10m");
}

/// Two instances on a container of Azurite handle each blob once. A page of a killed instance is
/// left to the next round.
#[tokio::test]
async fn instances_share_a_container_of_azurite_also_when_one_is_killed() {
    let (place, emulator) = (Place::new(), azurite());
    emulator.create_container("swept");
    emulator.create_container("sweepers");
    let environment = environment(emulator);
    let source = reveille::store::container::connect("az://swept", &environment).await;
    let source = source.expect("a container");
    let marks = [("timetolive", "2000-01-01T00:00:00Z")];
    let marks = marks.map(|(name, value)| (name.to_owned(), value.to_owned()));
    for number in 0..120 {
        let name = reveille::store::BlobName::new(&format!("{number:03}")).expect("a name");
        let content = reveille::store::container::Content::whole("x".into());
        source
            .write(&name, content, marks.clone().into(), None)
            .await
            .expect("written");
    }
    let job = place.write_job(&json!({
        "name": "job", "state": "az://sweepers", "interval": "1h", "page_size": 10, "parallel": 2,
        "containers": [{ "url": "az://swept" }],
    }));
    let sweeping = || {
        let mut command = place.command(&["sweep", &job, "--once", "-o", "jsonl"]);
        command.envs(&environment).spawn().expect("it starts")
    };
    let mut killed = sweeping();
    let deletes = || {
        let requests = emulator.requests();
        requests
            .iter()
            .filter(|r| r.starts_with("DELETE") && r.contains("/swept/"))
            .count()
    };
    until("it deletes", async || deletes() > 0).await;
    killed.kill().await.expect("killed");
    let both = [sweeping(), sweeping()].map(|child| within("its end", child.wait_with_output()));
    let mut removed = 0;
    for output in futures_util::future::join_all(both).await {
        let output = output.expect("it ended");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let row = &json_lines(&output)[0];
        assert_eq!(
            (row["failed"].as_u64(), row["changed"].as_u64()),
            (Some(0), Some(0)),
            "{row}"
        );
        removed += row["deleted"].as_u64().expect("a number");
    }
    assert!(
        removed >= 100,
        "{removed}: at most two pages were the killed one's"
    );
    let mut again = place.command(&["sweep", &job, "--once", "--again"]);
    let again = within("its end", again.envs(&environment).output()).await;
    assert_eq!(again.expect("it starts").status.code(), Some(0));
    let left = source.list("", &Default::default()).await.expect("a list");
    assert!(left.entries.is_empty(), "{left:?}");
    let twice = emulator.requests();
    let twice = twice
        .iter()
        .filter(|r| r.contains("/swept/") && r.contains("DELETE"));
    assert!(
        twice.clone().count() <= 122,
        "{:?}",
        twice.collect::<Vec<_>>()
    );
}

fn environment(emulator: &Azurite) -> std::collections::BTreeMap<String, String> {
    let text = emulator.connection_string();
    [("AZURE_STORAGE_CONNECTION_STRING".to_owned(), text)].into()
}
