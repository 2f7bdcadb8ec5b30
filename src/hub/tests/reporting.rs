//! Reports, and who is taken to be busy (R8, R9, R10).

use super::*;
use crate::error::ErrorKind;

/// Ends a subscription and returns when its queues are woken again.
fn ended(hub: &Hub, subscription: &Arc<Subscription>, now: Tick) -> Option<Tick> {
    hub.unsubscribe(subscription, now);
    hub.fire(now)
}

#[test]
fn a_report_that_comes_after_its_streams_end_is_refused_and_not_swallowed() {
    let hub = hub();
    let subscription = settled(&hub, &["orders"]);
    let busy = report("orders", ReportState::Busy, 0, 1);
    // Between the report's look-up of the subscription and its lock, the stream ended.
    subscription.close(Tick::default());
    let late = hub.report(subscription.id, &busy, Tick::default());
    assert_eq!(late.expect_err("ended").kind(), ErrorKind::NotFound);
    hub.unsubscribe(&subscription, Tick::default());
    let late = hub.report(subscription.id, &busy, Tick::default());
    assert_eq!(late.expect_err("ended").kind(), ErrorKind::NotFound);
}
