//! One machine of the hand-over's simulation: a queue file in memory, its clock, its consumer.

use std::{collections::BTreeSet, sync::Arc};

use rusqlite::{Connection, Transaction, backup::Backup, params};

use crate::{
    base::fault::planted,
    courier::handover::{
        Policy,
        outgoing::{self, NewSend, end_crashed, expire_unoffered},
    },
    queue::sqlite::{clock, schema::SCHEMA},
};

/// A message's id in the simulation: its number, as in its uid.
pub(super) type Id = u64;

/// The queue file of a machine, its clock, and the processes that use it.
pub(super) struct Machine {
    pub(super) file: Connection,
    /// The newest copy, with the number of messages that the consumer had then.
    pub(super) copy: Option<(Connection, usize)>,
    pub(super) up: bool,
    /// The machines that the host connects to although no message waits for them.
    pub(super) greets: BTreeSet<String>,
    pub(super) greeted: i64,
    /// Connections of an earlier life are gone.
    pub(super) life: u32,
    pub(super) policy: Arc<Policy>,
    /// The difference of the machine's clock to the true time.
    pub(super) offset: i64,
    /// The last time of the file's clock, and how far it is ahead of the machine's.
    clock: (i64, i64),
    /// Messages that the consumer has handled, in order.
    pub(super) received: Vec<Id>,
    /// The consumer deletes messages without a transaction, so that no history has them.
    pub(super) deletes: bool,
}

/// The queues of each machine; "missing" is not among them.
pub(super) const QUEUES: [&str; 2] = ["orders", "mails"];

impl Machine {
    pub(super) fn new(number: usize, policy: Policy) -> Self {
        let file = Connection::open_in_memory().expect("a file in memory");
        file.set_prepared_statement_cache_capacity(128);
        file.execute_batch(SCHEMA.tables).expect("the schema");
        let id = file_id(number);
        file.execute("UPDATE identity SET id = ?1", [id])
            .expect("an identity");
        for queue in QUEUES {
            file.execute("INSERT INTO queues (name) VALUES (?1)", [queue])
                .expect("a queue");
        }
        Self {
            file,
            copy: None,
            up: true,
            greets: BTreeSet::new(),
            greeted: 0,
            life: 0,
            policy: Arc::new(policy),
            offset: 0,
            clock: (0, 0),
            received: Vec::new(),
            deletes: false,
        }
    }

    /// Returns the file's time, which never goes back, and the machine's.
    pub(super) fn times(&mut self, now: i64) -> (i64, i64) {
        let machine = now + self.offset;
        let (seen, ahead) = self.clock;
        self.clock = clock::file_time(machine, seen, ahead);
        (self.clock.0, machine)
    }

    /// Runs a step in a transaction. Without `commit`, or if it fails, it has no effect, as in a crash.
    pub(super) fn step<T>(
        &mut self,
        commit: bool,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let transaction = self.file.transaction().expect("a transaction");
        let value = work(&transaction);
        match commit && value.is_ok() {
            true => transaction.commit().expect("committed"),
            false => transaction.rollback().expect("rolled back"),
        }
        value
    }

    /// Runs a step that cannot fail.
    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> T {
        self.step(true, work).expect("the file is sound")
    }

    /// Commits messages of an application.
    pub(super) fn send(&mut self, now: i64, ends_at: Option<i64>, sends: &[(Id, String, &str)]) {
        let config = self.policy.config.clone();
        self.write(|transaction| {
            for (id, authority, queue) in sends {
                let send = NewSend {
                    uid: uid(*id),
                    authority: authority.clone(),
                    queue: (*queue).to_owned(),
                    body: id.to_string().into(),
                    hop: Some(config.hop_of(authority).to_owned()),
                };
                outgoing::insert(transaction, &send, now, ends_at)?;
            }
            Ok(())
        });
    }

    /// The relay is told of messages; returns whether there were any.
    pub(super) fn notify(&mut self) -> bool {
        self.file
            .execute("DELETE FROM unnotified", [])
            .expect("deleted")
            > 0
    }

