//! Commit, rollback, time-out, crash, and the application's own tables.

use futures_util::FutureExt as _;

use super::*;

#[tokio::test]
async fn a_commit_sends_in_order_and_a_rollback_sends_nothing() {
    let place = Place::new();
    let manager = place.open().await;
    let orders = manager.destination("orders").expect("a queue");
    let mut dropped = manager.begin();
    dropped.send(&orders, "dropped").expect("sent");
    drop(dropped);
    let mut undone = manager.begin();
    undone.send(&orders, "undone").expect("sent");
    undone.roll_back().await.expect("rolled back");
    send(&manager, "orders", &["a", "b", "c"]).await;
    let mut open = manager.begin();
    open.send(&orders, "not ready").expect("sent");
    assert_eq!(drain(&manager, "orders").await, ["a", "b", "c"]);
    drop(open);
    assert_eq!(drain(&manager, "orders").await, [""; 0]);
    assert_eq!(number(&manager, "SELECT count(*) FROM received").await, 3);
}

#[tokio::test]
async fn committed_messages_count_against_the_limits() {
    let place = Place::new();
    let config = QueueManagerConfig {
        max_outgoing: 3,
        max_queue: Some(3),
        ..QueueManagerConfig::default()
    };
    let manager = place.open_with(config).await;
    for (to, words) in [
        ("reveille://far:7600/in", "3 messages wait"),
        ("orders", "has 3 messages"),
    ] {
        let to = manager.destination(to).expect("a destination");
        for body in ["a", "b", "c"] {
            let mut one = manager.begin();
            one.send(&to, body).expect("room");
            one.commit().await.expect("committed");
        }
        let mut full = manager.begin();
        full.send(&to, "d").expect("in memory");
        let error = full.commit().await.expect_err("full");
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
    assert_eq!(drain(&manager, "orders").await.len(), 3);
}

#[tokio::test]
async fn a_transaction_has_a_limit_of_bytes_and_goes_on_without_the_message_beyond_it() {
    let place = Place::new();
    let manager = place.open().await;
    let orders = manager.destination("orders").expect("a queue");
    let mut many = manager.begin();
    let body = bytes::Bytes::from(vec![b'x'; manager.config().max_body]);
    let mut count = 0;
    let error = loop {
        match many.send(&orders, body.clone()) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.message().starts_with("transaction: "), "{error}");
    assert_eq!(count, 1_020, "64 MiB with what each takes beside its body");
    many.send(&orders, "small").expect("there is room");
    many.commit().await.expect("committed");
    let all = number(&manager, "SELECT count(*) FROM messages").await;
    assert_eq!(all, 1_021);
}

/// Begins a step while the file's thread is busy, and no longer waits for it.
async fn cancelled<T>(manager: &QueueManager, step: impl Future<Output = Result<T>>) {
    let (free, busy) = std::sync::mpsc::channel::<()>();
    let database = manager.database().clone();
    let blocked = tokio::spawn(async move {
        let wait = database.run(move |_| {
            // Ends with the sender.
            let _ = busy.recv();
            Ok(())
        });
        wait.await
    });
    tokio::task::yield_now().await;
    assert!(step.now_or_never().is_none());
    drop(free);
    blocked.await.expect("no panic").expect("free again");
}

#[tokio::test]
async fn a_cancelled_receive_leaves_nothing_behind() {
    for end in ["drop", "commit", "receive and commit"] {
        let place = Place::new();
        let relay = recorder();
        let manager = place.open_notifying(&relay).await;
        send(&manager, "orders", &["b"]).await;
        relay.next().await;
        let mut receiving = manager.begin();
        cancelled(&manager, receiving.receive("orders")).await;
        if end == "receive and commit" {
            send(&manager, "orders", &["c"]).await;
            relay.next().await;
            let other = receiving.receive("orders").await.expect("received");
            assert!(other.is_some());
        }
        match end {
            "drop" => drop(receiving),
            _ => receiving.commit().await.expect("committed"),
        }
        let taken = "SELECT count(*) FROM taken";
        assert_eq!(number(&manager, taken).await, 0, "{end}: it was given back");
        assert_eq!(relay.next().await[0].0, "local/orders", "{end}");
        assert_eq!(drain(&manager, "orders").await, ["b"], "{end}");
    }
}

#[tokio::test]
async fn the_messages_of_a_transaction_that_hangs_wake_the_queue_after_its_time_out() {
    let place = Place::new();
    let relay = recorder();
    let manager = place.open_notifying(&relay).await;
    send(&manager, "orders", &["tea"]).await;
    assert_eq!(relay.next().await, [("local/orders".to_owned(), 1, 3)]);
    let mut hangs = manager.begin();
    hangs.receive("orders").await.expect("received");
    assert_eq!(manager.recover().await.expect("recovered"), 0);
    move_clock(&manager, 1).await;
    assert_eq!(manager.recover().await.expect("recovered"), 1);
    manager.notify_pending().await.expect("notified");
    assert_eq!(relay.taken(), [("local/orders".to_owned(), 1, 3)]);
    let error = hangs.commit().await.expect_err("too late");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(drain(&manager, "orders").await, ["tea"]);
}

#[tokio::test]
async fn a_damaged_row_of_a_receive_does_not_stop_the_recovery() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["tea"]).await;
    let mut open = manager.begin();
    open.receive("orders")
        .await
        .expect("received")
        .expect("there");
    std::mem::forget(open);
    execute(
        &manager,
        "UPDATE taken SET messages = '[[1,', process = randomblob(16)",
    )
    .await;
    manager.recover().await.expect("recovered");
    assert_eq!(number(&manager, "SELECT count(*) FROM taken").await, 0);
    move_clock(&manager, 1).await;
    assert_eq!(drain(&manager, "orders").await, ["tea"]);
}

