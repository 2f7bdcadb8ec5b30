//! Waits, reconnections and logged outages of a stream.

use super::*;

fn at(seconds: u64) -> Tick {
    Tick::from_nanos(seconds * 1_000_000_000)
}

fn new_stream() -> (Reconnect, fastrand::Rng) {
    (
        Reconnect::new(ReconnectConfig::default()),
        fastrand::Rng::with_seed(1),
    )
}

fn wait_until(stream: &mut Reconnect, now: Tick) -> Tick {
    let ReconnectStep::Wait(until) = stream.step(now) else {
        panic!("it waits")
    };
    until
}

#[test]
fn a_stream_without_a_message_for_two_and_a_half_heartbeats_is_dead() {
    let (mut stream, mut rng) = new_stream();
    assert_eq!(stream.step(at(0)), ReconnectStep::Open);
    stream.opened(at(0));
    stream.on_message(at(1));
    assert_eq!(stream.state(), ConnectionState::Connected);
    assert_eq!(stream.step(at(2)), ReconnectStep::Wait(at(26)));
    assert!(!stream.elapsed(at(25), &mut rng));
    assert!(stream.elapsed(at(26), &mut rng));
    assert_eq!(stream.state(), ConnectionState::Reconnecting);
}

#[test]
fn waits_grow_until_a_stream_has_lasted() {
    let (mut stream, mut rng) = new_stream();
    for _ in 0..20 {
        stream.broken(at(0), None, &mut rng);
    }
    let waits = (0..50).map(|_| {
        stream.opened(at(0));
        stream.on_message(at(0));
        stream.broken(at(1), None, &mut rng);
        let until = wait_until(&mut stream, at(0));
        until.since(at(1))
    });
    assert!(
        waits.max() > Some(Duration::from_secs(5)),
        "a stream of a second is not stable"
    );
    stream.opened(at(0));
    stream.on_message(at(0));
    stream.broken(at(10), None, &mut rng);
    let until = wait_until(&mut stream, at(0));
    assert!(until <= at(11));
}

fn goodbye_now() -> Goodbye {
    Goodbye {
        reason: GoodbyeReason::Rotation,
        reconnect_after: Duration::ZERO,
    }
}

/// Returns the wait after one more failure at `now`.
fn wait_after_failure(stream: &mut Reconnect, now: Tick, rng: &mut fastrand::Rng) -> Duration {
    stream.broken(now, None, rng);
    let until = wait_until(stream, now);
    until.since(now)
}

#[test]
fn a_stream_that_lasted_and_ended_in_a_goodbye_resets_the_back_off() {
    let (mut stream, mut rng) = new_stream();
    for _ in 0..200 {
        for _ in 0..20 {
            stream.broken(at(0), None, &mut rng);
        }
        stream.opened(at(0));
        stream.on_message(at(0));
        stream.goodbye(at(10), goodbye_now(), &mut rng);
        let wait = wait_after_failure(&mut stream, at(11), &mut rng);
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
    }
}

#[test]
fn a_goodbye_never_grows_the_back_off() {
    let (mut stream, mut rng) = new_stream();
    for _ in 0..200 {
        stream.backoff.reset();
        for _ in 0..20 {
            stream.opened(at(0));
            stream.on_message(at(0));
            stream.goodbye(at(1), goodbye_now(), &mut rng);
        }
        let wait = wait_after_failure(&mut stream, at(2), &mut rng);
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
    }
}

#[test]
fn an_announced_end_is_over_where_the_next_stream_brings_no_message_for_five_seconds() {
    let (mut stream, mut rng) = new_stream();
    stream.opened(at(0));
    stream.on_message(at(0));
    stream.goodbye(at(1), goodbye_now(), &mut rng);
    assert!(stream.announced);
    stream.opened(at(2));
    assert_eq!(wait_until(&mut stream, at(2)), at(7));
    assert!(!stream.elapsed(at(7), &mut rng), "it may be a slow one");
    assert!(!stream.announced);
    assert_eq!(wait_until(&mut stream, at(7)), at(27));
    assert!(stream.elapsed(at(27), &mut rng));
}

