//! Single steps of the hand-over that the simulation reaches rarely, or cannot judge.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, Transaction, backup::Backup};

use super::{
    OFFER, Policy, ReceiverSession, SenderRights, SenderSession, bury_absent,
    outgoing::{self, NewSend, detours, reroute},
};
use crate::{
    Result,
    courier::QueueManagerConfig,
    queue::sqlite::{checksum::checksum, schema::SCHEMA},
    wire::proto::{
        HandOverOffer, HandOverRequest, HandOverResponse, OfferedMessage,
        hand_over_request::Kind as Request, hand_over_response::Kind as Response,
        hand_over_verdict::Kind as Verdict,
    },
};

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
    let message = NewSend {
        body: vec![uid].into(),
        ..outgoing_to(uid, queue)
    };
    insert(file, &message);
}

fn insert(file: &mut Connection, message: &NewSend) {
    step(file, |transaction| {
        outgoing::insert(transaction, message, 0, None)
    });
}

/// A message without a body.
fn outgoing_to(uid: u8, queue: &str) -> NewSend {
    NewSend {
        uid: [uid; 16],
        authority: HOP.to_owned(),
        queue: queue.to_owned(),
        body: Bytes::new(),
        hop: Some(HOP.to_owned()),
    }
}

fn policy(max_queue: u64) -> Policy {
    Policy {
        own: [2; 16],
        config: QueueManagerConfig {
            names: vec!["former:7600".to_owned()],
            max_body: 1_000,
            max_queue: Some(max_queue),
            max_outgoing: u64::MAX,
            ..QueueManagerConfig::default()
        },
    }
}

