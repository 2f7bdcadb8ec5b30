//! Single steps of the hand-over that the simulation reaches rarely, or cannot judge.

use rusqlite::{Connection, Transaction, backup::Backup};

use super::{
    Accept, OfferedMessage, Policy, ReceiverContent, ReceiverFrame, ReceiverSession, SenderContent,
    SenderFrame, SenderRights, SenderSession, Welcome, bury_absent,
    outgoing::{self, NewOutgoing, PURGED, bury_damaged, detours, reroute},
};
use crate::queue::sqlite::{checksum::checksum, schema::SCHEMA};

const HOP: &str = "there:7600";

/// A queue file in memory.
fn file(id: u8) -> Connection {
    let file = Connection::open_in_memory().expect("a file in memory");
    file.execute_batch(SCHEMA.tables).expect("the schema");
    file.execute("UPDATE identity SET id = ?1", [[id; 16]])
        .expect("an identity");
    file
}

fn create_queue(file: &Connection, name: &str) {
    file.execute("INSERT INTO queues (name) VALUES (?1)", [name])
        .expect("created");
}

fn commit_message(file: &mut Connection, uid: u8, queue: &str) {
    let body = [uid];
    let uid = [uid; 16];
    let message = NewOutgoing {
        checksum: checksum(&body),
        body: &body,
        ..outgoing_to(&uid, queue)
    };
    step(file, |transaction| outgoing::insert(transaction, &message));
}

/// A message without a body.
fn outgoing_to<'a>(uid: &'a [u8; 16], queue: &'a str) -> NewOutgoing<'a> {
    NewOutgoing {
        uid,
        authority: HOP,
        queue,
        hop: HOP,
        stored_at: 0,
        ends_at: None,
        checksum: 0,
        body: b"",
    }
}

fn policy(max_queue: u64) -> Policy {
    Policy {
        own: [2; 16],
        names: vec!["former:7600".to_owned()],
        max_body: 1_000,
        max_queue,
        max_outgoing: u64::MAX,
        max_hops: 16,
        max_age: None,
        routes: Vec::new(),
    }
}