#[test]
fn repeated_failures_are_logged_ever_more_rarely_until_a_stream_lasts() {
    let (mut stream, mut rng) = new_stream();
    let mut told = Vec::new();
    for second in 0..130 {
        stream.step(at(second));
        let error = Error::new(ErrorKind::Exhausted, "request: too large");
        stream.broken(at(second), Some(&error), &mut rng);
        told.extend(stream.outage());
    }
    assert_eq!(told, [4, 8, 16, 32, 64, 128]);
    stream.opened(at(130));
    stream.on_message(at(130));
    stream.broken(at(140), None, &mut rng);
    assert_eq!(stream.outage(), None, "that stream lasted");
}

#[test]
fn the_cause_is_that_of_the_newest_attempt_and_a_number_in_it_is_no_change() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut stream = Reconnect::new(ReconnectConfig::default());
    assert_eq!(stream.cause, None);
    for (text, cause) in [
        ("the token expired 0 s ago", "the token expired 0 s ago"),
        ("the token expired 12 s ago", "the token expired 0 s ago"),
        (
            "streams: the limit of 2 is reached",
            "streams: the limit of 2 is reached",
        ),
    ] {
        let error = Error::new(ErrorKind::Unavailable, text);
        stream.broken(at(1), Some(&error), &mut rng);
        assert_eq!(stream.cause.as_deref(), Some(cause));
    }
    stream.opened(at(2));
    assert!(stream.cause.is_some(), "a proxy may have opened it");
    stream.on_message(at(2));
    assert_eq!(stream.cause, None);
    assert!(stream.elapsed(at(200), &mut rng));
    assert_eq!(stream.cause.as_deref(), Some("no answer in time"));
}

#[test]
fn only_a_refusal_is_final() {
    let (mut stream, mut rng) = new_stream();
    let gone = Error::new(ErrorKind::Unavailable, "connection refused");
    assert!(stream.broken(at(0), Some(&gone), &mut rng).is_none());
    let refused = Error::invalid("selectors", "must hold at least one");
    assert!(stream.broken(at(0), Some(&refused), &mut rng).is_some());
    assert_eq!(stream.step(at(99)), ReconnectStep::Closed);
}

#[test]
fn a_refusal_that_a_proxy_may_send_is_final_only_before_the_relays_first_message() {
    for kind in [
        ErrorKind::Denied,
        ErrorKind::NotFound,
        ErrorKind::Unsupported,
    ] {
        let (mut stream, mut rng) = new_stream();
        stream.opened(at(0));
        let refused = Some(Error::new(kind, "not here"));
        assert!(
            stream.broken(at(0), refused.as_ref(), &mut rng).is_some(),
            "{kind:?}"
        );
        assert_eq!(stream.state(), ConnectionState::Closed);

        let (mut stream, mut rng) = new_stream();
        stream.opened(at(0));
        stream.on_message(at(1));
        stream.broken(at(2), None, &mut rng);
        for second in 3..100 {
            let refused = Some(Error::new(kind, "not here"));
            let refusal = stream.broken(at(second), refused.as_ref(), &mut rng);
            assert!(refusal.is_none(), "{kind:?}");
            assert_eq!(stream.state(), ConnectionState::Reconnecting);
        }
        stream.opened(at(200));
        stream.on_message(at(200));
        assert_eq!(stream.state(), ConnectionState::Connected);
    }
}

#[test]
fn a_request_that_breaks_a_rule_is_final_at_any_time() {
    let (mut stream, mut rng) = new_stream();
    stream.opened(at(0));
    stream.on_message(at(1));
    let refused = Error::invalid("selectors", "must hold at least one");
    assert!(stream.broken(at(2), Some(&refused), &mut rng).is_some());
}

#[test]
fn a_requested_wait_is_at_most_a_minute() {
    let (mut stream, mut rng) = new_stream();
    let week = Duration::from_secs(7 * 24 * 3600);
    let busy = Error::new(ErrorKind::Unavailable, "draining").with_retry_after(week);
    let goodbye = Goodbye {
        reason: GoodbyeReason::Draining,
        reconnect_after: week,
    };
    for refused in [true, false] {
        stream.opened(at(0));
        if refused {
            stream.broken(at(0), Some(&busy), &mut rng);
        } else {
            stream.goodbye(at(0), goodbye, &mut rng);
        }
        let until = wait_until(&mut stream, at(0));
        assert!(until >= at(60) && until <= at(61), "{until:?}");
    }
}

