//! `token` and `auth`: their output, their exit codes, and the files that they write.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::SystemTime,
};

use reveille::auth::{AuthFile, Authenticator, Denial};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    binary::{reveille, stderr, stdout},
    support::{until, within},
};

/// A directory with an auth file. The token file that it names is missing at first.
#[derive(Debug)]
struct Relay {
    home: TempDir,
}

const AUTH: &str = r#"
tokens = "tokens.toml"

[groups]
workers = ["worker-1"]

[[rule]]
principals = ["billing", "group:workers"]
actions = ["notify", "subscribe"]
queues = ["acct/ord*"]

[[rule]]
principals = ["ops"]
actions = ["watch", "unleash", "admin"]
flags = ["go-*"]

[certificates]
"ops.example.com" = "ops"
"#;
const KEY: &str = "planted-key-0123456789-0123456789-abcdef";
/// A token with the right form.
const PLANTED: &str = "rvl_abcdefghij_PLANTEDPLANTEDPLANTEDPLANTEDPLANTEDPLANTED7";

impl Relay {
    fn new() -> Self {
        let relay = Self {
            home: tempfile::tempdir().expect("a directory"),
        };
        relay.write("auth.toml", AUTH);
        relay
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        path
    }

    fn tokens(&self) -> String {
        fs::read_to_string(self.path("tokens.toml")).expect("a token file")
    }

    /// Returns a command in the directory, with the variable of the auth file.
    fn command(&self, arguments: &[&str]) -> tokio::process::Command {
        let mut command = reveille(&self.home, arguments);
        command
            .current_dir(self.home.path())
            .env("REVEILLE_AUTH", "auth.toml");
        command
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        end(self.command(arguments)).await
    }

    /// Runs a verb that succeeds, and returns its stdout.
    async fn printed(&self, arguments: &[&str]) -> String {
        printed(&self.run(arguments).await)
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["-o", "json"]].concat();
        serde_json::from_str(&self.printed(&arguments).await).expect("JSON")
    }

    /// Checks a verb that fails with one line of error, and returns the line.
    async fn refused(&self, arguments: &[&str], code: i32, words: &[&str]) -> String {
        let output = self.run(arguments).await;
        refused(arguments, &output, code, words)
    }

    /// Returns the principal of a header, as a relay with these files finds it.
    fn authenticate(&self, header: &str) -> Result<String, Denial> {
        let config = AuthFile::new(self.path("auth.toml")).read();
        let config = config.expect("a good file");
        let authenticator = Authenticator::new(config);
        let caller = authenticator.authenticate(Some(header.as_bytes()), &[], SystemTime::now());
        caller.map(|caller| caller.principal().name().to_owned())
    }
}

async fn end(mut command: tokio::process::Command) -> Output {
    within("the end", command.output())
        .await
        .expect("it starts")
}

fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    stdout(output)
}

fn refused(arguments: &[&str], output: &Output, code: i32, words: &[&str]) -> String {
    let line = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {line}");
    assert_eq!(line.trim_end().lines().count(), 1, "{arguments:?}: {line}");
    for word in words {
        assert!(line.contains(word), "{arguments:?}: no {word:?} in {line}");
    }
    line
}

fn mode(path: &Path) -> u32 {
    let metadata = fs::metadata(path).expect("a file");
    metadata.permissions().mode() & 0o777
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().expect(field)
}

