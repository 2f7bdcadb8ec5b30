//! Single steps of the hand-over that the simulation reaches rarely, or cannot judge.

use rusqlite::{Connection, Transaction, params};

use super::{
    Accept, OfferedMessage, Policy, ReceiverContent, ReceiverFrame, ReceiverSession, SenderContent,
    SenderFrame, SenderSession, outgoing::bury_damaged,
};
use crate::{base::fault::Fault, queue::sqlite::schema::SCHEMA};

const HOP: &str = "there:7600";

/// A queue file in memory.
fn file(id: u8) -> Connection {
    let file = Connection::open_in_memory().expect("a file in memory");
    for migration in SCHEMA.migrations {
        file.execute_batch(migration).expect("the schema");
    }
    file.execute("UPDATE identity SET id = ?1", [[id; 16]])
        .expect("an identity");
    file
}

fn create_queue(file: &Connection, name: &str) {
    file.execute("INSERT INTO queues (name) VALUES (?1)", [name])
        .expect("created");
}

fn commit_message(file: &Connection, uid: u8, queue: &str) {
    let body = [uid];
    file.execute(
        "INSERT INTO outgoing (uid, authority, queue, hop, status, stored_at, visited, size,
           checksum, body) VALUES (?1, ?2, ?3, ?2, 1, 0, x'', 1, ?4, ?5)",
        params![[uid; 16], HOP, queue, crc32fast::hash(&body), body],
    )
    .expect("committed");
}

fn policy(max_queue: u64) -> Policy {
    Policy {
        own: [2; 16],
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
            sender: SenderSession::new(HOP, "here", 7, Fault::NONE),
            receiver: ReceiverSession::new([9; 16], policy(max_queue), Fault::NONE),
            now: 1_000_000,
        };
        pair.connect(max_queue);
        pair
    }

    /// Ends the connection, and opens another one.
    fn connect(&mut self, max_queue: u64) {
        self.sender = SenderSession::new(HOP, "here", 7, Fault::NONE);
        self.receiver = ReceiverSession::new([9; 16], policy(max_queue), Fault::NONE);
        let sender = &mut self.sender;
        let hello = step(&mut self.from, |transaction| sender.begin(transaction));
        let welcome = self.receives(hello);
        self.answered(welcome);
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
    let (from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=3 {
        commit_message(&from, uid, "orders");
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
    // With room for more, the rest arrives in order.
    pair.to.execute("DELETE FROM messages", []).expect("taken");
    pair.now += 15_000_000;
    pair.settle();
    pair.to.execute("DELETE FROM messages", []).expect("taken");
    pair.now += 15_000_000;
    pair.settle();
    assert_eq!(pair.visible(), [[3; 16]]);
}

/// The first message is refused and the second one is stored. If the answers are lost, the first one
/// is offered again, and would come after the second one.
#[test]
fn no_message_overtakes_a_refused_one_whose_answer_is_lost() {
    let (from, to) = (file(1), file(2));
    commit_message(&from, 1, "later");
    let mut pair = Pair::new(from, to, u64::MAX);
    let first = pair.offer().expect("an offer");
    commit_message(&pair.from, 2, "later");
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
    let (from, to) = (file(1), file(2));
    commit_message(&from, 1, "later");
    let mut pair = Pair::new(from, to, u64::MAX);
    pair.settle();
    create_queue(&pair.to, "later");
    commit_message(&pair.from, 2, "later");
    pair.settle();
    assert_eq!(pair.visible(), [[2; 16]]);
}

/// A damaged message is left to a dead letter, and the next one resumes its postponed destination.
#[test]
fn a_damaged_message_is_not_offered_and_delays_no_other_one() {
    let (from, to) = (file(1), file(2));
    create_queue(&to, "orders");
    for uid in 1..=4 {
        commit_message(&from, uid, "orders");
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
