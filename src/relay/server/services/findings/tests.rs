//! A table of cases: what is known, and the sentences.

use super::*;
use crate::{
    relay::hub::{ListenerSurvey, QueueStats, SubscriptionId, SurveyedListener},
    types::{ListenerId, Selector},
    wire::span_to_wire,
};

fn address() -> QueueAddress {
    QueueAddress::new("acct", "orders").expect("a name")
}

fn id(name: &str) -> ListenerId {
    ListenerId::new(name).expect("a name")
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A queue that was notified so long ago, and whose depth was read so long ago.
fn queue(listeners: u32, notified: Option<u64>, depth: Option<(u64, u64)>) -> Option<Queue> {
    Some(Queue {
        storage_account: "acct".to_owned(),
        queue_name: "orders".to_owned(),
        listeners,
        notifications: u64::from(notified.is_some()) * 3,
        idle_for: notified.map(|age| span_to_wire(seconds(age))),
        current_queue_depth: depth.map(|(depth, _)| depth),
        depth_age: depth.map(|(_, age)| span_to_wire(seconds(age))),
        ..Queue::default()
    })
}

fn facts(queue: Option<Queue>) -> QueueFacts {
    QueueFacts {
        listeners: queue.as_ref().map_or(0, |queue| queue.listeners),
        queue,
        ..QueueFacts::default()
    }
}

fn of_one(facts: &QueueFacts) -> Vec<Finding> {
    of_queue(&address(), facts, &[])
}

fn listener(name: &str) -> QueueListener {
    QueueListener {
        listener_id: id(name),
        busy: false,
        is_full: false,
        polling: false,
        silent_for: None,
        busy_for: None,
    }
}

fn lost(name: &str, ago: u64) -> ListenerStats {
    ListenerStats {
        listener_id: id(name),
        subscription: SubscriptionId(1),
        selectors: Vec::new(),
        capacity: 1,
        visibility_timeout: Duration::ZERO,
        connected_for: Duration::ZERO,
        queues: 1,
        busy: 0,
        behind: 0,
        active_dequeue_tasks: 0,
        total_dequeue_tasks: 1,
        group: None,
        polling: false,
        silent_for: None,
        busy_for: None,
        agent: false,
        lost_for: Some(seconds(ago)),
    }
}

fn texts(findings: &[Finding]) -> Vec<(FindingKind, bool, &str)> {
    let row = |one| {
        let one: &Finding = one;
        (one.kind(), one.urgent, one.text.as_str())
    };
    findings.iter().map(row).collect()
}

/// What one relay knows, and the verdict.
type Case = (QueueFacts, FindingKind, bool, &'static str);

fn without_listeners() -> Vec<Case> {
    use FindingKind::NoListener;
    let known = |listeners, notified, depth| facts(queue(listeners, notified, depth));
    vec![
        (
            facts(None),
            NoListener,
            false,
            "no listener subscribes to acct/orders, and no publisher has notified it; start one, or \
             check the name",
        ),
        (
            known(0, Some(12), None),
            NoListener,
            true,
            "no listener subscribes to acct/orders, which was notified 3 times, last 12s ago; start \
             one, or check the name",
        ),
        (
            // Its listener left after it had read the queue until empty.
            known(0, Some(12), Some((0, 5))),
            NoListener,
            false,
            "no listener subscribes to acct/orders, which was notified 3 times, last 12s ago; start \
             one, or check the name",
        ),
        (
            known(0, None, None),
            NoListener,
            false,
            "no listener subscribes to acct/orders, and no publisher has notified it; start one, or \
             check the name",
        ),
    ]
}

fn with_listeners() -> Vec<Case> {
    use FindingKind::{AtCapacity, Unspecified};
    let known = |listeners, notified, depth| facts(queue(listeners, notified, depth));
    vec![
        (
            QueueFacts {
                busy: 2,
                at_capacity: 2,
                ..known(2, Some(40), Some((340, 3)))
            },
            AtCapacity,
            false,
            "the dequeue tasks of 2 listeners of acct/orders are all in use; start more listeners, or \
             allow more tasks",
        ),
        (
            QueueFacts {
                busy: 1,
                at_capacity: 1,
                ..known(1, Some(2), Some((0, 3)))
            },
            AtCapacity,
            false,
            "the dequeue tasks of 1 listener of acct/orders are all in use; start more listeners, or \
             allow more tasks",
        ),
        (
            // Nothing waits for them.
            QueueFacts {
                busy: 1,
                at_capacity: 1,
                ..known(1, Some(9), Some((0, 3)))
            },
            Unspecified,
            false,
            "1 listener works on acct/orders; its newest notification was 9s ago and has been handled",
        ),
        (
            known(3, Some(12), Some((0, 11))),
            Unspecified,
            false,
            "3 listeners sleep on acct/orders; its newest notification was 12s ago and has been \
             handled",
        ),
        (
            known(1, Some(12), Some((0, 13))),
            Unspecified,
            false,
            "1 listener sleeps on acct/orders; its newest notification was 12s ago and is not known to \
             be handled",
        ),
        (
            known(2, None, None),
            Unspecified,
            false,
            "2 listeners sleep on acct/orders; it has not been notified yet",
        ),
        (
            // Two relays have met.
            facts(queue(1, Some(0), None).map(|queue| Queue {
                notifications: 0,
                ..queue
            })),
            Unspecified,
            false,
            "1 listener sleeps on acct/orders; it has not been notified yet",
        ),
        (
            QueueFacts {
                listeners: 1,
                ..facts(None)
            },
            Unspecified,
            false,
            "1 listener sleeps on acct/orders; it has not been notified yet",
        ),
        (
            QueueFacts {
                busy: 2,
                ..known(3, Some(1), Some((7, 0)))
            },
            Unspecified,
            false,
            "2 listeners work on acct/orders; its newest notification was 1s ago",
        ),
        (
            QueueFacts {
                polling: 1,
                ..known(1, Some(12), Some((0, 11)))
            },
            Unspecified,
            false,
            "1 listener polls acct/orders; its newest notification was 12s ago and has been handled",
        ),
    ]
}

#[test]
fn each_state_of_a_queue_has_its_verdict() {
    let cases = [without_listeners(), with_listeners()].concat();
    for (known, kind, urgent, text) in cases {
        let findings = of_one(&known);
        assert_eq!(texts(&findings)[0], (kind, urgent, text));
        assert_eq!(findings[0].queue, "acct/orders");
    }
}

#[test]
fn silent_busy_and_lost_listeners_are_named_with_their_spans() {
    let listeners = [
        QueueListener {
            silent_for: Some(seconds(12)),
            ..listener("silent-1")
        },
        QueueListener {
            silent_for: Some(seconds(99)),
            ..listener("silent-2")
        },
        QueueListener {
            busy: true,
            busy_for: Some(seconds(720)),
            ..listener("busy-1")
        },
        QueueListener {
            busy: true,
            busy_for: Some(seconds(9)),
            ..listener("busy-2")
        },
        listener("asleep"),
    ];
    let gone = [lost("gone-1", 200)];
    let found = of_listeners(&address(), "relay-1", &listeners, &gone);
    let expected = [
        (
            FindingKind::Silent,
            false,
            "listener silent-2 was woken for acct/orders 1m39s ago and has not reported: it hangs, or \
             cannot read the queue; see its log, or restart it",
        ),
        (
            FindingKind::Silent,
            false,
            "listener silent-1 was woken for acct/orders 12s ago and has not reported: it hangs, or \
             cannot read the queue; see its log, or restart it",
        ),
        (
            FindingKind::Busy,
            false,
            "listener busy-1 has been handling one message of acct/orders for 12m; if its command \
             hangs, end it",
        ),
        (
            FindingKind::Gone,
            false,
            "listener gone-1 has been gone from relay relay-1 for 3m20s: it answered no heartbeat; \
             check its process, its machine and the network",
        ),
    ];
    assert_eq!(texts(&found), expected);
    let names = |one: &Finding| {
        (
            one.listener_id.clone(),
            one.relay_id.clone(),
            one.queue.clone(),
        )
    };
    let expected = ("silent-2", "relay-1", "acct/orders");
    let expected = (
        expected.0.to_owned(),
        expected.1.to_owned(),
        expected.2.to_owned(),
    );
    assert_eq!(names(&found[0]), expected);
}

#[test]
fn a_silent_or_lost_listener_is_urgent_where_work_waits_and_no_other_one_answers() {
    let silent = |name: &str| {
        let one = QueueListener {
            silent_for: Some(seconds(12)),
            ..listener(name)
        };
        of_listeners(&address(), "relay-1", &[one], &[])
    };
    for (listeners, depth_age, urgent) in [(1, 20, true), (2, 20, false), (1, 10, false)] {
        let findings = of_one(&QueueFacts {
            silent: 1,
            findings: silent("worker-1"),
            ..facts(queue(listeners, Some(12), Some((0, depth_age))))
        });
        assert_eq!(texts(&findings)[0].0, FindingKind::Silent);
        assert_eq!(findings[0].urgent, urgent, "{listeners} {depth_age}");
        // The others are stated as well.
        assert_eq!(findings.len(), listeners as usize);
    }
    let gone = of_listeners(&address(), "relay-1", &[], &[lost("worker-1", 30)]);
    let findings = of_one(&QueueFacts {
        findings: gone,
        ..facts(queue(0, Some(12), None))
    });
    let kinds: Vec<_> = findings
        .iter()
        .map(|one| (one.kind(), one.urgent))
        .collect();
    assert_eq!(
        kinds,
        [(FindingKind::NoListener, true), (FindingKind::Gone, true)]
    );
}

#[test]
fn the_relays_of_a_cluster_add_up_and_a_listener_that_went_to_another_one_is_not_gone() {
    let own = QueueFacts {
        findings: of_listeners(&address(), "relay-1", &[], &[lost("worker-1", 30)]),
        ..facts(queue(0, Some(12), None))
    };
    let other = QueueFacts {
        listener_ids: vec!["worker-1".to_owned()],
        ..facts(queue(1, Some(12), Some((0, 11))))
    };
    let mut all = own.clone();
    all.add(other);
    let silent = ["relay-3".to_owned()];
    let findings = of_queue(&address(), &all, &silent);
    let expected = [
        (
            FindingKind::RelayMissing,
            false,
            "relay relay-3 does not answer, so its listeners are missing here; check its process and \
             its connection to NATS",
        ),
        (
            FindingKind::Unspecified,
            false,
            "1 listener sleeps on acct/orders; its newest notification was 12s ago and has been \
             handled",
        ),
    ];
    assert_eq!(texts(&findings), expected);
    let found = of_one(&own);
    assert_eq!(
        texts(&found)[1].0,
        FindingKind::Gone,
        "without the other relay"
    );
}

#[test]
fn a_relay_states_its_limits_its_end_and_its_cluster() {
    let of = |what, used, limit| LimitUse {
        what,
        used,
        limit,
        is_full: used >= limit,
    };
    let state = RelayFacts {
        relay_id: "relay-1".to_owned(),
        limits: vec![
            of("streams", 10, 10),
            of("connections", 93, 100),
            of("queues", 89, 100),
        ],
        short_of_memory: Some(512 << 20),
        draining: Some(Duration::from_millis(12_900)),
        is_cut_off: true,
        store: Some("disk full".to_owned()),
    };
    let expected = [
        "relay relay-1: 10 of 10 streams are in use (100 %); raise the limit, or start another relay",
        "relay relay-1: 93 of 100 connections are in use (93 %); raise the limit, or start another \
         relay",
        "relay relay-1: the process is near its limit of 512 MiB of memory, so new listeners and \
         queues are refused; raise --max-memory",
        "relay relay-1 shuts down: new listeners are refused, and its streams end within 12s; \
         listeners need another relay",
        "relay relay-1 is cut off from the others of its cluster, so its listeners poll; check its \
         connection to NATS",
        "relay relay-1: the store of the flags cannot be read, wake-ups go on: disk full",
    ];
    let found = of_state(&state);
    let shown: Vec<_> = found.iter().map(|one| one.text.as_str()).collect();
    assert_eq!(shown, expected);
    assert!(found.iter().all(|one| one.relay_id == "relay-1"));
    assert!(of_state(&RelayFacts::default()).is_empty());
}

#[test]
fn the_findings_of_a_relay_are_sorted_and_bounded() {
    let surveyed = |name: &str, span| SurveyedListener {
        listener_id: id(name),
        queue: Some(Selector::new("acct", "orders").expect("a name")),
        span: seconds(span),
    };
    let unserved = |name: &str| QueueStats {
        address: QueueAddress::new("acct", name).expect("a name"),
        sequence: 1,
        notifications: 1,
        payload_size: 0,
        messages: 1,
        listeners: 0,
        timers: 0,
        idle_for: Some(seconds(3)),
        depth: None,
        backlog: 1,
        in_doubt: true,
        busy: 0,
    };
    let listeners = ListenerSurvey {
        listeners: 9,
        polling: 2,
        silent: vec![surveyed("silent-1", 12)],
        busy: vec![surveyed("busy-1", 600)],
    };
    let facts = RelayFacts {
        relay_id: "relay-1".to_owned(),
        store: Some("disk full".to_owned()),
        ..RelayFacts::default()
    };
    let queues: Vec<_> = (0..20)
        .map(|number| unserved(&format!("q{number}")))
        .collect();
    let survey = RelaySurvey {
        listeners,
        unserved: queues,
    };
    let found = of_relay(&facts, &survey, &[lost("gone-1", 4)]);
    let kinds: Vec<_> = found.iter().map(Finding::kind).collect();
    use FindingKind::{Busy, Gone, NoListener, Polling, Silent, Store};
    let mut expected = vec![NoListener; EACH];
    expected.extend([Silent, Gone, Busy, Store, Polling]);
    assert_eq!(kinds, expected);
    assert_eq!(
        (found[0].urgent, found[0].text.as_str()),
        (
            true,
            "no listener subscribes to acct/q0, which was notified once, 3s ago; start one, or \
             check the name"
        )
    );
    assert_eq!(
        found[12].text,
        "2 of 9 listeners poll without wake-ups; they sleep when their dequeue tasks have ended"
    );
    let nothing = of_relay(&RelayFacts::default(), &RelaySurvey::default(), &[]);
    assert!(nothing.is_empty());
}