fn step<T>(file: &mut Connection, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> T {
    let transaction = file.transaction().expect("a transaction");
    let value = work(&transaction).expect("the file is sound");
    transaction.commit().expect("committed");
    value
}

/// Two files with a connection between them.
struct Pair {
    from: Connection,
    to: Connection,
    sender: SenderSession,
    receiver: ReceiverSession,
    now: i64,
}

impl Pair {
    fn new(from: Connection, to: Connection, max_queue: u64) -> Self {
        let mut pair = Self {
            from,
            to,
            sender: SenderSession::new(HOP, "here", 7),
            receiver: ReceiverSession::new([9; 16], policy(max_queue)),
            now: 1_000_000,
        };
        pair.connect(max_queue);
        pair
    }

    /// Ends the connection, and opens another one.
    fn connect(&mut self, max_queue: u64) {
        self.sender = SenderSession::new(HOP, "here", 7);
        self.receiver = ReceiverSession::new([9; 16], policy(max_queue));
        let sender = &mut self.sender;
        let hello = step(&mut self.from, |transaction| sender.begin(transaction));
        let welcome = self.receives(hello);
        self.answered(welcome);
    }

    /// Ends the connection for the sender.
    fn end(&mut self) {
        let sender = &mut self.sender;
        step(&mut self.from, |transaction| sender.end(transaction));
    }

    /// Opens a connection to the file with this id, which may be refused.
    fn try_connect(&mut self, own: [u8; 16]) -> crate::Result<()> {
        let mut policy = policy(u64::MAX);
        policy.own = own;
        self.sender = SenderSession::new(HOP, "here", 7);
        self.receiver = ReceiverSession::new([9; 16], policy);
        let sender = &mut self.sender;
        let hello = step(&mut self.from, |transaction| sender.begin(transaction));
        let welcome = self.receives(hello);
        let (sender, now) = (&mut self.sender, self.now);
        let replies = step(&mut self.from, |transaction| {
            sender.on_frame(transaction, now, welcome)
        });
        for reply in replies? {
            let answer = self.receives(reply);
            self.answered(answer);
        }
        Ok(())
    }

    /// The receiver handles a frame; returns its answer.
    fn receives(&mut self, frame: SenderFrame) -> ReceiverFrame {
        let (receiver, now) = (&mut self.receiver, self.now);
        let answers = step(&mut self.to, |transaction| {
            receiver.on_frame(transaction, now, now, frame)
        });
        let mut answers = answers.expect("a sound frame");
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    /// The sender handles an answer, and the receiver what the sender replies.
    fn answered(&mut self, answer: ReceiverFrame) {
        let (sender, now) = (&mut self.sender, self.now);
        let replies = step(&mut self.from, |transaction| {
            sender.on_frame(transaction, now, answer)
        });
        for reply in replies.expect("a sound frame") {
            let answer = self.receives(reply);
            self.answered(answer);
        }
    }

    fn offer(&mut self) -> Option<SenderFrame> {
        let next = self.sender.next_offer(&self.from, self.now);
        next.expect("the file is sound").offer
    }

    /// Offers and settles until the sender has nothing to offer at this time.
    fn settle(&mut self) {
        while let Some(offer) = self.offer() {
            let answer = self.receives(offer);
            self.answered(answer);
        }
    }

    fn last_error(&self) -> Option<String> {
        let select = "SELECT last_error FROM hops";
        let read = self.from.query_row(select, [], |row| row.get(0));
        read.expect("a connection")
    }

    fn visible(&self) -> Vec<[u8; 16]> {
        let mut select = self
            .to
            .prepare("SELECT uid FROM messages ORDER BY visible_at, id")
            .expect("a statement");
        let rows = select.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<rusqlite::Result<_>>().expect("uids")
    }
}

fn messages(frame: &SenderFrame) -> &[OfferedMessage] {
    match &frame.content {
        SenderContent::Offer(messages) => messages,
        other => panic!("no offer: {other:?}"),
    }
}

fn accept(frame: &ReceiverFrame) -> &Accept {
    match &frame.content {
        ReceiverContent::Accept(accept) => accept,
        other => panic!("no Accept: {other:?}"),
    }
}

/// Otherwise a full queue with a small backlog costs both machines some writes each 50 ms.
#[test]
fn a_queue_that_stays_full_is_offered_less_and_less_often() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=3 {
        commit_message(&mut from, uid, "orders");
    }
    let mut pair = Pair::new(from, to, 1);
    let begin = pair.now;
    let mut offers = 0;
    // A quarter of an hour, in steps of 10 ms.
    while pair.now < begin + 900_000_000 {
        if let Some(offer) = pair.offer() {
            offers += 1;
            let answer = pair.receives(offer);
            pair.answered(answer);
        }
        pair.now += 10_000;
    }
    // The longest wait is 15 s, and the mean is half of it.
    assert!((60..300).contains(&offers), "{offers} offers");
    assert_eq!(pair.visible(), [[1; 16]]);
    assert!(pair.last_error().expect("it waits").contains("is full"));
    // With room for more, the rest arrives in order.
    pair.to.execute("DELETE FROM messages", []).expect("taken");
    pair.now += 15_000_000;
    pair.settle();
    pair.to.execute("DELETE FROM messages", []).expect("taken");
    pair.now += 15_000_000;
    pair.settle();
    assert_eq!(pair.visible(), [[3; 16]]);
    assert_eq!(pair.last_error(), None, "nothing waits");
}

/// The first message is refused and the second one is stored. If the answers are lost, the first one
/// is offered again, and would come after the second one.
#[test]
fn no_message_overtakes_a_refused_one_whose_answer_is_lost() {
    let (mut from, to) = (file(1), file(2));
    commit_message(&mut from, 1, "later");
    let mut pair = Pair::new(from, to, u64::MAX);
    let first = pair.offer().expect("an offer");
    commit_message(&mut pair.from, 2, "later");
    let second = pair.offer().expect("an offer");
    assert_eq!((messages(&first).len(), messages(&second).len()), (1, 1));

    let refused = pair.receives(first);
    assert_eq!(accept(&refused).refused.len(), 1);
    create_queue(&pair.to, "later");
    pair.receives(second);

    // Both answers are lost with the connection.
    pair.connect(u64::MAX);
    pair.settle();
    pair.now += 1_000_000;
    pair.settle();
    assert_eq!(pair.visible(), [[1; 16], [2; 16]]);
}

/// A refused message delays the later ones of its queue only until its sender has settled it.
#[test]
fn messages_after_a_settled_refusal_are_stored_at_once() {
    let (mut from, to) = (file(1), file(2));
    commit_message(&mut from, 1, "later");
    let mut pair = Pair::new(from, to, u64::MAX);
    pair.settle();
    create_queue(&pair.to, "later");
    commit_message(&mut pair.from, 2, "later");
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);
}

