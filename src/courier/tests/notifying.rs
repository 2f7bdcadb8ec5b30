//! Each committed message is notified, also after a crash.

use std::sync::atomic::Ordering;

use super::*;

const PENDING: &str = "SELECT coalesce(sum(messages), 0) FROM unnotified";

#[tokio::test]
async fn a_commit_notifies_with_messages_and_bytes() {
    let place = Place::new();
    let relay = recorder();
    let manager = place.open_notifying(&relay).await;
    send(&manager, "orders", &["tea", "milk"]).await;
    assert_eq!(relay.next().await, [("local/orders".to_owned(), 2, 7)]);
    send(&manager, "reveille://far:7600/in", &["x"]).await;
    assert_eq!(
        relay.next().await,
        [("local/courier-outgoing".to_owned(), 0, 0)]
    );
    let queue = manager.queue("invoices").expect("a name");
    queue.put(vec![NewMessage::new("bill")]).await.expect("put");
    assert_eq!(relay.next().await, [("local/invoices".to_owned(), 1, 4)]);
    let mut transaction = manager.begin();
    transaction
        .receive("orders")
        .await
        .expect("received")
        .expect("there");
    transaction.roll_back().await.expect("rolled back");
    assert_eq!(
        relay.next().await,
        [("local/orders".to_owned(), 1, 3)],
        "visible again"
    );
    manager.notify_pending().await.expect("notified");
    assert_eq!(number(&manager, PENDING).await, 0);
}

#[tokio::test]
async fn a_process_that_dies_after_its_commit_is_made_good_by_the_host() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["tea"]).await;
    assert_eq!(manager.notify_pending().await.expect("no notifier"), 0);
    drop(manager);

    let relay = recorder();
    relay.fails.store(true, Ordering::Relaxed);
    let manager = place.open_notifying(&relay).await;
    let error = manager
        .notify_pending()
        .await
        .expect_err("the relay is away");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(number(&manager, PENDING).await, 1);
    relay.fails.store(false, Ordering::Relaxed);
    assert_eq!(manager.notify_pending().await.expect("notified"), 1);
    assert_eq!(relay.taken(), [("local/orders".to_owned(), 1, 3)]);
    assert_eq!(manager.notify_pending().await.expect("nothing"), 0);
}

/// Commits another message while the first one is notified.
#[derive(Debug)]
struct Interrupting(Mutex<Option<QueueManager>>, Recorder);

#[async_trait]
impl Notifier for Interrupting {
    async fn notify_each(&self, notifications: Vec<Notification>) -> Result<Vec<Result<Accepted>>> {
        let manager = self.0.lock().expect("no panic").take();
        if let Some(manager) = manager {
            send(&manager, "orders", &["milk"]).await;
        }
        self.1.notify_each(notifications).await
    }
}

#[tokio::test]
async fn a_commit_during_the_notification_is_notified_too() {
    let place = Place::new();
    let other = place.open().await;
    send(&other, "orders", &["tea"]).await;
    let relay = Arc::new(Interrupting(Mutex::new(Some(other)), Recorder::default()));
    let manager = place.open_notifying(&relay).await;
    assert_eq!(manager.notify_pending().await.expect("notified"), 1);
    assert_eq!(
        number(&manager, PENDING).await,
        1,
        "the second message only"
    );
    assert_eq!(manager.notify_pending().await.expect("notified"), 1);
    let orders = || "local/orders".to_owned();
    assert_eq!(relay.1.taken(), [(orders(), 1, 3), (orders(), 1, 4)]);
}

#[tokio::test]
async fn a_delayed_put_is_notified_with_its_delay() {
    let place = Place::new();
    let manager = place.open().await;
    let queue = manager.queue("orders").expect("a name");
    let put = |seconds| {
        let message = NewMessage::new("later").after(Duration::from_secs(seconds));
        queue.put(vec![message])
    };
    put(100).await.expect("put");
    // Not only the first one: a queue may be empty in between.
    put(300).await.expect("put");
    put(0).await.expect("put");
    #[derive(Debug, Default)]
    struct Delays(Mutex<Vec<Duration>>);
    #[async_trait]
    impl Notifier for Delays {
        async fn notify_each(
            &self,
            notifications: Vec<Notification>,
        ) -> Result<Vec<Result<Accepted>>> {
            let delays = notifications.iter().map(|one| one.delay);
            self.0.lock().expect("no panic").extend(delays);
            Ok(vec![Ok(Accepted::default()); notifications.len()])
        }
    }
    let relay = Arc::new(Delays::default());
    let manager = manager.with_notifier(Arc::clone(&relay) as Arc<dyn Notifier>);
    assert_eq!(manager.notify_pending().await.expect("notified"), 3);
    let delays = relay.0.lock().expect("no panic").clone();
    let seconds: Vec<u64> = delays.iter().map(Duration::as_secs).collect();
    assert_eq!(delays[0], Duration::ZERO);
    assert!((90..=100).contains(&seconds[1]), "{delays:?}");
    assert!((290..=300).contains(&seconds[2]), "{delays:?}");
    let untold = "SELECT count(*) FROM unnotified WHERE told = 0";
    assert_eq!(number(&manager, untold).await, 0);
}

