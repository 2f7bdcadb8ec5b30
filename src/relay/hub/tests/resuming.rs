//! CATCH_UPs (R2: uncertainty becomes a CATCH_UP).

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