/// The sender connects again, and offers it again.
#[test]
fn a_body_that_is_damaged_on_the_way_is_not_stored() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    let mut offer = pair.offer().expect("an offer");
    let SenderContent::Offer(messages) = &mut offer.content else {
        panic!("no offer");
    };
    messages[0].body = bytes::Bytes::from_static(b"x");
    let (receiver, now) = (&mut pair.receiver, pair.now);
    let answers = step(&mut pair.to, |transaction| {
        receiver.on_frame(transaction, now, now, offer)
    });
    let error = answers.expect_err("damaged").to_string();
    assert!(error.contains("checksum"), "{error}");
    pair.connect(u64::MAX);
    pair.settle();
    assert_eq!(pair.visible(), [[1; 16]]);
}

/// A connection may last longer than the age limit.
#[test]
fn a_postponed_message_expires_while_its_connection_lasts() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    commit_message(&mut from, 2, "orders");
    from.execute("UPDATE outgoing SET ends_at = 60000000", [])
        .expect("limited");
    let mut pair = Pair::new(from, to, 1);
    while pair.now < 100_000_000 {
        pair.settle();
        pair.now += 1_000_000;
    }
    assert_eq!(pair.visible(), [[1; 16]]);
    let letters = "SELECT count(*) FROM dead_letters WHERE reason LIKE '%age limit%'";
    let count: i64 = pair
        .from
        .query_row(letters, [], |row| row.get(0))
        .expect("a count");
    assert_eq!(count, 1);
}

/// Otherwise two files would show one message: the former file holds it, and may come back.
#[test]
fn another_file_gets_nothing_while_the_former_one_may_hold_messages() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    let offer = pair.offer().expect("an offer");
    // Stored; the answer is lost.
    pair.receives(offer);
    let sender = &mut pair.sender;
    step(&mut pair.from, |transaction| sender.end(transaction));

    let other = file(3);
    create_queue(&other, "orders");
    let former = std::mem::replace(&mut pair.to, other);
    let error = pair.try_connect([3; 16]).expect_err("another file");
    assert!(error.to_string().contains("courier forget"), "{error}");
    let sender = &mut pair.sender;
    step(&mut pair.from, |transaction| sender.end(transaction));
    assert!(pair.visible().is_empty());

    pair.to = former;
    pair.try_connect([2; 16]).expect("the former file");
    assert_eq!(pair.visible(), [[1; 16]]);

    // Without unsettled messages, another file is welcome.
    let sender = &mut pair.sender;
    step(&mut pair.from, |transaction| sender.end(transaction));
    pair.to = file(4);
    create_queue(&pair.to, "orders");
    commit_message(&mut pair.from, 2, "orders");
    pair.try_connect([4; 16]).expect("nothing is unsettled");
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);
}

/// A slow line must carry an offer within the receiver's deadline for a frame.
#[test]
fn an_offer_of_large_bodies_stays_below_its_limit() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=5 {
        insert_large(&mut from, uid);
    }
    let mut pair = Pair::new(from, to, u64::MAX);
    assert_eq!(offered_bytes(&mut pair), [120 << 10, 120 << 10]);
}

/// A small offer costs as many commits as a full one.
#[test]
fn while_two_offers_are_unanswered_only_full_ones_follow() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    insert_large(&mut from, 1);
    let mut pair = Pair::new(from, to, u64::MAX);
    let first = pair.offer().expect("a part");
    insert_large(&mut pair.from, 2);
    let second = pair.offer().expect("a part, while one offer is unanswered");
    insert_large(&mut pair.from, 3);
    assert!(pair.offer().is_none(), "a part");
    insert_large(&mut pair.from, 4);
    insert_large(&mut pair.from, 5);
    assert_eq!(offered_bytes(&mut pair), [120 << 10], "and then a part");
    for offer in [first, second] {
        let answer = pair.receives(offer);
        let (sender, now) = (&mut pair.sender, pair.now);
        let handled = step(&mut pair.from, |transaction| {
            sender.on_frame(transaction, now, answer)
        });
        handled.expect("a sound frame");
    }
    assert_eq!(offered_bytes(&mut pair), [60 << 10], "none is left");
}