/// Runs a step that is rolled back if it fails.
fn try_step<T>(
    file: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> Result<T> {
    let transaction = file.transaction().expect("a transaction");
    match work(&transaction) {
        Ok(value) => {
            transaction.commit().expect("committed");
            Ok(value)
        }
        Err(rusqlite::Error::ToSqlConversionFailure(error)) => {
            Err(*error.downcast().expect("a refusal"))
        }
        Err(error) => panic!("the file is not sound: {error}"),
    }
}

fn step<T>(file: &mut Connection, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> T {
    try_step(file, work).expect("no refusal")
}

fn number(file: &Connection, sql: &str) -> i64 {
    file.query_row(sql, [], |row| row.get(0)).expect(sql)
}

/// Two files with a connection between them.
struct Pair {
    from: Connection,
    to: Connection,
    sender: SenderSession,
    receiver: ReceiverSession,
    rights: SenderRights,
    now: i64,
}

impl Pair {
    fn new(from: Connection, to: Connection, max_queue: u64) -> Self {
        let mut pair = Self {
            from,
            to,
            sender: SenderSession::new(HOP),
            receiver: ReceiverSession::new([9; 16], Arc::new(policy(max_queue))),
            rights: SenderRights::default(),
            now: 1_000_000,
        };
        pair.connect(max_queue);
        pair
    }

    /// Opens another connection.
    fn connect(&mut self, max_queue: u64) {
        self.open(policy(max_queue)).expect("a connection");
    }

    fn open(&mut self, policy: Policy) -> Result<()> {
        self.sender = SenderSession::new(HOP);
        self.receiver = ReceiverSession::new([9; 16], Arc::new(policy));
        let sender = &mut self.sender;
        let hello = step(&mut self.from, |transaction| sender.begin(transaction));
        let welcome = self.receives(hello)?;
        self.answered(welcome)
    }

    /// Ends the connection for the sender.
    fn end(&mut self) {
        let sender = &self.sender;
        step(&mut self.from, |transaction| sender.end(transaction));
    }

    /// Opens a connection to the file with this id, which may be refused.
    fn try_connect(&mut self, own: [u8; 16]) -> Result<()> {
        self.open(Policy {
            own,
            ..policy(u64::MAX)
        })
    }

    /// The receiver handles a request; returns its answer.
    fn receives(&mut self, request: HandOverRequest) -> Result<HandOverResponse> {
        let (receiver, rights, now) = (&mut self.receiver, &self.rights, self.now);
        try_step(&mut self.to, |transaction| {
            receiver.on_request(transaction, rights, (now, now), request)
        })
    }

    /// The sender handles an answer.
    fn answered(&mut self, answer: HandOverResponse) -> Result<()> {
        let (sender, now) = (&mut self.sender, self.now);
        try_step(&mut self.from, |transaction| {
            sender.on_answer(transaction, now, answer)
        })
    }

    fn offer(&mut self) -> Option<HandOverRequest> {
        let (sender, now) = (&mut self.sender, self.now);
        step(&mut self.from, |transaction| {
            sender.next_offer(transaction, now)
        })
        .offer
    }

    /// Offers once; returns the number of messages.
    fn exchange(&mut self) -> Option<usize> {
        let offer = self.offer()?;
        let count = messages(&offer).len();
        let answer = self.receives(offer).expect("a sound request");
        self.answered(answer).expect("a sound answer");
        Some(count)
    }

    /// Offers until the sender has nothing to offer at this time.
    fn settle(&mut self) {
        while self.exchange().is_some() {}
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

fn messages(request: &HandOverRequest) -> &[OfferedMessage] {
    match &request.kind {
        Some(Request::Offer(offer)) => &offer.messages,
        other => panic!("no offer: {other:?}"),
    }
}

/// Otherwise a full queue costs both machines some writes in each second, and the line its messages.
#[test]
fn a_queue_that_stays_full_is_offered_one_message_less_and_less_often() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=5 {
        commit_message(&mut from, uid, "orders");
    }
    let mut pair = Pair::new(from, to, 1);
    assert_eq!(pair.exchange(), Some(5));
    assert_eq!(pair.exchange(), Some(0), "the first one is confirmed");
    let begin = pair.now;
    let mut offers = 0;
    // The waits double, up to 15 s.
    while pair.now < begin + 60_000_000 {
        while let Some(count) = pair.exchange() {
            assert_eq!(count, 1);
            offers += 1;
        }
        pair.now += 10_000;
    }
    assert_eq!(offers, 10);
    assert_eq!(pair.visible(), [[1; 16]]);
    assert!(pair.last_error().expect("it waits").contains("is full"));
    // With room for more, the rest arrives in order.
    for uid in 2..=5 {
        pair.to.execute("DELETE FROM messages", []).expect("taken");
        pair.now += 15_000_000;
        pair.settle();
        assert_eq!(pair.visible(), [[uid; 16]]);
    }
    assert_eq!(pair.last_error(), None, "nothing waits");
}

#[test]
fn messages_after_a_refused_one_are_stored_at_once() {
    let (mut from, to) = (file(1), file(2));
    commit_message(&mut from, 1, "later");
    let mut pair = Pair::new(from, to, u64::MAX);
    pair.settle();
    create_queue(&pair.to, "later");
    commit_message(&mut pair.from, 2, "later");
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);
    let letter = "SELECT count(*) FROM dead_letters WHERE reason LIKE '%does not exist%'";
    assert_eq!(number(&pair.from, letter), 1);
}

/// The sender connects again, and offers it again.
#[test]
fn a_body_that_is_damaged_on_the_way_is_not_stored() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    let mut offer = pair.offer().expect("an offer");
    let Some(Request::Offer(HandOverOffer { messages })) = &mut offer.kind else {
        panic!("no offer");
    };
    messages[0].body = Bytes::from_static(b"x");
    let error = pair.receives(offer).expect_err("damaged").to_string();
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
    pair.receives(offer).expect("a sound offer");
    pair.end();

    let other = file(3);
    create_queue(&other, "orders");
    let former = std::mem::replace(&mut pair.to, other);
    let error = pair.try_connect([3; 16]).expect_err("another file");
    assert!(error.to_string().contains("courier forget"), "{error}");
    pair.end();
    assert!(pair.visible().is_empty());

    pair.to = former;
    pair.try_connect([2; 16]).expect("the former file");
    pair.settle();
    assert_eq!(pair.visible(), [[1; 16]]);

    // Without unsettled messages, another file is welcome.
    pair.end();
    pair.to = file(4);
    create_queue(&pair.to, "orders");
    commit_message(&mut pair.from, 2, "orders");
    pair.try_connect([4; 16]).expect("nothing is unsettled");
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);
}

/// A slow line must carry an offer while the sender waits for its answer.
#[test]
fn an_offer_of_large_bodies_stays_below_its_limit_and_waits_for_the_one_before() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=5 {
        let message = NewSend {
            body: vec![7; 60 << 10].into(),
            ..outgoing_to(uid, "orders")
        };
        insert(&mut from, &message);
    }
    let mut pair = Pair::new(from, to, u64::MAX);
    let mut large = policy(u64::MAX);
    large.config.max_body = 64 << 10;
    pair.open(large).expect("a connection");
    let first = pair.offer().expect("an offer");
    assert_eq!(messages(&first).len(), 2);
    assert!(pair.offer().is_none(), "the first one is not answered");
    let answer = pair.receives(first).expect("a sound offer");
    pair.answered(answer).expect("a sound answer");
    let counts: Vec<usize> = std::iter::from_fn(|| pair.exchange()).collect();
    assert_eq!(counts, [2, 1, 0]);
    assert_eq!(pair.visible().len(), 5);
}