    /// The consumer handles messages, oldest first; returns them with their queues.
    pub(super) fn receive(&mut self, now: i64, max: u32) -> Vec<Id> {
        let select = "SELECT id, uid, body FROM messages ORDER BY visible_at, id LIMIT ?1";
        let deletes = self.deletes;
        let ids = self.write(|transaction| {
            let rows: Vec<(i64, [u8; 16], Vec<u8>)> = transaction
                .prepare_cached(select)?
                .query_map([max], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect::<rusqlite::Result<_>>()?;
            let mut ids = Vec::new();
            for (row, uid, body) in rows {
                let keep =
                    "INSERT OR IGNORE INTO received (uid, queue, size, arrived_at, received_at)
                            VALUES (?1, '', 0, 0, ?2)";
                if !deletes {
                    transaction
                        .prepare_cached(keep)?
                        .execute(params![uid, now])?;
                }
                let delete = "DELETE FROM messages WHERE id = ?1";
                transaction.prepare_cached(delete)?.execute([row])?;
                let text = String::from_utf8(body).expect("a number");
                ids.push(text.parse().expect("a number"));
            }
            Ok(ids)
        });
        self.received.extend_from_slice(&ids);
        ids
    }

    /// Creates the queue "missing", or removes it if it is empty.
    pub(super) fn change_queue(&mut self) {
        self.write(|transaction| {
            let removed = transaction.execute(
                "DELETE FROM queues WHERE name = 'missing' AND messages = 0
                   AND id NOT IN (SELECT queue FROM unnotified)",
                [],
            )?;
            if removed == 0 {
                let create = "INSERT OR IGNORE INTO queues (name) VALUES ('missing')";
                transaction.execute(create, [])?;
            }
            Ok(())
        });
    }

    /// What a host does once it has opened the file.
    pub(super) fn opened(&mut self) {
        self.write(end_crashed);
        self.greet();
    }

    /// The host connects to each machine that it knows.
    pub(super) fn greet(&mut self) {
        let sql = "SELECT authority FROM hops WHERE connected_at IS NOT NULL";
        self.greets = self.texts(sql).into_iter().collect();
    }

    pub(super) fn expire(&mut self, now: i64) {
        self.write(|transaction| expire_unoffered(transaction, now, 100));
    }

    /// Returns the next machines of messages that are not visible there, and those that may hold
    /// messages which this file does not know.
    pub(super) fn hops(&self) -> BTreeSet<String> {
        let sql = "SELECT DISTINCT hop FROM outgoing WHERE status IN (1, 2)";
        let mut hops: BTreeSet<_> = self.texts(sql).into_iter().collect();
        if !planted!(NoGreeting) {
            hops.extend(self.greets.iter().cloned());
        }
        hops
    }

    /// Returns the senders of messages that are stored and not visible, with this machine's name.
    pub(super) fn held(&self) -> Vec<(usize, String)> {
        let sql = "SELECT DISTINCT s.file, s.authority
                   FROM inbound i JOIN senders s ON s.id = i.sender";
        let mut select = self.file.prepare_cached(sql).expect("a statement");
        let rows = select.query_map([], |row| Ok((row.get::<_, [u8; 16]>(0)?, row.get(1)?)));
        let rows: rusqlite::Result<Vec<_>> = rows.expect("rows").collect();
        let rows = rows.expect("senders").into_iter();
        rows.map(|(file, name)| (machine_of(file), name)).collect()
    }

    /// Returns whether the file has a connection by this name on record.
    pub(super) fn knows(&self, name: &str) -> bool {
        let sql = "SELECT authority FROM hops WHERE connected_at IS NOT NULL";
        self.texts(sql).iter().any(|known| known == name)
    }

    fn texts(&self, sql: &str) -> Vec<String> {
        let mut select = self.file.prepare_cached(sql).expect("a statement");
        let rows = select.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<rusqlite::Result<_>>().expect("texts")
    }

    pub(super) fn copy_file(&mut self) {
        self.copy = Some((copy_of(&self.file), self.received.len()));
    }

    /// Puts an older copy in the place of the file; returns the messages that arrived or were sent
    /// since, and those that wait for the next connection of their sender.
    pub(super) fn restore(&mut self) -> Vec<Id> {
        let Some((copy, received)) = &self.copy else {
            return Vec::new();
        };
        let before = ids_of(copy);
        let after = ids_of(&self.file);
        self.file = copy_of(copy);
        self.received.truncate(*received);
        self.clock = (0, 0);
        let mut changed: Vec<Id> = after
            .into_iter()
            .filter(|id| !before.contains(id))
            .collect();
        changed.extend(self.ids("SELECT uid FROM inbound"));
        changed
    }

    /// Returns how often the message stands in a table.
    pub(super) fn count(&self, condition: &str, id: Id) -> usize {
        let sql = format!("SELECT count(*) FROM {condition} AND uid = ?1");
        let mut select = self.file.prepare_cached(&sql).expect("a statement");
        let count: i64 = select
            .query_row([uid(id)], |row| row.get(0))
            .expect("a count");
        usize::try_from(count).expect("not negative")
    }

    /// Returns the ids that a query of uids finds.
    pub(super) fn ids(&self, sql: &str) -> Vec<Id> {
        let mut select = self.file.prepare_cached(sql).expect("a statement");
        let rows = select
            .query_map([], |row| row.get::<_, [u8; 16]>(0))
            .expect("rows");
        let uids: rusqlite::Result<Vec<_>> = rows.collect();
        uids.expect("uids").into_iter().map(id_of).collect()
    }

    /// Returns why a message is a dead letter here.
    pub(super) fn dead_letter(&self, id: Id) -> Option<String> {
        let sql = "SELECT reason FROM dead_letters WHERE uid = ?1";
        let mut select = self.file.prepare_cached(sql).expect("a statement");
        select.query_row([uid(id)], |row| row.get(0)).ok()
    }
}

fn copy_of(file: &Connection) -> Connection {
    let mut copy = Connection::open_in_memory().expect("a file in memory");
    copy.set_prepared_statement_cache_capacity(128);
    let backup = Backup::new(file, &mut copy).expect("a backup");
    backup
        .run_to_completion(10_000, std::time::Duration::ZERO, None)
        .expect("copied");
    drop(backup);
    copy
}

/// Returns all messages that the file knows.
fn ids_of(file: &Connection) -> BTreeSet<Id> {
    let sql =
        "SELECT uid FROM outgoing UNION SELECT uid FROM inbound UNION SELECT uid FROM messages
               UNION SELECT uid FROM arrived UNION SELECT uid FROM dead_letters";
    let mut select = file.prepare(sql).expect("a statement");
    let rows = select
        .query_map([], |row| row.get::<_, [u8; 16]>(0))
        .expect("rows");
    rows.map(|uid| id_of(uid.expect("a uid"))).collect()
}

pub(super) fn file_id(number: usize) -> [u8; 16] {
    (number as u128 + 1).to_be_bytes()
}

fn machine_of(file: [u8; 16]) -> usize {
    usize::try_from(u128::from_be_bytes(file) - 1).expect("the simulation's")
}

pub(super) fn uid(id: Id) -> [u8; 16] {
    u128::from(id).to_be_bytes()
}

fn id_of(uid: [u8; 16]) -> Id {
    Id::try_from(u128::from_be_bytes(uid)).expect("the simulation's")
}
