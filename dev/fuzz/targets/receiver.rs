//! The verdicts of a receiver on the requests of a hand-over, with a queue file in memory.
//!
//! The bytes describe requests, most of them valid. Each input begins with the same file.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, Transaction};

use crate::{
    courier::{
        QueueManagerConfig, Route,
        handover::{Policy, ReceiverSession, SenderRights, SenderSession},
    },
    queue::sqlite::{checksum::checksum, schema::SCHEMA},
    wire::proto::{
        HandOverHello, HandOverOffer, HandOverRequest, HandOverResponse, HandOverWelcome,
        OfferedMessage, hand_over_request::Kind as Request, hand_over_response::Kind as Response,
    },
};

/// A machine of which the routes know the next one.
const KNOWN: &str = "far.lan:7600";
const HOP: &str = "gate:7600";
const OWN: [u8; 16] = [2; 16];
const MAX_QUEUE: u64 = 3;
const MAX_BODY: usize = 40;

/// The bytes of an input, one after another.
struct Input<'a>(&'a [u8]);

/// A receiver with its connection.
struct Receiver {
    session: ReceiverSession,
    connections: u8,
    /// The number of the last request.
    number: u64,
    now: i64,
}

thread_local! {
    /// The queue file: its schema takes longer than most inputs.
    static FILE: std::cell::RefCell<Connection> = std::cell::RefCell::new(file());
}

pub(super) fn receiver(data: &[u8]) {
    FILE.with_borrow_mut(|file| {
        // Rolled back at the end.
        let transaction = file.transaction().expect("a transaction");
        let mut receiver = Receiver::new();
        let mut input = Input(data);
        while let Some(step) = input.next() {
            receiver.step(&transaction, step, &mut input);
            check(&transaction);
        }
        pass_on(&transaction);
    });
}

fn file() -> Connection {
    let file = Connection::open_in_memory().expect("a file in memory");
    file.execute_batch(SCHEMA.tables).expect("the schema");
    file.execute("UPDATE identity SET id = ?1", [OWN])
        .expect("an identity");
    for queue in ["a", "b"] {
        file.execute("INSERT INTO queues (name) VALUES (?1)", [queue])
            .expect("a queue");
    }
    file
}

fn session(connection: u8) -> ReceiverSession {
    let route = Route {
        pattern: KNOWN.to_owned(),
        hop: HOP.to_owned(),
    };
    let policy = Policy {
        own: OWN,
        config: QueueManagerConfig {
            max_body: MAX_BODY,
            max_queue: Some(MAX_QUEUE),
            max_outgoing: 4,
            routes: vec![route],
            ..QueueManagerConfig::default()
        },
    };
    ReceiverSession::new([connection; 16], Arc::new(policy))
}

impl Input<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or_default()
    }
}

impl Receiver {
    fn new() -> Self {
        Self {
            session: session(0),
            connections: 0,
            number: 0,
            now: 1_000_000,
        }
    }

    /// Opens another connection.
    fn connect(&mut self) {
        self.connections = self.connections.wrapping_add(1);
        self.session = session(self.connections);
        self.number = 0;
    }

    fn step(&mut self, transaction: &Transaction<'_>, step: u8, input: &mut Input<'_>) {
        let kind = match step % 8 {
            0 => {
                self.connect();
                Request::Hello(hello(1))
            }
            1 => Request::Hello(hello(input.byte())),
            2..=5 => Request::Offer(offer(input)),
            // Nothing but a confirmation.
            _ => Request::Offer(HandOverOffer::default()),
        };
        self.now += 1_000;
        self.number += 1;
        let offered = match &kind {
            Request::Offer(offer) => Some(offer.messages.len()),
            Request::Hello(_) => None,
        };
        // A step that fails has no effect.
        transaction.execute_batch("SAVEPOINT step").expect("begun");
        let answer = self.session.on_request(
            transaction,
            &SenderRights::default(),
            (self.now, self.now),
            HandOverRequest {
                number: self.number,
                kind: Some(kind),
            },
        );
        match answer {
            Ok(answer) => check_answer(&answer, offered),
            Err(rusqlite::Error::ToSqlConversionFailure(_)) => {
                transaction
                    .execute_batch("ROLLBACK TO step")
                    .expect("undone");
                self.connect();
            }
            Err(error) => panic!("the file is not sound: {error}"),
        }
        transaction.execute_batch("RELEASE step").expect("ended");
    }
}