/// Another transaction may have sent, and commit later.
#[tokio::test]
async fn a_commit_signals_the_host_although_an_earlier_one_did() {
    let place = Place::new();
    let manager = place.open().await;
    let far = manager
        .destination("reveille://far:7600/in")
        .expect("valid");
    let signals = manager.outgoing();
    let mut connection = manager.connect().expect("connected");
    let first = connection.transaction().expect("begun");
    manager.send_in(&first, &far, "a").expect("sent");
    // Of another connection, whose commit came before.
    manager.committed();
    first.commit().expect("committed");
    let before = *signals.borrow();
    manager.committed();
    assert_ne!(*signals.borrow(), before);
}

async fn create_and_send(manager: &QueueManager, queue: &str) {
    let created = manager.queue(queue).expect("a name");
    created.create().await.expect("created");
    send(manager, queue, &["x"]).await;
}

async fn refusing(place: &Place, queue: &str) -> (QueueManager, Arc<Recorder>) {
    let relay = recorder();
    *relay.refuses.lock().expect("no panic") = Some(format!("local/{queue}"));
    let manager = place.open().await;
    let notifier = Arc::clone(&relay) as Arc<dyn Notifier>;
    (manager.with_notifier(notifier), relay)
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_the_relay_refuses_delays_and_repeats_no_other() {
    let place = Place::new();
    let filled = place.open().await;
    for queue in ["a", "b", "c"] {
        create_and_send(&filled, queue).await;
    }
    drop(filled);
    let (manager, relay) = refusing(&place, "b").await;
    let error = manager.notify_pending().await.expect_err("one is refused");
    assert_eq!(error.kind(), ErrorKind::Denied);
    let told = |queue: &str| (format!("local/{queue}"), 1, 1);
    assert_eq!(relay.taken(), [told("a"), told("c")]);
    for _ in 0..3 {
        assert_eq!(manager.notify_pending().await.expect("nothing"), 0);
        tokio::time::advance(Duration::from_secs(10)).await;
        manager.notify_pending().await.expect_err("refused again");
    }
    assert_eq!(relay.taken(), []);
    *relay.refuses.lock().expect("no panic") = None;
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(manager.notify_pending().await.expect("notified"), 1);
    assert_eq!(relay.taken(), [told("b")]);
    assert_eq!(number(&manager, PENDING).await, 0);
}

#[tokio::test]
async fn a_bad_name_hides_no_queue() {
    let place = Place::new();
    let filled = place.open().await;
    for queue in ["a", "b", "c"] {
        create_and_send(&filled, queue).await;
    }
    execute(&filled, "UPDATE queues SET name = 'b b' WHERE name = 'b'").await;
    drop(filled);
    let relay = recorder();
    let notifier = Arc::clone(&relay) as Arc<dyn Notifier>;
    let manager = place.open().await.with_notifier(notifier);
    let error = manager.notify_pending().await.expect_err("a bad name");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let told = |queue: &str| (format!("local/{queue}"), 1, 1);
    assert_eq!(relay.taken(), [told("a"), told("c")]);
}

#[tokio::test]
async fn many_rows_of_a_refused_queue_hide_no_other() {
    let place = Place::new();
    let filled = place.open().await;
    create_and_send(&filled, "a").await;
    create_and_send(&filled, "z").await;
    // More than a request holds.
    let delayed = "WITH RECURSIVE number (n) AS
           (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 600)
         INSERT INTO unnotified (queue, due, messages, bytes, revision)
         SELECT (SELECT id FROM queues WHERE name = 'a'), 4000000000000000 + n, 1, 1, n FROM number";
    execute(&filled, delayed).await;
    drop(filled);
    let (manager, relay) = refusing(&place, "a").await;
    manager.notify_pending().await.expect_err("one is refused");
    assert_eq!(relay.taken(), [("local/z".to_owned(), 1, 1)]);
}

#[tokio::test]
async fn a_delayed_message_is_notified_when_it_is_due_although_the_relay_restarted() {
    let place = Place::new();
    let relay = recorder();
    let notifier = || Arc::clone(&relay) as Arc<dyn Notifier>;
    let manager = place.open().await.with_notifier(notifier());
    let queue = manager.queue("orders").expect("a name");
    queue.create().await.expect("created");
    let later = NewMessage::new("tea").after(Duration::from_secs(600));
    queue.put(vec![later]).await.expect("put");
    assert_eq!(relay.next().await, [("local/orders".to_owned(), 1, 3)]);
    until_no_more_is_told(&manager).await;
    assert_eq!(manager.notify_pending().await.expect("nothing"), 0);
    drop((queue, manager));
    // Relay and host start again: the timer is gone.
    let manager = place.open().await.with_notifier(notifier());
    assert_eq!(manager.notify_pending().await.expect("nothing"), 0);
    move_clock(&manager, 1).await;
    assert_eq!(manager.notify_pending().await.expect("due"), 1);
    assert_eq!(relay.taken(), [("local/orders".to_owned(), 1, 3)]);
    assert_eq!(number(&manager, PENDING).await, 0);
}

/// Waits until the task that notifies has noted what it told the relay.
async fn until_no_more_is_told(manager: &QueueManager) {
    let untold = "SELECT count(*) FROM unnotified WHERE told = 0";
    for _ in 0..2_000 {
        if number(manager, untold).await == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the task does not end");
}
