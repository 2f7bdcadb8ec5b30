//! The application's tables in the queue file of one machine, and their comparison.

use std::path::{Path, PathBuf};

use reveille::courier::rusqlite::{self, Connection};
use serde::Serialize;

/// The ledger of one machine.
pub(super) struct Ledger {
    connection: Connection,
}

/// One direction.
#[derive(Debug, Serialize)]
pub(super) struct Totals {
    direction: String,
    /// Messages whose transaction the sender committed.
    committed: u64,
    /// Messages in the receiver's ledger.
    received: u64,
    lost: u64,
    doubled: u64,
    out_of_order: u64,
}

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS demo_sent (number INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS demo_received (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        number INTEGER NOT NULL
    )";

/// Returns the path of a machine's queue file.
pub(super) fn queue_file(home: &Path) -> PathBuf {
    home.join("queues.db")
}

impl Ledger {
    /// Opens the tables in the queue file, and creates them if they are missing.
    pub(super) fn open(home: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(queue_file(home))?;
        connection.busy_timeout(std::time::Duration::from_secs(20))?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(TABLES)?;
        Ok(Self { connection })
    }

    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Returns the number of received messages.
    pub(super) fn received(&self) -> rusqlite::Result<u64> {
        self.number("SELECT count(*) FROM demo_received")
    }

    /// Returns the greatest number that was sent; 0 without any.
    pub(super) fn last_sent(&self) -> rusqlite::Result<u64> {
        self.number("SELECT coalesce(max(number), 0) FROM demo_sent")
    }

    fn number(&self, sql: &str) -> rusqlite::Result<u64> {
        let number: i64 = self.connection.query_row(sql, [], |row| row.get(0))?;
        Ok(number.unsigned_abs())
    }

    fn numbers(&self, sql: &str) -> rusqlite::Result<Vec<i64>> {
        let mut select = self.connection.prepare(sql)?;
        select.query_map([], |row| row.get(0))?.collect()
    }
}

impl Totals {
    /// Compares what `from` has committed with what `to` has received.
    pub(super) fn compare(direction: String, from: &Ledger, to: &Ledger) -> anyhow::Result<Self> {
        let committed = from.numbers("SELECT number FROM demo_sent ORDER BY number")?;
        let received = to.numbers("SELECT number FROM demo_received ORDER BY id")?;
        let mut distinct = received.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let lost = committed
            .iter()
            .filter(|number| distinct.binary_search(number).is_err());
        let out_of_order = received.windows(2).filter(|pair| pair[0] >= pair[1]);
        Ok(Self {
            direction,
            committed: committed.len() as u64,
            received: received.len() as u64,
            lost: lost.count() as u64,
            doubled: (received.len() - distinct.len()) as u64,
            out_of_order: out_of_order.count() as u64,
        })
    }

    /// Returns whether each message was received once, in order.
    pub(super) fn exact(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.out_of_order == 0 && self.committed > 0
    }

    pub(super) fn cells(&self) -> [String; 6] {
        let numbers = [
            self.committed,
            self.received,
            self.lost,
            self.doubled,
            self.out_of_order,
        ]
        .map(|number| number.to_string());
        let [committed, received, lost, doubled, out_of_order] = numbers;
        [
            self.direction.clone(),
            committed,
            received,
            lost,
            doubled,
            out_of_order,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_doubled_and_misplaced_messages_are_counted() {
        let homes = [tempfile::tempdir(), tempfile::tempdir()].map(|home| home.expect("a home"));
        let [from, to] = homes
            .each_ref()
            .map(|home| Ledger::open(home.path()).expect("opened"));
        let insert = |ledger: &Ledger, table: &str, numbers: &[i64]| {
            for number in numbers {
                let sql = format!("INSERT INTO {table} (number) VALUES (?1)");
                ledger.connection.execute(&sql, [number]).expect("inserted");
            }
        };
        insert(&from, "demo_sent", &[1, 2, 3, 4]);
        insert(&to, "demo_received", &[1, 3, 2, 2]);
        let totals = Totals::compare("a to b".to_owned(), &from, &to).expect("compared");
        assert_eq!(
            (totals.lost, totals.doubled, totals.out_of_order),
            (1, 1, 2)
        );
        assert!(!totals.exact());
    }
}
