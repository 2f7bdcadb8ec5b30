//! JWTs: each algorithm accepted, and every reason to refuse a token.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    Home, at,
    keys::{SigningKey, unsigned},
};
use crate::relay::auth::{AuthFile, Authenticator, Denial, Principal};

const START: i64 = 1_800_000_000;

fn config(key_field: &str) -> String {
    format!(
        r#"
        [[jwt]]
        issuer = "https://login.example.com"
        audience = "reveille"
        groups = "groups"
        {key_field}
        "#
    )
}

fn authenticator(key: &SigningKey) -> Authenticator {
    let home = Home::new();
    home.write("issuer.pem", key.pem());
    Authenticator::new(home.config(&config("key = \"issuer.pem\"")))
}

fn with_jwks(keys: &Value) -> Authenticator {
    let home = Home::new();
    home.write("jwks.json", json!({"keys": keys}).to_string());
    Authenticator::new(home.config(&config("jwks = \"jwks.json\"")))
}

/// Good claims, valid for an hour from the tests' start.
fn claims() -> Value {
    json!({
        "iss": "https://login.example.com",
        "aud": "reveille",
        "sub": "billing",
        "exp": START + 3600,
    })
}

fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn claims_without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().expect("an object").remove(name);
    claims
}

fn try_at(relay: &Authenticator, token: &str, seconds: i64) -> Result<Principal, Denial> {
    let header = format!("Bearer {token}");
    let caller = relay.authenticate(Some(header.as_bytes()), &[], at(seconds));
    caller.map(|caller| caller.principal().clone())
}

/// Returns the name of the reason.
fn denied(relay: &Authenticator, token: &str) -> String {
    let denial = format!("{:?}", try_at(relay, token, 0).expect_err("refused"));
    denial.split(' ').next().unwrap_or_default().to_owned()
}

fn all_keys() -> [SigningKey; 3] {
    [SigningKey::ed25519(), SigningKey::p256(), SigningKey::rsa()]
}

#[test]
fn a_token_of_each_algorithm_is_accepted_with_a_pem_file_and_with_a_jwks() {
    for key in all_keys() {
        let by_jwks = with_jwks(&json!([key.jwk("k1")]));
        for relay in [authenticator(&key), by_jwks] {
            let principal = try_at(&relay, &key.token(&claims()), 0);
            let principal = principal.unwrap_or_else(|d| panic!("{}: {d}", key.algorithm()));
            assert_eq!(principal.name(), "billing");
        }
    }
}

#[test]
fn a_token_of_another_key_or_with_another_content_is_refused() {
    for (key, other) in [
        (SigningKey::ed25519(), SigningKey::ed25519()),
        (SigningKey::p256(), SigningKey::p256()),
    ] {
        let relay = authenticator(&key);
        assert_eq!(denied(&relay, &other.token(&claims())), "BadSignature");
    }
    for key in all_keys() {
        let relay = authenticator(&key);
        let token = key.token(&claims());
        let (signed, signature) = token.rsplit_once('.').expect("three parts");
        let (header, _) = signed.split_once('.').expect("two parts");
        let forged = URL_SAFE_NO_PAD.encode(claims_with("sub", json!("ops")).to_string());
        let forged = format!("{header}.{forged}.{signature}");
        assert_eq!(denied(&relay, &forged), "BadSignature");
        assert_eq!(denied(&relay, &format!("{signed}.")), "BadSignature");
    }
}

#[test]
fn a_token_expires_after_the_leeway() {
    let key = SigningKey::ed25519();
    let token = key.token(&claims());
    // Each time with a fresh cache.
    let relay = || authenticator(&key);
    assert!(try_at(&relay(), &token, 3600 + 59).is_ok());
    let denial = try_at(&relay(), &token, 3600 + 60).expect_err("expired");
    assert!(matches!(denial, Denial::Expired { .. }), "{denial}");
    let denial = try_at(&relay(), &token, 2 * 3600).expect_err("expired");
    assert_eq!(
        denial.to_string(),
        "the token expired 3600 s ago by the relay's clock"
    );
}