#[tokio::test]
async fn messages_in_memory_end_with_the_time_out_too() {
    let place = Place::new();
    let manager = place.open().await;
    let orders = manager.destination("orders").expect("a queue");
    let timeout = Duration::from_millis(200);
    let mut late = manager.begin_with(timeout).expect("valid");
    late.send(&orders, "tea").expect("sent");
    tokio::time::sleep(timeout).await;
    let error = late.send(&orders, "milk").expect_err("over");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let error = late.commit().await.expect_err("over");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(drain(&manager, "orders").await.is_empty());
}

#[tokio::test]
async fn a_message_goes_on_with_its_receive_or_not_at_all() {
    let place = Place::new();
    let manager = place.open().await;
    let ids = send(&manager, "orders", &["tea"]).await;
    let invoices = manager.destination("invoices").expect("a queue");
    for round in 1..=2 {
        let mut transaction = manager.begin();
        let order = transaction
            .receive("orders")
            .await
            .expect("received")
            .expect("there");
        assert_eq!((order.id, order.dequeue_count), (ids[0], round));
        transaction.send(&invoices, order.body).expect("sent");
        match round {
            1 => transaction.roll_back().await.expect("rolled back"),
            _ => transaction.commit().await.expect("committed"),
        }
        let expected = if round == 1 { 0 } else { 1 };
        assert_eq!(
            manager
                .queue("invoices")
                .expect("a name")
                .depth()
                .await
                .expect("depth"),
            expected
        );
    }
    assert_eq!(drain(&manager, "invoices").await, ["tea"]);
    assert!(
        drain(&manager, "orders").await.is_empty(),
        "a committed receive does not come back"
    );
}

