//! Rules that change while the relay serves: applied as a whole, or not at all.

use std::{path::Path, time::Duration};

use reveille::{Credential, Node, NodeConfig};

use super::{GuardedRelay, RULES, token};
use crate::{
    binary::{Binary, stderr},
    support::{PATIENCE, until, within},
};

#[tokio::test]
async fn a_bad_file_is_refused_and_the_former_rules_stay() {
    let relay = GuardedRelay::start().await;
    let owner = relay.client(Credential::text(relay.token("owner").await.reveal()));
    for (bad, rule) in [
        (RULES.replace("\"unleash\"", "\"unlesh\""), "unlesh"),
        (RULES.replace("other/*", "oth*er/x"), "oth*er"),
        (RULES.replace("flags = [\"*\"]", ""), "flags"),
        (format!("{RULES}\nunknown = 1"), "unknown"),
        ("[[rule".to_owned(), "line 1"),
    ] {
        std::fs::write(relay.path("auth.toml"), &bad).expect("written");
        let node = relay.relay.node().expect("it runs");
        let error = node.reload_access().await.expect_err(rule).to_string();
        assert!(
            error.contains("auth.toml") && error.contains(rule),
            "{error}"
        );
        let ready = within("an answer", owner.ready(PATIENCE)).await;
        ready.expect("the former rules stay");
    }
    let home = relay.home.path();
    let config = NodeConfig {
        access: Some(reveille::AccessFiles {
            rules: home.join("auth.toml"),
            audit_log: None,
        }),
        ..NodeConfig::default()
    };
    let error = Node::start(config).await.expect_err("bad").to_string();
    assert!(error.contains("line 1"), "{error}");
}

/// Three periodic readings of the files, one every 10 s, take 20 s at least.
const THREE_CHANGES: Duration = Duration::from_secs(15);

/// Writes the rules, sends SIGHUP, and waits until `nobody` may notify, or may not.
async fn change(relay: &Binary, file: &Path, rules: &str, is_allowed: bool) {
    std::fs::write(file, rules).expect("written");
    relay.hang_up().await;
    until(&format!("allowed: {is_allowed}"), async || {
        let output = relay.run(&["notify", "acct/orders"]).await;
        assert!(matches!(output.status.code(), Some(0 | 4)), "{output:?}");
        output.status.success() == is_allowed
    })
    .await;
}

#[tokio::test]
async fn sighup_applies_the_rules_and_does_not_end_the_relay() {
    let home = tempfile::tempdir().expect("a directory");
    let rules = home.path().join("auth.toml");
    std::fs::write(&rules, RULES).expect("written");
    let nobody = token(home.path(), "nobody", None);
    let token_file = home.path().join("nobody.token");
    std::fs::write(&token_file, nobody.reveal()).expect("written");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let variables = [
        ("REVEILLE_AUTH".to_owned(), path(&rules)),
        ("REVEILLE_TOKEN_FILE".to_owned(), path(&token_file)),
    ];
    let relay = Binary::serve_with(&[], &variables).await;
    let denied = relay.run(&["notify", "acct/orders"]).await;
    assert_eq!(denied.status.code(), Some(4), "{}", stderr(&denied));
    assert!(
        stderr(&denied).contains("`nobody` may not notify"),
        "{}",
        stderr(&denied)
    );
    let allowing = RULES.replace("\"owner\"", "\"nobody\"");
    let start = tokio::time::Instant::now();
    for (text, is_allowed) in [(&*allowing, true), (RULES, false), (&*allowing, true)] {
        change(&relay, &rules, text, is_allowed).await;
    }
    let took = start.elapsed();
    assert!(took < THREE_CHANGES, "not by SIGHUP: {took:?}");
    std::fs::write(&rules, "[[rule").expect("written");
    relay.hang_up().await;
    until("the relay refuses the file", async || {
        relay.log().contains("the former rules stay in use")
    })
    .await;
    assert!(relay.run(&["notify", "acct/orders"]).await.status.success());
}
