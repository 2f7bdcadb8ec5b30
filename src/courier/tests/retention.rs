//! Small steps: history by age and by count, the age limit, free pages.

use super::*;

/// Maintains until nothing is left to do; returns the number of calls.
async fn maintain(manager: &QueueManager) -> usize {
    for calls in 1..1_000 {
        if !manager.maintain().await.expect("maintained") {
            return calls;
        }
    }
    panic!("maintenance does not end");
}

const FILL: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
    INSERT INTO received SELECT randomblob(16), 'orders', 1, i, (SELECT seen FROM clock) FROM n;
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500)
    INSERT INTO outgoing (uid, authority, queue, hop, status, stored_at, confirmed_at, visited,
        size, checksum, body)
      SELECT randomblob(16), 'far:1', 'in', 'far:1', 3, i, (SELECT seen FROM clock), x'', 1, 0, x''
      FROM n";

#[tokio::test]
async fn history_is_bounded_by_count_and_by_age_in_small_steps() {
    let place = Place::new();
    let config = QueueManagerConfig {
        history_rows: 400,
        ..QueueManagerConfig::default()
    };
    let manager = place.open_with(config).await;
    let (received, sent) = (
        "SELECT count(*) FROM received",
        "SELECT count(*) FROM outgoing",
    );
    // The first put sets the file's clock.
    send(&manager, "orders", &["tea"]).await;
    execute(&manager, FILL).await;
    assert!(
        manager.maintain().await.expect("maintained"),
        "more is left"
    );
    assert_eq!(number(&manager, received).await, 1_500, "1,000 rows a step");
    assert_eq!(maintain(&manager).await, 2);
    assert_eq!(
        (
            number(&manager, received).await,
            number(&manager, sent).await
        ),
        (400, 400)
    );
    move_clock(&manager, 8 * 24).await;
    maintain(&manager).await;
    assert_eq!(
        (
            number(&manager, received).await,
            number(&manager, sent).await
        ),
        (0, 0)
    );
}

#[tokio::test]
async fn a_message_over_the_age_limit_becomes_a_dead_letter_unless_the_hop_may_have_it() {
    let place = Place::new();
    let manager = place.open().await;
    let ids = send(&manager, "reveille://far:7600/in", &["1", "2"]).await;
    execute(
        &manager,
        "INSERT INTO hops (authority, uncertain_upto) VALUES ('far:7600', 1)",
    )
    .await;
    maintain(&manager).await;
    assert!(manager.dead_letters(10).await.expect("read").is_empty());
    move_clock(&manager, 15 * 24).await;
    maintain(&manager).await;
    let dead = manager.dead_letters(10).await.expect("read");
    assert_eq!(
        dead.iter().map(|letter| letter.id).collect::<Vec<_>>(),
        [ids[1]]
    );
    assert!(dead[0].reason.contains("age limit"), "{dead:?}");
    assert_eq!(number(&manager, "SELECT id FROM outgoing").await, 1);
}

#[tokio::test]
async fn free_pages_are_given_back() {
    let place = Place::new();
    let manager = place.open().await;
    assert_eq!(
        number(&manager, "PRAGMA auto_vacuum").await,
        2,
        "incremental in new files"
    );
    execute(&manager, "CREATE TABLE filling (x BLOB)").await;
    execute(&manager, "INSERT INTO filling VALUES (zeroblob(12000000))").await;
    execute(&manager, "DELETE FROM filling").await;
    assert!(number(&manager, "PRAGMA freelist_count").await > 2_000);
    maintain(&manager).await;
    let free = number(&manager, "PRAGMA freelist_count").await;
    assert!((700..=1_024).contains(&free), "{free}");
}

/// Without a relay nothing else bounds the rows of delayed messages.
#[tokio::test]
async fn pending_notifications_of_messages_that_are_visible_share_a_row() {
    let place = Place::new();
    let manager = place.open().await;
    let queue = manager.queue("orders").expect("a name");
    for seconds in [60, 120, 180, 36_000] {
        let message = NewMessage::new("later").after(Duration::from_secs(seconds));
        queue.put(vec![message]).await.expect("put");
    }
    let rows = "SELECT count(*) FROM unnotified";
    maintain(&manager).await;
    assert_eq!(number(&manager, rows).await, 4);
    move_clock(&manager, 1).await;
    maintain(&manager).await;
    assert_eq!(number(&manager, rows).await, 2);
    let due = "SELECT messages FROM unnotified WHERE due = 0";
    assert_eq!(number(&manager, due).await, 3);
}