#[tokio::test]
async fn a_rollback_puts_a_message_back_at_its_place() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["a", "b", "c"]).await;
    let mut first = manager.begin();
    let got = first.receive_many("orders", 2).await.expect("received");
    assert_eq!(got.iter().map(text).collect::<Vec<_>>(), ["a", "b"]);
    let mut second = manager.begin();
    let other = second
        .receive("orders")
        .await
        .expect("received")
        .expect("there");
    assert_eq!(text(&other), "c", "hidden messages are skipped");
    drop(second);
    first.roll_back().await.expect("rolled back");
    assert_eq!(drain(&manager, "orders").await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_transaction_ends_with_its_time_out_and_applies_nothing_after() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["tea"]).await;
    let invoices = manager.destination("invoices").expect("a queue");
    // Time for two writes of a busy disk.
    let timeout = Duration::from_secs(1);
    let mut late = manager.begin_with(timeout).expect("valid");
    late.receive("orders")
        .await
        .expect("received")
        .expect("there");
    late.send(&invoices, "bill").expect("sent");
    tokio::time::sleep(timeout).await;
    let error = late.send(&invoices, "more").expect_err("over");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let error = late.commit().await.expect_err("over");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("of 1s"), "{error}");
    assert_eq!(drain(&manager, "orders").await, ["tea"]);
    assert!(drain(&manager, "invoices").await.is_empty());
    for wrong in [Duration::ZERO, Duration::from_secs(8 * 24 * 3600)] {
        let error = manager.begin_with(wrong).expect_err("refused");
        assert!(
            error.message().starts_with("timeout: must be 1ms to"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_commit_conflicts_if_another_consumer_has_got_the_message() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["tea", "milk"]).await;
    let mut slow = manager.begin();
    slow.receive_many("orders", 2).await.expect("received");
    let invoices = manager.destination("invoices").expect("a queue");
    slow.send(&invoices, "bill").expect("sent");
    execute(
        &manager,
        "UPDATE messages SET visible_at = 0 WHERE body = x'746561'",
    )
    .await;
    let mut fast = manager.begin();
    let tea = fast
        .receive("orders")
        .await
        .expect("received")
        .expect("visible again");
    let error = slow.commit().await.expect_err("a conflict");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(text(&tea), "tea");
    fast.commit().await.expect("committed");
    assert_eq!(
        drain(&manager, "orders").await,
        ["milk"],
        "nothing was applied"
    );
    assert!(drain(&manager, "invoices").await.is_empty());
}

/// The rollback of a process that died never comes: its thread is gone.
#[tokio::test]
async fn after_a_crash_sent_messages_are_gone_and_received_ones_come_back() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["tea"]).await;
    let far = manager
        .destination("reveille://far:7600/in")
        .expect("a destination");
    let mut lost = manager.begin_with(Duration::from_secs(600)).expect("valid");
    lost.receive("orders")
        .await
        .expect("received")
        .expect("there");
    lost.send(&far, "never").expect("sent");
    std::mem::forget(lost);
    drop(manager);

    let manager = place.open().await;
    assert_eq!(number(&manager, "SELECT count(*) FROM messages").await, 1);
    assert!(
        drain(&manager, "orders").await.is_empty(),
        "its time-out is not over"
    );
    move_clock(&manager, 1).await;
    assert_eq!(drain(&manager, "orders").await, ["tea"]);
    assert_eq!(number(&manager, "SELECT count(*) FROM outgoing").await, 0);
}

#[tokio::test]
async fn a_clock_that_jumps_forward_by_a_day_loses_nothing() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["a"]).await;
    let mut open = manager.begin();
    let got = open.receive("orders").await.expect("received");
    assert_eq!(text(&got.expect("there")), "a");
    move_clock(&manager, 24).await;
    let error = open.commit().await.expect_err("the time-out ended");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(drain(&manager, "orders").await, ["a"]);
}