#[tokio::test]
async fn a_token_is_printed_once_and_accepted_until_it_is_revoked() {
    let relay = Relay::new();
    let output = relay
        .run(&["auth", "token", "new", "billing", "--note", "rack 7"])
        .await;
    let printed = printed(&output);
    let token = printed.strip_suffix('\n').expect("one line");
    let secret = token.get(15..).expect("a token of 58 characters");
    assert_eq!(
        token.len(),
        58,
        "stdout is the token alone: `> token` works"
    );
    assert!(token.starts_with("rvl_"));
    let note = stderr(&output);
    assert!(note.contains("only this once"), "{note}");
    assert!(note.contains("does not expire"), "{note}");
    assert!(!note.contains(secret), "{note}");
    assert_eq!(mode(&relay.path("tokens.toml")), 0o600);
    assert!(!relay.tokens().contains(secret), "only its digest");
    let header = format!("Bearer {token}");
    assert_eq!(relay.authenticate(&header), Ok("billing".to_owned()));

    let list = relay.json(&["auth", "token", "list"]).await;
    let id = text(&list[0], "id").to_owned();
    assert_eq!(id, token[4..14]);
    assert!(text(&list[0], "created_at").ends_with('Z'));
    let expected = json!([{
        "id": id, "principal": "billing",
        "created_at": list[0]["created_at"], "expires_at": null, "expired": false,
        "note": "rack 7",
    }]);
    assert_eq!(list, expected);
    let table = relay.printed(&["auth", "token", "list"]).await;
    for word in ["ID", "PRINCIPAL", &id, "billing", "rack 7"] {
        assert!(table.contains(word), "no {word:?} in {table}");
    }
    assert!(!table.contains(secret) && !list.to_string().contains(secret));

    let revoked = relay.printed(&["auth", "token", "revoke", &id]).await;
    assert!(
        revoked.contains(&id) && revoked.contains("rack 7"),
        "{revoked}"
    );
    assert_eq!(relay.authenticate(&header), Err(Denial::UnknownToken));
    assert_eq!(relay.json(&["auth", "token", "list"]).await, json!([]));
    assert_eq!(mode(&relay.path("tokens.toml")), 0o600);
    relay
        .refused(&["auth", "token", "revoke", &id], 5, &[&id, "tokens.toml"])
        .await;
}

#[tokio::test]
async fn the_expiry_is_stored_and_an_expired_token_is_visible() {
    let relay = Relay::new();
    let issued = relay
        .json(&["auth", "token", "new", "worker-1", "--expires", "1s"])
        .await;
    let keys: Vec<_> = issued.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["expires_at", "id", "principal", "token"]);
    assert_eq!(text(&issued, "principal"), "worker-1");
    let list = relay.json(&["auth", "token", "list"]).await;
    for field in ["expires_at", "id"] {
        assert!(list[0][field].is_string(), "{list}");
        assert_eq!(list[0][field], issued[field]);
    }
    until("it expires", async || {
        relay.json(&["auth", "token", "list"]).await[0]["expired"] == json!(true)
    })
    .await;
    let table = relay.printed(&["auth", "token", "list"]).await;
    assert!(
        table.contains("EXPIRED") && table.contains("yes"),
        "{table}"
    );
    let header = format!("Bearer {}", text(&issued, "token"));
    let denied = relay.authenticate(&header);
    assert!(matches!(denied, Err(Denial::Expired { .. })), "{denied:?}");
    let summary = relay.printed(&["auth", "check"]).await;
    assert!(summary.contains("1 token (1 expired)"), "{summary}");
    let later = relay
        .run(&["auth", "token", "new", "worker-1", "--expires", "30d"])
        .await;
    assert!(
        stderr(&later).contains("expires at 2"),
        "{}",
        stderr(&later)
    );
}

#[tokio::test]
async fn a_token_or_a_key_that_is_pasted_by_mistake_is_not_repeated() {
    let relay = Relay::new();
    relay.printed(&["auth", "token", "new", "billing"]).await;
    let pair = format!("shop:{KEY}");
    // The first one begins as a token does, the last one is as long as an id.
    for pasted in [PLANTED, &pair, "PLANTED-se"] {
        let revoke = ["auth", "token", "revoke", pasted];
        let error = relay.refused(&revoke, 2, &["ten letters and digits"]).await;
        assert!(!error.contains("PLANTED"), "{error}");
        assert!(!error.contains("rvl_"), "{error}");
        assert!(!error.contains(KEY), "{error}");
    }
    // Neither does an error about a damaged file quote the file.
    let damaged = format!("[[token]]\nid = \"{PLANTED}\"\nsha256 = \"{KEY}\"\n");
    relay.write("tokens.toml", &damaged);
    for verb in [&["auth", "token", "list"][..], &["auth", "check"]] {
        let error = relay.refused(verb, 2, &["tokens.toml"]).await;
        assert!(!error.contains("PLANTED"), "{error}");
        assert!(!error.contains("planted"), "{error}");
    }
    assert_eq!(relay.tokens(), damaged, "the file is as before");
}

