//! The audit log of a real relay: who did what, from where, and why it was allowed or not.

use std::path::Path;

use reveille::auth::TokenFile;
use serde_json::Value;

use super::{RULES, token};
use crate::{
    attacks::{
        peer::{Peer, Unfinished, status},
        target::Target,
    },
    binary::{Binary, stderr},
    support::{until, within},
};

/// Returns the lines of the log, each an object.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON lines")
}

/// Waits for a line with these fields, and returns it.
async fn line(path: &Path, fields: &[(&str, &str)]) -> Value {
    let has = |line: &Value| fields.iter().all(|(name, value)| line[*name] == *value);
    let mut found = None;
    until(&format!("{fields:?}"), async || {
        found = lines(path).into_iter().find(has);
        found.is_some()
    })
    .await;
    found.expect("found")
}

#[tokio::test]
async fn it_has_who_from_where_what_and_why() {
    let home = tempfile::tempdir().expect("a directory");
    let path = |name: &str| home.path().join(name);
    let text = |name: &str| path(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(path("auth.toml"), RULES).expect("written");
    for principal in ["owner", "other"] {
        let token = token(home.path(), principal, None);
        std::fs::write(path(principal), token.reveal()).expect("written");
    }
    std::fs::write(path("guess"), "rvl_0123456789_guess").expect("written");
    let arguments = ["--auth", &text("auth.toml"), "--audit-log", &text("audit")];
    let mut relay = Binary::serve_with(&arguments, &[]).await;
    let audit = path("audit");
    let run = async |principal: &str, verb: &[&str], code: i32| {
        let file = text(principal);
        let output = relay.run(&[verb, &["--token-file", &file]].concat()).await;
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    };

    run("owner", &["unleash", "go", "--reason", "release 7"], 0).await;
    run(
        "owner",
        &["leash", "go", "--reason", "unleash: it was a mistake"],
        0,
    )
    .await;
    run("other", &["unleash", "go", "--reason", "me too"], 4).await;
    run("guess", &["queues"], 4).await;
    for (action, allowed, why) in [
        ("unleash", true, "release 7"),
        ("leash", true, "unleash: it was a mistake"),
    ] {
        let fields = [("action", action), ("target", "go"), ("why", why)];
        let line = line(&audit, &fields).await;
        assert_eq!(line["allowed"], allowed, "{line}");
        assert_eq!(line["principal"], "owner", "{line}");
        assert_eq!(line["from"], "127.0.0.1", "{line}");
        assert!(
            line["at"].as_str().is_some_and(|at| at.contains('T')),
            "{line}"
        );
    }
    let denied = line(&audit, &[("action", "unleash"), ("principal", "other")]).await;
    assert_eq!(denied["allowed"], false, "{denied}");
    let why = denied["why"].as_str().expect("a reason");
    assert!(
        why.contains("no rule of `other` allows `unleash`"),
        "{denied}"
    );
    let refused = line(&audit, &[("action", "authenticate")]).await;
    assert_eq!(refused["from"], "127.0.0.1", "{refused}");
    assert_eq!(refused["principal"], "", "{refused}");

    // What the operator does with the files and with signals.
    let file = TokenFile::new(path("tokens.toml"));
    let removed = file.list().expect("read")[1].id.clone();
    file.revoke(&removed).expect("revoked");
    relay.hang_up().await;
    line(&audit, &[("action", "reload"), ("target", "relay")]).await;
    line(&audit, &[("action", "token"), ("target", &removed)]).await;
    run("other", &["drain"], 4).await;
    run("owner", &["drain"], 0).await;
    assert!(relay.ended().await.success());
    for (action, principal, allowed) in [("drain", "owner", true)] {
        let fields = [("action", action), ("principal", principal)];
        let line = line(&audit, &fields).await;
        assert_eq!(line["allowed"], allowed, "{line}");
    }
    let why = "the relay shuts down";
    line(&audit, &[("action", "drain"), ("why", why)]).await;
}

/// What is refused before it happens is not recorded as done.
#[tokio::test]
async fn a_change_that_breaks_a_rule_is_not_recorded_as_done() {
    let relay = super::GuardedRelay::start().await;
    let owner = relay.client(reveille::Credential::text(
        relay.token("owner").await.reveal(),
    ));
    let flag: reveille::FlagName = "go".parse().expect("a name");
    let options = reveille::UnleashOptions {
        reason: "x".repeat(10_000),
        ..reveille::UnleashOptions::default()
    };
    let refused = owner.flags().unleash(&flag, &options).await;
    assert_eq!(
        refused.expect_err("too long").kind(),
        reveille::ErrorKind::Invalid
    );
    owner
        .flags()
        .unleash(&flag, &reveille::UnleashOptions::default())
        .await
        .expect("set");
    let is_unleash = |line: &Value| line["action"] == "unleash";
    until("it is written", async || {
        lines(&relay.path("audit.jsonl")).iter().any(is_unleash)
    })
    .await;
    let lines = lines(&relay.path("audit.jsonl"));
    assert_eq!(lines.iter().filter(|line| is_unleash(line)).count(), 1);
}

#[tokio::test]
async fn nothing_in_a_line_acts_on_a_terminal() {
    let home = tempfile::tempdir().expect("a directory");
    let path = |name: &str| home.path().join(name);
    std::fs::write(path("auth.toml"), RULES).expect("written");
    let other = token(home.path(), "other", None);
    let text = |name: &str| path(name).to_str().expect("UTF-8").to_owned();
    let arguments = ["--auth", &text("auth.toml"), "--audit-log", &text("audit")];
    let relay = Binary::serve_with(&arguments, &[]).await;
    let peer = Peer::connect(&Target::plain(&relay), 64 * 1024).await;
    // An unknown call, whose path goes into the log: CSI in eight bits, and a mark that turns the
    // text around.
    let request = http::Request::post("http://relay/x.Y/\u{9b}2J\u{202e}z")
        .header("content-type", "application/grpc")
        .header("authorization", format!("Bearer {}", other.reveal()))
        .body(Unfinished::whole(&[]))
        .expect("a request");
    let answer = within("an answer", peer.send(request)).await;
    assert_eq!(status(&answer.expect("an answer")), Some("7"));
    let audit = path("audit");
    let first = line(&audit, &[("action", "call")]).await;
    assert_eq!(first["target"], "/x.Y/\u{9b}2J\u{202e}z");
    assert_eq!(first["credential"], format!("token {}", other.id()));
    let bytes = std::fs::read(&audit).expect("a log");
    assert!(bytes.is_ascii(), "{}", String::from_utf8_lossy(&bytes));
}