#[tokio::test]
async fn messages_to_another_machine_wait_in_the_order_of_the_commits() {
    let place = Place::new();
    let config = QueueManagerConfig {
        routes: vec![Route {
            pattern: "*.far".into(),
            hop: "gate:7600".into(),
        }],
        max_outgoing: 4,
        ..QueueManagerConfig::default()
    };
    let manager = place.open_with(config).await;
    let mut signal = manager.outgoing();
    send(&manager, "reveille://a.far:7600/in", &["1", "2"]).await;
    send(&manager, "reveille://near:7600/in", &["3", "4"]).await;
    assert!(signal.has_changed().expect("open"));
    signal.mark_unchanged();
    let rows =
        "SELECT group_concat(hop || authority || body || status || length(visited), ' ') FROM
        (SELECT * FROM outgoing ORDER BY id)";
    let read = manager
        .database()
        .run(move |c| c.query_row(rows, (), |row| row.get::<_, String>(0)));
    assert_eq!(
        read.await.expect("read"),
        "gate:7600a.far:7600110 gate:7600a.far:7600210 near:7600near:7600310 near:7600near:7600410"
    );
    let mut full = manager.begin();
    let near = manager
        .destination("reveille://near:7600/in")
        .expect("a destination");
    send(&manager, "reveille://near:7600/in", &["5", "6"]).await;
    signal.mark_unchanged();
    full.send(&near, "7").expect("in memory");
    let error = full.commit().await.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(
        error
            .message()
            .starts_with("max_outgoing: 4 messages wait for `near:7600`"),
        "{error}"
    );
    // A machine that is away stops no send to others.
    let gate = manager.destination("reveille://a.far:7600/in");
    let gate = gate.expect("a destination");
    let mut other = manager.begin();
    other.send(&gate, "8").expect("in memory");
    other.commit().await.expect("room");
    signal.mark_unchanged();
    send(&manager, "orders", &["local"]).await;
    assert!(
        !signal.has_changed().expect("open"),
        "no signal for local messages"
    );
}

/// A failed transaction has no effect, and the next one has all of it.
#[tokio::test]
async fn a_file_that_is_locked_read_only_or_full_says_so_and_loses_nothing() {
    let place = Place::new();
    let manager = place.open().await;
    let pragma = async |sql: &'static str| {
        let set = manager
            .database()
            .run(move |connection| connection.execute_batch(sql));
        set.await.expect("set");
    };
    pragma("PRAGMA busy_timeout = 10").await;
    let orders = manager.destination("orders").expect("a queue");
    let attempt = async || {
        let mut transaction = manager.begin();
        transaction.send(&orders, vec![7; 60_000])?;
        transaction.commit().await
    };
    let other = rusqlite::Connection::open(place.path()).expect("open");
    for (breaks, mends, kind, words) in [
        (
            "",
            "",
            ErrorKind::Unavailable,
            "is locked by another process",
        ),
        (
            "PRAGMA query_only = ON",
            "PRAGMA query_only = OFF",
            ErrorKind::Denied,
            "is read-only",
        ),
        (
            "PRAGMA max_page_count = 1",
            "PRAGMA max_page_count = 1000000",
            ErrorKind::Exhausted,
            "full",
        ),
    ] {
        match breaks {
            "" => other.execute_batch("BEGIN IMMEDIATE").expect("locked"),
            _ => pragma(breaks).await,
        }
        let error = attempt().await.expect_err(words);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "{error}");
        match mends {
            "" => other.execute_batch("ROLLBACK").expect("unlocked"),
            _ => pragma(mends).await,
        }
        attempt().await.expect("mended");
    }
    assert_eq!(number(&manager, "SELECT count(*) FROM messages").await, 3);
}