#[tokio::test]
async fn commands_at_the_same_time_lose_no_token() {
    let relay = Relay::new();
    let started: Vec<_> = (0..8)
        .map(|number| {
            let principal = format!("worker-{number}");
            let mut command = relay.command(&["auth", "token", "new", &principal]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("it starts")
        })
        .collect();
    let mut tokens = Vec::new();
    for child in started {
        let output = within("the end", child.wait_with_output()).await;
        tokens.push(printed(&output.expect("it ends")));
    }
    let list = relay.json(&["auth", "token", "list"]).await;
    assert_eq!(list.as_array().expect("an array").len(), 8, "{list}");
    for (number, token) in tokens.iter().enumerate() {
        let header = format!("Bearer {}", token.trim_end());
        let principal = relay.authenticate(&header);
        assert_eq!(principal, Ok(format!("worker-{number}")));
    }
    let left: Vec<_> = fs::read_dir(relay.home.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left.len(), 3, "no temporary file is left: {left:?}");
    assert_eq!(mode(&relay.path("tokens.toml.lock")), 0o600);
}

#[tokio::test]
async fn the_token_file_is_typed_or_set_or_named_by_the_auth_file() {
    let relay = Relay::new();
    fs::create_dir(relay.path("etc")).expect("a directory");
    relay.write("etc/auth.toml", "tokens = \"its.toml\"\n");
    let config = "auth = \"etc/auth.toml\"\n";
    relay.write("reveille.toml", config);
    let plain = |arguments: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["auth", "token", "new", "a"], arguments].concat();
        let mut command = reveille(&relay.home, &arguments);
        command
            .current_dir(relay.home.path())
            .envs(variables.iter().copied());
        end(command)
    };
    let auth = ("REVEILLE_AUTH", "auth.toml");
    let its = &["--auth", "etc/auth.toml"][..];
    let configured = &["--config", "reveille.toml"][..];
    for (arguments, variables, file) in [
        (&["--tokens", "typed.toml"][..], &[auth][..], "typed.toml"),
        (&[], &[auth], "tokens.toml"),
        (its, &[], "etc/its.toml"),
        (its, &[auth], "etc/its.toml"),
        (configured, &[], "etc/its.toml"),
        (configured, &[auth], "tokens.toml"),
    ] {
        let output = plain(arguments, variables).await;
        printed(&output);
        let case = format!("{arguments:?} {variables:?}");
        assert!(
            stderr(&output).contains(file),
            "{case}: {}",
            stderr(&output)
        );
        assert_eq!(mode(&relay.path(file)), 0o600, "{case}");
        fs::remove_file(relay.path(file)).expect("it is there");
    }
    let none = plain(&[], &[]).await;
    let words = ["--tokens FILE", "--auth FILE", "REVEILLE_AUTH"];
    refused(&[], &none, 2, &words);
    relay.write("etc/auth.toml", "");
    refused(its, &plain(its, &[]).await, 2, &["has no `tokens`"]);
    fs::remove_file(relay.path("etc/auth.toml")).expect("it is there");
    refused(its, &plain(its, &[]).await, 2, &["etc/auth.toml"]);
}

