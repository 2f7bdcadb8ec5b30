//! Tests of the ledger: each kind of failure is found, and each way of being told counts.

use super::*;

/// A ledger of two queues and one subscriber. Queue 0 was notified at 10 s.
fn sent() -> Ledger {
    let mut ledger = Ledger::new(2, vec!["subscriber-1".to_owned()], SECOND / 2);
    ledger.sent(0, 0, 10 * SECOND);
    ledger
}

fn counts(mut ledger: Ledger) -> (u64, u64, u64) {
    ledger.finish();
    let totals = ledger.totals;
    (totals.lost, totals.late, totals.delays.len())
}

#[test]
fn an_acknowledged_notification_that_reaches_no_subscriber_is_lost() {
    let mut ledger = sent();
    ledger.acknowledged(0, 11 * SECOND);
    assert!(!ledger.is_settled() && !ledger.is_told(12 * SECOND));
    assert!(ledger.is_told(11 * SECOND));
    // A wake-up of another queue, and a wake-up of before.
    ledger.notified(0, 1, 12 * SECOND, 12 * SECOND);
    ledger.fault_begins(Fault::Relay, "relay-2", 11 * SECOND);
    ledger.fault_ends("relay-2", 12 * SECOND);
    ledger.sent(0, 0, 30 * SECOND);
    let failure = ledger.failures.join("\n");
    for part in [
        "LOST: queue 0, subscriber-1",
        "1000.0  relay-2 serves",
        "sent by",
    ] {
        assert!(failure.contains(part), "{failure}");
    }
    assert_eq!(counts(ledger), (1, 0, 0));
}

#[test]
fn a_wake_up_that_covers_the_notification_tells_before_the_acknowledgement() {
    let mut ledger = sent();
    ledger.notified(0, 0, 10 * SECOND, 10 * SECOND + 5);
    ledger.acknowledged(0, 11 * SECOND);
    assert!(ledger.is_settled());
    assert_eq!(counts(ledger), (0, 0, 1));
}

#[test]
fn an_earlier_wake_up_tells_nothing() {
    let mut ledger = sent();
    ledger.notified(0, 0, 9 * SECOND, 10 * SECOND + 5);
    ledger.catch_up(0, None, 10 * SECOND);
    ledger.acknowledged(0, 14 * SECOND);
    assert_eq!(counts(ledger), (1, 0, 0));
}

#[test]
fn a_catch_up_of_the_time_of_the_answer_or_later_tells() {
    for at in [13, 15] {
        let mut ledger = sent();
        if at < 14 {
            ledger.catch_up(0, Some(0), at * SECOND);
        }
        ledger.acknowledged(0, 14 * SECOND);
        ledger.catch_up(0, None, at * SECOND);
        ledger.finish();
        assert_eq!(ledger.totals.by_catch_up, 1);
        assert_eq!(counts(ledger), (0, 0, 1));
    }
}

#[test]
fn a_delay_beyond_its_bound_is_late() {
    for (fault, told, late) in [
        (None, 12, 0),
        (None, 13, 1),
        (Some(Fault::Relay), 17, 0),
        (Some(Fault::Relay), 18, 1),
        (Some(Fault::Broker), 17, 0),
        (Some(Fault::Broker), 18, 1),
    ] {
        let mut ledger = sent();
        ledger.acknowledged(0, 11 * SECOND);
        if let Some(fault) = fault {
            ledger.fault_begins(fault, "it", 11 * SECOND);
            ledger.fault_ends("it", 12 * SECOND);
        }
        ledger.notified(0, 0, 10 * SECOND, told * SECOND);
        // Later faults change nothing.
        for at in [40, 50, 60] {
            ledger.fault_begins(Fault::Broker, "later", at * SECOND);
            ledger.fault_ends("later", at * SECOND);
        }
        assert_eq!(counts(ledger), (0, late, 1), "{fault:?} {told}");
    }
}

#[test]
fn a_notification_without_an_answer_is_not_judged() {
    let mut ledger = sent();
    ledger.unanswered(0);
    assert!(ledger.is_settled());
    assert_eq!(counts(ledger), (0, 0, 0));
}

#[test]
fn a_check_after_a_kill_of_the_broker_counts_where_no_notification_was_under_way() {
    for (earlier, acknowledged, at, queue, counted) in [
        // Queue 0 was acknowledged before the kill at 20 s, or about that time; queue 1 never.
        (None, 18, 23, Some(0), 1),
        (None, 18, 23, None, 1),
        (None, 19, 23, Some(0), 0),
        (None, 18, 23, Some(1), 0),
        // Too late; explained by a kill of a relay, or by an earlier one of the broker.
        (None, 18, 27, Some(0), 0),
        (Some(Fault::Relay), 18, 23, Some(0), 0),
        (Some(Fault::Broker), 18, 23, Some(0), 0),
    ] {
        let mut ledger = sent();
        if let Some(fault) = earlier {
            ledger.fault_begins(fault, "earlier", 18 * SECOND);
            ledger.fault_ends("earlier", 19 * SECOND);
        }
        ledger.acknowledged(0, acknowledged * SECOND);
        ledger.fault_begins(Fault::Broker, "nats-server", 20 * SECOND);
        ledger.fault_ends("nats-server", 21 * SECOND);
        ledger.catch_up(0, queue, at * SECOND);
        assert_eq!(ledger.totals.other_checks, counted, "{at} {queue:?}");
    }
}
