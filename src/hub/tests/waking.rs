//! Marks, wakers and heartbeats (R4, R5, R6).

use super::*;

/// Two subscribers of `slow`, so that with `inline: 1` it is left to a fan-out that never runs;
/// `busy` has one and is woken at once.
fn with_a_dead_fanout() -> Arc<Hub> {
    let hub = hub_with(HubConfig {
        inline: 1,
        ..HubConfig::default()
    });
    settled(&hub, &["slow"]);
    hub
}

#[test]
fn a_parked_pattern_subscriber_is_woken_for_a_queue_that_comes_later() {
    let (hub, (alarm, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["ord*"]));
    sent(&mut feed, Tick::default(), &waker);
    notify(&hub, "orders");
    assert_eq!(alarm.rung(), 1);
    let (events, _) = sent(&mut feed, Tick::default(), &waker);
    assert_eq!(woken(&events), [entry("orders", WakeReason::Notified, 1)]);
}

#[test]
fn catch_ups_that_are_spread_come_at_their_time_and_not_with_the_heartbeat() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let foreign = super::super::place::Tally::starting_at(1).token(Epoch(8));
    let mut feed = feed(&hub, &resuming(&["a", "b"], &[("a", &foreign)]));
    let (events, until) = sent(&mut feed, Tick::default(), &waker);
    assert_eq!(woken(&events), []);
    assert!(until > Tick::default() && until <= after(2 * SECOND));
    let (events, _) = sent(&mut feed, until, &waker);
    let both = [("a", 0), ("b", 0)].map(|(name, count)| entry(name, WakeReason::CatchUp, count));
    assert_eq!(woken(&events), both);
}

#[test]
fn a_lost_mark_heals_within_a_heartbeat_however_busy_the_stream_is() {
    let (hub, (_, waker)) = (with_a_dead_fanout(), Alarm::new());
    let mut feed = feed(&hub, &options(&["slow", "busy"]));
    sent(&mut feed, Tick::default(), &waker);
    notify(&hub, "slow");
    let mut healed = None;
    for second in 1..=20 {
        let now = after(second * SECOND);
        notify_with(&hub, notification("busy"), now);
        let (events, _) = sent(&mut feed, now, &waker);
        if woken(&events).contains(&entry("slow", WakeReason::Notified, 1)) {
            healed.get_or_insert(second);
        }
    }
    assert_eq!(healed, Some(10));
}

#[test]
fn a_busy_stream_gets_heartbeats_as_well() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let mut feed = feed(&hub, &options(&["busy"]));
    sent(&mut feed, Tick::default(), &waker);
    let mut heartbeats = 0;
    for second in 1..=30 {
        let now = after(second * SECOND);
        notify_with(&hub, notification("busy"), now);
        let (events, _) = sent(&mut feed, now, &waker);
        let is_heartbeat = |event: &&_| matches!(event, SubscribeEvent::Heartbeat { .. });
        heartbeats += events.iter().filter(is_heartbeat).count();
    }
    assert_eq!(heartbeats, 3);
}
