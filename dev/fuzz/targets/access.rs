//! The files of access control: rules, key sets, keys in PEM, and tokens.

use std::{path::PathBuf, time::SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::split_first;
use crate::{
    error::Result,
    relay::auth::{Action, AuthConfig, AuthFile, Authenticator, Principal, Target},
    types::QueueAddress,
};

const RULES: &str = "tokens = 'tokens.toml'\n\
    [[rule]]\nprincipals = ['*']\nactions = ['notify']\nqueues = ['*/*']\n";

/// The folder of one run's files.
struct Home(PathBuf);

/// The first byte says which file the rest is.
pub(super) fn access(data: &[u8]) {
    let (kind, data) = split_first(data);
    let home = Home::new();
    let issuer = |key| {
        format!("{RULES}[[jwt]]\nissuer = 'issuer'\naudience = 'reveille'\n{key}\n").into_bytes()
    };
    let pem = || {
        let body = STANDARD.encode(data);
        format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n").into_bytes()
    };
    match kind % 5 {
        0 => home.write("auth.toml", data),
        1 => home.write("auth.toml", &issuer("jwks = 'keys'")),
        _ => home.write("auth.toml", &issuer("key = 'keys'")),
    }
    match kind % 5 {
        1 | 2 => home.write("keys", data),
        _ => home.write("keys", &pem()),
    }
    match kind % 5 {
        4 => home.write("tokens.toml", data),
        _ => home.write("tokens.toml", b""),
    }
    match home.load() {
        Ok(config) => check(&home, config),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains(&home.0.display().to_string()), "{text}");
            // A key's file may hold a private key by mistake.
            let content = String::from_utf8_lossy(data);
            let secrets = content.split(|letter: char| !letter.is_ascii_alphanumeric());
            let is_key = matches!(kind % 5, 1 | 2);
            for secret in secrets.filter(|part| is_key && part.len() > 40) {
                assert!(!text.contains(secret), "{text}");
            }
        }
    }
}

fn check(home: &Home, config: AuthConfig) {
    let again = home.load().expect("the same files");
    assert_eq!(again.policy().rule_count(), config.policy().rule_count());
    assert_eq!(again.token_count(), config.token_count());
    assert!(again.is_same(&config));
    let principal = Principal::new("billing").expect("a name");
    let queue: QueueAddress = "acct/orders".parse().expect("an address");
    for action in Action::ALL {
        let target = match action.scope() {
            crate::relay::auth::Scope::Queues => Target::Queue(&queue),
            crate::relay::auth::Scope::Flags => Target::FlagPrefix("go"),
            crate::relay::auth::Scope::Relay => Target::Relay,
        };
        let verdict = config.policy().verdict(&principal, action, target);
        let grants = config.policy().grants(&principal);
        assert_eq!(
            verdict.allowed,
            grants.allows(action, target),
            "{verdict:?}"
        );
        assert!(!verdict.allowed || grants.may_some(action), "{verdict:?}");
    }
    let guess = Authenticator::new(config).authenticate(
        Some(b"Bearer rvl_0123456789_guess"),
        &[],
        SystemTime::UNIX_EPOCH,
    );
    guess.expect_err("a guess");
}

impl Home {
    fn new() -> Self {
        let thread = std::thread::current().id();
        let name = format!("reveille-access-{}-{thread:?}", std::process::id());
        let home = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&home).expect("a directory");
        Self(home)
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.0.join(name), content).expect("written");
    }

    fn load(&self) -> Result<AuthConfig> {
        AuthFile::new(self.0.join("auth.toml")).read()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