#[test]
fn a_cached_token_expires_too() {
    let key = SigningKey::ed25519();
    let (relay, token) = (authenticator(&key), key.token(&claims()));
    assert!(try_at(&relay, &token, 0).is_ok());
    assert!(try_at(&relay, &token, 3600 + 59).is_ok());
    assert!(try_at(&relay, &token, 3600 + 60).is_err());
}

#[test]
fn a_token_is_valid_from_its_time_less_the_leeway() {
    let key = SigningKey::ed25519();
    let token = key.token(&claims_with("nbf", json!(START + 60)));
    assert!(try_at(&authenticator(&key), &token, 0).is_ok());
    let denial = try_at(&authenticator(&key), &token, -1).expect_err("too early");
    assert!(matches!(denial, Denial::NotYetValid { .. }), "{denial}");
}

#[test]
fn a_clock_that_is_an_hour_off_is_told() {
    let key = SigningKey::p256();
    let relay = authenticator(&key);
    let token = key.token(&claims_with("nbf", json!(START + 3600)));
    let denial = try_at(&relay, &token, 0).expect_err("too early");
    assert_eq!(
        denial.to_string(),
        "the token becomes valid in 3600 s by the relay's clock"
    );
}

#[test]
fn claims_that_do_not_fit_are_refused() {
    let key = SigningKey::ed25519();
    let relay = authenticator(&key);
    for (claims, denial) in [
        (claims_with("aud", json!("other")), "WrongAudience"),
        (claims_with("aud", json!(["a", "b"])), "WrongAudience"),
        (claims_with("aud", json!({"reveille": 1})), "WrongAudience"),
        (claims_without("aud"), "WrongAudience"),
        (
            claims_with("iss", json!("https://evil.example.com")),
            "UnknownIssuer",
        ),
        (
            claims_with("iss", json!(["https://login.example.com"])),
            "UnknownIssuer",
        ),
        (claims_without("iss"), "UnknownIssuer"),
        (claims_without("exp"), "BadClaim"),
        (claims_with("exp", json!("soon")), "BadClaim"),
        (claims_with("exp", json!(-1)), "BadClaim"),
        (claims_with("exp", json!(1e300)), "BadClaim"),
        (claims_with("exp", Value::Null), "BadClaim"),
        (claims_with("nbf", json!([])), "BadClaim"),
        (claims_without("sub"), "BadClaim"),
        (claims_with("sub", json!(7)), "BadClaim"),
        (claims_with("sub", json!("")), "BadClaim"),
        (claims_with("sub", json!("anonymous")), "BadClaim"),
        (claims_with("sub", json!("group:ops")), "BadClaim"),
        (claims_with("sub", json!("a b")), "BadClaim"),
        (claims_with("groups", json!(7)), "BadClaim"),
        (claims_with("groups", json!(["ops", 7])), "BadClaim"),
        (json!(["no", "object"]), "Malformed"),
    ] {
        assert_eq!(denied(&relay, &key.token(&claims)), denial, "{claims}");
    }
    let several = claims_with("aud", json!(["other", "reveille"]));
    assert!(try_at(&relay, &key.token(&several), 0).is_ok());
    let fraction = claims_with("exp", json!(START as f64 + 0.5));
    assert!(try_at(&relay, &key.token(&fraction), 0).is_ok());
}

#[test]
fn a_signed_token_is_refused_with_its_own_reason() {
    let key = SigningKey::ed25519();
    let relay = authenticator(&key);
    for (claims, reason) in [
        (claims_without("exp"), "the token's `exp` is missing"),
        (
            claims_with("exp", json!("soon")),
            "the token's `exp` must be a number of seconds since 1970",
        ),
        (
            claims_with("groups", json!(7)),
            "the token's groups must be a list of texts",
        ),
        (
            claims_with("sub", json!("a b")),
            "the token's principal must be 1 to 128 of",
        ),
    ] {
        let denial = try_at(&relay, &key.token(&claims), 0).expect_err("refused");
        assert!(denial.to_string().starts_with(reason), "{denial}");
    }
}