fn insert_large(file: &mut Connection, uid: u8) {
    let body = vec![7; 60 << 10];
    let uid = [uid; 16];
    let message = NewOutgoing {
        checksum: checksum(&body),
        body: &body,
        ..outgoing_to(&uid, "orders")
    };
    step(file, |transaction| outgoing::insert(transaction, &message));
}

/// Returns the bytes of the bodies of each offer that the sender makes now.
fn offered_bytes(pair: &mut Pair) -> Vec<usize> {
    let offers = std::iter::from_fn(|| pair.offer());
    let bytes = |offer: SenderFrame| {
        let bodies = messages(&offer).iter().map(|message| message.body.len());
        bodies.sum()
    };
    offers.map(bytes).collect()
}

#[test]
fn a_sender_that_never_confirms_is_cut_off() {
    let (from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    let message = |number: u64| OfferedMessage {
        number,
        uid: u128::from(number).to_be_bytes(),
        authority: String::new(),
        queue: "orders".to_owned(),
        visited: vec![1; 16],
        checksum: checksum(b"x"),
        body: bytes::Bytes::from_static(b"x"),
        resume: false,
    };
    let (receiver, now) = (&mut pair.receiver, pair.now);
    let mut offers = (0..100u64).map(|offer| {
        let messages = (1..=100)
            .map(|number| message(offer * 100 + number))
            .collect();
        let frame = SenderFrame {
            frame: offer + 2,
            content: SenderContent::Offer(messages),
        };
        step(&mut pair.to, |transaction| {
            receiver.on_frame(transaction, now, now, frame)
        })
    });
    let accepted = offers.by_ref().take_while(Result::is_ok).count();
    assert_eq!(accepted, 20, "offers of 100 messages");
}

#[test]
fn peers_of_another_version_are_refused_and_nothing_changes() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    pair.sender = SenderSession::new(HOP, "here", 7);
    let sender = &mut pair.sender;
    let mut hello = step(&mut pair.from, |transaction| sender.begin(transaction));
    let SenderContent::Hello(content) = &mut hello.content else {
        panic!("no Hello");
    };
    (content.version, content.least_version) = (2, 2);
    pair.receiver = ReceiverSession::new([8; 16], policy(u64::MAX));
    let (receiver, now) = (&mut pair.receiver, pair.now);
    let answers = step(&mut pair.to, |transaction| {
        receiver.on_frame(transaction, now, now, hello)
    });
    let error = answers.expect_err("another version").to_string();
    assert!(
        error.contains("programs of neighbouring versions"),
        "{error}"
    );

    let welcome = Welcome {
        version: 2,
        receiver: [2; 16],
        held: vec![[1; 16]],
    };
    let welcome = ReceiverFrame {
        frame: 1,
        content: ReceiverContent::Welcome(welcome),
    };
    let sender = &mut pair.sender;
    let replies = step(&mut pair.from, |transaction| {
        sender.on_frame(transaction, now, welcome)
    });
    let error = replies.expect_err("another version").to_string();
    assert!(
        error.contains("programs of neighbouring versions"),
        "{error}"
    );
    let ready = "SELECT count(*) FROM outgoing WHERE status = 1";
    let ready: i64 = pair
        .from
        .query_row(ready, [], |row| row.get(0))
        .expect("a count");
    assert_eq!(ready, 1);
}

/// A damaged message is left to a dead letter, and the next one resumes its postponed destination.
#[test]
fn a_damaged_message_is_not_offered_and_delays_no_other_one() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=4 {
        commit_message(&mut from, uid, "orders");
    }
    let damage = |pair: &Pair, row: i64| {
        let damaged = "UPDATE outgoing SET body = x'ff' WHERE id = ?1";
        pair.from.execute(damaged, [row]).expect("damaged");
    };
    let mut pair = Pair::new(from, to, 1);
    damage(&pair, 1);
    let next = pair.sender.next_offer(&pair.from, pair.now);
    let next = next.expect("the file can be read");
    assert_eq!(next.damaged, [1]);
    let offer = next.offer.expect("an offer");
    assert_eq!(messages(&offer).len(), 3);
    // The second message is stored. The third one is postponed, and is damaged then.
    let answer = pair.receives(offer);
    pair.answered(answer);
    damage(&pair, 3);
    pair.to.execute("DELETE FROM messages", []).expect("taken");
    pair.now += 15_000_000;
    let next = pair.sender.next_offer(&pair.from, pair.now);
    let next = next.expect("the file can be read");
    assert_eq!(next.damaged, [3]);
    let answer = pair.receives(next.offer.expect("an offer"));
    pair.answered(answer);
    assert_eq!(pair.visible(), [[4; 16]]);
    step(&mut pair.from, |transaction| {
        bury_damaged(transaction, &[1, 3], 5)
    });
    let dead = "SELECT count(*) FROM dead_letters WHERE reason LIKE '%checksum%'";
    let dead: i64 = pair
        .from
        .query_row(dead, [], |row| row.get(0))
        .expect("counted");
    assert_eq!(dead, 2);
}

