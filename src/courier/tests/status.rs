//! Status, history and dead letters.

use super::*;

const FAR: &str = "reveille://far:7600/in";

#[tokio::test]
async fn the_status_counts_each_state() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["a", "b", "c", "d"]).await;
    let mut done = manager.begin();
    done.receive("orders")
        .await
        .expect("received")
        .expect("there");
    done.commit().await.expect("committed");
    send(&manager, FAR, &["1", "2", "3", "4"]).await;
    execute(
        &manager,
        "UPDATE outgoing SET status = 2, body = x'' WHERE id = 1;
         UPDATE outgoing SET status = 3, confirmed_at = 5, body = x'' WHERE id = 2;
         INSERT INTO hops (authority, last_error, last_error_at) VALUES ('far:7600', 'no route', 7)",
    )
    .await;
    let mut open = manager.begin();
    open.receive("orders")
        .await
        .expect("received")
        .expect("there");
    let far = manager.destination(FAR).expect("a destination");
    open.send(&far, "5").expect("sent");

    let status = manager.status().await.expect("read");
    let queues: Vec<_> = status
        .queues
        .iter()
        .map(|q| (&*q.name, q.arrived, q.being_received, q.received))
        .collect();
    assert_eq!(queues, [("invoices", 0, 0, 0), ("orders", 2, 1, 1)]);
    let orders = &status.queues[1];
    assert!(
        orders.oldest.expect("messages") < Duration::from_secs(60),
        "{orders:?}"
    );
    assert_eq!(status.queues[0].oldest, None);
    let [to_far] = &status.destinations[..] else {
        panic!("{status:?}")
    };
    let counts = (to_far.ready, to_far.sent, to_far.confirmed);
    assert_eq!((&to_far.destination, counts), (&far, (2, 1, 1)));
    assert!(to_far.oldest.is_some());
    assert_eq!(to_far.last_error.as_ref().expect("an error").0, "no route");
    assert_eq!((status.accepted, status.dead_letters), (0, 0));
}

#[tokio::test]
async fn the_status_of_a_message_follows_it() {
    let place = Place::new();
    let manager = place.open().await;
    let status = async |id| manager.message_status(id).await.expect("read");
    assert_eq!(status(MessageId::from_bytes([7; 16])).await, None);
    let orders = manager.destination("orders").expect("a queue");
    let mut sending = manager.begin();
    let id = sending.send(&orders, "tea").expect("sent");
    assert_eq!(status(id).await, None, "it is in the memory of its process");
    sending.commit().await.expect("committed");
    let arrived = status(id).await.expect("known");
    assert_eq!(arrived.state, MessageState::Arrived);
    assert_eq!(
        (arrived.destination, arrived.dequeue_count),
        (orders, Some(0))
    );
    let mut receiving = manager.begin();
    receiving
        .receive("orders")
        .await
        .expect("received")
        .expect("there");
    let held = status(id).await.expect("known");
    assert_eq!(
        (held.state, held.dequeue_count),
        (MessageState::BeingReceived, Some(1))
    );
    receiving.commit().await.expect("committed");
    let received = status(id).await.expect("known");
    assert_eq!(received.state, MessageState::Received);
    assert!(received.changed_at.is_some());

    let far = send(&manager, FAR, &["x"]).await[0];
    for (change, expected) in [
        ("UPDATE outgoing SET status = 1", MessageState::Ready),
        (
            "UPDATE outgoing SET status = 2, sent_at = 1",
            MessageState::Sent,
        ),
        (
            "UPDATE outgoing SET status = 3, confirmed_at = 2",
            MessageState::Confirmed,
        ),
    ] {
        execute(&manager, change).await;
        let shown = status(far).await.expect("known");
        assert_eq!(
            (shown.hop.as_deref(), shown.state),
            (Some("far:7600"), expected)
        );
    }
}

