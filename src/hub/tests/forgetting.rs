//! Queues that nobody needs any more (R3).

use super::*;

#[test]
fn a_queue_is_forgotten_an_hour_after_its_last_listener_left_and_not_sooner() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    notify(&hub, "orders");
    let place = drain(&subscription, Tick::default()).remove(0).token;
    hub.unsubscribe(&subscription, after(5 * HOUR));
    hub.fire(after(6 * HOUR - SECOND));
    hub.forget(after(6 * HOUR - SECOND));
    let options = resuming(&["orders"], &[("orders", &place)]);
    let back = subscribe_with(&hub, &options, after(6 * HOUR));
    assert_eq!(entries(&drain(&back, after(6 * HOUR))), []);
}
