//! Every call for each kind of caller; tests/python/access.py has the table.

use tokio::process::Command;

use super::GuardedRelay;
use crate::{
    python::{python, run, stubs},
    sources::root,
};

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_denied_to_those_whom_no_rule_allows_it() {
    let relay = GuardedRelay::start().await;
    let stubs = stubs().await;
    let mut command = Command::new(python());
    command.arg("tests/python/access.py");
    let address = relay.relay.node().expect("it runs").address();
    command.arg(address.to_string());
    for principal in ["owner", "other", "nobody"] {
        command.arg(relay.token(principal).await.reveal());
    }
    command
        .env("PYTHONPATH", stubs.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root());
    run(&mut command, "access.py").await;
    let audit = relay.audit();
    // Of the denials of one action within a second, the first has a line.
    for parts in [
        [
            r#""principal":"other""#,
            r#""action":"unleash""#,
            r#""allowed":false"#,
        ],
        [
            r#""principal":"owner""#,
            r#""action":"unleash","target":"go-live""#,
            r#""allowed":true"#,
        ],
        [
            r#""principal":"nobody""#,
            r#""action""#,
            r#""allowed":false"#,
        ],
    ] {
        let is_there = audit
            .lines()
            .any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(is_there, "{parts:?}: {audit}");
    }
}
