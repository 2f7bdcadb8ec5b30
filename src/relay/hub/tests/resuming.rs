//! Tokens and patterns (R2: uncertainty becomes a CATCH_UP).

use super::{super::counters::Counters, *};

/// Subscribes with one position and returns the first entries.
fn owed_after(hub: &Arc<Hub>, token: &Token) -> Vec<Entry> {
    let options = resuming(&["orders"], &[("orders", token)]);
    let subscription = subscribe_with(hub, &options, Tick::default());
    entries(&drain(&subscription, after(10 * SECOND)))
}

fn catch_up(name: &str) -> Entry {
    entry(name, WakeReason::CatchUp, 0)
}

#[test]
fn a_subscriber_with_its_token_gets_exactly_the_missed_events() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    notify(&hub, "orders");
    let token = drain(&subscription, Tick::default()).remove(0).token;
    assert!(token.0.len() <= crate::types::Limits::TOKEN);
    hub.unsubscribe(&subscription, Tick::default());
    assert_eq!(owed_after(&hub, &token), []);
    (0..5).for_each(|_| _ = notify(&hub, "orders"));
    let missed = entry("orders", WakeReason::Notified, 5);
    assert_eq!(owed_after(&hub, &token), [missed]);
}

#[test]
fn a_place_before_which_only_timers_fired_resumes_with_them() {
    let hub = hub();
    let subscription = subscribe(&hub, &["orders"]);
    let token = drain(&subscription, Tick::default()).remove(0).token;
    let visible = Report {
        visible_in: Some(Duration::ZERO),
        ..Report::new(queue("orders"))
    };
    let reported = hub.report(subscription.id, &visible, Tick::default());
    reported.expect("subscribed");
    let missed = entry("orders", WakeReason::Timed, 0);
    assert_eq!(owed_after(&hub, &token), [missed]);
}

#[test]
fn any_doubt_is_one_catch_up() {
    let hub = hub();
    (0..5).for_each(|_| _ = notify(&hub, "orders"));
    let place = |sequence, epoch| {
        let place = Counters {
            sequence,
            notifications: sequence.into(),
            payload: 0,
            messages: sequence.into(),
        };
        place.token(epoch)
    };
    let too_much = Counters {
        payload: 1,
        ..Counters::starting_at(2)
    };
    let bytes = |bytes: &[u8]| Token(bytes::Bytes::copy_from_slice(bytes));
    for (doubt, token) in [
        ("none", Token::default()),
        ("another epoch", place(3, Epoch(8))),
        ("above the head", place(6, EPOCH)),
        ("a sum above the head's", too_much.token(EPOCH)),
        ("one byte", bytes(b"x")),
        ("nonsense of the right length", bytes(&[0xff; 63])),
        (
            "a byte too many",
            bytes(&[place(3, EPOCH).0.as_ref(), b"x"].concat()),
        ),
        ("a byte too few", bytes(&place(3, EPOCH).0[..19])),
    ] {
        assert_eq!(owed_after(&hub, &token), [catch_up("orders")], "{doubt}");
    }
    let exact = entry("orders", WakeReason::Notified, 2);
    assert_eq!(owed_after(&hub, &place(3, EPOCH)), [exact]);
}

#[test]
fn a_token_below_the_records_start_is_a_doubt() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    notify(&hub, "orders");
    let token = drain(&subscription, Tick::default()).remove(0).token;
    // It never reported, so it does not count as busy after its time-out.
    hub.unsubscribe(&subscription, after(HOUR));
    hub.forget(after(3 * HOUR));
    assert_eq!(hub.stats().forgotten, 1);
    notify(&hub, "orders");
    assert_eq!(owed_after(&hub, &token), [catch_up("orders")]);
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
fn positions_of_a_pattern_make_records_and_resume() {
    let hub = hub();
    let subscription = settled(&hub, &["ord*"]);
    notify(&hub, "orders");
    let token = drain(&subscription, Tick::default()).remove(0).token;
    hub.unsubscribe(&subscription, Tick::default());
    let (none, elsewhere) = (Token::default(), Token::default());
    let positions = [
        ("orders", &token),
        ("order-66", &none),
        ("invoices", &elsewhere),
    ];
    let options = resuming(&["ord*"], &positions);
    let subscription = subscribe_with(&hub, &options, Tick::default());
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, ["ord*", "order-66"].map(catch_up));
    assert_eq!(
        hub.stats().queues,
        2,
        "not the queue that no selector matches"
    );
}

#[test]
fn two_positions_of_a_queue_are_a_doubt_unless_they_agree() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    let mut tokens = (0..3).map(|_| {
        notify(&hub, "orders");
        drain(&subscription, Tick::default()).remove(0).token
    });
    let (low, high) = (tokens.next().expect("one"), tokens.next().expect("two"));
    tokens.next();
    let (none, foreign) = (Token::default(), Counters::starting_at(1).token(Epoch(8)));
    for (first, second) in [(&low, &high), (&low, &none), (&low, &foreign)] {
        for (first, second) in [(first, second), (second, first)] {
            for selector in ["orders", "ord*"] {
                let positions = [("orders", first), ("orders", second)];
                let options = resuming(&[selector], &positions);
                let subscription = subscribe_with(&hub, &options, Tick::default());
                let told = entries(&drain(&subscription, after(10 * SECOND)));
                let told: Vec<_> = told.iter().filter(|told| told.0 == "orders").collect();
                assert_eq!(told, [&catch_up("orders")]);
            }
        }
    }
    let options = resuming(&["orders"], &[("orders", &low), ("orders", &low)]);
    let subscription = subscribe_with(&hub, &options, Tick::default());
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, [entry("orders", WakeReason::Notified, 2)]);
}

#[test]
fn a_position_under_a_selectors_name_makes_nothing() {
    let hub = hub();
    let mut options = options(&["ord*"]);
    options.positions.push(Position {
        queue: "acct/ord*".parse().expect("a selector"),
        token: Token::default(),
    });
    let subscription = subscribe_with(&hub, &options, Tick::default());
    let told = entries(&drain(&subscription, Tick::default()));
    assert_eq!(told, [catch_up("ord*")]);
    assert_eq!(hub.stats().queues, 0);
}

#[test]
fn after_a_change_of_epoch_catch_ups_are_spread_over_two_seconds() {
    let hub = hub();
    let foreign = Counters::starting_at(1).token(Epoch(8));
    let options = resuming(&["orders", "new*"], &[("orders", &foreign)]);
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
    let foreign = Counters::starting_at(1).token(Epoch(8));
    let options = resuming(&["a", "b"], &[("a", &foreign)]);
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
    let foreign = Counters::starting_at(1).token(Epoch(8));
    let options = resuming(&["a", "b"], &[("a", &foreign)]);
    let subscription = subscribe_with(&hub, &options, Tick::default());
    assert_eq!(drain(&subscription, Tick::default()), []);
    notify(&hub, "b");
    let told = entries(&drain(&subscription, after(2 * SECOND)));
    assert_eq!(told, [catch_up("a"), entry("b", WakeReason::Notified, 1)]);
}

#[test]
fn of_many_catch_ups_that_were_spread_none_is_forgotten() {
    let (hub, (_, waker)) = (hub(), Alarm::new());
    let foreign = Counters::starting_at(1).token(Epoch(8));
    let names: Vec<_> = (0..6_000).map(|number| format!("q{number:04}")).collect();
    names.iter().for_each(|name| _ = notify(&hub, name));
    let options = resuming(&["*"], &[("q0000", &foreign)]);
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
