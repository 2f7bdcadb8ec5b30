//! Timed wake-ups (R7: timers only add).

use super::{
    super::{
        counters::Counters,
        timers::{QueueTimers, Timer},
    },
    *,
};

/// Reads the hub whenever it is woken, as a driver without tasks would.
struct Looker(Arc<Hub>, std::sync::mpsc::Sender<usize>);

impl Wake for Looker {
    fn wake(self: Arc<Self>) {
        let queues = self.0.queues("", 10, Tick::default());
        self.1.send(queues.len()).expect("the test waits");
    }
}

#[test]
fn the_timers_task_is_woken_without_any_lock_held() {
    let hub = hub();
    let (woken, looked) = std::sync::mpsc::channel();
    let looker = Arc::new(Looker(Arc::clone(&hub), woken));
    hub.timers().waker.register(&looker.into());
    std::thread::spawn(move || {
        let delayed = Notification {
            delay: SECOND,
            ..notification("orders")
        };
        notify_with(&hub, delayed, Tick::default());
    });
    assert_eq!(looked.recv_timeout(10 * SECOND), Ok(1));
}

fn delayed(name: &str, delay: Duration) -> Notification {
    Notification {
        delay,
        payload_size: 10,
        messages: 2,
        ..notification(name)
    }
}

fn timers(hub: &Hub, name: &str) -> usize {
    let queue_entry = hub.entries.get(&queue(name)).expect("known");
    queue_entry.lock().timers.len()
}

#[test]
fn a_delayed_notification_is_counted_when_it_is_due() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    let accepted = notify_with(&hub, delayed("orders", SECOND), Tick::default());
    assert_eq!(accepted.sequence, 0);
    let due = hub.fire(Tick::default()).expect("set");
    assert!(due >= after(SECOND) && due <= after(SECOND + SECOND / 16));
    assert_eq!(drain(&subscription, due), []);
    assert_eq!(hub.fire(due), None);
    let told = drain(&subscription, due).remove(0);
    assert_eq!((told.reason, told.sequence), (WakeReason::Timed, 1));
    assert_eq!((told.notifications, told.messages), (1, 2));
    assert_eq!(
        (told.payload_size, &*told.last_event.publisher),
        (10, "tests")
    );
}

#[test]
fn delayed_notifications_of_one_time_are_one_wake_up_with_their_sums() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    for _ in 0..100 {
        notify_with(&hub, delayed("orders", HOUR), Tick::default());
    }
    assert_eq!(timers(&hub, "orders"), 1);
    hub.fire(after(2 * HOUR));
    let told = drain(&subscription, Tick::default()).remove(0);
    assert_eq!((told.sequence, told.notifications), (1, 100));
    assert_eq!((told.payload_size, told.messages), (1000, 200));
    assert_eq!(hub.stats().timed, 1);
}

#[test]
fn a_timed_wake_up_is_resumed_like_any_other() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    notify(&hub, "orders");
    let resume = resume_number(&hub, &subscription, Tick::default());
    hub.unsubscribe(&subscription, after(HOUR));
    notify_with(&hub, delayed("orders", SECOND), after(HOUR));
    hub.fire(after(2 * HOUR));
    let options = SubscribeOptions {
        resume,
        ..options(&["orders"])
    };
    let back = subscribe_with(&hub, &options, after(2 * HOUR));
    let told = entries(&drain(&back, after(2 * HOUR)));
    assert_eq!(told, [entry("orders", WakeReason::CatchUp, 0)]);
}

#[test]
fn timers_fire_in_their_order_over_all_queues() {
    let hub = hub();
    for (name, seconds) in [("c", 30), ("a", 10), ("b", 20)] {
        notify_with(&hub, delayed(name, seconds * SECOND), Tick::default());
    }
    let mut fired = Vec::new();
    let mut next = hub.fire(Tick::default());
    while let Some(due) = next {
        next = hub.fire(due);
        fired.push(due);
        assert_eq!(hub.stats().timed, fired.len() as u64);
    }
    assert_eq!(fired.len(), 3);
    assert!(fired.is_sorted());
}

