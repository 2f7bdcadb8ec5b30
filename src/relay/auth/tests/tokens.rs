//! The token file: made, listed, revoked, written by two processes at once.

use std::time::Duration;

use super::{Home, at, new_token};
use crate::{
    error::ErrorKind,
    relay::auth::{AuthFile, Authenticator, Denial, NewToken},
};

fn load(home: &Home) -> Authenticator {
    Authenticator::new(home.config("tokens = \"tokens.toml\""))
}

fn bearer(relay: &Authenticator, token: &str, seconds: i64) -> Result<String, Denial> {
    let header = format!("Bearer {token}");
    let caller = relay.authenticate(Some(header.as_bytes()), &[], at(seconds))?;
    Ok(caller.principal().name().to_owned())
}

#[test]
fn a_new_token_is_accepted_and_listed_without_its_secret() {
    let home = Home::new();
    let file = home.tokens();
    assert_eq!(file.list().expect("a missing file has none"), []);
    let new = NewToken {
        expires: Some(at(100)),
        note: "for node 7".to_owned(),
        ..new_token("billing")
    };
    let token = file.add(&new, at(0)).expect("added");
    assert_eq!(
        bearer(&load(&home), token.reveal(), 0).as_deref(),
        Ok("billing")
    );

    let [record] = &file.list().expect("listed")[..] else {
        panic!("one record");
    };
    assert_eq!(record.id, token.id());
    assert_eq!(
        (&*record.principal, &*record.note),
        ("billing", "for node 7")
    );
    assert_eq!((record.created(), record.expires()), (at(0), Some(at(100))));
    let secret = &token.reveal()[15..];
    let text = std::fs::read_to_string(file.path()).expect("text");
    assert!(!text.contains(secret) && !format!("{record:?}").contains(secret));
}

#[cfg(unix)]
#[test]
fn the_file_is_for_its_owner_only_and_no_other_file_stays() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    home.tokens().add(&new_token("a"), at(0)).expect("added");
    home.tokens().add(&new_token("b"), at(0)).expect("added");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(home.0.path()).expect("a directory") {
        let entry = entry.expect("an entry");
        let mode = entry.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{entry:?}");
        names.push(entry.file_name().into_string().expect("text"));
    }
    names.sort();
    assert_eq!(names, ["tokens.toml", "tokens.toml.lock"]);
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_to_the_file_stays_a_link() {
    let home = Home::new();
    home.tokens().add(&new_token("a"), at(0)).expect("added");
    let link = home.path("link.toml");
    std::os::unix::fs::symlink(home.path("tokens.toml"), &link).expect("linked");
    let by_link = crate::relay::auth::TokenFile::new(&link);
    by_link.add(&new_token("b"), at(0)).expect("added");
    assert!(link.is_symlink());
    assert_eq!(home.tokens().list().expect("listed").len(), 2);
}

#[test]
fn a_revoked_token_is_refused_after_the_reload() {
    let home = Home::new();
    let file = home.tokens();
    let token = file.add(&new_token("billing"), at(0)).expect("added");
    let other = file.add(&new_token("other"), at(0)).expect("added");
    let relay = load(&home);
    assert!(bearer(&relay, token.reveal(), 0).is_ok());
    let revoked = file.revoke(token.id()).expect("revoked");
    assert_eq!(revoked.principal, "billing");
    // From the cache, until the reload.
    assert!(bearer(&relay, token.reveal(), 0).is_ok());
    relay.replace(home.config("tokens = \"tokens.toml\""));
    assert_eq!(bearer(&relay, token.reveal(), 0), Err(Denial::UnknownToken));
    assert_eq!(bearer(&relay, other.reveal(), 0).as_deref(), Ok("other"));
    let error = file.revoke(token.id()).expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_token_expires_also_in_the_cache() {
    let home = Home::new();
    let new = NewToken {
        expires: Some(at(100)),
        ..new_token("billing")
    };
    let token = home.tokens().add(&new, at(0)).expect("added");
    let relay = load(&home);
    assert!(bearer(&relay, token.reveal(), 99).is_ok());
    let ago = Duration::from_secs(5);
    assert_eq!(
        bearer(&relay, token.reveal(), 105),
        Err(Denial::Expired { ago })
    );
}

#[test]
fn another_secret_of_a_known_id_is_refused() {
    let home = Home::new();
    let token = home
        .tokens()
        .add(&new_token("billing"), at(0))
        .expect("added");
    let relay = load(&home);
    let text = token.reveal();
    let last = if text.ends_with('A') { "E" } else { "A" };
    let forged = format!("{}{last}", &text[..57]);
    assert_eq!(bearer(&relay, &forged, 0), Err(Denial::UnknownToken));
    let unknown = format!("rvl_aaaaaaaaaa_{}", &text[15..]);
    assert_eq!(bearer(&relay, &unknown, 0), Err(Denial::UnknownToken));
    assert_eq!(bearer(&relay, &text[..50], 0), Err(Denial::Malformed));
    // The form of a digest of zeros is no way in.
    assert!(!text.is_empty());
}

#[test]
fn two_writers_at_once_lose_nothing() {
    let home = Home::new();
    let file = home.tokens();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let file = file.clone();
            scope.spawn(move || {
                for number in 0..10 {
                    let new = new_token(&format!("w{writer}-{number}"));
                    file.add(&new, at(0)).expect("added");
                }
            });
        }
    });
    let mut names: Vec<_> = file.list().expect("listed");
    names.sort_by(|a, b| a.principal.cmp(&b.principal));
    names.dedup_by(|a, b| a.principal == b.principal);
    assert_eq!(names.len(), 40);
}

