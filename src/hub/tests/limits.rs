//! What is refused, and that nothing of it is applied.

use super::*;
use crate::error::ErrorKind;

fn small_hub(max_queues: usize) -> Arc<Hub> {
    hub_with(HubConfig {
        max_queues,
        ..HubConfig::default()
    })
}

#[test]
fn a_batch_with_one_bad_event_makes_no_queue() {
    let hub = hub();
    let bad = Notification {
        delay: Duration::from_secs(15 * 24 * 3600),
        ..notification("bad")
    };
    let refused = hub.notify(
        &Arc::from("tests"),
        &[notification("good"), bad],
        Tick::default(),
    );
    assert_eq!(refused.expect_err("too long").kind(), ErrorKind::Invalid);
    assert_eq!(hub.stats().queues, 0);
}

#[test]
fn a_publishers_name_that_would_not_fit_into_a_wake_is_refused() {
    let hub = hub();
    let long: Arc<str> = "x".repeat(40_000).into();
    let refused = hub.notify(&long, &[notification("orders")], Tick::default());
    assert_eq!(refused.expect_err("too long").kind(), ErrorKind::Invalid);
}

#[test]
fn a_subscription_that_would_make_one_queue_too_many_is_refused() {
    let hub = small_hub(2);
    let mut rng = fastrand::Rng::with_seed(1);
    let options = options(&["a", "b", "c"]);
    let refused = hub.subscribe(SubscriptionId(1), &options, Tick::default(), &mut rng);
    assert_eq!(refused.expect_err("full").kind(), ErrorKind::Exhausted);
    assert_eq!((hub.stats().queues, hub.stats().subscriptions), (0, 0));
}

#[test]
fn positions_make_no_more_queues_than_there_is_room_for() {
    let hub = small_hub(2);
    let token = Token::default();
    let positions = [("a", &token), ("b", &token), ("c", &token)];
    let subscription = subscribe_with(&hub, &resuming(&["*"], &positions), Tick::default());
    assert_eq!(hub.stats().queues, 2);
    let told = entries(&drain(&subscription, Tick::default()));
    let expected = ["*", "a", "b"].map(|name| entry(name, WakeReason::CatchUp, 0));
    assert_eq!(told, expected, "the pattern's own covers the rest");
}

#[test]
fn a_batch_with_one_queue_too_many_counts_nothing() {
    let hub = small_hub(2);
    let subscription = settled(&hub, &["a"]);
    let batch = ["a", "b", "c"].map(notification);
    let refused = hub.notify(&Arc::from("tests"), &batch, Tick::default());
    let error = refused.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.message().contains("limit of 2 queues"), "{error}");
    assert_eq!(drain(&subscription, Tick::default()), []);
    assert_eq!(hub.stats().notified, 0);
    assert_eq!(notify(&hub, "b").sequence, 1, "the known ones go on");
}

#[test]
fn no_selector_and_too_many_of_them_are_refused() {
    let hub = hub();
    let mut rng = fastrand::Rng::with_seed(1);
    let many = vec!["a"; crate::words::Limits::SELECTORS + 1];
    for (selectors, kind) in [(vec![], ErrorKind::Invalid), (many, ErrorKind::Exhausted)] {
        let options = options(&selectors);
        let refused = hub.subscribe(SubscriptionId(1), &options, Tick::default(), &mut rng);
        assert_eq!(refused.expect_err("refused").kind(), kind);
    }
    assert_eq!(hub.stats(), super::super::HubStats::default());
}
