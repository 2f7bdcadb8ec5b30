//! The default build: a back-end that is not compiled in is refused with one line that names the feature
//! and the command, and with exit code 2. `tests/run` runs it without the feature `full`.
#![cfg(not(any(feature = "azure", feature = "cloud", feature = "nats")))]

use std::process::{Command, Stdio};

/// Runs the command; returns its exit code and what it wrote to stderr.
fn run(arguments: &str) -> (Option<i32>, String) {
    let home = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_reveille"))
        .args(arguments.split(' '))
        .current_dir(home.path())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), stderr)
}

#[test]
fn a_back_end_that_is_not_compiled_in_is_refused_with_its_feature() {
    for (arguments, feature) in [
        ("queue depth azure://acct/orders", "azure"),
        ("listen azure://acct/orders -- true", "azure"),
        ("queue put azure://acct/orders hello", "azure"),
        (
            "serve --listen 127.0.0.1:0 --admin-listen off --store az://flags",
            "cloud",
        ),
        ("unleash go --store s3://flags", "cloud"),
        ("flag get go --store gs://flags", "cloud"),
        ("wait go --store az://flags", "cloud"),
        ("wait go --store az://flags --relay 127.0.0.1:9", "cloud"),
        ("lease show billing --store az://leases", "cloud"),
        ("ids next orders --store az://ids", "cloud"),
        ("sweep ttl az://sessions/tmp/42 --after 10m", "cloud"),
        (
            "serve --store sqlite:f.db --cluster nats://127.0.0.1:4222",
            "nats",
        ),
    ] {
        let (code, stderr) = run(arguments);
        assert_eq!(code, Some(2), "{arguments}: {stderr}");
        assert_eq!(
            stderr.trim_end().lines().count(),
            1,
            "{arguments}: {stderr}"
        );
        for words in [
            &format!("the feature `{feature}`")[..],
            "cargo install --path cli --features full",
        ] {
            assert!(stderr.contains(words), "{arguments}: {stderr}");
        }
    }
}
