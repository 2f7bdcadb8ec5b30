//! CATCH_UPs, and their spread (R2: uncertainty becomes a CATCH_UP).

use super::*;

fn catch_up(name: &str) -> Entry {
    entry(name, WakeReason::CatchUp, 0)
}

#[test]
fn what_changed_since_the_number_is_one_catch_up_whatever_counted_it() {
    for visible_in in [None, Some(Duration::ZERO), Some(SECOND)] {
        let hub = hub();
        let subscription = settled(&hub, &["orders", "other"]);
        let resume = resume_number(&hub, &subscription, START);
        match visible_in {
            None => (0..5).for_each(|_| _ = notify(&hub, "orders")),
            Some(_) => {
                let visible = Report {
                    visible_in,
                    ..Report::new(queue("orders"))
                };
                say(&hub, &subscription, &visible, START);
            }
        }
        hub.unsubscribe(&subscription, START);
        hub.fire(after(2 * SECOND));
        let options = SubscribeOptions {
            resume,
            ..options(&["orders", "other"])
        };
        let subscription = subscribe_with(&hub, &options, after(2 * SECOND));
        let told = entries(&drain(&subscription, after(2 * SECOND)));
        assert_eq!(told, [catch_up("orders")], "{visible_in:?}");
    }
}

#[test]
fn sums_are_exact_on_a_stream_that_resumed() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    notify(&hub, "orders");
    let resume = resume_number(&hub, &subscription, START);
    hub.unsubscribe(&subscription, START);
    let options = SubscribeOptions {
        resume,
        ..options(&["orders"])
    };
    let subscription = subscribe_with(&hub, &options, START);
    assert_eq!(told(&subscription), []);
    (0..5).for_each(|_| _ = notify(&hub, "orders"));
    assert_eq!(
        told(&subscription),
        [entry("orders", WakeReason::Notified, 5)]
    );
}

#[test]
fn the_first_wake_up_settles_a_catch_up() {
    let hub = hub();
    let subscription = subscribe(&hub, &["orders"]);
    notify(&hub, "orders");
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, [entry("orders", WakeReason::Notified, 1)]);
    assert_eq!(drain(&subscription, Tick::default()), []);
}

#[test]
fn a_pattern_is_caught_up_under_its_own_name_and_for_each_queue_that_is_known() {
    let hub = hub();
    for name in ["orders", "ordinary", "invoices"] {
        notify(&hub, name);
    }
    let subscription = subscribe(&hub, &["ord*"]);
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, ["ord*", "orders", "ordinary"].map(catch_up).sorted());
    notify(&hub, "order-66");
    notify(&hub, "invoices");
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, [entry("order-66", WakeReason::Notified, 1)]);
}

#[test]
fn after_a_change_of_epoch_catch_ups_are_spread_over_two_seconds() {
    let hub = hub();
    let options = from_elsewhere(&["orders", "new*"]);
    let mut waits = Vec::new();
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let id = SubscriptionId(seed.into());
        let subscription = hub.subscribe(id, &options, Tick::default(), &mut rng);
        let subscription = subscription.expect("accepted");
        assert_eq!(drain(&subscription, Tick::default()), []);
        let at = subscription.catch_up_at().expect("it waits");
        let told = entries(&drain(&subscription, at));
        assert_eq!(told, ["new*", "orders"].map(catch_up));
        waits.push(at.since(Tick::default()));
    }
    waits.sort();
    assert!(waits[10] < SECOND / 2 && waits[190] > 3 * SECOND / 2);
    assert!(waits[199] <= 2 * SECOND);
}

#[test]
fn a_notification_is_sent_at_once_while_catch_ups_wait() {
    let hub = hub();
    let options = from_elsewhere(&["a", "b"]);
    let subscription = subscribe_with(&hub, &options, Tick::default());
    assert_eq!(drain(&subscription, Tick::default()), []);
    notify(&hub, "a");
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, [entry("a", WakeReason::Notified, 1)]);
    let rest = entries(&drain(&subscription, after(2 * SECOND)));
    assert_eq!(rest, [catch_up("b")], "the other's was told with its event");
}

#[test]
fn catch_ups_that_wait_are_not_forgotten_over_an_event_that_comes_at_their_time() {
    let hub = hub();
    let options = from_elsewhere(&["a", "b"]);
    let subscription = subscribe_with(&hub, &options, Tick::default());
    assert_eq!(drain(&subscription, Tick::default()), []);
    notify(&hub, "b");
    let told = entries(&drain(&subscription, after(2 * SECOND)));
    assert_eq!(told, [catch_up("a"), entry("b", WakeReason::Notified, 1)]);
}

#[test]
fn of_many_catch_ups_that_were_spread_none_is_forgotten() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let names: Vec<_> = (0..1_000).map(|number| format!("q{number:04}")).collect();
    names.iter().for_each(|name| _ = notify(&hub, name));
    let options = from_elsewhere(&["*"]);
    let mut feed = feed(&hub, &options);
    let (events, at) = sent(&mut feed, Tick::default(), &waker);
    assert_eq!(woken(&events), []);
    assert!(at <= after(2 * SECOND), "not at the next heartbeat");
    notify(&hub, "q0007");
    let (mut told, mut now) = (Vec::new(), at);
    while told.len() <= names.len() {
        let mut sink = WakeBuilder::default();
        match feed.next_into(now, None, &waker, &mut sink) {
            StreamAction::Send(StreamMessage::Wake(_)) => told.extend(entries(&sink.work)),
            StreamAction::Yield => {}
            StreamAction::Wait(until) if until < at + SECOND => now = until,
            next => panic!("{next:?} after {} of them", told.len()),
        }
    }
    let mut expected: Vec<_> = names.iter().map(|name| catch_up(name)).collect();
    expected[7] = entry("q0007", WakeReason::Notified, 1);
    expected.push(catch_up("*"));
    expected.sort();
    told.sort();
    assert!(
        told == expected,
        "one was told of twice, or as something else"
    );
}

/// Sorted, as [`entries`] are.
trait Sorted {
    fn sorted(self) -> Self;
}

impl<const N: usize> Sorted for [Entry; N] {
    fn sorted(mut self) -> Self {
        self.sort();
        self
    }
}
