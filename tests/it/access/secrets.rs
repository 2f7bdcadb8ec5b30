//! No token, key or secret appears in a log, an error, a page or a file.

use std::time::SystemTime;

use reveille::auth::{NewToken, Principal, TokenFile};

use super::{RULES, token};
use crate::{
    binary::{Binary, stderr, stdout},
    support::until,
};

/// Parts of planted secrets, which nothing may show.
const KEY: &str = "planted-key-0123456789-planted-key-0123456789";
const JWT: &str = "eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJwbGFudGVkLWlzc3VlciJ9.cGxhbnRlZC1zaWduYXR1cmU";
const GUESS: &str = "rvl_plantedgue_plantedplantedplantedplantedplantedplanted1";

#[tokio::test]
async fn no_secret_is_shown_anywhere() {
    let home = tempfile::tempdir().expect("a directory");
    let path = |name: &str| home.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(path("auth.toml"), RULES).expect("written");
    let owner = token(home.path(), "owner", None);
    let new = NewToken {
        principal: Principal::new("owner").expect("a name"),
        expires: None,
        note: String::new(),
    };
    let file = TokenFile::new(path("tokens.toml"));
    let added = file.add_secret("console", KEY, &new, SystemTime::now());
    added.expect("added");
    // The most that the relay logs.
    let variables = [("RUST_LOG".to_owned(), "trace".to_owned())];
    let (rules, audit) = (path("auth.toml"), path("audit.jsonl"));
    let arguments = ["--auth", &rules, "--audit-log", &audit];
    let relay = Binary::serve_with(&arguments, &variables).await;
    let mut shown = String::new();
    let secret = format!("console:{KEY}");
    for credential in [owner.reveal(), &secret, JWT, GUESS] {
        for verb in [&["notify", "acct/orders"][..], &["queues", "-o", "json"]] {
            let output = relay
                .verb(verb)
                .env("REVEILLE_TOKEN", credential)
                .output()
                .await;
            let output = output.expect("it starts");
            let is_known = credential == owner.reveal() || credential == secret;
            assert_eq!(output.status.success(), is_known, "{}", stderr(&output));
            shown += &stdout(&output);
            shown += &stderr(&output);
        }
        let file = home.path().join("credential");
        std::fs::write(&file, credential).expect("written");
        let file = file.to_str().expect("UTF-8");
        let verb = [
            "health",
            "--token-file",
            file,
            "--relay",
            "http://relay.example.com:1",
        ];
        shown += &stderr(&relay.run(&verb).await);
    }
    until("the audit log is written", async || {
        std::fs::read_to_string(&audit).is_ok_and(|text| text.contains("authenticate"))
    })
    .await;
    shown += &relay.log();
    shown += &std::fs::read_to_string(&audit).expect("an audit log");
    shown += &std::fs::read_to_string(path("tokens.toml")).expect("a file");
    shown += &format!("{owner:?} {:?}", reveille::Credential::text(KEY));
    assert!(
        shown.contains("a credential is required") || shown.contains("revoked"),
        "{shown}"
    );
    let of_token = &owner.reveal()[owner.reveal().len() - 20..];
    let encoded = "cGxhbnRlZC1rZXk";
    for part in [
        of_token,
        "planted",
        encoded,
        "cGxhbnRlZC1z",
        "eyJhbGciOiJFZERTQSJ9",
    ] {
        let place = shown
            .find(part)
            .map(|at| &shown[at.saturating_sub(200)..at + 20]);
        assert!(place.is_none(), "{part} is shown: {place:?}");
    }
}
