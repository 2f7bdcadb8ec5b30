//! Resume numbers of reconnect requests, and undelivered wake-ups of a broken stream.

use super::{
    super::{ReconnectConfig, ReconnectStep, SubscriptionSession},
    at, rng,
};
use crate::{
    base::clock::Tick,
    error::{Error, ErrorKind},
    types::{
        ConnectionState, Goodbye, GoodbyeReason, LastEvent, Limits, ListenerId, QueueAddress,
        Report, ResumeNumber, Selector, SubscribeEvent, SubscribeOptions, WakeReason, Welcome,
        WorkDetected,
    },
};

fn session() -> SubscriptionSession {
    let listener = ListenerId::new("w").expect("a name");
    let selector: Selector = "a/*".parse().expect("a selector");
    SubscriptionSession::new(
        SubscribeOptions::new(listener, [selector]),
        ReconnectConfig::default(),
    )
}

fn work(queue: &str, sequence: u64) -> WorkDetected {
    WorkDetected {
        queue: queue.parse().expect("a selector"),
        reason: WakeReason::Notified,
        sequence,
        notifications: 1,
        payload_size: 0,
        messages: 1,
        last_event: LastEvent::default(),
    }
}

fn welcome() -> SubscribeEvent {
    SubscribeEvent::Welcome(Welcome {
        relay_id: "r".into(),
        epoch: "e".into(),
        subscription_id: "r/1".into(),
        heartbeat: Limits::HEARTBEAT,
        degraded: false,
        version: "0".into(),
    })
}

fn open(session: &mut SubscriptionSession, now: Tick) -> SubscribeOptions {
    assert_eq!(session.reconnect.step(now), ReconnectStep::Open);
    let request = session.request();
    session.reconnect.opened(now);
    session.received(welcome(), now, &mut rng());
    request
}

#[test]
fn wake_ups_from_before_a_break_are_handed_over_until_the_next_stream() {
    let mut session = session();
    open(&mut session, at(0));
    session.received(wake(&[("a/1", 1), ("a/2", 2)]), at(0), &mut rng());
    session.reconnect.broken(at(1), None, &mut rng());
    assert_eq!(session.next_work(), Some(work("a/1", 1)));
    open(&mut session, at(5_000));
    assert_eq!(session.next_work(), None, "the relay reports a/2 again");
}

#[test]
fn a_request_with_the_most_selectors_states_its_number_within_its_size() {
    use prost::Message;
    let name = |number| format!("{}/{number:0>119}", "a".repeat(120));
    let selectors = (0..Limits::SELECTORS).map(|number| name(number).parse::<Selector>());
    let listener = ListenerId::new("w").expect("a name");
    let selectors = selectors.map(|selector| selector.expect("a selector"));
    let options = SubscribeOptions {
        resume: ResumeNumber(vec![7; Limits::TOKEN].into()),
        ..SubscribeOptions::new(listener, selectors)
    };
    let mut session = SubscriptionSession::new(options.clone(), ReconnectConfig::default());
    let request = open(&mut session, at(0));
    assert_eq!(
        request.resume, options.resume,
        "kept from an earlier process"
    );
    let encoded = crate::wire::subscribe_to_wire(&request).encoded_len();
    assert!(
        encoded <= options.encoded_at_most() && encoded > 1_000_000,
        "{encoded}"
    );
}

#[test]
fn reports_are_numbered_and_belong_to_the_stream_that_is_open() {
    let mut session = session();
    let queue: QueueAddress = "a/q".parse().expect("an address");
    let mut report = Report::new(queue);
    assert_eq!(
        session.report(&mut report).expect_err("no stream").kind(),
        ErrorKind::Unavailable
    );
    open(&mut session, at(0));
    assert_eq!(&*session.report(&mut report).expect("numbered"), "r/1");
    let first = report.number;
    session.report(&mut report).expect("numbered");
    assert!(report.number > first);
    session.reconnect.broken(at(1), None, &mut rng());
    assert!(session.report(&mut report).is_err(), "the stream ended");
}