#[tokio::test]
async fn the_history_has_the_newest_messages_first() {
    let place = Place::new();
    let manager = place.open().await;
    let received = send(&manager, "orders", &["a"; 7]).await;
    assert_eq!(drain(&manager, "orders").await.len(), 7);
    let sent = send(&manager, FAR, &["x", "y"]).await;
    execute(
        &manager,
        "UPDATE outgoing SET status = 3,
           confirmed_at = (SELECT max(received_at) FROM received) + id",
    )
    .await;
    let all = manager.history(100).await.expect("read");
    assert_eq!(all.len(), 9);
    let newest = manager.history(3).await.expect("read");
    let ids: Vec<_> = newest.iter().map(|entry| entry.id).collect();
    assert_eq!(ids[..2], [sent[1], sent[0]]);
    assert!(received.contains(&ids[2]));
}

#[tokio::test]
async fn dead_letters_are_sent_again() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, FAR, &["x"]).await;
    execute(
        &manager,
        "INSERT INTO dead_letters (uid, authority, queue, reason, stored_at, died_at, checksum, body)
           SELECT uid, authority, queue, 'refused', stored_at, 9, checksum, body FROM outgoing;
         DELETE FROM outgoing;
         INSERT INTO dead_letters (uid, authority, queue, reason, stored_at, died_at, checksum, body)
           SELECT zeroblob(16), '', 'orders', 'damaged', 1, 9, checksum + 1, body FROM dead_letters;
         INSERT INTO dead_letters (uid, authority, queue, reason, stored_at, died_at, checksum, body)
           SELECT randomblob(16), '', 'gone', 'loop', 1, 9, checksum, body FROM dead_letters LIMIT 1;
         INSERT INTO dead_letters (uid, authority, queue, reason, stored_at, died_at, checksum, body)
           SELECT randomblob(16), '', 'orders', 'loop', 1, 9, checksum, body FROM dead_letters LIMIT 1",
    )
    .await;
    let letters = manager.dead_letters(10).await.expect("read");
    assert_eq!(letters.len(), 4);
    let (first, damaged, local) = (letters[3].id, letters[2].id, letters[0].id);
    let error = manager.requeue(damaged, None).await.expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(manager.requeue(local, None).await.expect("requeued"), local);
    let error = manager.requeue(local, None).await.expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(drain(&manager, "orders").await, ["x"]);
    assert_eq!(manager.requeue_all(None).await.expect("requeued"), 1);
    assert_eq!(
        number(&manager, "SELECT count(*) FROM outgoing WHERE status = 1").await,
        1
    );
    assert_eq!(
        manager.message_status(first).await.expect("read"),
        None,
        "it has a new id"
    );
    let left = manager.dead_letters(10).await.expect("read");
    assert_eq!(left.len(), 2);
    assert_eq!((&*left[0].reason, &*left[1].reason), ("loop", "damaged"));

    let (letter, body) = manager.dead_letter(damaged).await.expect("shown");
    assert_eq!((letter.id, &body[..]), (damaged, &b"x"[..]));
    let elsewhere = manager.destination("invoices").expect("a queue");
    let gone = left[0].id;
    let moved = manager.requeue(gone, Some(&elsewhere)).await;
    assert_eq!(moved.expect("redirected"), gone);
    assert_eq!(drain(&manager, "invoices").await, ["x"]);
    manager.remove_dead_letter(damaged).await.expect("removed");
    let error = manager.remove_dead_letter(damaged).await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = manager.dead_letter(damaged).await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// A message that is refused again while the others are sent is a new dead letter.
