//! `ids next`: its output, and processes that contend for ids and are killed.

use std::{collections::HashSet, fs::File, path::Path, process::Output, time::Duration};

use tempfile::TempDir;
use tokio::process::Child;

use crate::{
    binary::{reveille, stderr, stdout},
    support::{
        azurite::azurite,
        moto::{Moto, moto},
        proxy::{Fault, Faults, Proxy},
        within,
    },
};

/// A store that processes share, and the environment variables that it needs.
#[derive(Debug)]
struct Shared<'a> {
    url: &'a str,
    variables: &'a [(&'a str, &'a str)],
}

/// Processes that take ids of one name at the same time.
#[derive(Debug)]
struct Contest {
    /// Seed of the times at which processes are killed.
    seed: u64,
    /// The range size of each process.
    range_sizes: &'static [u64],
    /// Number of ids of each process; one that is killed may print none of them.
    count: u64,
    /// How often each process is killed and started again; the last one is not killed.
    deaths: u32,
    /// Upper bound of the time before a process is killed.
    life: Duration,
}

/// The ids that each process of a contest printed, in order.
#[derive(Debug, Default)]
struct Given(Vec<Vec<u64>>);

fn sqlite(home: &TempDir) -> String {
    format!("sqlite:{}/ids.db", home.path().display())
}

async fn next(home: &TempDir, arguments: &[&str]) -> Output {
    let mut command = reveille(home, &[&["ids", "next"], arguments].concat());
    command.env("REVEILLE_STORE", sqlite(home));
    let output = within("the end", command.output()).await;
    output.expect("it starts")
}