#[tokio::test]
async fn a_missing_file_is_created_by_new_only() {
    let relay = Relay::new();
    let listed = relay.printed(&["auth", "token", "list"]).await;
    assert!(listed.starts_with("ID"), "{listed}");
    let revoke = ["auth", "token", "revoke", "aaaaaaaaaa"];
    relay
        .refused(&revoke, 5, &["tokens.toml", "cannot be read"])
        .await;
    let check = ["auth", "check"];
    let words = ["tokens", "cannot be read"];
    relay.refused(&check, 2, &words).await;
    assert!(!relay.path("tokens.toml").exists());

    // A link to the file stays a link.
    fs::create_dir(relay.path("data")).expect("a directory");
    relay.write("data/tokens.toml", "");
    let readable = fs::Permissions::from_mode(0o644);
    fs::set_permissions(relay.path("data/tokens.toml"), readable).expect("set");
    symlink("data/tokens.toml", relay.path("tokens.toml")).expect("a link");
    relay.printed(&["auth", "token", "new", "billing"]).await;
    assert!(relay.path("tokens.toml").is_symlink());
    // Its group may read it as before, and others no longer.
    assert_eq!(mode(&relay.path("data/tokens.toml")), 0o640);
    relay.printed(&check).await;
}

#[tokio::test]
async fn bad_arguments_of_token_are_refused_with_their_rule() {
    let relay = Relay::new();
    let long = "x".repeat(257);
    for (arguments, code, words) in [
        (&["auth", "token", "new"][..], 2, &["<PRINCIPAL>"][..]),
        (
            &["auth", "token", "new", "a b"],
            2,
            &["<PRINCIPAL>", "1 to 128 of"],
        ),
        (
            &["auth", "token", "new", "anonymous"],
            2,
            &["not `anonymous`"],
        ),
        (
            &["auth", "token", "new", "group:x"],
            2,
            &["not begin with `group:`"],
        ),
        (
            &["auth", "token", "new", "a", "--expires", "0"],
            2,
            &["--expires", "above zero"],
        ),
        (
            &["auth", "token", "new", "a", "--expires", "soon"],
            2,
            &["--expires", "write it like"],
        ),
        (
            &["auth", "token", "new", "a", "--note", &long],
            2,
            &["note", "256"],
        ),
        (&["auth", "token", "revoke"], 2, &["<ID>"]),
        (
            &["auth", "token", "new", "a", "--tokens", "none/tokens.toml"],
            1,
            &["none/tokens.toml", "No such file"],
        ),
        (
            &["auth", "token", "list", "--tokens", "."],
            1,
            &["not a regular file"],
        ),
    ] {
        relay.refused(arguments, code, words).await;
    }
    assert!(!relay.path("tokens.toml").exists(), "nothing was added");
}

#[tokio::test]
async fn a_check_prints_a_summary_or_the_error() {
    let relay = Relay::new();
    relay.printed(&["auth", "token", "new", "billing"]).await;
    let check = relay.run(&["auth", "check", "auth.toml"]).await;
    assert_eq!(
        printed(&check),
        "auth.toml: 2 rules, 1 token (0 expired), 0 issuers, 1 certificate\n"
    );
    assert_eq!(stderr(&check), "");
    let summary = relay.json(&["auth", "check", "auth.toml"]).await;
    let expected = json!({
        "file": "auth.toml", "rules": 2, "tokens": 1, "expired": 0,
        "issuers": 0, "certificates": 1,
    });
    assert_eq!(summary, expected);
    for name in ["auth.toml", "tokens.toml"] {
        let open = fs::Permissions::from_mode(0o666);
        fs::set_permissions(relay.path(name), open).expect("it is ours");
        let check = relay.run(&["auth", "check", "auth.toml"]).await;
        printed(&check);
        let note = format!("`{name}` can be written by every user of the machine");
        assert!(stderr(&check).contains(&note), "{}", stderr(&check));
    }

    relay.write("empty.toml", "");
    let empty = relay.run(&["auth", "check", "empty.toml"]).await;
    assert!(printed(&empty).starts_with("empty.toml: 0 rules, 0 tokens"));
    let notes = stderr(&empty);
    assert!(notes.contains("denies every request"), "{notes}");
    assert!(notes.contains("authenticates no caller"), "{notes}");

    let rule = "[[rule]]\nprincipals = [\"a\"]\nactions = [\"read\"]\nqueues = [\"*/*\"]\n";
    let jwt = "[[jwt]]\nissuer = \"i\"\naudience = \"a\"\nkey = \"none.pem\"\n";
    for (file, words) in [
        (rule, &["rule 1", "\"read\"", "hand_over"][..]),
        (jwt, &["key file of `i`", "none.pem"]),
        ("token = \"x\"\n", &["line 1", "`token`"]),
        ("tokens = \"none.toml\"\n", &["none.toml"]),
    ] {
        relay.write("bad.toml", file);
        let check = ["auth", "check", "bad.toml"];
        relay.refused(&check, 2, words).await;
        let can = ["auth", "can", "a", "admin", "--auth", "bad.toml"];
        relay.refused(&can, 2, words).await;
    }
    let missing = ["auth", "check", "none.toml"];
    relay.refused(&missing, 2, &["none.toml"]).await;
    relay
        .refused(&["auth", "check", "."], 2, &["not a regular file"])
        .await;
    for verb in [&["auth", "check"][..], &["auth", "can", "a", "admin"]] {
        let mut command = relay.command(verb);
        command.env_remove("REVEILLE_AUTH");
        refused(verb, &end(command).await, 2, &["REVEILLE_AUTH"]);
    }
}