#[test]
fn a_refusal_ends_the_subscription() {
    let mut session = session();
    assert_eq!(session.reconnect.step(at(0)), ReconnectStep::Open);
    let refusal =
        session
            .reconnect
            .broken(at(0), Some(&Error::invalid("selectors", "no")), &mut rng());
    assert!(refusal.is_some());
    assert_eq!(session.reconnect.step(at(9)), ReconnectStep::Closed);
}

#[test]
fn a_refused_subscription_retries_on_request() {
    let mut session = session();
    for round in 0..3 {
        let now = at(round * 120_000);
        assert_eq!(
            session.reconnect.step(now),
            ReconnectStep::Open,
            "round {round}"
        );
        let refusal = Error::new(ErrorKind::Denied, "401");
        assert!(
            session
                .reconnect
                .broken(now, Some(&refusal), &mut rng())
                .is_some()
        );
        let minute = std::time::Duration::from_secs(60);
        let mut retries = || {
            session
                .reconnect
                .retry_after_refusal(now, minute, &mut rng())
        };
        assert!(retries());
        assert!(!retries(), "a retry is scheduled already");
        let ReconnectStep::Wait(until) = session.reconnect.step(now) else {
            panic!("it waits, round {round}")
        };
        assert!((54..=66).contains(&until.since(now).as_secs()));
        assert_eq!(session.reconnect.state(), ConnectionState::Reconnecting);
    }
    open(&mut session, at(360_000));
    assert_eq!(session.reconnect.state(), ConnectionState::Connected);
}

#[test]
fn the_end_of_a_stream_is_announced_until_an_attempt_fails_or_the_next_stream_opens() {
    let goodbye = |reason, seconds| {
        SubscribeEvent::Goodbye(Goodbye {
            reason,
            reconnect_after: std::time::Duration::from_secs(seconds),
        })
    };
    for (reason, seconds, announced) in [
        (GoodbyeReason::Rotation, 0, true),
        (GoodbyeReason::Draining, 3, true),
        (GoodbyeReason::Draining, 30, false),
        (GoodbyeReason::Revoked, 0, false),
        (GoodbyeReason::Unspecified, 0, false),
    ] {
        let mut session = session();
        open(&mut session, at(0));
        session.received(goodbye(reason, seconds), at(1), &mut rng());
        assert_eq!(session.link_state().announced, announced, "{reason:?}");
        assert_eq!(
            session.link_state().connection,
            ConnectionState::Reconnecting
        );
        session.reconnect.broken(at(60_000), None, &mut rng());
        assert!(!session.link_state().announced, "an attempt failed");
        session.received(goodbye(reason, seconds), at(60_001), &mut rng());
        open(&mut session, at(120_000));
        assert!(!session.link_state().announced, "the next stream is open");
    }
}

fn heartbeat(resume: &'static str) -> SubscribeEvent {
    SubscribeEvent::Heartbeat {
        degraded: false,
        resume: ResumeNumber(resume.as_bytes().into()),
    }
}

fn wake(works: &[(&str, u64)]) -> SubscribeEvent {
    let works = works.iter().map(|(queue, sequence)| work(queue, *sequence));
    SubscribeEvent::Wake(works.collect())
}

/// Breaks the stream and opens the next one; returns the resume number of its request.
fn stated_next(session: &mut SubscriptionSession, now: Tick) -> ResumeNumber {
    session.reconnect.broken(now, None, &mut rng());
    open(session, now + std::time::Duration::from_secs(60)).resume
}

