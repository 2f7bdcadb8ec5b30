//! Waits, reconnections and logged outages of a stream.

use super::*;

fn at(seconds: u64) -> Tick {
    Tick::from_nanos(seconds * 1_000_000_000)
}

fn link() -> (Reconnect, fastrand::Rng) {
    (
        Reconnect::new(ReconnectConfig::default()),
        fastrand::Rng::with_seed(1),
    )
}

#[test]
fn a_stream_without_a_message_for_two_and_a_half_heartbeats_is_dead() {
    let (mut link, mut rng) = link();
    assert_eq!(link.step(at(0)), ReconnectStep::Open);
    link.opened(at(0));
    link.on_message(at(1));
    assert_eq!(link.state(), ConnectionState::Connected);
    assert_eq!(link.step(at(2)), ReconnectStep::Read(at(26)));
    assert!(!link.elapsed(at(25), &mut rng));
    assert!(link.elapsed(at(26), &mut rng));
    assert_eq!(link.state(), ConnectionState::Reconnecting);
}

#[test]
fn waits_grow_until_a_stream_has_lasted() {
    let (mut link, mut rng) = link();
    for _ in 0..20 {
        link.broken(at(0), None, &mut rng);
    }
    let waits = (0..50).map(|_| {
        link.opened(at(0));
        link.on_message(at(0));
        link.broken(at(1), None, &mut rng);
        let ReconnectStep::Wait(until) = link.step(at(0)) else {
            panic!("it waits")
        };
        until.since(at(1))
    });
    assert!(
        waits.max() > Some(Duration::from_secs(5)),
        "a stream of a second is not stable"
    );
    link.opened(at(0));
    link.on_message(at(0));
    link.broken(at(10), None, &mut rng);
    let ReconnectStep::Wait(until) = link.step(at(0)) else {
        panic!("it waits")
    };
    assert!(until <= at(11));
}

fn goodbye_now() -> Goodbye {
    Goodbye {
        reason: GoodbyeReason::Rotation,
        reconnect_after: Duration::ZERO,
    }
}

/// Returns the wait after one more failure at `now`.
fn wait_after_failure(link: &mut Reconnect, now: Tick, rng: &mut fastrand::Rng) -> Duration {
    link.broken(now, None, rng);
    let ReconnectStep::Wait(until) = link.step(now) else {
        panic!("it waits")
    };
    until.since(now)
}

#[test]
fn a_stream_that_lasted_and_ended_in_a_goodbye_resets_the_back_off() {
    let (mut link, mut rng) = link();
    for _ in 0..200 {
        for _ in 0..20 {
            link.broken(at(0), None, &mut rng);
        }
        link.opened(at(0));
        link.on_message(at(0));
        link.goodbye(at(10), goodbye_now(), &mut rng);
        let wait = wait_after_failure(&mut link, at(11), &mut rng);
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
    }
}

#[test]
fn a_goodbye_never_grows_the_back_off() {
    let (mut link, mut rng) = link();
    for _ in 0..200 {
        link.backoff.reset();
        for _ in 0..20 {
            link.opened(at(0));
            link.on_message(at(0));
            link.goodbye(at(1), goodbye_now(), &mut rng);
        }
        let wait = wait_after_failure(&mut link, at(2), &mut rng);
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
    }
}

#[test]
fn repeated_failures_to_open_are_logged_once_and_then_once_a_minute() {
    let (mut link, mut rng) = link();
    let mut told = Vec::new();
    for second in 0..130 {
        link.step(at(second));
        let error = Error::new(ErrorKind::Exhausted, "request: too large");
        link.broken(at(second), Some(&error), &mut rng);
        if let Some(outage) = link.outage(at(second)) {
            assert!(outage.reason.contains("too large"), "{outage:?}");
            told.push((second, outage.attempts));
        }
    }
    assert_eq!(told, [(2, 3), (62, 63), (122, 123)]);
    link.opened(at(130));
    link.on_message(at(130));
    link.broken(at(131), None, &mut rng);
    assert!(link.outage(at(131)).is_none(), "that stream was open");
}

#[test]
fn two_failures_that_take_ten_seconds_are_logged_as_well() {
    let (mut link, mut rng) = link();
    link.broken(at(0), None, &mut rng);
    assert!(link.outage(at(0)).is_none());
    link.broken(at(10), None, &mut rng);
    assert_eq!(link.outage(at(10)).map(|outage| outage.attempts), Some(2));
}

#[test]
fn only_a_refusal_is_final() {
    let (mut link, mut rng) = link();
    let gone = Error::new(ErrorKind::Unavailable, "connection refused");
    assert!(link.broken(at(0), Some(&gone), &mut rng).is_none());
    let refused = Error::invalid("selectors", "must hold at least one");
    assert!(link.broken(at(0), Some(&refused), &mut rng).is_some());
    assert_eq!(link.step(at(99)), ReconnectStep::Closed);
}

#[test]
fn a_refusal_that_a_proxy_may_send_is_final_only_before_the_relays_first_message() {
    for kind in [
        ErrorKind::Denied,
        ErrorKind::NotFound,
        ErrorKind::Unsupported,
    ] {
        let (mut link, mut rng) = link();
        link.opened(at(0));
        let refused = Some(Error::new(kind, "not here"));
        assert!(
            link.broken(at(0), refused.as_ref(), &mut rng).is_some(),
            "{kind:?}"
        );
        assert_eq!(link.state(), ConnectionState::Closed);

        let (mut link, mut rng) = self::link();
        link.opened(at(0));
        link.on_message(at(1));
        link.broken(at(2), None, &mut rng);
        for second in 3..100 {
            let refused = Some(Error::new(kind, "not here"));
            let refusal = link.broken(at(second), refused.as_ref(), &mut rng);
            assert!(refusal.is_none(), "{kind:?}");
            assert_eq!(link.state(), ConnectionState::Reconnecting);
        }
        link.opened(at(200));
        link.on_message(at(200));
        assert_eq!(link.state(), ConnectionState::Connected);
    }
}

#[test]
fn a_request_that_breaks_a_rule_is_final_at_any_time() {
    let (mut link, mut rng) = link();
    link.opened(at(0));
    link.on_message(at(1));
    let refused = Error::invalid("selectors", "must hold at least one");
    assert!(link.broken(at(2), Some(&refused), &mut rng).is_some());
}

#[test]
fn a_requested_wait_is_at_most_a_minute() {
    let (mut link, mut rng) = link();
    let week = Duration::from_secs(7 * 24 * 3600);
    let busy = Error::new(ErrorKind::Unavailable, "draining").with_retry_after(week);
    let goodbye = Goodbye {
        reason: GoodbyeReason::Draining,
        reconnect_after: week,
    };
    for refused in [true, false] {
        link.opened(at(0));
        if refused {
            link.broken(at(0), Some(&busy), &mut rng);
        } else {
            link.goodbye(at(0), goodbye, &mut rng);
        }
        let ReconnectStep::Wait(until) = link.step(at(0)) else {
            panic!("it waits")
        };
        assert!(until >= at(60) && until <= at(61), "{until:?}");
    }
}

#[test]
fn the_wait_of_a_goodbye_is_kept() {
    let (mut link, mut rng) = link();
    link.opened(at(0));
    let reconnect_after = Duration::from_secs(5);
    let reason = GoodbyeReason::Draining;
    link.goodbye(
        at(0),
        Goodbye {
            reason,
            reconnect_after,
        },
        &mut rng,
    );
    let ReconnectStep::Wait(until) = link.step(at(1)) else {
        panic!("it waits")
    };
    assert!(until >= at(5) && until <= at(6));
}
