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
    assert!(message.contains("auth.toml"), "{message}");
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn a_bad_rule_is_refused_by_its_number_and_field() {
    let home = Home::new();
    let good = format!("{RULE}actions = [\"admin\"]\n");
    assert!(home.load(&good).is_ok());
    for (rule, part) in [
        ("actions = [\"read\"]", "rule 2: actions: must be of notify"),
        ("actions = []", "rule 2: actions: must not be empty"),
        ("actions = [\"notify\"]", "rule 2: queues: is missing"),
        ("actions = [\"watch\"]", "rule 2: flags: is missing"),
        (
            "actions = [\"notify\", \"watch\"]\nqueues = [\"a/b\"]",
            "rule 2: flags: is missing",
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
        (rule("[\"a b\"]"), "rule 1: principals: must be 1 to 128"),
        (
            rule("[\"anonymous\"]"),
            "rule 1: principals: must be 1 to 128",
        ),
        (rule("[\"a*\"]"), "rule 1: principals: must be 1 to 128"),
        (rule("[\"group:\"]"), "rule 1: principals: must be 1 to 128"),
        (rule("[]"), "rule 1: principals: must not be empty"),
        (
            rule("[\"group:ops\"]"),
            "rule 1: principals: group `ops` is neither",
        ),
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
            "groups: `ops`: must be 1 to 128",
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
            "`reveille auth token new` creates it",
        ),
        ("token = \"x\"".to_owned(), "unknown field `token`"),
        ("rule = ".to_owned(), "line 1"),
    ] {
        refused(&home, &text, part);
    }
    // An issuer's tokens may name the group.
    home.write("k.pem", SigningKey::ed25519().pem());
    let stated = format!("{JWT}key = \"k.pem\"\ngroups = \"groups\"\n");
    assert!(
        home.load(&format!("{stated}{}", rule("[\"group:ops\"]")))
            .is_ok()
    );
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
        (JWT.to_owned(), "jwt 1: key: either `key` or `jwks`"),
        (
            format!("{with_key}jwks = \"keys.json\""),
            "jwt 1: key: either `key` or `jwks`",
        ),
        (
            format!("{with_key}algorithms = []"),
            "jwt 1: algorithms: must not be empty",
        ),
        (
            format!("{with_key}algorithms = [\"HS256\"]"),
            "jwt 1: algorithms: must be of EdDSA",
        ),
        (
            format!("{with_key}algorithms = [\"none\"]"),
            "jwt 1: algorithms: must be of EdDSA",
        ),
        (
            format!("{with_key}algorithms = [\"RS256\"]"),
            "jwt 1: key: no key fits",
        ),
        (
            format!("{JWT}jwks = \"keys.json\"\nalgorithms = [\"EdDSA\"]"),
            "jwt 1: jwks: no key fits the algorithms EdDSA",
        ),
        (
            format!("{with_key}leeway = \"301s\""),
            "jwt 1: leeway: must be 0s to 5m",
        ),
        (format!("{with_key}leeway = \"soon\""), "jwt 1: leeway: "),
        (
            format!("{with_key}secret = \"x\""),
            "unknown field `secret`",
        ),
        (
            format!("{with_key}principal = \"\""),
            "jwt 1: principal: must not be empty",
        ),
        (
            with_key.replace("\"i\"", "\"\""),
            "jwt 1: issuer: must not be empty",
        ),
        (
            with_key.replace("\"r\"", "\"\""),
            "jwt 1: audience: must not be empty",
        ),
        (
            "[[jwt]]\nissuer = \"i\"\nkey = \"k.pem\"".to_owned(),
            "missing field `audience`",
        ),
        (format!("{JWT}key = \"missing.pem\""), "jwt 1: key: file"),
        (format!("{JWT}jwks = \"missing.json\""), "jwt 1: jwks: file"),
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
        (b"planted".to_vec(), "must hold one section"),
        (Vec::new(), "must hold one section"),
        (planted.clone(), "must hold one section"),
        ([key.clone(), planted].concat(), "must hold one section"),
        ([key.clone(), key.clone()].concat(), "must hold one section"),
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
fn a_bad_key_set_is_refused_by_the_keys_number() {
    let home = Home::new();
    let good = SigningKey::p256().jwk("a");
    let with = |name: &str, value: serde_json::Value| {
        let mut key = good.clone();
        key[name] = value;
        key
    };
    let rsa = |bits: usize, e: &str| {
        use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
        let n = URL_SAFE_NO_PAD.encode(vec![0xff; bits / 8]);
        json!({"kty": "RSA", "n": n, "e": e})
    };
    home.write(
        "keys.json",
        json!({"keys": [good, with("d", json!("planted"))]}).to_string(),
    );
    let text = format!("{JWT}jwks = \"keys.json\"");
    refused(&home, &text, "key 2: it is a private key");
    let error = home.load(&text).expect_err("refused");
    assert!(!format!("{error:?}").contains("planted"), "{error:?}");
    // A key that cannot be used is left out with a note, and the others are used.
    for (key, part) in [
        (
            json!({"kty": "oct", "k": "planted"}),
            "key 2 is not used: it is a shared key",
        ),
        (
            with("x", json!("AA")),
            "key 2 is not used: `x` and `y` of a P-256 key",
        ),
        (
            with("y", json!("!")),
            "key 2 is not used: `y` is missing or not base64url",
        ),
        (
            json!({"kty": "OKP", "crv": "Ed25519", "x": "AA"}),
            "key 2 is not used: an Ed25519 key has 32",
        ),
        (
            rsa(1024, "AQAB"),
            "key 2 is not used: an RSA key has 2048 to 8192 bits, this one has 1024",
        ),
        (rsa(8200, "AQAB"), "this one has 8200"),
        (rsa(2048, "AQ"), "key 2 is not used: the exponent"),
        (rsa(2048, "Ag"), "key 2 is not used: the exponent"),
        (rsa(2048, "_____w8"), "key 2 is not used: the exponent"),
        (good.clone(), "key 2 is not used: its `kid` stands twice"),
        (
            with("kid", json!("x".repeat(300))),
            "key 2 is not used: its `kid` is longer",
        ),
        (
            json!({"kid": "planted"}),
            "key 2 is not used: it is no JSON Web Key",
        ),
    ] {
        home.write("keys.json", json!({"keys": [good, key]}).to_string());
        let config = home.config(&text);
        let notes: Vec<_> = config.notes().collect();
        assert!(notes.len() == 1 && notes[0].contains(part), "{notes:?}");
        assert!(!notes[0].contains("planted"), "{notes:?}");
        // Alone it is no set that a token could be checked with.
        home.write("keys.json", json!({"keys": [key]}).to_string());
        if key != good {
            refused(&home, &text, "no key fits the algorithms");
        }
    }
    for text in ["", "[]", "{}", "planted"] {
        home.write("keys.json", text);
        refused(
            &home,
            &format!("{JWT}jwks = \"keys.json\""),
            "is not a JSON Web Key Set",
        );
    }
    // A set without a key for signatures has no fitting key.
    for key in [
        with("use", json!("enc")),
        with("key_ops", json!(["sign"])),
        with("alg", json!("ES384")),
        with("crv", json!("P-384")),
        with("kty", json!("new")),
    ] {
        home.write("keys.json", json!({"keys": [key]}).to_string());
        refused(
            &home,
            &format!("{JWT}jwks = \"keys.json\""),
            "jwks: no key fits",
        );
    }
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let home = Home::new();
    refused(&home, &"#".repeat((1 << 20) + 1), "is longer than");
    home.write("auth.toml", b"\xff");
    let error = crate::relay::auth::AuthFile::load(home.path("auth.toml")).expect_err("bytes");
    assert!(error.message().contains("is not UTF-8"), "{error}");
}

#[test]
fn a_bad_limit_is_refused_by_its_number_and_field() {
    let home = Home::new();
    let good = "[[limit]]\nprincipals = [\"*\"]\nstreams = 5\nconnections = 0\n";
    assert!(home.load(good).is_ok());
    for (limit, part) in [
        ("streams = 1", "missing field `principals`"),
        ("principals = [\"a\"]", "limit 2: limit: states no limit"),
        (
            "principals = []\nstreams = 1",
            "limit 2: principals: must not be empty",
        ),
        (
            "principals = [\"group:ops\"]\nstreams = 1",
            "limit 2: principals: group `ops` is neither",
        ),
        ("principals = [\"a\"]\nstream = 1", "unknown field `stream`"),
        (
            "principals = [\"a\"]\nstreams = -1",
            "invalid value: integer `-1`",
        ),
        (
            "principals = [\"a\"]\nnotify_burst = 1023",
            "limit 2: notify_burst: must be at least 1024, the notifications of one request, not 1023",
        ),
    ] {
        refused(&home, &format!("{good}[[limit]]\n{limit}\n"), part);
    }
}