fn copy_of(file: &Connection) -> Connection {
    let mut copy = Connection::open_in_memory().expect("a file in memory");
    Backup::new(file, &mut copy)
        .and_then(|backup| backup.run_to_completion(10_000, std::time::Duration::ZERO, None))
        .expect("copied");
    copy
}

fn number(file: &Connection, sql: &str) -> i64 {
    file.query_row(sql, [], |row| row.get(0)).expect(sql)
}

/// A listener deletes messages; a transaction leaves them in the history, which has its own limits.
#[test]
fn a_restored_sender_brings_no_message_twice_whichever_way_it_was_consumed() {
    for consume in [
        "DELETE FROM messages",
        "INSERT INTO received (uid, queue, size, arrived_at, received_at)
           SELECT uid, 'orders', 1, 1, 1 FROM messages;
         DELETE FROM messages; DELETE FROM received",
    ] {
        let (mut from, to) = (file(1), file(2));
        create_queue(&to, "orders");
        commit_message(&mut from, 1, "orders");
        let copy = copy_of(&from);
        let mut pair = Pair::new(from, to, u64::MAX);
        pair.settle();
        assert_eq!(pair.visible(), [[1; 16]]);
        pair.to.execute_batch(consume).expect("consumed");
        pair.from = copy;
        commit_message(&mut pair.from, 2, "orders");
        pair.connect(u64::MAX);
        pair.settle();
        assert_eq!(pair.visible(), [[2; 16]], "{consume}");
        assert_eq!(
            number(&pair.from, "SELECT count(*) FROM outgoing WHERE status = 3"),
            2
        );
    }
}

#[test]
fn offers_shrink_while_they_are_not_answered_and_grow_with_the_answers() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=40 {
        let (uid, body) = ([uid; 16], vec![7; 10 << 10]);
        let message = NewOutgoing {
            checksum: checksum(&body),
            body: &body,
            ..outgoing_to(&uid, "orders")
        };
        step(&mut from, |transaction| {
            outgoing::insert(transaction, &message)
        });
    }
    let mut pair = Pair::new(from, to, u64::MAX);
    let first_of = |pair: &mut Pair| messages(&pair.offer().expect("an offer")).len();
    let mut lengths = vec![first_of(&mut pair)];
    for _ in 0..5 {
        let bytes = pair.sender.next_offer_bytes();
        pair.end();
        pair.connect(u64::MAX);
        pair.sender = std::mem::replace(&mut pair.sender, SenderSession::new(HOP, "", 7))
            .with_offer_bytes(bytes);
        lengths.push(first_of(&mut pair));
    }
    assert_eq!(lengths, [12, 6, 3, 1, 1, 1], "down to one message");
    assert_eq!(pair.offer().map(|offer| messages(&offer).len()), Some(1));
    assert!(pair.offer().is_none(), "two offers wait on a slow line");

    let bytes = pair.sender.next_offer_bytes();
    pair.end();
    pair.connect(u64::MAX);
    pair.sender =
        std::mem::replace(&mut pair.sender, SenderSession::new(HOP, "", 7)).with_offer_bytes(bytes);
    let mut lengths = Vec::new();
    while let Some(offer) = pair.offer() {
        lengths.push(messages(&offer).len());
        let answer = pair.receives(offer);
        pair.answered(answer);
    }
    assert_eq!(lengths.iter().sum::<usize>(), 40);
    assert_eq!(lengths.iter().max(), Some(&12), "{lengths:?}");
}