#[tokio::test]
async fn a_verdict_names_the_rule_or_the_reason() {
    let relay = Relay::new();
    relay.write("tokens.toml", "");
    for (request, line) in [
        (
            &["billing", "notify", "acct/orders"][..],
            "yes: rule 1 allows `notify` on `acct/orders`",
        ),
        (
            &["billing", "subscribe", "acct/order*"],
            "yes: rule 1 allows `subscribe` on `acct/order*`",
        ),
        (
            &["worker-1", "notify", "acct/orders"],
            "yes: rule 1 allows `notify` on `acct/orders`",
        ),
        (
            &[
                "x",
                "notify",
                "acct/orders",
                "--group",
                "other",
                "--group",
                "workers",
            ],
            "yes: rule 1 allows `notify` on `acct/orders`",
        ),
        (
            &["ops", "unleash", "go-live"],
            "yes: rule 2 allows `unleash` on `go-live`",
        ),
        (
            &["ops", "watch", "go-l*"],
            "yes: rule 2 allows `watch` on `go-l*`",
        ),
        (&["ops", "admin"], "yes: rule 2 allows `admin` on `relay`"),
        (
            &["billing", "subscribe", "acct/*"],
            "no: no rule of `billing` allows `subscribe` on `acct/*`",
        ),
        (
            &["billing", "report", "acct/orders"],
            "no: no rule of `billing` allows `report` on `acct/orders`",
        ),
        (
            &["ops", "watch", "*"],
            "no: no rule of `ops` allows `watch` on `*`",
        ),
        (
            &["ops", "hand_over", "acct/orders"],
            "no: no rule of `ops` allows `hand_over` on `acct/orders`",
        ),
        (
            &["x", "notify", "acct/orders"],
            "no: no rule of `x` allows `notify` on `acct/orders`",
        ),
    ] {
        let verb = [&["auth", "can"], request].concat();
        let output = relay.run(&verb).await;
        assert_eq!(stdout(&output), format!("{line}\n"), "{request:?}");
        let code = if line.starts_with("yes") { 0 } else { 4 };
        assert_eq!(output.status.code(), Some(code), "{request:?}");
        assert_eq!(stderr(&output), "", "{request:?}");
    }
    let verb = ["auth", "can", "ops", "admin", "-o", "json"];
    let answer: Value = serde_json::from_str(&relay.printed(&verb).await).expect("JSON");
    let expected = json!({
        "principal": "ops", "action": "admin", "target": "relay", "allowed": true,
        "why": "rule 2 allows `admin` on `relay`",
    });
    assert_eq!(answer, expected);
    let denied = ["auth", "can", "x", "notify", "a/q", "-o", "json"];
    let denied = relay.run(&denied).await;
    assert_eq!(denied.status.code(), Some(4));
    let denied: Value = serde_json::from_str(&stdout(&denied)).expect("JSON");
    assert_eq!(
        (&denied["allowed"], &denied["target"]),
        (&json!(false), &json!("a/q"))
    );
}