/// A destination with many messages delays no other one.
/// 255 machines at most.
#[test]
fn the_machines_that_messages_have_passed_count_for_the_size_of_an_offer() {
    let (mut from, to) = (file(1), file(2));
    for uid in 1..=100 {
        commit_message(&mut from, uid, "orders");
    }
    let visited = "UPDATE outgoing SET visited = zeroblob(254 * 16)";
    from.execute(visited, []).expect("passed");
    let mut pair = Pair::new(from, to, u64::MAX);
    let offer = pair.offer().expect("an offer");
    assert_eq!(messages(&offer).len(), (128 << 10) / (255 * 16 + 1));
}

#[test]
fn each_destination_has_its_turn() {
    let (mut from, to) = (file(1), file(2));
    for uid in 0..=u8::MAX {
        commit_message(&mut from, uid, "audit");
    }
    let mut pair = Pair::new(from, to, u64::MAX);
    let offer = pair.offer().expect("an offer");
    assert_eq!(messages(&offer).len(), OFFER);
    // Refused, and the queue is filled again.
    let answer = pair.receives(offer).expect("a sound offer");
    pair.answered(answer).expect("a sound answer");
    for uid in 0..=u8::MAX {
        let queue = if uid == 7 { "orders" } else { "audit" };
        commit_message(&mut pair.from, uid, queue);
    }
    let offer = pair.offer().expect("an offer");
    assert_eq!(messages(&offer)[0].queue, "orders");
}

#[test]
fn malformed_requests_and_another_version_are_refused_and_nothing_changes() {
    let (from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    let sound = OfferedMessage {
        id: vec![7; 16].into(),
        authority: String::new(),
        queue: "orders".to_owned(),
        visited: vec![1; 16].into(),
        checksum: checksum(b"x"),
        body: Bytes::from_static(b"x"),
    };
    let numbered = |number, messages| HandOverRequest {
        number,
        kind: Some(Request::Offer(HandOverOffer { messages })),
    };
    let offer = |messages| numbered(2, messages);
    let broken = [
        (
            "id",
            OfferedMessage {
                id: vec![7; 15].into(),
                ..sound.clone()
            },
        ),
        (
            "visited",
            OfferedMessage {
                visited: vec![7; 15].into(),
                ..sound.clone()
            },
        ),
        (
            "queue",
            OfferedMessage {
                queue: "a/b".to_owned(),
                ..sound.clone()
            },
        ),
        (
            "authority",
            OfferedMessage {
                authority: "host".to_owned(),
                ..sound.clone()
            },
        ),
    ];
    for (field, message) in broken {
        let error = pair.receives(offer(vec![message])).expect_err(field);
        assert!(error.to_string().contains(field), "{error}");
    }
    let error = pair.receives(offer(vec![sound.clone(); OFFER + 1]));
    assert!(error.expect_err("too many").to_string().contains("256"));
    let error = pair.receives(HandOverRequest {
        number: 2,
        kind: None,
    });
    assert!(error.expect_err("empty").to_string().contains("kind"));
    let sound = offer(vec![sound]);
    pair.receives(sound.clone()).expect("a sound one");
    let error = pair.receives(sound).expect_err("again").to_string();
    assert!(error.contains("repeated or missing"), "{error}");
    assert_eq!(number(&pair.to, "SELECT count(*) FROM inbound"), 1);

    let mut sender = SenderSession::new(HOP);
    let mut hello = step(&mut pair.from, |transaction| sender.begin(transaction));
    pair.receiver = ReceiverSession::new([8; 16], Arc::new(policy(u64::MAX)));
    let error = pair
        .receives(numbered(1, Vec::new()))
        .expect_err("no Hello");
    assert!(error.to_string().contains("Hello first"), "{error}");
    if let Some(Request::Hello(hello)) = &mut hello.kind {
        hello.version = 2;
    }
    let error = pair.receives(hello).expect_err("another version");
    assert!(error.to_string().contains("must be 1, but is 2"), "{error}");
}

/// A damaged message becomes a dead letter, and the next one is offered.
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
    assert_eq!(pair.exchange(), Some(3));
    // The second message is stored. The third one is postponed, and is damaged then.
    damage(&pair, 3);
    pair.settle();
    pair.to.execute("DELETE FROM messages", []).expect("taken");
    pair.now += 1_000_000;
    pair.settle();
    assert_eq!(pair.visible(), [[4; 16]]);
    let dead = "SELECT count(*) FROM dead_letters WHERE reason LIKE '%checksum%'";
    assert_eq!(number(&pair.from, dead), 2);
}

