//! Every rule of the operator's file, broken once.

use serde_json::json;

use super::{
    Home,
    keys::{SigningKey, pem},
};

const RULE: &str = "[[rule]]\nprincipals = [\"a\"]\n";
const JWT: &str = "[[jwt]]\nissuer = \"i\"\naudience = \"r\"\n";

fn refused(home: &Home, text: &str, part: &str) {
    let Err(error) = home.load(text) else {
        panic!("accepted:\n{text}");
    };
    let message = error.message();
    assert!(
        message.contains(part),
        "{message}\ndoes not contain: {part}"
    );
    let home = home.path("").display().to_string();
    assert!(message.contains(&home), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn a_bad_rule_is_refused_by_its_number_and_field() {
    let home = Home::new();
    let good = format!("{RULE}actions = [\"admin\"]\n");
    assert!(home.load(&good).is_ok());
    for (rule, part) in [
        (
            "actions = [\"read\"]",
            "rule 2: actions: \"read\": action: must be of notify",
        ),
        ("actions = []", "rule 2: actions: must not be empty"),
        (
            "actions = [\"notify\"]",
            "rule 2: queues: must not be empty",
        ),
        ("actions = [\"watch\"]", "rule 2: flags: must not be empty"),
        (
            "actions = [\"notify\", \"watch\"]\nqueues = [\"a/b\"]",
            "rule 2: flags: must not be empty",
        ),
        (
            "actions = [\"admin\"]\nflags = [\"*\"]",
            "rule 2: flags: no action of the rule",
        ),
        (
            "actions = [\"notify\"]\nqueues = [\"a/b\"]\nflags = [\"*\"]",
            "rule 2: flags: no action of the rule",
        ),
        (
            "actions = [\"watch\"]\nqueues = [\"a/b\"]\nflags = [\"*\"]",
            "rule 2: queues: no action of the rule",
        ),
        (
            "actions = [\"notify\"]\nqueues = []",
            "rule 2: queues: must not be empty",
        ),
        (
            "actions = [\"watch\"]\nflags = []",
            "rule 2: flags: must not be empty",
        ),
        (
            "actions = [\"notify\"]\nqueues = [\"a*b/c\"]",
            "rule 2: queues: \"a*b/c\"",
        ),
        (
            "actions = [\"notify\"]\nqueues = [\"*\"]",
            "rule 2: queues: \"*\"",
        ),
        (
            "actions = [\"notify\"]\nqueues = [\"a/b/c\"]",
            "rule 2: queues: \"a/b/c\"",
        ),
        (
            "actions = [\"notify\"]\nqueues = [\"a/..\"]",
            "rule 2: queues: \"a/..\"",
        ),
        (
            "actions = [\"watch\"]\nflags = [\"a*b\"]",
            "rule 2: flags: \"a*b\"",
        ),
        (
            "actions = [\"watch\"]\nflags = [\"a/b\"]",
            "rule 2: flags: \"a/b\"",
        ),
        (
            "actions = [\"watch\"]\nflags = [\"\"]",
            "rule 2: flags: \"\"",
        ),
        (
            "actions = [\"admin\"]\neffect = \"deny\"",
            "unknown field `effect`",
        ),
    ] {
        refused(&home, &format!("{good}{RULE}{rule}\n"), part);
    }
    let too_long = format!("{}*", "x".repeat(129));
    let rule = format!("{RULE}actions = [\"watch\"]\nflags = [\"{too_long}\"]");
    refused(&home, &rule, "rule 1: flags: ");
}

#[test]
fn a_bad_principal_or_group_is_refused() {
    let home = Home::new();
    let rule =
        |principals: &str| format!("[[rule]]\nprincipals = {principals}\nactions = [\"admin\"]\n");
    for (text, part) in [
        (
            rule("[\"a b\"]"),
            "rule 1: principals: \"a b\": principal: must be 1 to 128",
        ),
        (
            rule("[\"anonymous\"]"),
            "rule 1: principals: \"anonymous\": principal: must be 1",
        ),
        (
            rule("[\"a*\"]"),
            "rule 1: principals: \"a*\": principal: must be 1 to 128",
        ),
        (
            rule("[\"group:\"]"),
            "rule 1: principals: \"group:\": principal: must be 1 to 128",
        ),
        (rule("[]"), "rule 1: principals: must not be empty"),
        (
            "[[rule]]\nactions = [\"admin\"]".to_owned(),
            "missing field `principals`",
        ),
        (
            "[groups]\nops = []".to_owned(),
            "groups: `ops`: must not be empty",
        ),
        (
            "[groups]\nops = [\"a b\"]".to_owned(),
            "groups: `ops`: \"a b\": member: must be 1 to 128",
        ),
        (
            "[groups]\n\"o p\" = [\"a\"]".to_owned(),
            "groups: must be 1 to 128",
        ),
        (
            "[certificates]\n\"x.example\" = \"a b\"".to_owned(),
            "certificates: `x.example`",
        ),
        (
            "[certificates]\n\"*.example\" = \"a\"".to_owned(),
            "must be one DNS name",
        ),
        (
            "[certificates]\n\"\" = \"a\"".to_owned(),
            "must be one DNS name",
        ),
        (
            "[certificates]\n\"a.b\" = \"a\"\n\"A.b\" = \"b\"".to_owned(),
            "stands twice",
        ),
        (
            "tokens = \"missing.toml\"".to_owned(),
            "missing.toml` cannot be read",
        ),
        ("token = \"x\"".to_owned(), "unknown field `token`"),
        ("rule = ".to_owned(), "line 1"),
    ] {
        refused(&home, &text, part);
    }
}

#[test]
fn a_bad_issuer_is_refused_by_its_number() {
    let home = Home::new();
    home.write("k.pem", SigningKey::ed25519().pem());
    home.write(
        "keys.json",
        json!({"keys": [SigningKey::p256().jwk("a")]}).to_string(),
    );
    let with_key = format!("{JWT}key = \"k.pem\"\n");
    assert!(home.load(&with_key).is_ok());
    for (text, part) in [
        (
            format!("{with_key}{with_key}"),
            "jwt 2: issuer `i` stands twice",
        ),
        (JWT.to_owned(), "jwt 1: either `key` or `jwks`"),
        (
            format!("{with_key}jwks = \"keys.json\""),
            "jwt 1: either `key` or `jwks`",
        ),
        (
            format!("{with_key}secret = \"x\""),
            "unknown field `secret`",
        ),
        (
            "[[jwt]]\nissuer = \"i\"\nkey = \"k.pem\"".to_owned(),
            "missing field `audience`",
        ),
        (
            format!("{JWT}key = \"missing.pem\""),
            "missing.pem` cannot be read",
        ),
        (format!("{JWT}jwks = \"missing.json\""), "key file of `i`"),
        (format!("{JWT}key = \".\""), "is not a regular file"),
    ] {
        refused(&home, &text, part);
    }
}

#[test]
fn a_bad_key_file_is_refused_and_not_quoted() {
    let home = Home::new();
    let key = SigningKey::ed25519().pem();
    let planted = pem("PRIVATE KEY", b"planted planted planted");
    // An X25519 key: the same form with another algorithm.
    let other = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x6e\x03\x21\x00".to_vec();
    let other = [other, vec![7; 32]].concat();
    for (content, part) in [
        (b"planted".to_vec(), "has no section `BEGIN PUBLIC KEY`"),
        (Vec::new(), "has no section"),
        (planted, "has no section"),
        (pem("PUBLIC KEY", b"planted"), "is not valid DER"),
        (pem("PUBLIC KEY", &other), "of another type"),
        (pem("PUBLIC KEY", &other[..43]), "is not valid DER"),
        (vec![b'x'; (1 << 20) + 1], "is longer than 1048576 bytes"),
    ] {
        home.write("k.pem", &content);
        let text = format!("{JWT}key = \"k.pem\"");
        refused(&home, &text, part);
        refused(&home, &text, "k.pem");
        let error = home.load(&text).expect_err("refused");
        assert!(!format!("{error:?}").contains("planted"), "{error:?}");
    }
    home.write("k.pem", &key);
    assert!(home.load(&format!("{JWT}key = \"k.pem\"")).is_ok());
}

#[test]
fn keys_of_a_set_that_cannot_be_used_are_left_out() {
    let home = Home::new();
    let good = SigningKey::p256().jwk("a");
    let with = |name: &str, value: serde_json::Value| {
        let mut key = good.clone();
        key[name] = value;
        key
    };
    let text = format!("{JWT}jwks = \"keys.json\"");
    for key in [
        json!({"kty": "oct", "k": "planted"}),
        with("x", json!("AA")),
        with("y", json!("!")),
        json!({"kty": "OKP", "crv": "Ed25519", "x": "AA"}),
        json!({"kid": "planted"}),
        with("use", json!("enc")),
        with("key_ops", json!(["sign"])),
        with("alg", json!("ES384")),
        with("crv", json!("P-384")),
        with("kty", json!("new")),
    ] {
        home.write("keys.json", json!({"keys": [key, good]}).to_string());
        home.config(&text);
        // Alone it is no set that a token could be checked with.
        home.write("keys.json", json!({"keys": [key]}).to_string());
        refused(&home, &text, "has no key for EdDSA, ES256 or RS256");
    }
    for content in ["", "[]", "{}", "planted"] {
        home.write("keys.json", content);
        refused(&home, &text, "is not a JSON Web Key Set");
        let error = home.load(&text).expect_err("refused");
        assert!(!format!("{error:?}").contains("planted"), "{error:?}");
    }
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let home = Home::new();
    refused(&home, &"#".repeat((1 << 20) + 1), "is longer than");
    home.write("auth.toml", b"\xff");
    let file = crate::relay::auth::AuthFile::new(home.path("auth.toml"));
    let error = file.read().expect_err("bytes").to_string();
    assert!(error.contains("invalid utf-8"), "{error}");
}

#[test]
fn a_bad_limit_is_refused_by_its_number_and_field() {
    let home = Home::new();
    let good = "[[limit]]\nprincipals = [\"*\"]\nstreams = 5\nconnections = 0\n";
    assert!(home.load(good).is_ok());
    for (limit, part) in [
        ("streams = 1", "missing field `principals`"),
        (
            "principals = []\nstreams = 1",
            "limit 2: principals: must not be empty",
        ),
        ("principals = [\"a\"]\nstream = 1", "unknown field `stream`"),
        (
            "principals = [\"a\"]\nstreams = -1",
            "invalid value: integer `-1`",
        ),
        (
            "principals = [\"a\"]\nnotify_burst = 1023",
            "limit 2: notify_burst: must be at least 1024, the events of one request",
        ),
    ] {
        refused(&home, &format!("{good}[[limit]]\n{limit}\n"), part);
    }
}