/// A message that was offered may be there. The others go at once, although a connection is open.
#[test]
fn messages_that_are_purged_while_a_connection_is_open_are_not_offered_and_go() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=3 {
        commit_message(&mut from, uid, "orders");
    }
    let mut pair = Pair::new(from, to, 1);
    let offer = pair.offer().expect("an offer");
    let answer = pair.receives(offer);
    pair.answered(answer);
    assert_eq!(pair.visible(), [[1; 16]]);
    let purge = "UPDATE outgoing SET ends_at = ?1 WHERE status = 1";
    assert_eq!(pair.from.execute(purge, [PURGED]).expect("purged"), 2);
    pair.now += 60_000_000;
    let next = pair.sender.next_offer(&pair.from, pair.now).expect("read");
    assert!(next.offer.is_none() && next.has_purged);
    let (sender, now) = (&pair.sender, pair.now);
    let has_more = step(&mut pair.from, |transaction| {
        sender.expire(transaction, now)
    });
    assert!(!has_more);
    let left = "SELECT count(*) FROM outgoing WHERE status = 1";
    assert_eq!(number(&pair.from, left), 0);
    assert_eq!(number(&pair.from, "SELECT count(*) FROM dead_letters"), 0);
}

/// Otherwise each pass writes for nothing.
#[test]
fn purged_messages_on_the_way_wait_for_their_answer() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    let offer = pair.offer().expect("an offer");
    pair.from
        .execute("UPDATE outgoing SET ends_at = ?1", [PURGED])
        .expect("purged");
    let next = pair.sender.next_offer(&pair.from, pair.now).expect("read");
    assert!(next.offer.is_none() && !next.has_purged);
    let answer = pair.receives(offer);
    pair.answered(answer);
    assert_eq!(pair.visible(), [[1; 16]], "it was there already");
}

#[test]
fn an_attempt_that_is_not_answered_leaves_no_message_uncertain() {
    let mut from = file(1);
    commit_message(&mut from, 1, "orders");
    let mut sender = SenderSession::new(HOP, "here", 7);
    step(&mut from, |transaction| sender.begin(transaction));
    // The process is killed here.
    let uncertain = "SELECT count(*) FROM hops WHERE uncertain_upto > 0";
    assert_eq!(number(&from, uncertain), 0);
}

#[test]
fn messages_of_a_sender_that_is_gone_do_not_fill_a_queue_and_become_dead_letters() {
    const DAY: i64 = 86_400_000_000;
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let mut pair = Pair::new(from, to, 1);
    let offer = pair.offer().expect("an offer");
    pair.receives(offer);
    // The sender's disk has failed. Another machine has a message for the queue.
    let mut other = file(3);
    commit_message(&mut other, 2, "orders");
    pair.from = other;
    pair.now += DAY;
    pair.connect(1);
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);

    let now = pair.now + 14 * DAY;
    let buried = step(&mut pair.to, |transaction| {
        bury_absent(transaction, 14 * DAY, (now, now), 10)
    });
    assert_eq!(buried, 1);
    let letter = "SELECT count(*) FROM dead_letters WHERE reason LIKE '%is away%'";
    assert_eq!(number(&pair.to, letter), 1);
    let again = step(&mut pair.to, |transaction| {
        bury_absent(transaction, 30 * DAY, (now * 9, now * 9), 10)
    });
    assert_eq!(again, 0);
    assert_eq!(
        number(&pair.to, "SELECT count(*) FROM senders"),
        1,
        "the other one's is gone"
    );
}

/// Otherwise both machines have the dead letter, or the message is handled twice.
#[test]
fn a_sender_that_comes_back_learns_that_its_message_was_given_up() {
    const DAY: i64 = 86_400_000_000;
    for consumed in ["", "DELETE FROM dead_letters; DELETE FROM arrived"] {
        let (mut from, to) = (file(1), file(2));
        create_queue(&to, "orders");
        for uid in 1..=150 {
            commit_message(&mut from, uid, "orders");
        }
        let mut pair = Pair::new(from, to, u64::MAX);
        while let Some(offer) = pair.offer() {
            // The sender loses power.
            pair.receives(offer);
        }
        let age = "UPDATE outgoing SET ends_at = 2000000";
        pair.from.execute(age, []).expect("limited");
        pair.now += 15 * DAY;
        let now = pair.now;
        while step(&mut pair.to, |transaction| {
            bury_absent(transaction, 14 * DAY, (now, now), 100)
        }) > 0
        {}
        assert_eq!(number(&pair.to, "SELECT count(*) FROM dead_letters"), 150);
        pair.to.execute_batch(consumed).expect("consumed");
        pair.connect(u64::MAX);
        pair.settle();
        assert_eq!(pair.visible(), [[0; 16]; 0]);
        let visible = "SELECT count(*) FROM outgoing WHERE status = 3";
        assert_eq!(number(&pair.from, visible), 150);
        assert_eq!(number(&pair.from, "SELECT count(*) FROM dead_letters"), 0);
        assert_eq!(number(&pair.to, "SELECT count(*) FROM inbound"), 0);
    }
}