fn copy_of(file: &Connection) -> Connection {
    let mut copy = Connection::open_in_memory().expect("a file in memory");
    Backup::new(file, &mut copy)
        .and_then(|backup| backup.run_to_completion(10_000, std::time::Duration::ZERO, None))
        .expect("copied");
    copy
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
fn an_attempt_that_is_not_answered_leaves_no_message_uncertain() {
    let mut from = file(1);
    commit_message(&mut from, 1, "orders");
    let mut sender = SenderSession::new(HOP);
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
    pair.receives(offer).expect("a sound offer");
    // The sender's disk has failed. Another machine has a message for the queue.
    let mut other = file(3);
    commit_message(&mut other, 2, "orders");
    pair.from = other;
    pair.now += DAY;
    pair.connect(1);
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);

    let now = pair.now;
    for (absent, buried) in [(14 * DAY, 0), (DAY, 1), (DAY, 0)] {
        let found = step(&mut pair.to, |transaction| {
            bury_absent(transaction, now - absent, (now, now))
        });
        assert_eq!(found, buried);
    }
    let letter = "SELECT count(*) FROM dead_letters WHERE reason LIKE '%is away%'";
    assert_eq!(number(&pair.to, letter), 1);
}

/// Otherwise the message is a dead letter here, and is handled as well.
#[test]
fn a_sender_that_comes_back_brings_no_message_that_was_given_up() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=150 {
        commit_message(&mut from, uid, "orders");
    }
    let mut pair = Pair::new(from, to, u64::MAX);
    let offer = pair.offer().expect("an offer");
    // The sender loses power.
    pair.receives(offer).expect("a sound offer");
    let now = pair.now;
    let buried = step(&mut pair.to, |transaction| {
        bury_absent(transaction, now, (now, now))
    });
    assert_eq!(buried, 150);
    pair.to
        .execute("DELETE FROM dead_letters", [])
        .expect("removed");
    pair.connect(u64::MAX);
    pair.settle();
    assert_eq!(pair.visible(), [[0; 16]; 0]);
    let visible = "SELECT count(*) FROM outgoing WHERE status = 3";
    assert_eq!(number(&pair.from, visible), 150);
    assert_eq!(number(&pair.to, "SELECT count(*) FROM inbound"), 0);
}

/// An operator could send it again on both sides.
#[test]
fn a_message_that_was_given_up_is_no_dead_letter_of_its_sender() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let limit = "UPDATE outgoing SET ends_at = 2000000";
    from.execute(limit, []).expect("an age limit");
    let mut pair = Pair::new(from, to, u64::MAX);
    let offer = pair.offer().expect("an offer");
    // The sender loses power.
    pair.receives(offer).expect("a sound offer");
    pair.now = 3_000_000;
    let now = pair.now;
    for buried in [1, 0] {
        let found = step(&mut pair.to, |transaction| {
            bury_absent(transaction, now, (now, now))
        });
        assert_eq!(found, buried);
    }
    // It was sent again from here, and handled long ago.
    let forgotten = "DELETE FROM dead_letters; DELETE FROM arrived";
    pair.to.execute_batch(forgotten).expect("forgotten");
    pair.connect(u64::MAX);
    pair.settle();
    assert_eq!(number(&pair.from, "SELECT count(*) FROM dead_letters"), 0);
    assert_eq!(number(&pair.from, "SELECT status FROM outgoing"), 3);
    assert_eq!(pair.visible(), [[0; 16]; 0]);
    assert_eq!(number(&pair.to, "SELECT count(*) FROM inbound"), 0);
    // A restored copy of the sender may bring it again.
    assert_eq!(number(&pair.to, "SELECT count(*) FROM arrived"), 1);
}

/// Another connection of a restored copy has brought it.
#[test]
fn a_message_that_is_here_already_is_no_dead_letter_when_its_sender_is_gone() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    commit_message(&mut from, 1, "orders");
    let mut pair = Pair::new(from, to, u64::MAX);
    let offer = pair.offer().expect("an offer");
    pair.receives(offer).expect("a sound offer");
    let known = "INSERT INTO arrived (uid, at) SELECT uid, 1 FROM inbound";
    pair.to.execute(known, []).expect("known");
    let now = pair.now;
    step(&mut pair.to, |transaction| {
        bury_absent(transaction, now, (now, now))
    });
    assert_eq!(number(&pair.to, "SELECT count(*) FROM inbound"), 0);
    assert_eq!(number(&pair.to, "SELECT count(*) FROM dead_letters"), 0);
}