#[test]
fn the_timers_task_is_woken_for_an_earlier_timer_only() {
    let (hub, (alarm, waker)) = (hub(), Alarm::new());
    for (seconds, rung) in [(20, 1), (30, 1), (10, 2), (15, 2)] {
        hub.timers().waker.register(&waker);
        notify_with(&hub, delayed("a", seconds * SECOND), Tick::default());
        notify_with(&hub, delayed("b", seconds * SECOND), Tick::default());
        assert_eq!(alarm.rung(), rung, "{seconds}");
    }
}

#[test]
fn a_queue_holds_64_timers_at_most_and_loses_none_of_their_sums() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    for step in 0..1000u32 {
        let delay = SECOND * (1 + step * step % 100_000);
        notify_with(&hub, delayed("orders", delay), Tick::default());
        assert!(timers(&hub, "orders") <= 64);
    }
    hub.fire(after(50 * HOUR));
    let told = drain(&subscription, Tick::default()).remove(0);
    assert_eq!((told.notifications, told.messages), (1000, 2000));
}

proptest::proptest! {
    #[test]
    fn a_time_on_the_grid_is_never_early_and_at_most_a_sixteenth_late(
        now in 0..=u64::MAX / 2,
        delay in proptest::prop_oneof![0..100u64, 0..=1_209_600_000_000_000u64],
        offset in proptest::prelude::any::<u64>(),
    ) {
        let (now, delay) = (Tick::from_nanos(now), Duration::from_nanos(delay));
        let due = now.after_on_moved_grid(delay, offset);
        proptest::prop_assert!(due >= now + delay);
        proptest::prop_assert!(due <= now + delay + delay / 16);
    }

    #[test]
    fn a_merged_timer_is_never_early(
        delays in proptest::collection::vec(1..=1_209_600_000u64, 1..200),
    ) {
        let delays = delays.into_iter().map(Duration::from_millis).collect::<Vec<_>>();
        let (early, _) = early_and_late(&delays, |_| Duration::ZERO);
        proptest::prop_assert!(!early);
    }

    #[test]
    fn up_to_64_timers_are_at_most_a_sixteenth_late(
        delays in proptest::collection::vec(1..=1_209_600_000u64, 1..=64),
    ) {
        let delays = delays.into_iter().map(Duration::from_millis).collect::<Vec<_>>();
        let (_, late) = early_and_late(&delays, |_| Duration::ZERO);
        proptest::prop_assert!(late <= 1.0 / 16.0, "{late}");
    }
}

#[test]
fn no_timer_is_half_its_delay_late_with_any_number_of_delays() {
    let mut rng = fastrand::Rng::with_seed(3);
    for pause in [0, 1, 10, 100, 1000, 10_000] {
        // As many short ones as long ones, from a second to 14 days.
        let delay = |rng: &mut fastrand::Rng| SECOND.mul_f64(1_209_600_f64.powf(rng.f64()));
        let delays: Vec<_> = (0..384).map(|_| delay(&mut rng)).collect();
        let (early, late) = early_and_late(&delays, |i| SECOND * (i * 7 % (pause + 1)));
        assert!(!early && late < 0.5, "{late}");
    }
}

/// Sums that distinguish each of 384 timers.
fn bit(number: usize) -> Counters {
    let mut sums = Counters::default();
    let bit = 1 << (number % 128);
    match number / 128 {
        0 => sums.notifications = bit,
        1 => sums.payload = bit,
        _ => sums.messages = bit,
    }
    sums
}

