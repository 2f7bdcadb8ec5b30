//! A policy file that is valid, invalid, changed, replaced, removed and restored.

use std::{fs, sync::Arc};

use tempfile::TempDir;
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::*;

const STEPS: &str = "policy = \"steps\"\nsteps = [[100, 10], [1000, 50]]\nmost = 100\n";

struct TempPolicy {
    directory: TempDir,
    path: PathBuf,
}

impl TempPolicy {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("policy.toml");
        fs::write(&path, text).expect("written");
        Self { directory, path }
    }

    fn write(&self, text: &str) {
        fs::write(&self.path, text).expect("written");
    }

    fn open(&self) -> PolicyFile {
        PolicyFile::open(&self.path).expect("a good file")
    }
}

fn tasks(policy: &PolicyFile, depth: u64) -> usize {
    policy.tasks(&Load {
        depth,
        ..Load::default()
    })
}

async fn a_second() {
    tokio::time::advance(Duration::from_secs(1)).await;
}

/// Counts warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<usize>>);

impl Warnings {
    fn count(&self) -> usize {
        *self.0.lock().expect("no panic")
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        *self.0.lock().expect("no panic") += 1;
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_policy_is_read_as_documented() {
    let steps = TempPolicy::new(STEPS).open();
    let tasks_of = [99, 999, 1_000].map(|depth| tasks(&steps, depth));
    assert_eq!(tasks_of, [10, 50, 100]);
    let defaults = TempPolicy::new("policy = \"steps\"").open();
    assert_eq!(tasks(&defaults, 999), 50);
}

#[test]
fn a_bad_file_is_refused_with_its_name_the_key_and_the_rule() {
    for (text, words) in [
        ("", "missing field `policy`"),
        (
            "policy = \"step\"",
            "unknown variant `step`, expected `steps`",
        ),
        ("policy = \"steps\"\nstep = 1", "unknown field `step`"),
        (
            "policy = \"steps\"\nsteps = [[9, 1], [8, 1]]",
            "steps: must ascend",
        ),
        (
            "policy = \"steps\"\nsteps = [[9, 0]]",
            "steps: must have at least one",
        ),
        (
            "policy = \"steps\"\nsteps = [[9]]",
            "expected a tuple of size 2 in `steps`",
        ),
        (
            "policy = \"steps\"\nsteps = [[-9, 1]]",
            "expected u64 in `steps`",
        ),
        (
            "policy = \"steps\"\nmost = 0",
            "expected a nonzero usize in `most`",
        ),
        ("policy = \"steps\"\nmost =", "line 2"),
    ] {
        let bench = TempPolicy::new(text);
        let error = PolicyFile::open(&bench.path).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert!(error.message().contains("policy.toml`: "), "{error}");
        assert!(error.message().contains(words), "{text}: {error}");
    }
    let bench = TempPolicy::new(STEPS);
    let missing = bench.directory.path().join("missing.toml");
    let error = PolicyFile::open(missing).expect_err("missing");
    assert!(error.message().contains("missing.toml"), "{error}");
    let error = PolicyFile::open(bench.directory.path()).expect_err("a directory");
    assert!(error.message().contains("is not a regular file"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_change_holds_a_second_later_and_the_file_is_not_read_more_often() {
    let bench = TempPolicy::new(STEPS);
    let policy = bench.open();
    bench.write("policy = \"steps\"\nsteps = []\nmost = 3\n");
    assert_eq!(tasks(&policy, 5), 10, "not yet");
    a_second().await;
    assert_eq!(tasks(&policy, 5), 3);
    // The same length as before, and within the same tick of a coarse clock.
    bench.write("policy = \"steps\"\nsteps = []\nmost = 4\n");
    assert_eq!(tasks(&policy, 5), 3, "not yet");
    a_second().await;
    assert_eq!(tasks(&policy, 5), 4);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_becomes_invalid_leaves_the_policy_and_is_logged_once_per_change() {
    let warnings = Warnings::default();
    let _guard = crate::log::log_to(warnings.clone());
    let bench = TempPolicy::new(STEPS);
    let policy = bench.open();
    for (text, told) in [("policy = \"\"", 1), ("most", 2), ("policy = \"\"", 3)] {
        bench.write(text);
        for _ in 0..3 {
            a_second().await;
            assert_eq!(tasks(&policy, 5), 10, "{text}");
            assert_eq!(warnings.count(), told, "{text}");
        }
    }
    fs::remove_file(&bench.path).expect("removed");
    for _ in 0..3 {
        a_second().await;
        assert_eq!(tasks(&policy, 5), 10, "gone");
    }
    assert_eq!(warnings.count(), 4);
    bench.write("policy = \"steps\"\nsteps = []\nmost = 3\n");
    a_second().await;
    assert_eq!(tasks(&policy, 5), 3, "good again");
    assert_eq!(warnings.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_editor_may_replace_the_file() {
    let bench = TempPolicy::new(STEPS);
    let policy = bench.open();
    for most in [3, 4] {
        let new = bench.directory.path().join("policy.toml.new");
        fs::write(
            &new,
            format!("policy = \"steps\"\nsteps = []\nmost = {most}"),
        )
        .expect("written");
        fs::rename(&new, &bench.path).expect("replaced");
        a_second().await;
        assert_eq!(tasks(&policy, 5), most);
    }
}

#[test]
fn all_keys_are_read_and_the_others_have_defaults() {
    let text = "min = 1\nmax = 9\nbacklog_per_node = 100\nlatency = \"2s\"\nbusy_share = 0.8\n\
                step_up = 4\nstep_down = 2\ncool_down = \"0\"\n";
    let all = FleetPolicy {
        min: 1,
        max: 9,
        backlog_per_node: Some(100),
        latency: Some(Duration::from_secs(2)),
        busy_share: Some(0.8),
        step_up: Some(4),
        step_down: Some(2),
        cool_down: Duration::ZERO,
    };
    assert_eq!(parse_fleet(text), Ok(all));
    let least = FleetPolicy {
        max: 3,
        backlog_per_node: None,
        busy_share: Some(1.0),
        ..FleetPolicy::default()
    };
    assert_eq!(parse_fleet("max = 3\nbusy_share = 1\n"), Ok(least));
}

#[test]
fn a_refusal_names_the_key_and_the_rule() {
    for (text, words) in [
        ("max = ", "line 1: "),
        ("backlog_per_node = 5", "line 1: missing field `max`"),
        ("max = 0", "max: must be 1 or more"),
        (
            "max = 3",
            "backlog_per_node: must be stated, or `latency`, or `busy_share`",
        ),
        (
            "max = 3\nmin = 4\nbusy_share = 1",
            "min: must be at most max (3), not 4",
        ),
        (
            "max = 3\nmin = -1",
            "line 2: invalid value: integer `-1`, expected usize in `min`",
        ),
        (
            "max = 3\nbusy_share = 1.5",
            "busy_share: must be above 0 and at most 1",
        ),
        (
            "max = 3\nbusy_share = nan",
            "busy_share: must be above 0 and at most 1",
        ),
        (
            "max = 3\nbusy_share = \"much\"",
            "line 2: invalid type: string \"much\", expected f64 in `busy_share`",
        ),
        (
            "max = 3\nlatency = \"0s\"",
            "latency: must be longer than 0",
        ),
        (
            "max = 3\ncool_down = 5",
            "line 2: invalid type: integer `5`, expected a string in `cool_down`",
        ),
        ("max = 3\nstep_up = 0", "step_up: must be 1 or more"),
        (
            "max = 3\nbusy_share = 1\nmost = 3",
            "line 3: unknown field `most`, expected one of ",
        ),
    ] {
        let refused = parse_fleet(text).expect_err(text);
        assert!(refused.starts_with(words), "{text}: {refused}");
        assert!(!refused.contains('\n'), "{text}: {refused}");
    }
}