#[test]
fn a_bad_request_for_a_token_is_refused_before_the_file_is_made() {
    let home = Home::new();
    let file = home.tokens();
    let new = new_token("a");
    let expired = NewToken {
        expires: Some(at(0)),
        ..new.clone()
    };
    assert!(file.add(&expired, at(0)).is_err());
    let long = NewToken {
        note: "x".repeat(257),
        ..new
    };
    assert!(file.add(&long, at(0)).is_err());
    assert!(!file.path().exists());
}

#[test]
fn a_bad_token_file_is_refused_by_the_records_number_and_field() {
    let home = Home::new();
    let digest = "A".repeat(43);
    let good = format!(
        "id = \"aaaaaaaaaa\"\nprincipal = \"a\"\ncreated = \"2026-01-01T00:00:00Z\"\n\
         sha256 = \"{digest}\"\n"
    );
    for (record, part) in [
        (good.replace("aaaaaaaaaa", "a"), "token 1: id: must be ten"),
        (
            good.replace("\"a\"", "\"a b\""),
            "token 1: principal: must be",
        ),
        (
            good.replace("2026-01-01T00:00:00Z", "today"),
            "line 4: must be a time",
        ),
        (
            format!("{good}expires = \"never\""),
            "line 6: must be a time",
        ),
        (format!("{good}secret = \"x\""), "unknown field `secret`"),
    ] {
        home.write("tokens.toml", format!("[[token]]\n{record}"));
        let error = home.load("tokens = \"tokens.toml\"").expect_err(part);
        assert!(error.message().contains(part), "{error}");
        assert!(error.message().contains("tokens.toml"), "{error}");
    }
    home.write("tokens.toml", format!("[[token]]\n{good}"));
    assert!(home.load("tokens = \"tokens.toml\"").is_ok());
}

#[test]
fn a_revocation_makes_no_file_beside_a_missing_one() {
    let home = Home::new();
    let error = home.tokens().revoke("aaaaaaaaaa").expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let left = std::fs::read_dir(home.0.path()).expect("a directory");
    assert_eq!(left.count(), 0);
}

/// Its tokens would be those of the former file, whose changes are not followed any more.
#[test]
fn an_auth_file_that_names_another_token_file_is_applied_when_that_can_be_read() {
    let home = Home::new();
    let token = home.tokens().add(&new_token("billing"), at(0));
    let former = home.config("tokens = \"tokens.toml\"");
    home.write("auth.toml", "tokens = \"other.toml\"");
    let file = AuthFile::new(home.path("auth.toml"));
    for broken in [None, Some("[[token")] {
        if let Some(text) = broken {
            home.write("other.toml", text);
        }
        let (kept, failures) = file.read_again(&former);
        assert!(kept.is_same(&former));
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].message().contains("other.toml"), "{failures:?}");
    }
    let revoked = home.tokens().revoke(token.expect("added").id());
    revoked.expect("revoked");
    let (kept, _) = file.read_again(&former);
    assert_eq!(kept.token_count(), 0, "the former file is still followed");
    home.write("other.toml", "");
    let (applied, failures) = file.read_again(&kept);
    assert!(failures.is_empty() && !applied.is_same(&kept));
}

#[test]
fn the_changes_of_tokens_are_known_by_their_ids() {
    let home = Home::new();
    let add = |name| home.tokens().add(&new_token(name), at(0)).expect("added");
    let (kept, changed, removed) = (add("kept"), add("former"), add("removed"));
    let former = home.config("tokens = \"tokens.toml\"");
    let text = std::fs::read_to_string(home.path("tokens.toml")).expect("text");
    home.write("tokens.toml", text.replace("former", "latter"));
    home.tokens().revoke(removed.id()).expect("revoked");
    let added = add("added");
    let now = home.config("tokens = \"tokens.toml\"");
    let mut changes: Vec<_> = now.tokens().changes(former.tokens()).collect();
    changes.sort_by_key(|(_, what)| *what);
    let found = changes.iter().map(|(token, what)| (&*token.id, *what));
    let expected = [
        (added.id(), "added"),
        (changed.id(), "changed"),
        (removed.id(), "removed"),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected, "{}", kept.id());
    assert_eq!(now.tokens().changes(now.tokens()).count(), 0);
}