#[test]
fn a_resume_number_takes_effect_when_the_wake_ups_before_it_were_handed_over() {
    let mut session = session();
    assert!(open(&mut session, at(0)).resume.is_empty());
    session.received(heartbeat("1"), at(0), &mut rng());
    session.received(wake(&[("a/1", 1), ("a/2", 2)]), at(0), &mut rng());
    session.received(heartbeat("2"), at(0), &mut rng());
    session.next_work();
    assert_eq!(
        stated_next(&mut session, at(1)).0,
        "1",
        "a/2 is not handed over"
    );

    session.received(wake(&[("a/2", 2)]), at(70_000), &mut rng());
    session.received(heartbeat("3"), at(70_000), &mut rng());
    assert!(session.next_work().is_some());
    session.received(heartbeat("4"), at(70_000), &mut rng());
    session.received(wake(&[("a/3", 3)]), at(70_000), &mut rng());
    session.received(heartbeat("5"), at(70_000), &mut rng());
    assert!(session.next_work().is_some());
    assert_eq!(
        stated_next(&mut session, at(70_001)).0,
        "4",
        "a/3 may still be in the application's hands"
    );
    assert_eq!(session.resume().0, "4");
}

#[test]
fn a_resume_number_is_kept_over_breaks_and_at_another_relay() {
    let mut session = session();
    open(&mut session, at(0));
    session.received(heartbeat("1"), at(0), &mut rng());
    for round in 1..4 {
        let stated = stated_next(&mut session, at(round * 100_000));
        assert_eq!(stated.0, "1", "no heartbeat came since");
    }
    session.received(heartbeat(""), at(400_000), &mut rng());
    assert_eq!(stated_next(&mut session, at(500_000)).0, "1");
    let SubscribeEvent::Welcome(other) = welcome() else {
        unreachable!("a welcome")
    };
    let other = Welcome {
        epoch: "other".into(),
        ..other
    };
    session.received(SubscribeEvent::Welcome(other), at(600_000), &mut rng());
    let spreads = "the other relay spreads its CATCH_UPs for it";
    assert_eq!(stated_next(&mut session, at(600_001)).0, "1", "{spreads}");
}

#[test]
fn a_resume_number_of_more_than_64_bytes_is_not_stated() {
    let mut session = session();
    open(&mut session, at(0));
    session.received(heartbeat("1"), at(0), &mut rng());
    let long = SubscribeEvent::Heartbeat {
        degraded: false,
        resume: ResumeNumber(vec![7; Limits::TOKEN + 1].into()),
    };
    session.received(long, at(0), &mut rng());
    assert_eq!(stated_next(&mut session, at(1)).0, "1");
}

#[test]
fn a_relay_that_is_degraded_for_long_is_left_and_each_of_them_once_where_all_are() {
    let listener = ListenerId::new("w").expect("a name");
    let selector: Selector = "a/*".parse().expect("a selector");
    let config = ReconnectConfig {
        others: 2,
        ..ReconnectConfig::default()
    };
    let options = SubscribeOptions::new(listener, [selector]);
    let mut session = SubscriptionSession::new(options, config);
    let heartbeat = |session: &mut SubscriptionSession, degraded: bool, now: u64| {
        let heartbeat = SubscribeEvent::Heartbeat {
            degraded,
            resume: ResumeNumber::default(),
        };
        session.received(heartbeat, at(now), &mut rng());
        session.reconnect.state() != ConnectionState::Connected
    };
    let open = |session: &mut SubscriptionSession, degraded: bool, now: Tick| {
        assert_eq!(session.reconnect.step(now), ReconnectStep::Open);
        session.request();
        session.reconnect.opened(now);
        let SubscribeEvent::Welcome(welcome) = welcome() else {
            unreachable!("a welcome");
        };
        let welcome = Welcome {
            degraded,
            ..welcome
        };
        session.received(SubscribeEvent::Welcome(welcome), now, &mut rng());
    };
    let mut left = Vec::new();
    open(&mut session, true, at(0));
    for second in (0..200).step_by(5) {
        if heartbeat(&mut session, second < 150, second * 1_000) {
            assert!(session.reconnect.leaves_relay);
            left.push(second);
            open(&mut session, true, at(second * 1_000 + 1_000));
        }
    }
    // From the first one, and from the second one; the third is kept.
    assert_eq!(left, [15, 35]);
    for second in (200..300).step_by(5) {
        if heartbeat(&mut session, second < 230, second * 1_000) {
            left.push(second);
            open(&mut session, true, at(second * 1_000 + 1_000));
        }
    }
    assert_eq!(left, [15, 35, 215], "another isolation");
}