#[test]
fn the_names_and_groups_of_common_identity_services_are_accepted() {
    let key = SigningKey::ed25519();
    let relay = authenticator(&key);
    for name in ["auth0|5f7c8ec7c33c6c004bbafe82", "ops+night@example.com"] {
        let token = key.token(&claims_with("sub", json!(name)));
        let principal = try_at(&relay, &token, 0).expect("accepted");
        assert_eq!(principal.name(), name);
    }
    for (groups, expected) in [(json!("ops"), &["ops"][..]), (Value::Null, &[])] {
        let token = key.token(&claims_with("groups", groups));
        let principal = try_at(&relay, &token, 0).expect("accepted");
        assert_eq!(principal.groups().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn groups_come_from_the_named_claim() {
    let key = SigningKey::ed25519();
    let token = key.token(&claims_with("groups", json!(["ops", "Domain Users"])));
    let principal = try_at(&authenticator(&key), &token, 0).expect("accepted");
    assert_eq!(principal.groups().collect::<Vec<_>>(), ["ops"]);
}

#[test]
fn a_token_without_a_signature_is_refused() {
    let key = SigningKey::rsa();
    let relay = authenticator(&key);
    for name in ["none", "None", "NONE", ""] {
        let token = unsigned(&json!({"alg": name}), &claims());
        assert_eq!(denied(&relay, &format!("{token}.")), "Algorithm", "{name}");
    }
    assert_eq!(
        denied(&relay, &format!("{}.", unsigned(&json!({}), &claims()))),
        "Malformed"
    );
}

#[test]
fn a_public_key_is_no_shared_secret() {
    for key in all_keys() {
        let relay = authenticator(&key);
        let signed = unsigned(&json!({"alg": "HS256"}), &claims());
        let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key.pem());
        let tag = URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, signed.as_bytes()));
        assert_eq!(denied(&relay, &format!("{signed}.{tag}")), "Algorithm");
    }
}

#[test]
fn a_token_cannot_choose_how_a_key_is_used() {
    for key in all_keys() {
        let relay = with_jwks(&json!([key.jwk("k1")]));
        for name in ["EdDSA", "ES256", "RS256", "RS512", "PS256", "ES384"] {
            let header = json!({"alg": name, "kid": "k1"});
            let accepted = try_at(&relay, &key.token_with(&header, &claims()), 0);
            if name == key.algorithm() {
                assert!(accepted.is_ok(), "{name}");
            } else {
                assert_eq!(accepted, Err(Denial::Algorithm), "{name}");
            }
        }
    }
}

#[test]
fn the_key_id_chooses_the_key() {
    let (a, b, new) = (
        SigningKey::ed25519(),
        SigningKey::ed25519(),
        SigningKey::ed25519(),
    );
    let relay = with_jwks(&json!([a.jwk("a"), b.jwk("b")]));
    let with_id =
        |key: &SigningKey, id: &str| key.token_with(&json!({"alg": "EdDSA", "kid": id}), &claims());
    assert!(try_at(&relay, &with_id(&a, "a"), 0).is_ok());
    assert!(try_at(&relay, &with_id(&b, "b"), 0).is_ok());
    assert_eq!(denied(&relay, &with_id(&a, "b")), "BadSignature");
    assert_eq!(denied(&relay, &with_id(&new, "c")), "UnknownKey");
    // Without an id there is a choice, which is not made.
    assert_eq!(denied(&relay, &a.token(&claims())), "UnknownKey");
    // The key of a PEM file has no id.
    assert!(try_at(&authenticator(&a), &with_id(&a, "any"), 0).is_ok());
}

