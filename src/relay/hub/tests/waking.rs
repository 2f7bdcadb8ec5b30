//! Registration (R4: register first, then take the snapshot), marks and wakers (R5: clear the mark,
//! then read), heartbeats (R6: a heartbeat proves that nothing is pending).

use super::{streams::Polled, *};
use crate::types::Drain;
use WakeReason::{CatchUp, Notified};

#[test]
fn a_parked_pattern_subscriber_is_woken_for_a_queue_that_comes_later() {
    let mut stream = Polled::new(&["ord*"]);
    stream.notify("orders", 1);
    assert_eq!(stream.rung(), 1);
    assert_eq!(stream.woken(START), [entry("orders", Notified, 1)]);
}

#[test]
fn a_heartbeat_is_sent_in_each_interval_however_busy_the_stream_is() {
    let mut stream = Polled::new(&["busy"]);
    let is_heartbeat = |event: &_| matches!(event, SubscribeEvent::Heartbeat { .. });
    let mut heartbeats = Vec::new();
    for second in 1..=60 {
        let now = after(second * SECOND);
        if second <= 33 {
            notify_with(&stream.hub, notification("busy"), now);
        }
        let (events, wait) = stream.sent(now);
        assert!(wait > now, "it sleeps");
        if events.iter().any(is_heartbeat) {
            heartbeats.push(second);
        }
    }
    assert_eq!(heartbeats, [10, 20, 30, 40, 50, 60]);
}

#[test]
fn a_stream_is_woken_once_until_it_takes() {
    let mut stream = Polled::new(&["orders"]);
    stream.notify("orders", 100);
    assert_eq!(stream.rung(), 1);
    stream.sent(START);
    stream.notify("orders", 1);
    assert_eq!(stream.rung(), 2);
}

#[test]
fn a_stream_is_woken_once_for_a_request_of_which_one_event_is_refused() {
    let hub = hub_where(|config| config.max_queues = 999);
    let names = numbered("q", 999);
    let mut stream = Polled::on(&hub, &options(&names));
    let mut batch: Vec<_> = names.iter().map(|name| notification(name)).collect();
    batch.insert(500, notification("new"));
    let before = stream.rung();
    let results = hub.notify(&Arc::from("tests"), &batch, START);
    assert_eq!(stream.rung(), before + 1);
    let refused = results.iter().enumerate().filter(|(_, one)| one.is_err());
    assert_eq!(refused.map(|(at, _)| at).collect::<Vec<_>>(), [500]);
    let mut told = Vec::new();
    let mut now = START;
    while told.len() < 999 {
        told.extend(stream.woken(now));
        now += SECOND;
    }
    assert!(
        told.iter()
            .all(|(_, reason, count)| (*reason, *count) == (Notified, 1))
    );
    assert_eq!(told.len(), 999);
}

#[test]
fn the_first_message_is_the_welcome_and_the_last_the_goodbye() {
    let mut stream = Polled::unsent(&hub(), &options(&["orders"]));
    let (events, _) = stream.sent(START);
    assert!(matches!(events[0], SubscribeEvent::Welcome(_)));
    assert_eq!(woken(&events), [entry("orders", CatchUp, 0)]);
    let last = stream.next(START, Some(Drain::at_once(START)));
    let StreamAction::Send(SubscribeEvent::Goodbye(_)) = last else {
        panic!("{last:?}");
    };
    assert_eq!(
        stream.next(START, Some(Drain::at_once(START))),
        StreamAction::End
    );
}

#[test]
fn a_stream_ends_by_itself_at_its_age_and_the_next_gets_its_wake_ups() {
    let mut stream = Polled::new(&["orders"]);
    let (events, _) = stream.sent(after(10 * SECOND));
    let resume = stated(&events).expect("it is silent");
    stream.notify("orders", 1);
    let end = after(2 * HOUR);
    let last = stream.next(end, None);
    let StreamAction::Send(SubscribeEvent::Goodbye(goodbye)) = last else {
        panic!("{last:?}");
    };
    assert_eq!(goodbye.reason, crate::types::GoodbyeReason::Rotation);
    stream.stream.close(end);
    let options = SubscribeOptions {
        resume,
        ..options(&["orders"])
    };
    let back = subscribe_with(&stream.hub, &options, end);
    let told = entries(&drain(&back, end));
    assert_eq!(told, [entry("orders", CatchUp, 0)]);
}

#[test]
fn a_stream_is_throttled_after_a_large_wake_and_gets_the_rest_after_it() {
    let mut stream = Polled::new(&["hot"]);
    stream.notify("hot", 16);
    assert_eq!(stream.woken(START), [entry("hot", Notified, 16)]);
    stream.notify("hot", 1);
    assert_eq!(stream.rung(), 2);
    let (events, until) = stream.sent(after(Duration::from_millis(4)));
    assert_eq!(woken(&events), []);
    assert_eq!(until, after(Duration::from_millis(5)));
    stream.notify("hot", 1);
    assert_eq!(stream.rung(), 2, "it knows already");
    assert_eq!(stream.woken(until), [entry("hot", Notified, 2)]);
    stream.notify("hot", 1);
    let few = [entry("hot", Notified, 1)];
    assert_eq!(stream.woken(until), few, "few, and at once");
}

#[test]
fn a_wake_with_little_for_one_of_its_queues_does_not_throttle() {
    let mut stream = Polled::new(&["hot", "calm"]);
    stream.notify("hot", 100);
    stream.notify("calm", 1);
    stream.sent(START);
    stream.notify("calm", 1);
    assert_eq!(stream.woken(START), [entry("calm", Notified, 1)]);
}

#[test]
fn a_stream_with_entries_left_is_not_throttled() {
    let names = numbered("queue-", 300);
    let mut stream = Polled::new(&names);
    names.iter().for_each(|name| stream.notify(name, 16));
    let (events, until) = stream.sent(START);
    assert!(events.len() > 1, "one wake has no room for all");
    assert_eq!(woken(&events).len(), 300);
    assert_eq!(until, after(Duration::from_millis(5)), "now it rests");
}