/// One whose name is no text any more waits for its age limit.
#[test]
fn a_damaged_name_of_a_message_delays_no_other_message() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=3 {
        commit_message(&mut from, uid, "orders");
    }
    let damage = "UPDATE outgoing SET queue = CAST(x'ff' AS TEXT), ends_at = 9000000 WHERE id = 1;
                  UPDATE outgoing SET authority = 'there' WHERE id = 2";
    from.execute_batch(damage).expect("damaged");
    let mut pair = Pair::new(from, to, u64::MAX);
    pair.settle();
    assert_eq!(pair.visible(), [[3; 16]]);
    assert_eq!(number(&pair.from, "SELECT count(*) FROM dead_letters"), 1);
    pair.now = 9_000_000;
    pair.settle();
    assert_eq!(number(&pair.from, "SELECT count(*) FROM dead_letters"), 2);
}

/// The routes have changed, or another program has sent the messages with other routes.
#[test]
fn waiting_messages_get_the_next_machine_of_the_present_routes() {
    let mut from = file(1);
    for uid in 1..=4 {
        commit_message(&mut from, uid, "orders");
    }
    // The former machine may have the first one. The name of the last one is damaged.
    let uncertain = "INSERT INTO hops (authority, uncertain_upto) VALUES ('there:7600', 1);
                     UPDATE outgoing SET hop = CAST(x'ff' AS TEXT) WHERE id = 4";
    from.execute_batch(uncertain).expect("noted");
    let found = detours(&from, |_| "gate:1".to_owned()).expect("read");
    assert_eq!(found.len(), 1, "{found:?}");
    step(&mut from, |transaction| reroute(transaction, &found[0]));
    let gate = "SELECT group_concat(id) FROM outgoing WHERE hop = 'gate:1'";
    let gate: String = from.query_row(gate, [], |row| row.get(0)).expect("read");
    assert_eq!(gate, "2,3");
    let again = detours(&from, |_| "gate:1".to_owned()).expect("read");
    assert!(again.is_empty(), "{again:?}");
}

/// The sender knows two destinations: each resumes on its own.
#[test]
fn two_names_of_a_machine_are_two_orders() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for (uid, authority) in [(1, HOP), (2, "former:7600"), (3, HOP), (4, "former:7600")] {
        let message = NewSend {
            authority: authority.to_owned(),
            ..outgoing_to(uid, "orders")
        };
        insert(&mut from, &message);
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
    let message = NewSend {
        authority: "former:7600".to_owned(),
        ..outgoing_to(1, "orders")
    };
    insert(&mut from, &message);
    let mut pair = Pair::new(from, to, u64::MAX);
    pair.settle();
    assert_eq!(pair.visible(), [[1; 16]]);
}

#[test]
fn a_queue_file_belongs_to_the_principal_that_showed_it_first() {
    let mut to = file(2);
    let mut hello = |principal: Option<&str>| {
        let mut from = file(1);
        let mut sender = SenderSession::new(HOP);
        let hello = step(&mut from, |transaction| sender.begin(transaction));
        let rights = SenderRights {
            principal: principal.map(str::to_owned),
            ..SenderRights::default()
        };
        let mut receiver = ReceiverSession::new([9; 16], Arc::new(policy(u64::MAX)));
        try_step(&mut to, |transaction| {
            receiver.on_request(transaction, &rights, (1, 1), hello)
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
    pair.rights = SenderRights {
        principal: Some("rome".to_owned()),
        may_send: Some(Arc::new(|queue| queue == Some("orders"))),
    };
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);
    assert_eq!(
        pair.last_error().as_deref(),
        Some("`rome` may not hand over messages to queue `audit`")
    );
    // The rules are corrected.
    pair.rights = SenderRights::default();
    pair.now += 1_000_000;
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16], [1; 16]]);
    assert_eq!(pair.last_error(), None);
}

/// The receiver decides for the whole offer, in its order.
#[test]
fn messages_after_a_postponed_one_are_postponed() {
    let (mut from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=3 {
        commit_message(&mut from, uid, "orders");
    }
    let mut pair = Pair::new(from, to, 1);
    let offer = pair.offer().expect("an offer");
    let answer = pair.receives(offer).expect("a sound offer");
    let Some(Response::Accept(accept)) = &answer.kind else {
        panic!("no Accept: {answer:?}");
    };
    let is_postponed = |kind: &Option<Verdict>| matches!(kind, Some(Verdict::Postponed(_)));
    let verdicts = accept
        .verdicts
        .iter()
        .map(|verdict| is_postponed(&verdict.kind));
    assert_eq!(verdicts.collect::<Vec<_>>(), [false, true, true]);
}