#[test]
fn a_text_that_is_no_token_is_refused() {
    let key = SigningKey::ed25519();
    let relay = authenticator(&key);
    let token = key.token(&claims());
    let crit = json!({"alg": "EdDSA", "crit": ["b64"], "b64": false});
    let padded = token.replacen('.', "=.", 1);
    let oversized = key.token(&claims_with("note", json!("x".repeat(9000))));
    for (text, denial) in [
        (token[..token.len() - 1].to_owned(), "BadSignature"),
        (
            token.rsplit_once('.').expect("parts").0.to_owned(),
            "Malformed",
        ),
        ("a.b".to_owned(), "Malformed"),
        ("abc".to_owned(), "Malformed"),
        ("..".to_owned(), "Malformed"),
        (format!("{token}.{token}"), "Malformed"),
        (padded, "Malformed"),
        (key.token_with(&crit, &claims()), "BadClaim"),
        (oversized, "Malformed"),
    ] {
        let found = denied(&relay, &text);
        // A shorter base64 text may be malformed as well.
        let is_cut = denial == "BadSignature" && found == "Malformed";
        assert!(found == denial || is_cut, "{text}: {found}");
    }
    let long = key.token(&claims_with("note", json!("x".repeat(5000))));
    assert!(try_at(&relay, &long, 0).is_ok());
}

#[test]
fn a_key_that_is_replaced_ends_its_callers() {
    let (old, new) = (SigningKey::ed25519(), SigningKey::ed25519());
    let relay = authenticator(&old);
    let header = format!("Bearer {}", old.token(&claims()));
    let caller = relay
        .authenticate(Some(header.as_bytes()), &[], at(0))
        .expect("accepted");
    let home = Home::new();
    home.write("issuer.pem", new.pem());
    relay.replace(home.config(&config("key = \"issuer.pem\"")));
    let denial = relay.still_valid(&caller, at(1)).expect_err("refused");
    assert_eq!(denial, Denial::BadSignature);
}

#[test]
fn a_key_set_that_breaks_keeps_its_keys_and_holds_back_no_other_change() {
    let (key, home) = (SigningKey::ed25519(), Home::new());
    home.write("jwks.json", json!({"keys": [key.jwk("k1")]}).to_string());
    let text = config("jwks = \"jwks.json\"");
    let relay = Authenticator::new(home.config(&text));
    let file = AuthFile::new(home.path("auth.toml"));
    home.write("jwks.json", "{broken");
    let other = text
        .replace("https://login", "https://other")
        .replace("jwks.json", "missing.json");
    let rule = "[[rule]]\nprincipals = [\"billing\"]\nactions = [\"admin\"]\n";
    home.write("auth.toml", format!("{text}{other}{rule}"));
    let former = relay.config();
    let (changed, failures) = file.read_again(&former);
    let failures: Vec<_> = failures.iter().map(ToString::to_string).collect();
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(failures[0].contains("login.example.com") && failures[0].contains("jwks.json"));
    assert!(failures[1].contains("other.example.com") && failures[1].contains("missing.json"));
    assert_eq!(changed.policy().rule_count(), 1, "the rules are applied");
    assert!(!changed.is_same(&former));
    // Nothing has changed since then, and the files are still broken.
    let (again, failures) = file.read_again(&changed);
    assert!(again.is_same(&changed));
    assert_eq!(failures.len(), 2);
    relay.replace(changed);
    assert!(try_at(&relay, &key.token(&claims()), 0).is_ok());
    let foreign = claims_with("iss", json!("https://other.example.com"));
    assert_eq!(denied(&relay, &key.token(&foreign)), "UnknownKey");
    // The file itself is broken: what it said stays.
    home.write("auth.toml", "[[rule");
    let (kept, failures) = file.read_again(&relay.config());
    assert!(kept.is_same(&relay.config()));
    assert_eq!(failures.len(), 3);
}