#[tokio::test]
async fn bad_requests_of_can_are_refused_with_their_rule() {
    let relay = Relay::new();
    relay.write("tokens.toml", "");
    for (request, words) in [
        (&["a", "read", "a/q"][..], &["<ACTION>", "hand_over"][..]),
        (&["a b", "notify", "a/q"], &["<PRINCIPAL>", "1 to 128"]),
        (
            &["a", "notify", "a/q", "--group", "x y"],
            &["--group", "1 to 128"],
        ),
        (&["a", "notify", "acct"], &["TARGET", "account/queue"]),
        (&["a", "notify", "acct/o*s"], &["TARGET", "at its end"]),
        (&["a", "notify"], &["TARGET", "ACCOUNT/QUEUE"]),
        (&["a", "watch"], &["TARGET", "a flag"]),
        (&["a", "watch", "x/y"], &["TARGET", "[A-Za-z0-9._-]"]),
        (&["a", "watch", "a*b*"], &["TARGET", "[A-Za-z0-9._-]"]),
        (&["a", "admin", "a/q"], &["TARGET", "has no target"]),
    ] {
        let verb = [&["auth", "can"], request].concat();
        relay.refused(&verb, 2, words).await;
    }
}

#[tokio::test]
async fn the_help_lists_the_verbs_and_states_when_a_relay_follows() {
    let relay = Relay::new();
    let help = relay.printed(&["--help-all"]).await;
    let listed = help.lines().any(|line| line.trim().starts_with("auth "));
    assert!(listed, "{help}");
    for verb in ["new", "revoke"] {
        let help = relay.printed(&["auth", "token", verb, "--help-all"]).await;
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("within 10 s by itself"), "{help}");
    }
}

#[tokio::test]
async fn a_token_goes_into_a_new_file_that_only_its_owner_can_read() {
    let relay = Relay::new();
    for (name, further) in [("billing.token", &[][..]), ("shop.token", &["-o", "json"])] {
        let new = [&["auth", "token", "new", "billing", "--out", name], further].concat();
        let output = relay.run(&new).await;
        let text = fs::read_to_string(relay.path(name)).expect("a file");
        assert_eq!(mode(&relay.path(name)), 0o600);
        assert!(!printed(&output).contains(text.trim()), "{output:?}");
        assert!(stderr(&output).contains(name), "{output:?}");
        let header = format!("Bearer {}", text.trim());
        assert_eq!(relay.authenticate(&header).expect("it is valid"), "billing");
    }
    // A file that exists is kept, and no token is made.
    let tokens = relay.tokens();
    let again = ["auth", "token", "new", "billing", "--out", "billing.token"];
    relay.refused(&again, 1, &["--out", "billing.token"]).await;
    let missing = [
        "auth",
        "token",
        "new",
        "billing",
        "--out",
        "none/billing.token",
    ];
    relay.refused(&missing, 1, &["--out", "none"]).await;
    assert_eq!(relay.tokens(), tokens);
    // No token, no file.
    relay.write("tokens.toml", "broken");
    let broken = ["auth", "token", "new", "billing", "--out", "other.token"];
    relay.refused(&broken, 2, &["tokens.toml"]).await;
    assert!(!relay.path("other.token").exists());
}

#[tokio::test]
async fn a_revocation_says_when_it_takes_effect() {
    let relay = Relay::new();
    relay.printed(&["auth", "token", "new", "billing"]).await;
    let rows = relay.json(&["auth", "token", "list"]).await;
    let id = text(&rows[0], "id").to_owned();
    let output = relay.run(&["auth", "token", "revoke", &id]).await;
    printed(&output);
    let note = stderr(&output);
    assert!(note.contains("on at the latest"), "{note}");
}
