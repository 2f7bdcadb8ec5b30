//! Refused entries with and without a delay.

use super::*;

fn delayed(queue: &str, delay: Duration) -> Notification {
    Notification {
        delay,
        ..event(queue)
    }
}

#[test]
fn a_refused_delayed_entry_needs_no_room_when_its_delay_has_ended() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    relay.no_timers = true;
    for number in 0..2_000 {
        post(&mut session, &format!("a/new-{number}"), at(0));
        let later = delayed(&format!("a/later-{number}"), Duration::from_secs(60));
        super::super::post(&mut session, later, at(0)).expect("taken");
    }
    let span = (at(0), at(200_000));
    let end = serve_until(&mut session, &mut relay, span, |relay| {
        relay.counted.len() == 2_000
    });
    // A delay of a minute ends on the publisher's grid, which is 1/16 of it; then there is a retry
    // within 6 s.
    assert!(end > at(60_000) && end < at(80_000), "{end:?}");
    assert_eq!(session.pending(), 2_000, "the others have no room yet");
}

#[test]
fn refused_entries_are_sent_while_others_stay_refused() {
    let (mut session, mut relay) = (publisher(), Relay::full());
    relay.no_timers = true;
    for number in 0..2_000 {
        let new = event(&format!("a/new-{number}"));
        let later = delayed(&format!("a/later-{number}"), Duration::from_secs(3600));
        super::super::post(&mut session, new, at(0)).expect("taken");
        super::super::post(&mut session, later, at(0)).expect("taken");
    }
    let now = serve_until(&mut session, &mut relay, (at(0), at(60_000)), |_| false);
    relay.no_timers = false;
    let span = (now, now + Duration::from_secs(100));
    let end = serve_until(&mut session, &mut relay, span, |relay| {
        relay.counted.len() == 2_000
    });
    let waited = end.since(now);
    assert!(waited <= Duration::from_secs(6), "{waited:?}");
    assert_eq!(session.pending(), 2_000, "and the others are kept");
}