/// Another connection of a restored copy has brought it.
#[test]
fn a_message_that_is_here_already_is_no_dead_letter_when_its_sender_is_gone() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    let offer = pair.offer().expect("an offer");
    pair.receives(offer);
    let known = "INSERT INTO arrived (uid, at) SELECT uid, 1 FROM inbound";
    pair.to.execute(known, []).expect("known");
    let now = pair.now;
    let given_up = step(&mut pair.to, |transaction| {
        bury_absent(transaction, 0, (now, now), 10)
    });
    assert_eq!(given_up, 1);
    assert_eq!(number(&pair.to, "SELECT count(*) FROM dead_letters"), 0);
}

#[test]
fn a_damaged_name_of_a_message_delays_no_other_message() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=3 {
        commit_message(&mut from, uid, "orders");
    }
    let damage = "UPDATE outgoing SET queue = CAST(x'ff' AS TEXT) WHERE id = 1;
                  UPDATE outgoing SET authority = 'there' WHERE id = 2";
    from.execute_batch(damage).expect("damaged");
    let mut pair = Pair::new(from, to, u64::MAX);
    let next = pair.sender.next_offer(&pair.from, pair.now).expect("read");
    assert_eq!(next.damaged, [1, 2]);
    let answer = pair.receives(next.offer.expect("an offer"));
    pair.answered(answer);
    assert_eq!(pair.visible(), [[3; 16]]);
    step(&mut pair.from, |transaction| {
        bury_damaged(transaction, &[1, 2], 5)
    });
    assert_eq!(number(&pair.from, "SELECT count(*) FROM dead_letters"), 2);
}

/// The routes have changed, or another program has sent the messages with other routes.
#[test]
fn waiting_messages_get_the_next_machine_of_the_present_routes() {
    let mut from = file(1);
    for uid in 1..=3 {
        commit_message(&mut from, uid, "orders");
    }
    // The former machine may have the first one. The name of the last one is damaged.
    let uncertain = "INSERT INTO hops (authority, uncertain_upto) VALUES ('there:7600', 1);
                     UPDATE outgoing SET hop = CAST(x'ff' AS TEXT) WHERE id = 3";
    from.execute_batch(uncertain).expect("noted");
    let found = detours(&from, |_| "gate:1".to_owned()).expect("read");
    assert_eq!(found.len(), 2, "{found:?}");
    step(&mut from, |transaction| {
        found
            .iter()
            .try_for_each(|detour| reroute(transaction, detour))
    });
    let gate = "SELECT count(*) FROM outgoing WHERE hop = 'gate:1' AND id > 3";
    assert_eq!(number(&from, gate), 2);
    assert_eq!(
        number(
            &from,
            "SELECT min(id) FROM outgoing WHERE hop = 'there:7600'"
        ),
        1
    );
    let again = detours(&from, |_| "gate:1".to_owned()).expect("read");
    assert!(again.is_empty(), "{again:?}");
}

/// Each send of a program without the host's routes is sent another way.
#[test]
fn the_numbers_of_messages_that_are_sent_another_way_grow_by_one() {
    let mut from = file(1);
    let mut last = 0;
    for uid in 1..=100 {
        commit_message(&mut from, uid, "orders");
        for detour in detours(&from, |_| "gate:1".to_owned()).expect("read") {
            step(&mut from, |transaction| reroute(transaction, &detour));
        }
        let id = number(&from, "SELECT id FROM outgoing WHERE status = 1");
        assert!(id > last && id <= 2 * i64::from(uid), "{id} after {last}");
        last = id;
        let delivered = "UPDATE outgoing SET status = 3 WHERE status = 1";
        assert_eq!(from.execute(delivered, []).expect("delivered"), 1);
    }
}

/// A connection to the new machine has passed the former numbers.
#[test]
fn messages_that_are_sent_another_way_keep_their_order_before_later_ones() {
    let mut from = file(1);
    for uid in 1..=5 {
        commit_message(&mut from, uid, "orders");
    }
    for detour in detours(&from, |_| "gate:1".to_owned()).expect("read") {
        step(&mut from, |transaction| reroute(transaction, &detour));
    }
    // The first ones are refused, and the file has a higher number than its rows.
    from.execute("DELETE FROM outgoing WHERE id > 8", [])
        .expect("refused");
    commit_message(&mut from, 6, "orders");
    let mut select = from
        .prepare("SELECT id, uid FROM outgoing ORDER BY id")
        .expect("a statement");
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get::<_, [u8; 16]>(1)?[0])));
    let rows: rusqlite::Result<Vec<(i64, u8)>> = rows.expect("rows").collect();
    assert_eq!(rows.expect("read"), [(6, 1), (7, 2), (8, 3), (11, 6)]);
}