#[test]
fn the_wait_of_a_goodbye_is_kept() {
    let (mut stream, mut rng) = new_stream();
    stream.opened(at(0));
    let reconnect_after = Duration::from_secs(5);
    let reason = GoodbyeReason::Draining;
    stream.goodbye(
        at(0),
        Goodbye {
            reason,
            reconnect_after,
        },
        &mut rng,
    );
    let until = wait_until(&mut stream, at(1));
    assert!(until >= at(5) && until <= at(6));
}

fn one_of_three() -> (Reconnect, fastrand::Rng) {
    let config = ReconnectConfig {
        others: 2,
        ..ReconnectConfig::default()
    };
    (Reconnect::new(config), fastrand::Rng::with_seed(1))
}

#[test]
fn each_other_relay_is_tried_at_once_and_then_the_back_off_grows() {
    const SOON: Duration = Duration::from_millis(250);
    let (mut longest, mut later) = (Duration::ZERO, Duration::ZERO);
    for seed in 0..100 {
        let (mut stream, _) = one_of_three();
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..2 {
            longest = longest.max(wait_after_failure(&mut stream, at(0), &mut rng));
            assert!(stream.leaves_relay);
        }
        for _ in 0..4 {
            later = later.max(wait_after_failure(&mut stream, at(0), &mut rng));
        }
        // This starts again after a stream that lasted only.
        for (lasted, soon) in [(1, false), (10, true)] {
            stream.opened(at(0));
            stream.on_message(at(0));
            let wait = wait_after_failure(&mut stream, at(lasted), &mut rng);
            assert!(!soon || wait <= SOON, "{wait:?}");
        }
    }
    assert!(
        longest <= SOON && later > Duration::from_secs(4),
        "{later:?}"
    );
}

#[test]
fn relays_that_a_name_stands_for_are_tried_once_it_is_resolved() {
    const SOON: Duration = Duration::from_millis(250);
    let (mut stream, mut rng) = new_stream();
    stream.set_others(2);
    for _ in 0..2 {
        assert!(wait_after_failure(&mut stream, at(0), &mut rng) <= SOON);
        assert!(stream.leaves_relay);
        stream.set_others(2);
    }
    let later = (0..20).map(|_| wait_after_failure(&mut stream, at(0), &mut rng));
    assert!(later.max() > Some(SOON), "each is tried once");
    stream.set_others(0);
    wait_after_failure(&mut stream, at(0), &mut rng);
    assert!(!stream.leaves_relay);
}

#[test]
fn a_draining_relay_is_left_at_once_and_others_are_not() {
    let goodbye = |reason| Goodbye {
        reason,
        reconnect_after: Duration::from_secs(3),
    };
    for (reason, leaves) in [
        (GoodbyeReason::Draining, true),
        (GoodbyeReason::Rotation, false),
        (GoodbyeReason::Revoked, false),
    ] {
        for (others, (mut stream, mut rng)) in [(2, one_of_three()), (0, new_stream())] {
            stream.opened(at(0));
            stream.on_message(at(0));
            stream.goodbye(at(20), goodbye(reason), &mut rng);
            let leaves = leaves && others > 0;
            assert_eq!(stream.leaves_relay, leaves, "{reason:?}");
            let until = wait_until(&mut stream, at(20));
            assert_eq!(until < at(21), leaves, "{reason:?}: {until:?}");
        }
    }
}

#[test]
fn a_refusal_of_the_caller_is_no_reason_to_leave_a_relay() {
    let after = Duration::from_secs(1);
    for (kind, retry_after, leaves) in [
        (ErrorKind::Unavailable, None, true),
        (ErrorKind::Exhausted, Some(after), true),
        (ErrorKind::Exhausted, None, false),
        (ErrorKind::Denied, None, false),
        // A relay has served the stream, so a proxy answers for this one.
        (ErrorKind::NotFound, None, true),
        (ErrorKind::Unsupported, None, true),
    ] {
        let (mut stream, mut rng) = one_of_three();
        stream.opened(at(0));
        stream.on_message(at(0));
        let mut error = Error::new(kind, "refused");
        if let Some(after) = retry_after {
            error = error.with_retry_after(after);
        }
        stream.broken(at(1), Some(&error), &mut rng);
        assert_eq!(stream.leaves_relay, leaves, "{kind:?}");
    }
}
