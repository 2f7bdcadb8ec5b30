//! Files of access that change while the relay serves: each is applied as a whole, or not at all, and
//! holds back no other one.

use std::{path::Path, time::Duration};

use reveille::{Credential, ErrorKind, Node, NodeConfig};
use tempfile::TempDir;

use super::{GuardedRelay, RULES, token};
use crate::{
    binary::{Binary, reveille, stderr},
    support::{PATIENCE, figure_as, ready, until, within},
    tls::Authority,
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
        let answered = within("an answer", ready(&owner, PATIENCE)).await;
        answered.expect("the former rules stay");
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

/// What the log says of a file that is not applied.
const NOT_APPLIED: &str = "said before stays in use";
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
        relay.log().contains(NOT_APPLIED)
    })
    .await;
    assert!(relay.run(&["notify", "acct/orders"]).await.status.success());
}

const ISSUER: &str = r#"
[[jwt]]
issuer = "https://login.example.com"
audience = "reveille"
jwks = "jwks.json"
"#;
/// A public key of the curve Ed25519, the example of RFC 8037.
const KEYS: &str = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

#[tokio::test]
async fn a_broken_file_keeps_no_revoked_token_valid() {
    let rules = format!("{RULES}\n{ISSUER}");
    let relay = GuardedRelay::start().await;
    std::fs::write(relay.path("jwks.json"), KEYS).expect("written");
    std::fs::write(relay.path("auth.toml"), &rules).expect("written");
    relay.reload().await;
    let owner = relay.token("owner").await;
    let admin = relay.relay.admin_address().expect("a port");
    for broken in ["jwks.json", "auth.toml"] {
        let token = relay.token("other").await;
        let client = relay.client(Credential::text(token.reveal()));
        let answered = within("an answer", ready(&client, PATIENCE)).await;
        answered.expect("it is valid");
        let former = std::fs::read(relay.path(broken)).expect("a file");
        std::fs::write(relay.path(broken), "{broken").expect("written");
        relay.tokens().revoke(token.id()).expect("revoked");
        let node = relay.relay.node().expect("it runs");
        let error = node.reload_access().await.expect_err(broken).to_string();
        assert!(error.contains(broken), "{error}");
        let refused = within("an answer", ready(&client, Duration::ZERO)).await;
        let refused = refused.expect_err("it was revoked");
        assert_eq!(refused.kind(), ErrorKind::Denied, "{broken}: {refused}");
        // It is stated wherever an operator looks.
        let stale = "reveille_access_rules_stale";
        assert_eq!(figure_as(admin, stale, Some(owner.reveal())).await, 1);
        let bearer = format!("Bearer {}", owner.reveal());
        let page = super::admin_port::answer(admin, "/readyz?verbose", Some(&bearer)).await;
        let line = page
            .lines()
            .find(|line| line.starts_with("[-]access failed"));
        let line = line.unwrap_or_else(|| panic!("{page}"));
        assert!(
            line.contains("not applied: ") && line.contains(broken),
            "{line}"
        );
        assert!(page.starts_with("HTTP/1.1 200"), "it serves: {page}");
        let recorded = || {
            let words = ["\"reload\"", "\"allowed\":false", broken];
            let is_one = |line: &&str| words.iter().all(|word| line.contains(word));
            relay.audit().lines().filter(is_one).count()
        };
        until("it is in the audit log", async || recorded() > 0).await;
        assert_eq!(recorded(), 1, "{}", relay.audit());
        std::fs::write(relay.path(broken), former).expect("written");
        relay.reload().await;
        assert_eq!(figure_as(admin, stale, Some(owner.reveal())).await, 0);
    }
}

/// A relay with TLS, rules and one token of `nobody`, whose files a test replaces.
struct Files {
    home: TempDir,
    relay: Binary,
    id: String,
}

impl Files {
    async fn start() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let path = |name: &str| {
            let path = home.path().join(name);
            path.to_str().expect("UTF-8").to_owned()
        };
        let rules = RULES.replace("\"owner\"", "\"nobody\"");
        std::fs::write(path("auth.toml"), rules).expect("written");
        let nobody = token(home.path(), "nobody", None);
        std::fs::write(path("nobody.token"), nobody.reveal()).expect("written");
        let authority = Authority::new("relays");
        let tls = authority.write(home.path(), "relay", authority.server());
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let variables = [
            ("REVEILLE_AUTH", path("auth.toml")),
            ("REVEILLE_TOKEN_FILE", path("nobody.token")),
            ("REVEILLE_TLS_CERT", text(&tls.certificate)),
            ("REVEILLE_TLS_KEY", text(&tls.key)),
            ("REVEILLE_CA", text(&tls.ca)),
        ];
        let variables: Vec<_> = variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        Self {
            relay: Binary::serve_with(&[], &variables).await,
            id: nobody.id().to_owned(),
            home,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.home.path().join(name)
    }

    async fn is_allowed(&self) -> bool {
        let output = self.relay.run(&["notify", "acct/orders"]).await;
        output.status.success()
    }

    fn revoke(&self) {
        let file = self.path("tokens.toml");
        let file = reveille::auth::TokenFile::new(file);
        file.revoke(&self.id).expect("revoked");
    }
}

/// Opening a named pipe waits for a writer.
#[tokio::test]
async fn a_named_pipe_in_place_of_a_file_stops_no_reload_and_no_signal() {
    for name in ["auth.toml", "relay.key"] {
        let mut files = Files::start().await;
        let (path, aside) = (files.path(name), files.path("aside"));
        std::fs::rename(&path, &aside).expect("moved");
        let made = tokio::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.await.expect("mkfifo runs").success());
        files.relay.hang_up().await;
        until("the relay says which file it is", async || {
            let log = files.relay.log();
            log.lines().any(|line| {
                line.contains("it is not a regular file")
                    && line.contains("use")
                    && line.contains(name)
            })
        })
        .await;
        assert!(files.is_allowed().await, "{name}");
        if name == "auth.toml" {
            // Another file is applied meanwhile.
            files.revoke();
            files.relay.hang_up().await;
            until("the token is refused", async || !files.is_allowed().await).await;
        }
        let status = files.relay.terminate().await;
        assert!(status.success(), "{status:?}: {}", files.relay.log());
    }
    let home = tempfile::tempdir().expect("a directory");
    let pipe = home.path().join("tokens.toml");
    let made = tokio::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.await.expect("mkfifo runs").success());
    let pipe = pipe.to_str().expect("UTF-8");
    let list = reveille(&home, &["auth", "token", "list", "--tokens", pipe]).output();
    let list = within("an error", list).await.expect("it starts");
    assert!(
        stderr(&list).contains("it is not a regular file"),
        "{list:?}"
    );
}