/// The sender knows two destinations: each resumes on its own.
#[test]
fn two_names_of_a_machine_are_two_orders() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for (uid, authority) in [(1, HOP), (2, "former:7600"), (3, HOP), (4, "former:7600")] {
        let uid = [uid; 16];
        let message = NewOutgoing {
            authority,
            ..outgoing_to(&uid, "orders")
        };
        step(&mut from, |transaction| {
            outgoing::insert(transaction, &message)
        });
    }
    let mut pair = Pair::new(from, to, 1);
    let mut visible = Vec::new();
    for _ in 0..200 {
        pair.settle();
        visible.extend(pair.visible());
        pair.to.execute("DELETE FROM messages", []).expect("taken");
        pair.now += 100_000;
    }
    assert_eq!(visible.len(), 4, "{visible:?}");
    for pair in [[1, 3], [2, 4]] {
        let order: Vec<u8> = visible.iter().map(|uid| uid[0]).collect();
        let place = |id| order.iter().position(|one| *one == id);
        assert!(place(pair[0]) < place(pair[1]), "{order:?}");
    }
    assert_eq!(number(&pair.from, "SELECT count(*) FROM dead_letters"), 0);
}

#[test]
fn a_message_for_a_former_name_of_the_machine_is_for_the_machine() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    let message = NewOutgoing {
        authority: "former:7600",
        ..outgoing_to(&[1; 16], "orders")
    };
    step(&mut from, |transaction| {
        outgoing::insert(transaction, &message)
    });
    let mut pair = Pair::new(from, to, u64::MAX);
    pair.settle();
    assert_eq!(pair.visible(), [[1; 16]]);
}

#[test]
fn a_queue_file_belongs_to_the_principal_that_showed_it_first() {
    let mut to = file(2);
    let mut hello = |principal: Option<&str>| {
        let mut from = file(1);
        let mut sender = SenderSession::new(HOP, "here", 7);
        let hello = step(&mut from, |transaction| sender.begin(transaction));
        let rights = SenderRights {
            principal: principal.map(str::to_owned),
            ..SenderRights::default()
        };
        let mut receiver = ReceiverSession::new([9; 16], policy(u64::MAX));
        receiver.set_rights(rights);
        step(&mut to, |transaction| {
            receiver.on_frame(transaction, 1, 1, hello)
        })
    };
    hello(None).expect("before access control");
    hello(Some("rome")).expect("the first one");
    hello(Some("rome")).expect("again");
    let error = hello(Some("milan")).expect_err("another one");
    assert_eq!(error.kind(), crate::error::ErrorKind::Denied);
    assert!(
        error.message().contains("forget DIR --sender 0101"),
        "{error}"
    );
}

#[test]
fn a_principal_hands_over_messages_for_its_queues_only() {
    let (mut from, to) = (file(1), file(2));
    for queue in ["orders", "audit"] {
        create_queue(&to, queue);
    }
    commit_message(&mut from, 1, "audit");
    commit_message(&mut from, 2, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    pair.receiver.set_rights(SenderRights {
        principal: Some("rome".to_owned()),
        may_send: Some(std::sync::Arc::new(|queue| queue == Some("orders"))),
    });
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);
    assert_eq!(
        pair.last_error().as_deref(),
        Some("`rome` may not hand over messages to queue `audit`")
    );
    // The rules are corrected.
    pair.receiver.set_rights(SenderRights::default());
    pair.now += 15_000_000;
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16], [1; 16]]);
    assert_eq!(pair.last_error(), None);
}

/// A machine is updated while its neighbours are of the version before.
#[test]
fn neighbouring_versions_agree_on_the_older_one() {
    use super::agreed_version;
    assert_eq!(agreed_version(1, 2).expect("the older one"), 1);
    assert_eq!(agreed_version(0, 1).expect("this one"), 1);
    agreed_version(2, 3).expect_err("two versions newer");
    agreed_version(0, 0).expect_err("older than the first");
}
