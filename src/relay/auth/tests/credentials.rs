//! Credentials of calls: header or certificate, the cache, live streams, secrets in messages.

use super::{Home, at, new_token};
use crate::{
    relay::auth::{Action, Authenticator, Denial, NewToken, Target, credential::MOST_CACHED},
    types::QueueAddress,
};

const CERTIFICATES: &str = r#"
    tokens = "tokens.toml"
    [certificates]
    "spiffe://example.com/Billing" = "billing"
    "Ops.example.com" = "ops"
    "other-ops.example.com" = "ops"
"#;

fn home() -> (Home, String) {
    let home = Home::new();
    let token = home
        .tokens()
        .add(&new_token("worker"), at(0))
        .expect("added");
    let header = format!("Bearer {}", token.reveal());
    (home, header)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn name(result: Result<crate::relay::auth::Caller, Denial>) -> Result<String, Denial> {
    result.map(|caller| caller.principal().name().to_owned())
}

#[test]
fn a_certificate_names_its_principal() {
    let (home, _) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    for (certificate, principal) in [
        (&["spiffe://example.com/Billing"][..], Ok("billing")),
        (&["ops.EXAMPLE.com"], Ok("ops")),
        (&["unknown.example.com", "ops.example.com"], Ok("ops")),
        (&["ops.example.com", "other-ops.example.com"], Ok("ops")),
        (
            &["ops.example.com", "spiffe://example.com/Billing"],
            Err(Denial::NoPrincipal),
        ),
        (
            &["spiffe://example.com/billing"],
            Err(Denial::UnknownCertificate),
        ),
        (&["x.ops.example.com"], Err(Denial::UnknownCertificate)),
        (&[], Err(Denial::NoCredential)),
    ] {
        // The second time from the cache.
        for _ in 0..2 {
            let found = name(relay.authenticate(None, &names(certificate), at(0)));
            assert_eq!(
                found.as_deref(),
                principal.as_ref().map(|name| *name),
                "{certificate:?}"
            );
        }
    }
}

#[test]
fn names_of_certificates_are_not_confused_in_the_cache() {
    let (home, _) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let one = names(&["ops.example.com"]);
    assert!(relay.authenticate(None, &one, at(0)).is_ok());
    for other in [
        &["ops.example", ".com"][..],
        &["ops.example.com", "spiffe://example.com/Billing"],
    ] {
        assert!(
            relay.authenticate(None, &names(other), at(0)).is_err(),
            "{other:?}"
        );
    }
}

#[test]
fn a_header_wins_over_a_certificate_also_if_it_is_bad() {
    let (home, header) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let certificate = names(&["ops.example.com"]);
    let found = relay.authenticate(Some(header.as_bytes()), &certificate, at(0));
    assert_eq!(name(found).as_deref(), Ok("worker"));
    for bad in [
        "",
        "Bearer",
        "Bearer ",
        "Digest x",
        "Bearer a b",
        "Bearer é",
        "Basic !",
    ] {
        let found = relay.authenticate(Some(bad.as_bytes()), &certificate, at(0));
        assert_eq!(name(found), Err(Denial::Malformed), "{bad:?}");
    }
    let not_text = relay.authenticate(Some(b"Bearer \xff"), &certificate, at(0));
    assert_eq!(name(not_text), Err(Denial::Malformed));
    let other = format!("Bearer rvl_aaaaaaaaaa_{}", "A".repeat(43));
    let found = relay.authenticate(Some(other.as_bytes()), &certificate, at(0));
    assert_eq!(name(found), Err(Denial::UnknownToken));
}

#[test]
fn the_scheme_ignores_case_and_spaces() {
    let (home, header) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let token = header.strip_prefix("Bearer ").expect("a token");
    for header in [format!("bearer {token}"), format!(" BEARER   {token} ")] {
        let found = relay.authenticate(Some(header.as_bytes()), &[], at(0));
        assert_eq!(name(found).as_deref(), Ok("worker"), "{header:?}");
    }
    assert!(
        relay
            .authenticate(Some(token.as_bytes()), &[], at(0))
            .is_err()
    );
}

#[test]
fn the_second_call_comes_from_the_cache_and_a_refused_one_is_not_kept() {
    let (home, header) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let first = relay
        .authenticate(Some(header.as_bytes()), &[], at(0))
        .expect("accepted");
    let second = relay
        .authenticate(Some(header.as_bytes()), &[], at(1))
        .expect("accepted");
    assert!(
        std::sync::Arc::ptr_eq(first.grants(), second.grants()),
        "compiled once"
    );
    for number in 0..2 * MOST_CACHED {
        let header = format!("Bearer rvl_aaaaaaaaaa_{number:0>43}");
        assert!(
            relay
                .authenticate(Some(header.as_bytes()), &[], at(0))
                .is_err()
        );
    }
    let third = relay
        .authenticate(Some(header.as_bytes()), &[], at(1))
        .expect("accepted");
    assert!(
        std::sync::Arc::ptr_eq(first.grants(), third.grants()),
        "still cached"
    );
}

#[test]
fn a_caller_gets_the_new_rules_after_a_reload() {
    let (home, header) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let caller = relay
        .authenticate(Some(header.as_bytes()), &[], at(0))
        .expect("accepted");
    let queue: QueueAddress = "acct/orders".parse().expect("an address");
    let target = Target::Queue(&queue);
    assert!(!caller.grants().allows(Action::Notify, target));
    let same = relay.still_valid(&caller, at(1)).expect("valid");
    assert!(std::sync::Arc::ptr_eq(caller.grants(), same.grants()));
    relay.replace(home.config(
        r#"
        tokens = "tokens.toml"
        [[rule]]
        principals = ["worker"]
        actions = ["notify"]
        queues = ["acct/orders"]
        "#,
    ));
    let caller = relay.still_valid(&caller, at(1)).expect("valid");
    assert!(caller.grants().allows(Action::Notify, target));
    let again = relay
        .authenticate(Some(header.as_bytes()), &[], at(1))
        .expect("valid");
    assert!(
        again.grants().allows(Action::Notify, target),
        "not from the old cache"
    );
}

#[test]
fn a_stream_ends_when_its_token_is_revoked_or_expires() {
    let (home, header) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let caller = relay
        .authenticate(Some(header.as_bytes()), &[], at(0))
        .expect("accepted");
    let limited = caller.clone().with_expiry(at(10));
    assert!(relay.still_valid(&limited, at(9)).is_ok());
    let denial = relay.still_valid(&limited, at(13)).expect_err("expired");
    assert_eq!(
        denial.to_string(),
        "the token expired 3 s ago by the relay's clock"
    );
    let id = home.tokens().list().expect("listed")[0].id.clone();
    home.tokens().revoke(&id).expect("revoked");
    relay.replace(home.config(CERTIFICATES));
    let denial = relay.still_valid(&caller, at(1)).expect_err("revoked");
    assert_eq!(denial, Denial::UnknownToken);
}

#[test]
fn a_certificates_expiry_outlasts_a_reload() {
    let (home, _) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let caller = relay.authenticate(None, &names(&["ops.example.com"]), at(0));
    let caller = caller.expect("accepted").with_expiry(at(10));
    relay.replace(home.config(CERTIFICATES));
    let caller = relay.still_valid(&caller, at(5)).expect("valid");
    assert_eq!(caller.expires_at(), Some(at(10)));
    relay.replace(home.config("tokens = \"tokens.toml\""));
    let denial = relay.still_valid(&caller, at(6)).expect_err("removed");
    assert_eq!(denial, Denial::UnknownCertificate);
}

#[test]
fn no_message_and_no_debug_form_contains_a_credential() {
    let (home, header) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let caller = relay
        .authenticate(Some(header.as_bytes()), &[], at(0))
        .expect("accepted");
    let secret = &header[header.len() - 43..];
    let shown = format!("{caller:?} {relay:?} {:?}", relay.config());
    assert!(!shown.contains(secret), "{shown}");
    assert!(!shown.contains(&secret[..20]), "{shown}");
    for header in [
        format!("Bearer planted-{secret}"),
        format!("Bearer rvl_aaaaaaaaaa_{secret}"),
        format!("Planted {secret}"),
        format!("Basic {secret}"),
    ] {
        let denial = relay
            .authenticate(Some(header.as_bytes()), &[], at(0))
            .expect_err("bad");
        let error = crate::error::Error::from(denial);
        let shown = format!("{denial:?} {denial} {error:?}");
        assert!(
            !shown.contains(secret) && !shown.contains("lanted"),
            "{shown}"
        );
    }
}

#[test]
fn the_default_configuration_accepts_no_credential() {
    let relay = Authenticator::new(crate::relay::auth::AuthConfig::default());
    let header = format!("Bearer rvl_aaaaaaaaaa_{}", "A".repeat(43));
    assert!(
        relay
            .authenticate(Some(header.as_bytes()), &[], at(0))
            .is_err()
    );
    assert!(
        relay
            .authenticate(None, &names(&["a.example.com"]), at(0))
            .is_err()
    );
}

#[test]
fn a_caller_is_recognised_until_its_end_or_a_change_of_the_rules() {
    let home = Home::new();
    let expiring = NewToken {
        expires: Some(at(100)),
        ..new_token("worker")
    };
    let token = home.tokens().add(&expiring, at(0)).expect("added");
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let header = format!("Bearer {}", token.reveal());
    let caller = relay.authenticate(Some(header.as_bytes()), &[], at(0));
    let caller = caller.expect("known");
    let is_current =
        |header: &str, now| relay.is_current(&caller, Some(header.as_bytes()), &[], now);
    assert!(is_current(&header, at(0)) && is_current(&header, at(99)));
    assert!(!is_current(&header, at(100)), "it has expired");
    let start = "Bearer ".len();
    for changed in start..header.len() {
        let mut other = header.clone().into_bytes();
        other[changed] ^= 1;
        let is_current = relay.is_current(&caller, Some(&other), &[], at(0));
        assert!(!is_current, "byte {changed}");
    }
    let basic = header.replace("Bearer", "Basic");
    for other in [&header[..header.len() - 1], &format!("{header}A"), &basic] {
        assert!(!is_current(other, at(0)), "{other}");
    }
    assert!(!relay.is_current(&caller, None, &names(&["ops.example.com"]), at(0)));

    relay.replace(home.config(CERTIFICATES));
    assert!(!is_current(&header, at(0)), "the rules may be others");
}

#[test]
fn a_caller_is_recognised_by_its_certificate() {
    let (home, header) = home();
    let relay = Authenticator::new(home.config(CERTIFICATES));
    let certificate = names(&["ops.example.com"]);
    let caller = relay.authenticate(None, &certificate, at(0));
    let caller = caller.expect("known");
    assert!(relay.is_current(&caller, None, &certificate, at(0)));
    let other = names(&["other-ops.example.com"]);
    assert!(!relay.is_current(&caller, None, &other, at(0)));
    let header = Some(header.as_bytes());
    assert!(!relay.is_current(&caller, header, &certificate, at(0)));
}
