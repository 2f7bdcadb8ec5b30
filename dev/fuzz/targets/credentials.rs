//! Credentials of callers: headers with tokens and JWTs, and the names of certificates.

use std::{sync::OnceLock, time::SystemTime};

use crate::relay::auth::{AuthConfig, AuthFile, Authenticator};

/// Rules with an issuer of JWTs; its key is a public example (RFC 8037, appendix A.2).
const RULES: &str = r#"
[[jwt]]
issuer = "issuer"
audience = "reveille"
jwks = "jwks.json"
groups = "groups"
[[rule]]
principals = ["*"]
actions = ["notify"]
queues = ["*/*"]
"#;
const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"one",
"x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

pub(super) fn credentials(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let names: Vec<_> = text.lines().map(str::to_owned).collect();
    let now = SystemTime::UNIX_EPOCH;
    for (header, names) in [(Some(data), &[][..]), (None, &names[..])] {
        // Without the issuer's private key nothing is accepted.
        let denial = authenticator().authenticate(header, names, now);
        let denial = denial.expect_err("no credential of these rules exists");
        let shown = format!("{denial} {denial:?}");
        for part in text.split([' ', '.', '\n']).filter(|part| part.len() > 12) {
            assert!(!shown.contains(part), "{shown}");
        }
    }
}

fn authenticator() -> &'static Authenticator {
    static AUTHENTICATOR: OnceLock<Authenticator> = OnceLock::new();
    AUTHENTICATOR.get_or_init(|| Authenticator::new(rules()))
}

fn rules() -> AuthConfig {
    let home = std::env::temp_dir().join(format!("reveille-credentials-{}", std::process::id()));
    std::fs::create_dir_all(&home).expect("a directory");
    std::fs::write(home.join("jwks.json"), KEYS).expect("written");
    std::fs::write(home.join("auth.toml"), RULES).expect("written");
    let rules = AuthFile::new(home.join("auth.toml")).read();
    std::fs::remove_dir_all(&home).expect("removed");
    rules.expect("valid rules")
}