#[tokio::test]
async fn refused_sends_name_the_field_and_leave_the_transaction_usable() {
    let place = Place::new();
    let config = QueueManagerConfig {
        max_queue: Some(2),
        max_body: 10,
        ..QueueManagerConfig::default()
    };
    let manager = place.open_with(config).await;
    let orders = manager.destination("orders").expect("a queue");
    let missing = manager.destination("nowhere").expect("a name");
    let reserved = manager.destination("courier-outgoing").expect("a name");
    let mut transaction = manager.begin();
    for (to, body, kind, words) in [
        (
            &orders,
            "01234567890",
            ErrorKind::Invalid,
            "body: must be at most 10 bytes",
        ),
        (&reserved, "", ErrorKind::Invalid, "is reserved"),
    ] {
        let error = transaction.send(to, body).expect_err(words);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
    let error = transaction.receive("nowhere").await.expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let mut lost = manager.begin();
    lost.send(&missing, "").expect("in memory");
    let error = lost.commit().await.expect_err("no queue");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let words = "create it first, for example with `reveille";
    assert!(error.message().contains(words), "{error}");
    transaction.send(&orders, "1").expect("sent");
    transaction.commit().await.expect("committed");
    send(&manager, "orders", &["2"]).await;
    let mut full = manager.begin();
    full.send(&orders, "3").expect("in memory");
    let error = full.commit().await.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(
        error
            .message()
            .starts_with("max_queue: queue `orders` has 2"),
        "{error}"
    );
}

#[tokio::test]
async fn business_data_and_messages_commit_together_or_not_at_all() {
    let place = Place::new();
    let manager = place.open().await;
    let orders = manager.destination("orders").expect("a queue");
    let far = manager
        .destination("reveille://far:7600/in")
        .expect("a destination");
    let invoices = manager.queue("invoices").expect("a name");
    let mut connection = manager.connect().expect("a connection");
    connection
        .execute_batch("CREATE TABLE sales (item TEXT NOT NULL) STRICT")
        .expect("a table");
    let mut signal = manager.outgoing();
    for commits in [false, true] {
        let transaction = connection.transaction().expect("begun");
        transaction
            .execute("INSERT INTO sales VALUES ('tea')", [])
            .expect("inserted");
        manager
            .send_in(&transaction, &orders, "order")
            .expect("sent");
        manager
            .send_in(&transaction, &far, "far order")
            .expect("sent");
        invoices
            .put_in(&transaction, &[NewMessage::new("bill")])
            .expect("put");
        if commits {
            transaction.commit().expect("committed");
        } else {
            drop(transaction);
        }
        let expected = i64::from(commits);
        for table in [
            "SELECT count(*) FROM sales",
            "SELECT count(*) FROM messages WHERE queue = 1",
            "SELECT count(*) FROM messages WHERE queue = 2",
            "SELECT count(*) FROM outgoing WHERE status = 1",
        ] {
            assert_eq!(number(&manager, table).await, expected, "{table}");
        }
    }
    signal.mark_unchanged();
    manager.committed();
    assert!(signal.has_changed().expect("open"));
    assert_eq!(number(&manager, "SELECT count(*) FROM unnotified").await, 2);
    assert_eq!(drain(&manager, "orders").await, ["order"]);
    assert_eq!(drain(&manager, "invoices").await, ["bill"]);

    let other = Place::new();
    let other = other.open().await;
    let mut connection = other.connect().expect("a connection");
    let transaction = connection.transaction().expect("begun");
    let error = manager
        .send_in(&transaction, &orders, "lost?")
        .expect_err("another file");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_damaged_message_becomes_a_dead_letter_and_is_never_delivered() {
    let place = Place::new();
    let manager = place.open().await;
    send(&manager, "orders", &["one", "two"]).await;
    let queue = manager.queue("orders").expect("a name");
    queue
        .put(vec![NewMessage::new("three")])
        .await
        .expect("put");
    execute(
        &manager,
        "UPDATE messages SET body = x'00' WHERE body IN (x'6f6e65', x'7468726565')",
    )
    .await;
    let peeked = queue.peek(3).await.expect("peeked");
    let faults: Vec<_> = peeked
        .iter()
        .map(|message| message.fault.is_some())
        .collect();
    assert_eq!(faults, [true, false, true]);
    let got = queue.get(1, Duration::from_millis(1)).await.expect("got");
    let error = got[0].payload().expect_err("damaged");
    assert!(
        !error.is_retryable() && error.message().contains("checksum"),
        "{error}"
    );
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(drain(&manager, "orders").await, ["two"]);
    let dead = "SELECT count(*) FROM dead_letters WHERE reason LIKE '%checksum%' AND body = x'00'";
    assert_eq!(number(&manager, dead).await, 2);
}

#[tokio::test]
async fn a_plain_message_gets_an_id_when_it_is_received() {
    let place = Place::new();
    let manager = place.open().await;
    let queue = manager.queue("orders").expect("a name");
    queue
        .put(vec![NewMessage::new("plain")])
        .await
        .expect("put");
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut transaction = manager.begin();
        ids.push(
            transaction
                .receive("orders")
                .await
                .expect("received")
                .expect("there")
                .id,
        );
        transaction.roll_back().await.expect("rolled back");
    }
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0].as_bytes(), &[0; 16]);
}