async fn printed(home: &TempDir, arguments: &[&str]) -> String {
    let output = next(home, arguments).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

#[tokio::test]
async fn ids_continue_after_the_last_command() {
    let home = tempfile::tempdir().expect("a directory");
    assert_eq!(printed(&home, &["orders"]).await, "0\n");
    assert_eq!(
        printed(&home, &["orders", "--count", "3"]).await,
        "1\n2\n3\n",
        "a range of exactly the count leaves no gap"
    );
    assert_eq!(
        printed(&home, &["orders", "--range-size", "10"]).await,
        "4\n"
    );
    assert_eq!(
        printed(&home, &["orders", "--count", "2", "-o", "jsonl"]).await,
        "{\"id\":14}\n{\"id\":15}\n",
        "the rest of the range of ten is lost"
    );
    let document = printed(&home, &["orders", "--count", "2", "-o", "json"]).await;
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!(document, serde_json::json!([{"id": 16}, {"id": 17}]));
    let invoices = ["invoices/2024", "--start", "100000"];
    assert_eq!(printed(&home, &invoices).await, "100000\n");
    assert_eq!(printed(&home, &invoices).await, "100001\n");
}

/// Stores a text in the blob of the next free id.
async fn store(url: &str, name: &str, text: &'static str) {
    use reveille::store::{self, BlobContent, BlobName};
    let store = store::open(url).await.expect("a store");
    let blob = BlobName::new(&format!("ids/{name}")).expect("a name");
    let content = BlobContent::from(text);
    store.create(&blob, content).await.expect("create");
}

#[tokio::test]
async fn an_error_names_the_field_and_the_rule() {
    let home = tempfile::tempdir().expect("a directory");
    let url = sqlite(&home);
    for (name, text) in [
        ("negative", "-5"),
        ("word", "ten"),
        ("full", "9223372036854775806"),
    ] {
        store(&url, name, text).await;
    }
    let most = "9223372036854775807";
    let above = "18446744073709551615";
    for (arguments, code, words) in [
        (&["orders", "--count", "0"][..], 2, &["--count", "1..="][..]),
        (&["orders", "--count=-1"], 2, &["--count", "-1"]),
        (&["orders", "--count", "10001"], 2, &["--count", "10000"]),
        (
            &["orders", "--range-size", "0"],
            2,
            &["--range-size", "1..="],
        ),
        (
            &["orders", "--range-size", above],
            2,
            &["--range-size", most],
        ),
        (&["orders", "--start=-1"], 2, &["--start", "-1"]),
        (
            &["orders", "--start", most],
            2,
            &["start", "must be at most"],
        ),
        (&["a//b"], 2, &["<NAME>", "none empty"]),
        (&[""], 2, &["<NAME>", "1 to 1020 bytes"]),
        (
            &["orders", "--store", "redis:ids"],
            2,
            &["store", "redis:ids"],
        ),
        (
            &["orders", "--store", "memory:"],
            2,
            &["--store", "is lost when this command ends"],
        ),
        (&["negative"], 1, &["ids/negative", "but is \"-5\""]),
        (&["word"], 1, &["ids/word", "but is \"ten\""]),
        (
            &["full", "--count", "2"],
            1,
            &["ids/full", "no 2 ids are left"],
        ),
    ] {
        let mut command = reveille(&home, &[&["ids", "next"], arguments].concat());
        if !arguments.contains(&"--store") {
            command.env("REVEILLE_STORE", &url);
        }
        let output = within("the end", command.output())
            .await
            .expect("it starts");
        let complaint = stderr(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {complaint}"
        );
        assert_eq!(complaint.trim_end().lines().count(), 1, "{complaint}");
        assert_eq!(stdout(&output), "", "{arguments:?}");
        for word in words {
            assert!(complaint.contains(word), "{arguments:?}: {complaint}");
        }
    }
    let last = printed(&home, &["full", "--store", &url]).await;
    assert_eq!(last, "9223372036854775806\n", "the last possible id");
}

#[tokio::test]
async fn processes_that_are_not_killed_share_the_numbers_without_a_gap() {
    let home = tempfile::tempdir().expect("a directory");
    let url = sqlite(&home);
    let shared = Shared {
        url: &url,
        variables: &[],
    };
    without_deaths(&shared).await;
}

#[tokio::test]
async fn killed_processes_never_repeat_an_id() {
    let home = tempfile::tempdir().expect("a directory");
    let url = sqlite(&home);
    let shared = Shared {
        url: &url,
        variables: &[],
    };
    with_deaths(&shared).await;
}

/// Returns the URL of a cloud's store, and the variables for it.
fn azure(container: &str, connection_string: &str) -> (String, [(&'static str, String); 1]) {
    azurite().create_container(container);
    let variable = "AZURE_STORAGE_CONNECTION_STRING";
    let url = format!("az://{container}");
    (url, [(variable, connection_string.to_owned())])
}

#[tokio::test]
async fn processes_share_the_numbers_of_a_container_of_azure() {
    let (url, variables) = azure("ids", &azurite().connection_string());
    let variables = variables.each_ref().map(|(key, text)| (*key, &**text));
    let shared = Shared {
        url: &url,
        variables: &variables,
    };
    without_deaths(&shared).await;
    // Azurite saw one write for each range. A conflicting write is none.
    for (name, ranges) in [("equal", 200), ("many", 80)] {
        let path = format!("PUT /devstoreaccount1/ids/ids/{name} 201");
        let writes = azurite()
            .requests()
            .into_iter()
            .filter(|r| *r == path)
            .count();
        // The last one is the test's read of the next free id.
        assert_eq!(writes, ranges + 1, "{name}");
    }
    with_deaths(&shared).await;
}

#[tokio::test]
async fn a_service_that_ignores_conditions_gives_no_ids_and_no_lease() {
    moto().create_bucket("ids-ignored");
    let proxy = Proxy::start(moto().port(), fastrand::u64(..));
    for header in ["if-match", "if-none-match"] {
        proxy.strip("PUT", header);
    }
    let home = tempfile::tempdir().expect("a directory");
    let store = ["--store", "s3://ids-ignored"];
    for verb in [
        &["ids", "next", "orders"][..],
        &["lease", "run", "billing"],
        &["unleash", "go"],
    ] {
        let mut typed = [verb, &store].concat();
        if verb[0] == "lease" {
            typed.extend(["--timeout", "20s", "--", "touch", "led"]);
        }
        let mut command = reveille(&home, &typed);
        command
            .envs(Moto::environment_through(proxy.port()))
            .current_dir(home.path());
        let output = within("the end", command.output())
            .await
            .expect("it starts");
        let complaint = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{verb:?}: {complaint}");
        assert!(complaint.contains("ignores the condition"), "{complaint}");
        assert_eq!(stdout(&output), "", "{verb:?}");
    }
    assert!(!home.path().join("led").exists());
}

#[tokio::test]
async fn processes_share_the_numbers_of_a_bucket_of_s3() {
    moto().create_bucket("ids");
    let variables = moto().environment();
    let variables: Vec<_> = variables
        .iter()
        .map(|(key, text)| (&**key, &**text))
        .collect();
    let shared = Shared {
        url: "s3://ids",
        variables: &variables,
    };
    with_deaths(&shared).await;
}

#[tokio::test]
async fn no_id_comes_twice_if_the_network_loses_or_repeats_requests() {
    let proxy = Proxy::start(azurite().blob_port(), fastrand::u64(..));
    let text = azurite().connection_string_through(proxy.port());
    let (url, variables) = azure("ids-proxied", &text);
    let variables = variables.each_ref().map(|(key, text)| (*key, &**text));
    proxy.set(Faults {
        cut_before: 3,
        cut_within: 3,
        cut_after: 6,
        repeat: 6,
        busy: 3,
        delay: Duration::from_millis(5),
    });
    let shared = Shared {
        url: &url,
        variables: &variables,
    };
    with_deaths(&shared).await;
    for fault in [Fault::CutAfter, Fault::Repeat] {
        assert!(proxy.count(fault) > 5, "{fault:?}: {}", proxy.count(fault));
    }
}

/// Checks that all printed ids are from the written ranges, each of them once.
async fn without_deaths(shared: &Shared<'_>) {
    const EQUAL: &[u64] = &[100; 4];
    const DIFFERING: &[u64] = &[1, 10, 50, 250];
    const MANY: &[u64] = &[1000; 8];
    for (name, range_sizes, count) in [
        ("equal", EQUAL, 5000),
        ("differing", DIFFERING, 500),
        ("many", MANY, 10_000),
    ] {
        let contest = Contest {
            seed: 0,
            range_sizes,
            count,
            deaths: 0,
            life: Duration::ZERO,
        };
        let given = contest.hold(shared, name).await;
        let all = given.check(&contest);
        let expected = range_sizes.len() as u64 * count;
        assert_eq!(
            all.len() as u64,
            expected,
            "{name}: each process has all its ids"
        );
        assert_eq!(all.iter().max(), Some(&(expected - 1)), "{name}: a gap");
        // So the blob was written once for each range, and never for an unused range.
        assert_eq!(next_free(shared, name).await, expected, "{name}");
    }
}

/// Checks that restarted processes get only ids that no process has printed.
async fn with_deaths(shared: &Shared<'_>) {
    const EQUAL: &[u64] = &[20; 4];
    const DIFFERING: &[u64] = &[1, 7, 30, 400];
    let seed = fastrand::u64(..);
    for (round, range_sizes) in [(0, EQUAL), (1, DIFFERING), (2, EQUAL)] {
        let contest = Contest {
            seed: seed.wrapping_add(round),
            range_sizes,
            count: 300,
            deaths: 4,
            life: Duration::from_millis(250),
        };
        let name = format!("killed-{round}");
        let given = contest.hold(shared, &name).await;
        let all = given.check(&contest);
        let least = range_sizes.len() as u64 * contest.count;
        assert!(all.len() as u64 >= least, "{contest:?}: the last ones end");
        let free = next_free(shared, &name).await;
        assert!(all.iter().all(|id| *id < free), "{contest:?}");
        println!("{name}: {} ids of {free} were given out", all.len());
    }
}

/// Returns the next free id, by taking it.
async fn next_free(shared: &Shared<'_>, name: &str) -> u64 {
    let home = tempfile::tempdir().expect("a directory");
    let mut unopened = 0;
    loop {
        let mut command = reveille(&home, &["ids", "next", name, "--store", shared.url]);
        command.envs(shared.variables.iter().copied());
        let output = within("the end", command.output())
            .await
            .expect("it starts");
        if let Ok(id) = stdout(&output).trim().parse() {
            return id;
        }
        shared.unopened(&stderr(&output), &mut unopened);
    }
}

impl Shared<'_> {
    /// Checks that a process failed because the network hid the store from all its attempts to open it.
    /// The next process opens it.
    fn unopened(&self, complaint: &str, times: &mut u32) {
        *times += 1;
        let expected = format!("error: {} cannot be reached", self.url);
        assert!(
            complaint.starts_with(&expected) && *times < 5,
            "{complaint}"
        );
    }
}

impl Contest {
    /// Runs all processes to their end; returns the printed ids.
    async fn hold(&self, shared: &Shared<'_>, name: &str) -> Given {
        let home = tempfile::tempdir().expect("a directory");
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let places = self.range_sizes.iter().enumerate().map(|(place, size)| {
            let (rng, home) = (rng.fork(), &home);
            async move { self.fill(shared, name, home, place, *size, rng).await }
        });
        let given = futures_util::future::join_all(places).await;
        Given(given.into_iter().flatten().collect())
    }

    /// Runs one process after the other, and kills all but the last one.
    async fn fill(
        &self,
        shared: &Shared<'_>,
        name: &str,
        home: &TempDir,
        place: usize,
        range_size: u64,
        mut rng: fastrand::Rng,
    ) -> Vec<Vec<u64>> {
        let (mut given, mut unopened, mut life) = (Vec::new(), 0, 0);
        while life <= self.deaths {
            let path = home.path().join(format!("{place}-{life}"));
            let killed = life < self.deaths;
            let sizes = (self.count, range_size);
            let mut child = start(shared, name, home, sizes, &path);
            if killed {
                let micros = u64::try_from(self.life.as_micros()).expect("short");
                tokio::time::sleep(Duration::from_micros(rng.u64(0..micros))).await;
                child.start_kill().expect("it runs");
            }
            let status = within("the end", child.wait()).await.expect("it ends");
            let complaint = std::fs::read_to_string(path.with_extension("err")).expect("text");
            if !killed && !status.success() {
                shared.unopened(&complaint, &mut unopened);
                continue;
            }
            given.push(complete_lines(&path));
            life += 1;
        }
        given
    }
}

/// Starts a process that takes `count` ids with this range size.
fn start(
    shared: &Shared<'_>,
    name: &str,
    home: &TempDir,
    (count, range_size): (u64, u64),
    path: &Path,
) -> Child {
    let (count, size) = (count.to_string(), range_size.to_string());
    let arguments = [
        "ids",
        "next",
        name,
        "--count",
        &count,
        "--range-size",
        &size,
    ];
    let mut command = reveille(home, &arguments);
    command
        .args(["--store", shared.url])
        .envs(shared.variables.iter().copied())
        .stdout(File::create(path).expect("a file"))
        .stderr(File::create(path.with_extension("err")).expect("a file"));
    command.spawn().expect("it starts")
}

impl Given {
    /// Checks that no id came twice, and that the ids of each process grow; returns all ids.
    fn check(&self, contest: &Contest) -> HashSet<u64> {
        let mut all = HashSet::new();
        for of_one in &self.0 {
            let grow = of_one.windows(2).all(|two| two[0] < two[1]);
            assert!(grow, "{contest:?}: {of_one:?}");
            for id in of_one {
                assert!(all.insert(*id), "{contest:?}: {id} came twice");
            }
        }
        all
    }
}

/// Reads the printed ids. An id is whole only if its line has an end.
fn complete_lines(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).expect("text");
    let lines = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'));
    lines.map(|line| line.parse().expect("an id")).collect()
}
