//! The verdicts of a receiver on the frames of a hand-over, with a queue file in memory.
//!
//! The bytes describe frames, most of them valid. Each input begins with the same file.

use std::collections::BTreeSet;

use bytes::Bytes;
use rusqlite::{Connection, Transaction};

use crate::{
    courier::{
        Route,
        handover::{
            Accept, Hello, Numbered, OfferedMessage, Policy, ReceiverContent, ReceiverFrame,
            ReceiverSession, SenderContent, SenderFrame, SenderSession, Upto, Welcome,
        },
        host::wire,
    },
    queue::sqlite::{checksum::checksum, schema::SCHEMA},
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
    frames: u64,
    /// The number of the last offered message.
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
        names: Vec::new(),
        max_body: MAX_BODY,
        max_queue: MAX_QUEUE,
        max_outgoing: 4,
        max_hops: 3,
        max_age: None,
        routes: vec![route],
    };
    ReceiverSession::new([connection; 16], policy)
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
            frames: 0,
            number: 0,
            now: 1_000_000,
        }
    }

    /// Opens another connection.
    fn connect(&mut self) {
        self.connections = self.connections.wrapping_add(1);
        self.session = session(self.connections);
        (self.frames, self.number) = (0, 0);
    }

    fn step(&mut self, transaction: &Transaction<'_>, step: u8, input: &mut Input<'_>) {
        let content = match step % 8 {
            0 => {
                self.connect();
                SenderContent::Hello(hello(1))
            }
            1 => SenderContent::Hello(hello(input.byte())),
            2..=4 => SenderContent::Offer(self.offer(input)),
            _ => SenderContent::Confirm(Upto {
                number: self.number.saturating_sub(u64::from(input.byte() % 4)),
                held: step >= 128,
            }),
        };
        // A frame may be repeated, or missing.
        self.frames = match input.byte() {
            255 => self.frames,
            254 => self.frames + 2,
            _ => self.frames + 1,
        };
        self.now += 1_000;
        let frame = Numbered {
            frame: self.frames,
            content,
        };
        let encoded = wire::request(frame.clone());
        if let Ok(decoded) = wire::frame(encoded) {
            assert_eq!(decoded, frame);
        }
        let offered = match &frame.content {
            SenderContent::Offer(messages) => messages.clone(),
            _ => Vec::new(),
        };
        let answers = self
            .session
            .on_frame(transaction, self.now, self.now, frame);
        match answers.expect("the file is sound") {
            Ok(answers) => answers
                .iter()
                .for_each(|answer| check_answer(answer, &offered)),
            Err(_) => self.connect(),
        }
    }

    fn offer(&mut self, input: &mut Input<'_>) -> Vec<OfferedMessage> {
        let count = input.byte() % 5;
        (0..count).map(|_| self.message(input)).collect()
    }

    fn message(&mut self, input: &mut Input<'_>) -> OfferedMessage {
        let (shape, uid, size) = (input.byte(), input.byte(), input.byte());
        self.number += match shape {
            255 => 2,
            _ => 1,
        };
        let body = vec![uid; usize::from(size % 48)];
        let damage = u32::from(size == 255);
        OfferedMessage {
            number: self.number,
            uid: [uid; 16],
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
            },
            checksum: checksum(&body) ^ damage,
            body: Bytes::from(body),
            resume: shape >= 128,
        }
    }
}

fn hello(sender: u8) -> Hello {
    Hello {
        version: u32::from(sender % 5 != 4),
        least_version: u32::from(sender.is_multiple_of(3)),
        sender: [sender; 16],
        name: "there".to_owned(),
        authority: "here:7600".to_owned(),
    }
}

fn check_answer(answer: &ReceiverFrame, offered: &[OfferedMessage]) {
    let encoded = wire::response(answer.clone());
    assert_eq!(wire::answer(encoded).expect("ours"), *answer);
    let ReceiverContent::Accept(Accept {
        upto,
        refused,
        postponed,
    }) = &answer.content
    else {
        return;
    };
    let numbers: BTreeSet<u64> = offered.iter().map(|message| message.number).collect();
    if let Some(last) = numbers.last() {
        assert_eq!(upto, last);
    }
    let named: Vec<u64> = refused
        .iter()
        .chain(postponed)
        .map(|(number, _)| *number)
        .collect();
    assert!(named.iter().all(|number| numbers.contains(number)));
    assert_eq!(named.iter().collect::<BTreeSet<_>>().len(), named.len());
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

/// The sender of this machine offers the messages that pass through; the next machine can read them.
fn pass_on(transaction: &Transaction<'_>) {
    let mut sender = SenderSession::new(HOP, "here", 7);
    let frame = sender.begin(transaction).expect("the file is sound");
    decodes(&frame);
    let welcome = Numbered {
        frame: 1,
        content: ReceiverContent::Welcome(Welcome {
            version: 1,
            receiver: [9; 16],
            held: Vec::new(),
        }),
    };
    let replies = sender.on_frame(transaction, 2_000_000, welcome);
    let replies = replies.expect("the file is sound").expect("a Welcome");
    replies.iter().for_each(decodes);
    let next = sender.next_offer(transaction, 2_000_000);
    if let Some(offer) = next.expect("the file is sound").offer {
        decodes(&offer);
    }
}

fn decodes(frame: &SenderFrame) {
    let decoded = wire::frame(wire::request(frame.clone()));
    assert_eq!(&decoded.expect("ours"), frame);
}