fn offer(input: &mut Input<'_>) -> HandOverOffer {
    let count = input.byte() % 5;
    HandOverOffer {
        messages: (0..count).map(|_| message(input)).collect(),
    }
}

fn message(input: &mut Input<'_>) -> OfferedMessage {
    let (shape, uid, size) = (input.byte(), input.byte(), input.byte());
    let body = vec![uid; usize::from(size % 48)];
    let damage = u32::from(size == 255);
    OfferedMessage {
        id: vec![uid; 16 - usize::from(size == 254)].into(),
        authority: match shape & 3 {
            0 | 1 => "",
            2 => KNOWN,
            _ => "unknown:1",
        }
        .to_owned(),
        queue: match shape >> 2 & 3 {
            0 | 1 => "a",
            2 => "b",
            _ => "missing",
        }
        .to_owned(),
        visited: match shape >> 4 & 7 {
            7 => OWN.to_vec(),
            machines => vec![5; 16 * usize::from(machines)],
        }
        .into(),
        checksum: checksum(&body) ^ damage,
        body: Bytes::from(body),
    }
}

fn hello(sender: u8) -> HandOverHello {
    HandOverHello {
        version: u32::from(sender % 5 != 4),
        sender: vec![sender; 16].into(),
        authority: "here:7600".to_owned(),
    }
}

/// Each offered message has a verdict.
fn check_answer(answer: &HandOverResponse, offered: Option<usize>) {
    let verdicts = match &answer.kind {
        Some(Response::Accept(accept)) => Some(accept.verdicts.len()),
        _ => None,
    };
    assert_eq!(verdicts, offered);
}

/// Checks the file after a step.
fn check(transaction: &Transaction<'_>) {
    let count = |sql: &str| -> u64 {
        let read = transaction
            .prepare_cached(sql)
            .and_then(|mut select| select.query_row([], |row| row.get::<_, i64>(0)));
        u64::try_from(read.expect("a count")).expect("a count")
    };
    let twice = "SELECT (SELECT count(*) - count(DISTINCT uid) FROM messages)
                 + (SELECT count(*) - count(DISTINCT uid) FROM outgoing)
                 + (SELECT count(*) FROM messages JOIN outgoing USING (uid))";
    assert_eq!(count(twice), 0, "a message is visible twice");
    let longest = count(
        "SELECT max((SELECT coalesce(max(length(body)), 0) FROM messages),
                    (SELECT coalesce(max(length(body)), 0) FROM inbound))",
    );
    assert!(longest <= MAX_BODY as u64);
    let deepest = count(
        "SELECT coalesce(max(depth), 0) FROM (SELECT count(*) AS depth FROM
           (SELECT q.name AS queue FROM messages m JOIN queues q ON q.id = m.queue)
         GROUP BY queue)",
    );
    assert!(deepest <= MAX_QUEUE, "{deepest} messages in a queue");
    let elsewhere = "SELECT count(*) FROM inbound WHERE authority NOT IN ('', 'far.lan:7600')";
    assert_eq!(count(elsewhere), 0, "only a route allows a message to pass");
}

/// The sender of this machine offers the messages that pass through.
fn pass_on(transaction: &Transaction<'_>) {
    let mut sender = SenderSession::new(HOP);
    sender.begin(transaction).expect("the file is sound");
    let welcome = HandOverResponse {
        number: 1,
        kind: Some(Response::Welcome(HandOverWelcome {
            receiver: vec![9; 16].into(),
            held: Vec::new(),
        })),
    };
    let welcomed = sender.on_answer(transaction, 2_000_000, welcome);
    welcomed.expect("a Welcome");
    let next = sender.next_offer(transaction, 2_000_000);
    next.expect("the file is sound");
}
