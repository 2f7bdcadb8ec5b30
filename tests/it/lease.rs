//! `lease run` and `lease show`: real processes on one SQLite file, killed, stopped and blocked.

use std::{
    fs,
    path::PathBuf,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{
    binary::{reveille, stderr, stdout},
    support::{until, within},
};

/// A directory with the shared store and the files of commands.
struct Place {
    home: TempDir,
    url: String,
}

/// A `lease run`.
struct Running {
    child: Child,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}", home.path().join("shared.db").display());
        Self { home, url }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn written(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    fn verb(&self, verb: &[&str], options: &[&str], script: Option<&str>) -> Command {
        let store = ["job", "--store", &self.url];
        let mut typed = [&["lease"], verb, &store, options].concat();
        if let Some(script) = script {
            typed.extend(["--", "sh", "-c", script]);
        }
        let mut command = reveille(&self.home, &typed);
        command.current_dir(self.home.path()).stderr(Stdio::piped());
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Running {
        Running::start(self.verb(&["run"], options, Some(script)))
    }

    fn run_with_hangup(&self, how: &str) -> Running {
        let command = self.verb(&["run"], &[], Some(ENDLESS));
        Running::start(with_hangup(how, &command))
    }

    async fn show(&self) -> Value {
        let mut show = self.verb(&["show"], &["-o", "json"], None);
        let output = within("its end", show.output()).await.expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).expect("JSON")
    }

    /// Waits until a script has created this file.
    async fn runs(&self, name: &str) {
        until(name, async || self.file(name).exists()).await;
    }
}

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self {
            child: command.spawn().expect("it starts"),
        }
    }

    fn signal(&self, name: &str) {
        signal(name, &self.child.id().expect("it runs").to_string());
    }

    /// Waits for the first line that it writes to stderr, and reads no further lines.
    async fn note(&mut self) -> String {
        let stderr = self.child.stderr.as_mut().expect("piped");
        let mut line = String::new();
        let read = within("a note", BufReader::new(stderr).read_line(&mut line)).await;
        read.expect("a text");
        line.trim_end().to_owned()
    }

    async fn ends(self) -> Output {
        let output = within("its end", self.child.wait_with_output()).await;
        output.expect("it ended")
    }
}

/// Starts a command with SIGHUP at its default or ignored. A process inherits this setting, and
/// `nohup` and some supervisors ignore SIGHUP, so the tests set it explicitly.
fn with_hangup(how: &str, command: &Command) -> Command {
    let inner = command.as_std();
    let start = format!(
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.{how}); \
         os.execv(sys.argv[1], sys.argv[1:])"
    );
    let mut outer = Command::new("python3");
    outer
        .args(["-c", &start])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .envs(
            inner
                .get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        )
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if let Some(directory) = inner.get_current_dir() {
        outer.current_dir(directory);
    }
    outer
}

fn signal(name: &str, process: &str) {
    let sent = std::process::Command::new("kill")
        .args(["-s", name, "--", process])
        .status();
    assert!(sent.expect("kill").success());
}

