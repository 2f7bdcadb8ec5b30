//! The audit log: its lines, floods, restarts.

use std::time::Duration;

use serde_json::Value;

use super::{Home, at};
use crate::{
    base::clock::Tick,
    relay::auth::{AuditEvent, AuditLog},
};

const START: Tick = Tick::from_nanos(1_000_000_000);

fn event<'a>(principal: &'a str, allowed: bool) -> AuditEvent<'a> {
    AuditEvent {
        at: at(0),
        principal,
        credential: "",
        from: Some("10.0.0.1".parse().expect("an address")),
        action: "notify",
        target: "acct/orders",
        allowed,
        why: "rule 1 allows `notify`",
    }
}

fn lines(home: &Home) -> Vec<Value> {
    let text = std::fs::read_to_string(home.path("audit.log")).expect("text");
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

#[test]
fn each_decision_is_one_json_line() {
    let home = Home::new();
    let log = AuditLog::open(home.path("audit.log")).expect("opened");
    log.record(&event("billing", true), START);
    log.record(&event("bill\"ing\n\u{1b}[31m", true), START);
    assert_eq!(log.lost(), 0);
    drop(log);
    let text = std::fs::read_to_string(home.path("audit.log")).expect("text");
    let first = r#"{"at":"2027-01-15T08:00:00Z","principal":"billing","from":"10.0.0.1","action":"notify","target":"acct/orders","allowed":true,"why":"rule 1 allows `notify`"}"#;
    assert_eq!(text.lines().next(), Some(first));
    assert!(
        text.bytes()
            .all(|byte| byte == b'\n' || !byte.is_ascii_control())
    );
    assert_eq!(lines(&home).len(), 2);
}

#[test]
fn a_flood_of_denials_is_one_line_with_the_number_of_the_others() {
    let home = Home::new();
    let log = AuditLog::open(home.path("audit.log")).expect("opened");
    for _ in 0..1000 {
        log.record(&event("billing", false), START);
        log.record(&event("ops", true), START);
    }
    let later = START + Duration::from_millis(1500);
    log.record(&event("billing", false), later);
    log.record(&event("other", false), later);
    drop(log);
    let denied: Vec<_> = lines(&home)
        .into_iter()
        .filter(|line| line["allowed"] == false)
        .collect();
    assert_eq!(denied.len(), 3, "{denied:?}");
    assert_eq!(denied[0].get("suppressed"), None);
    assert_eq!(denied[1]["principal"], "billing");
    assert_eq!(denied[1]["suppressed"], 999);
    assert_eq!(denied[2]["principal"], "other");
    assert_eq!(lines(&home).len(), 1003, "allowed ones are all recorded");
}

#[test]
fn denials_of_very_many_principals_share_a_line() {
    let home = Home::new();
    let log = AuditLog::open(home.path("audit.log")).expect("opened");
    for number in 0..5000 {
        log.record(&event(&format!("p{number}"), false), START);
    }
    let later = START + Duration::from_secs(2);
    for number in 0..4097 {
        log.record(&event(&format!("q{number}"), false), later);
    }
    drop(log);
    let lines = lines(&home);
    assert_eq!(lines.len(), 2 * 4097, "one of the others each time");
}

#[test]
fn a_restart_appends_after_a_torn_line() {
    let home = Home::new();
    home.write("audit.log", "{\"torn");
    for _ in 0..2 {
        let log = AuditLog::open(home.path("audit.log")).expect("opened");
        log.record(&event("billing", true), START);
    }
    let text = std::fs::read_to_string(home.path("audit.log")).expect("text");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0], "{\"torn");
    assert_eq!(lines[1], lines[2]);
}

#[test]
fn a_renamed_file_is_opened_again() {
    let home = Home::new();
    let log = AuditLog::open(home.path("audit.log")).expect("opened");
    log.record(&event("first", true), START);
    std::fs::rename(home.path("audit.log"), home.path("old.log")).expect("renamed");
    log.record(&event("second", true), START);
    log.reopen();
    log.record(&event("third", true), START);
    drop(log);
    let last = lines(&home).pop().expect("a line");
    assert_eq!(last["principal"], "third");
}

#[test]
fn long_texts_are_cut() {
    let home = Home::new();
    let log = AuditLog::open(home.path("audit.log")).expect("opened");
    log.record(
        &AuditEvent {
            target: &"ä".repeat(10_000),
            ..event("billing", true)
        },
        START,
    );
    drop(log);
    let target = lines(&home)[0]["target"].as_str().expect("text").len();
    assert_eq!(target, 512);
}

#[cfg(unix)]
#[test]
fn the_log_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    drop(AuditLog::open(home.path("audit.log")).expect("opened"));
    let file = std::fs::metadata(home.path("audit.log")).expect("metadata");
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    let missing = AuditLog::open(home.path("missing/audit.log")).expect_err("no directory");
    assert!(missing.message().contains("audit.log"), "{missing}");
}

#[cfg(target_os = "linux")]
#[test]
fn lines_that_cannot_be_written_are_counted() {
    let log = AuditLog::open("/dev/full").expect("opened");
    for _ in 0..10 {
        log.record(&event("billing", true), START);
    }
    for _ in 0..200 {
        if log.lost() == 10 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} lost", log.lost());
}