/// Sets one timer after another, with a pause after each. Returns whether one fired early, and the
/// greatest lateness as a part of the delay.
fn early_and_late(delays: &[Duration], pause: impl Fn(u32) -> Duration) -> (bool, f64) {
    let mut timers = QueueTimers::default();
    let mut asked = Vec::new();
    let (mut now, mut early, mut late, mut fired) = (Tick::default(), false, 0_f64, 0);
    for (delay, number) in delays.iter().zip(0..) {
        let sums = bit(asked.len());
        let mut timer = Timer::default();
        timer.counters = sums;
        timers.add((now, 0), *delay, timer, false);
        asked.push((now + *delay, *delay, sums));
        now += pause(number);
        let until = if asked.len() == delays.len() {
            Tick::NEVER
        } else {
            now
        };
        while let Some(timer) = timers.pop_due(until) {
            let within = |sums: &Counters| {
                timer.counters.notifications & sums.notifications != 0
                    || timer.counters.payload & sums.payload != 0
                    || timer.counters.messages & sums.messages != 0
            };
            for (due, delay, _) in asked.iter().filter(|(_, _, sums)| within(sums)) {
                early |= timer.at < *due;
                late = late.max(timer.at.since(*due).as_secs_f64() / delay.as_secs_f64());
                fired += 1;
            }
        }
    }
    assert_eq!(fired, delays.len());
    (early, late)
}

#[test]
fn timers_of_many_queues_do_not_fall_due_at_the_same_instants() {
    let hub = hub();
    for number in 0..2_000 {
        let delayed = Notification {
            delay: HOUR,
            ..notification(&format!("q{number}"))
        };
        notify_with(&hub, delayed, Tick::default());
    }
    let (mut fired, mut most, mut before) = (Vec::new(), 0, 0);
    for second in 3600..=3600 + 225 {
        let now = after(Duration::from_secs(second));
        while hub.fire(now).is_some_and(|next| next <= now) {}
        let timed = hub.stats().timed;
        most = most.max(timed - before);
        fired.push(timed - before);
        before = timed;
    }
    assert_eq!(before, 2_000, "none is later than a sixteenth");
    assert!(most <= 100, "{fired:?}");
}

#[test]
fn many_timers_that_are_due_fire_in_slices() {
    let hub = hub();
    for number in 0..2_000 {
        let delayed = Notification {
            delay: SECOND,
            ..notification(&format!("q{number}"))
        };
        notify_with(&hub, delayed, Tick::default());
    }
    let now = after(HOUR);
    let mut slices = 0;
    while hub.fire(now).is_some() {
        slices += 1;
    }
    assert_eq!(hub.stats().timed, 2_000);
    assert!(slices >= 3, "{slices}");
}

#[test]
fn timers_are_handed_over_with_what_they_count_or_refused_as_a_whole() {
    let (from, to) = (hub(), hub());
    let later = Notification {
        delay: 2 * SECOND,
        payload_size: 7,
        messages: 3,
        ..notification("a")
    };
    notify_all(&from, &[later.clone(), later], START).expect("room");
    let listener = settled(&from, &["b"]);
    let visible = Report {
        visible_in: Some(3 * SECOND),
        ..report("b", ReportState::Drained, 0, number())
    };
    say(&from, &listener, &visible, START);
    let mut pending = from.pending_timers();
    let mut handed = Vec::new();
    while let Some(timers) = pending.next_queue(after(SECOND)) {
        handed.extend(timers);
    }
    let wakes = settled(&to, &["a", "b"]);
    to.take_over_timers(&handed, START).expect("room");
    to.fire(after(SECOND - SECOND / 16));
    assert_eq!(told(&wakes), [], "not before the time");
    to.fire(after(SECOND + SECOND / 4));
    assert_eq!(told(&wakes), [entry("a", WakeReason::Timed, 2)]);
    to.fire(after(3 * SECOND));
    assert_eq!(told(&wakes), [entry("b", WakeReason::Timed, 0)]);
    let small = hub_with(HubConfig {
        max_timers: 1,
        ..HubConfig::default()
    });
    let refused = small.take_over_timers(&handed, START);
    assert_eq!(
        refused.expect_err("no room").kind(),
        crate::error::ErrorKind::Exhausted
    );
    assert_eq!(small.stats().timers, 0);
}