fn is_alive(process: &str) -> bool {
    // A killed process that is not reaped yet counts as ended.
    let state = fs::read_to_string(format!("/proc/{}/stat", process.trim()));
    state.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

/// Writes its token and process id, and creates `up`. Ends on SIGTERM, or when `up` is removed.
const ENDLESS: &str = "trap 'touch told; exit 0' TERM; echo $LEASE_TOKEN > token; \
    echo $$ > pid; touch up; while [ -e up ]; do sleep 0.02; done";

#[tokio::test]
async fn one_command_runs_at_a_time_and_the_next_starts_at_its_end() {
    let place = Place::new();
    // A second command at the same time would find the directory.
    let script = "mkdir one || exit 9; sleep 0.7; echo $LEASE_NAME $LEASE_HOLDER $LEASE_TOKEN; rmdir one; exit 3";
    let runs = ["a", "b", "c"].map(|holder| place.run(&["--holder", holder], script));
    let mut tokens = Vec::new();
    for (run, holder) in runs.into_iter().zip(["a", "b", "c"]) {
        let output = run.ends().await;
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let stdout = stdout(&output);
        let (environment, token) = stdout.trim().rsplit_once(' ').expect("three words");
        assert_eq!(environment, format!("job {holder}"));
        tokens.push(token.parse::<u64>().expect("a number"));
    }
    tokens.sort_unstable();
    assert!(tokens[0] > 1_700_000_000_000_000, "{tokens:?}");
    assert_eq!(tokens, [tokens[0], tokens[0] + 1, tokens[0] + 2]);
    let shown = place.show().await;
    assert_eq!(
        (&shown["held"], &shown["duration_ms"]),
        (&false.into(), &15_000.into())
    );
    assert_eq!(shown["token"], tokens[2]);
}

#[tokio::test]
async fn a_killed_holders_lease_is_taken_after_its_duration_with_a_greater_token() {
    let place = Place::new();
    let mut dying = place.run(
        &["--duration", "2s", "--holder", "a"],
        "touch up; while [ -e up ]; do sleep 0.1; done",
    );
    place.runs("up").await;
    let before = place.show().await;
    assert_eq!(
        (&before["held"], &before["holder"]),
        (&true.into(), &"a".into())
    );
    let mut heir = place.run(&["--duration", "30s"], "echo $LEASE_TOKEN");
    assert_eq!(heir.note().await, "lease `job` is held by `a`; waiting");
    // Longer than the duration: the lease is renewed.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(heir.child.try_wait().expect("a status").is_none());
    let killed = Instant::now();
    dying.child.kill().await.expect("killed");
    let output = heir.ends().await;
    assert_eq!(output.status.code(), Some(0));
    // The last renewal was up to 0.7 s before. The former holder's duration counts, not the next
    // one's.
    let waited = killed.elapsed();
    assert!(waited > Duration::from_millis(500), "{waited:?}");
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    let (before, after) = (
        before["token"].as_u64(),
        stdout(&output).trim().parse().ok(),
    );
    assert_eq!(after, before.map(|token| token + 1));
}

#[tokio::test]
async fn a_stopped_holder_ends_its_command_when_it_continues() {
    let place = Place::new();
    let paused = place.run(&["--duration", "2s"], ENDLESS);
    place.runs("up").await;
    paused.signal("STOP");
    let heir = place.run(
        &["--duration", "5s"],
        "echo $LEASE_TOKEN; touch taken; sleep 2",
    );
    place.runs("taken").await;
    let process = place.written("pid");
    assert!(
        is_alive(&process),
        "a suspended holder cannot end its command: the token protects the data"
    );
    paused.signal("CONT");
    let output = paused.ends().await;
    assert!(!is_alive(&process));
    assert_eq!(output.status.code(), Some(7));
    let complaint = stderr(&output);
    assert!(complaint.contains("lease `job` was lost"), "{complaint}");
    let output = heir.ends().await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let token = |text: &str| text.trim().parse::<u64>().expect("a number");
    assert!(token(&stdout(&output)) > token(&place.written("token")));
}

#[tokio::test]
async fn a_blocked_store_ends_the_command_and_kills_what_ignores_that() {
    // That the end comes before that of the lease is judged by the tests of its machine, with a clock of
    // their own: a loaded computer may be late by seconds.
    let late = Duration::from_secs(12);
    let place = Place::new();
    let options = ["--duration", "4s"];
    let told = place.run(&options, ENDLESS);
    place.runs("up").await;
    let lock = || {
        let database = rusqlite::Connection::open(place.file("shared.db")).expect("opened");
        database.execute_batch("BEGIN IMMEDIATE").expect("locked");
        database
    };
    let (locked, since) = (lock(), Instant::now());
    until("it is told", async || place.file("told").exists()).await;
    let process = place.written("pid");
    until("it has ended", async || !is_alive(&process)).await;
    assert!(since.elapsed() < late, "{:?}", since.elapsed());
    let output = told.ends().await;
    assert_eq!(output.status.code(), Some(7));
    let complaint = stderr(&output);
    assert!(
        complaint.contains("could not be renewed in time"),
        "{complaint}"
    );
    assert!(complaint.contains("did not answer within"), "{complaint}");
    let logged = complaint.matches("the lease's store fails").count();
    assert_eq!(logged, 1, "logged once for all attempts: {complaint}");
    drop(locked);

    // A command that ignores SIGTERM is killed, and so are its children.
    let script = "trap '' TERM; echo $$ > deaf.pid; sleep 60 & echo $! > child.pid; touch deaf; wait; while [ -e deaf ]; do sleep 0.1; done";
    let killed = place.run(&options, script);
    place.runs("deaf").await;
    let (_locked, since) = (lock(), Instant::now());
    let output = killed.ends().await;
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(since.elapsed() < late, "{:?}", since.elapsed());
    for process in ["deaf.pid", "child.pid"] {
        let process = place.written(process);
        until("it is gone", async || !is_alive(&process)).await;
    }
}

#[tokio::test]
async fn a_deleted_lease_is_reported_and_its_command_is_ended() {
    let place = Place::new();
    let robbed = place.run(&["--duration", "2s"], ENDLESS);
    place.runs("up").await;
    let database = rusqlite::Connection::open(place.file("shared.db")).expect("opened");
    let deleted = database.execute("DELETE FROM blobs", ()).expect("deleted");
    assert_eq!(deleted, 1);
    let output = robbed.ends().await;
    assert_eq!(output.status.code(), Some(7));
    let complaint = stderr(&output);
    assert!(
        complaint.contains("its blob was deleted; `sh` was ended"),
        "{complaint}"
    );
    assert!(!is_alive(&place.written("pid")));
}

#[tokio::test]
async fn signals_are_passed_on_and_the_lease_is_released() {
    let place = Place::new();
    for (name, code, trap) in [("TERM", 4, "TERM"), ("INT", 4, "INT")] {
        let _ = fs::remove_file(place.file("up"));
        let script = format!(
            "trap 'exit 4' {trap}; echo $$ > pid; touch up; while [ -e up ]; do sleep 0.02; done"
        );
        let running = place.run(&[], &script);
        place.runs("up").await;
        let holder = place.show().await["holder"].to_string();
        let process = running.child.id().expect("it runs");
        assert!(holder.ends_with(&format!("-{process}\"")), "{holder}");
        running.signal(name);
        let output = running.ends().await;
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        assert_eq!(place.show().await["held"], false);
    }
    let _ = fs::remove_file(place.file("up"));
    let script = "trap 'touch first' TERM; touch up; while [ -e up ]; do sleep 0.02; done";
    let stubborn = place.run(&[], script);
    place.runs("up").await;
    stubborn.signal("TERM");
    place.runs("first").await;
    // A signal also ends a `lease run` that waits for the lease.
    let mut waiting = place.run(&[], "true");
    assert!(waiting.note().await.ends_with("; waiting"));
    waiting.signal("INT");
    assert_eq!(waiting.ends().await.status.code(), Some(130));
    stubborn.signal("TERM");
    assert_eq!(stubborn.ends().await.status.code(), Some(137));
    assert_eq!(place.show().await["held"], false);
}

#[tokio::test]
async fn an_error_is_one_line_with_its_exit_code() {
    let place = Place::new();
    let holder = place.run(&["--holder", "node-1"], ENDLESS);
    place.runs("up").await;
    for (options, code, words) in [
        (
            &["--timeout", "300ms"][..],
            6,
            "was not acquired within 300ms",
        ),
        (&["--duration", "10ms"], 2, "duration: must be 1s to 24h"),
        (&["--holder", ""], 2, "holder: must not be empty"),
    ] {
        let output = place.run(options, "true").ends().await;
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {complaint}");
        assert!(complaint.contains(words), "{options:?}: {complaint}");
        let errors = complaint.lines().filter(|line| line.starts_with("error: "));
        assert_eq!(errors.count(), 1, "{complaint}");
    }
    let run = async |typed: &[&str]| {
        let mut command = reveille(&place.home, typed);
        command.env("REVEILLE_STORE", &place.url);
        within("its end", command.output())
            .await
            .expect("it starts")
    };
    for (typed, code, words) in [
        (&["lease", "show", "never-held"][..], 5, "was never held"),
        (
            &["lease", "run", "x", "--", "no-such-command"],
            1,
            "no such command",
        ),
        (
            &["lease", "run", "x", "--store", "memory:", "--", "true"],
            2,
            "is lost when this command ends",
        ),
        (
            &["lease", "run", "../x", "--", "true"],
            2,
            "without control characters",
        ),
        (&["lease", "run", "x"], 2, "CMD"),
    ] {
        let output = run(typed).await;
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{typed:?}: {complaint}");
        assert!(complaint.contains(words), "{typed:?}: {complaint}");
    }
    // A variable names the store.
    let output = run(&["lease", "run", "x", "--", "true"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown = stdout(&run(&["lease", "show", "x"]).await);
    assert!(
        shown.starts_with("LEASE  STATE") && shown.contains("released"),
        "{shown}"
    );
    holder.signal("TERM");
    assert_eq!(holder.ends().await.status.code(), Some(0));
}

/// Processes that the command started and left behind still act under its lease.
#[tokio::test]
async fn the_lease_is_held_while_a_process_of_the_command_runs() {
    let place = Place::new();
    let script = "(trap '' TERM; touch up; sleep 1; touch wound-up) & wait";
    let first = place.run(&[], script);
    place.runs("up").await;
    let second = place.run(&[], "[ -e wound-up ]");
    // SIGTERM ends the shell at once, and its child ignores it.
    first.signal("TERM");
    let output = second.ends().await;
    assert_eq!(
        output.status.code(),
        Some(0),
        "it started before the child's end"
    );
    assert_eq!(first.ends().await.status.code(), Some(143));
    assert_eq!(place.show().await["held"], false);
}

#[tokio::test]
async fn a_closed_terminal_ends_the_command() {
    let place = Place::new();
    for name in ["HUP", "QUIT"] {
        let _ = fs::remove_file(place.file("told"));
        let running = place.run_with_hangup("SIG_DFL");
        place.runs("up").await;
        running.signal(name);
        running.ends().await;
        assert!(place.file("told").exists(), "{name}");
        assert!(!is_alive(&place.written("pid")), "{name}");
        assert_eq!(place.show().await["held"], false);
        let _ = fs::remove_file(place.file("up"));
    }
}

#[tokio::test]
async fn a_command_that_ignores_hangups_outlives_its_terminal() {
    let place = Place::new();
    let running = place.run_with_hangup("SIG_IGN");
    place.runs("up").await;
    running.signal("HUP");
    // The holder still runs after the signal, and holds the lease.
    let token = place.show().await["token"].clone();
    assert_eq!(place.show().await["held"], true);
    assert!(is_alive(&place.written("pid")));
    running.signal("TERM");
    running.ends().await;
    assert!(!token.is_null());
    assert_eq!(place.show().await["held"], false);
}

/// Some first processes of containers adopt orphans and never ask for their exit codes: this process is
/// one of them here.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_zombie_of_the_commands_group_keeps_no_lease() {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("set");
    let place = Place::new();
    let output = place.run(&[], "sleep 0.2 & exit 3").ends().await;
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}