#[tokio::test]
async fn requeue_all_ends_although_new_dead_letters_come() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, FAR, &["x"]).await;
    execute(
        &manager,
        "INSERT INTO dead_letters (uid, authority, queue, reason, stored_at, died_at, checksum, body)
           SELECT uid, authority, queue, 'refused', stored_at, 9, checksum, body FROM outgoing;
         DELETE FROM outgoing;
         -- As a connection to a machine that refuses each message at once.
         CREATE TRIGGER refuse AFTER INSERT ON outgoing BEGIN
           INSERT INTO dead_letters (uid, authority, queue, reason, stored_at, died_at, checksum, body)
             VALUES (new.uid, new.authority, new.queue, 'refused', 1, 9, new.checksum, new.body);
           DELETE FROM outgoing WHERE id = new.id;
         END",
    )
    .await;
    assert_eq!(manager.requeue_all(None).await.expect("requeued"), 1);
    assert_eq!(manager.remove_dead_letters().await.expect("removed"), 1);
    assert_eq!(manager.dead_letters(10).await.expect("read"), []);
}

#[tokio::test]
async fn a_copy_with_a_new_identity_leaves_to_the_original_what_only_that_may_settle() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, FAR, &["waits", "sent"]).await;
    execute(
        &manager,
        "UPDATE outgoing SET status = 2, body = x'' WHERE id = 2;
         INSERT INTO hops (authority, uncertain_upto) VALUES ('far:7600', 9);
         INSERT INTO senders (file, authority, connection) VALUES (x'07', 'here:1', x'08');
         INSERT INTO inbound (sender, uid, authority, queue, arrived_at, visited, checksum, body)
           VALUES (1, zeroblob(16), '', 'orders', 1, x'', 0, x'')",
    )
    .await;
    let before = manager.file_id();
    let removed = manager.new_identity().await.expect("renewed");
    assert_eq!(removed, 2);
    drop(manager);
    let manager = place.open().await;
    assert_ne!(manager.file_id(), before);
    let waiting = "SELECT count(*) FROM outgoing WHERE status = 1";
    assert_eq!(number(&manager, waiting).await, 1);
    assert_eq!(number(&manager, "SELECT count(*) FROM senders").await, 0);
}

#[tokio::test]
async fn an_error_of_a_machine_is_shown_while_messages_wait_for_it() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, FAR, &["waits"]).await;
    let error =
        "INSERT INTO hops (authority, last_error, last_error_at) VALUES ('far:7600', 'away', 9)";
    execute(&manager, error).await;
    for (sql, is_shown) in [
        ("UPDATE outgoing SET status = 2, body = x''", true),
        ("UPDATE outgoing SET status = 3, confirmed_at = 9", false),
    ] {
        execute(&manager, sql).await;
        let status = manager.status().await.expect("read");
        assert_eq!(
            status.destinations[0].last_error.is_some(),
            is_shown,
            "{sql}"
        );
    }
}

#[tokio::test]
async fn a_forgotten_file_leaves_dead_letters_and_messages_for_the_next_one() {
    let place = Place::new();
    let manager = place.open().await;
    let unknown = manager.forget_machine("far:7600").await;
    assert_eq!(unknown.expect_err("unknown").kind(), ErrorKind::NotFound);
    let ids = send(&manager, "reveille://far:7600/in", &["a", "b", "c"]).await;
    // The far file has the first message, and may have the second one.
    execute(
        &manager,
        "UPDATE outgoing SET status = 2, body = x'' WHERE id = 1;
         INSERT INTO hops (authority, receiver, uncertain_upto) VALUES ('far:7600', x'07', 2)",
    )
    .await;
    let forgotten = manager.forget_machine("Far:7600").await.expect("known");
    assert_eq!((forgotten.given_up, forgotten.uncertain), (1, 1));
    let letters = manager.dead_letters(10).await.expect("read");
    assert_eq!((letters.len(), letters[0].id), (1, ids[0]));
    assert!(letters[0].reason.contains("given up"), "{letters:?}");
    let again = manager.requeue(ids[0], None).await.expect_err("no body");
    assert_eq!(again.kind(), ErrorKind::Invalid);
    // Nothing is uncertain any more.
    let uncertain = "SELECT count(*) FROM outgoing o JOIN hops h ON h.authority = o.hop
                     WHERE o.status = 1 AND o.id <= h.uncertain_upto";
    assert_eq!(number(&manager, uncertain).await, 0);
}
