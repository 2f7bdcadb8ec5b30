//! The tables of a queue file.

use crate::backend::sqlite::Schema;

pub(crate) const SCHEMA: Schema = Schema {
    // "revQ"
    application_id: 0x7265_7651,
    version: 1,
    tables: TABLES,
};

/// Times are in microseconds since 1970. A `uid` has 16 bytes, see `courier::message`. A machine is
/// named by its authority, `HOST:PORT`.
const TABLES: &str = "
    CREATE TABLE queues (
        id INTEGER NOT NULL PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        -- So that a depth need not scan all messages. The put adds to it, and the trigger subtracts
        -- each removed message. An insert trigger would update the row for each message of a put.
        messages INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE messages (
        -- Never used twice: a receipt of a message that is gone must not fit another one.
        id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
        queue INTEGER NOT NULL REFERENCES queues (id),
        visible_at INTEGER NOT NULL,
        inserted_at INTEGER NOT NULL,
        dequeue_count INTEGER NOT NULL DEFAULT 0,
        receipt INTEGER NOT NULL DEFAULT 0, -- of the newest hand-out
        uid BLOB, -- NULL: put outside of a transaction
        checksum INTEGER NOT NULL, -- CRC-32 of the body
        body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX messages_by_time ON messages (queue, visible_at);
    CREATE UNIQUE INDEX messages_by_uid ON messages (uid) WHERE uid IS NOT NULL;
    CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
        UPDATE queues SET messages = messages - 1 WHERE id = old.queue;
    END;
    -- One row.
    CREATE TABLE clock (
        seen INTEGER NOT NULL, -- the greatest time that was used
        ahead INTEGER NOT NULL -- of the machine's clock
    ) STRICT;
    INSERT INTO clock (seen, ahead) VALUES (0, 0);
    -- Listeners of one file share its wake-ups, but not those of another file under the same address.
    CREATE TABLE identity (id BLOB NOT NULL) STRICT;
    INSERT INTO identity (id) VALUES (randomblob(16));
    -- A receive of a transaction, with the state to restore if its process dies.
    CREATE TABLE taken (
        id INTEGER NOT NULL PRIMARY KEY,
        tx BLOB NOT NULL,
        process BLOB NOT NULL,
        ends_at INTEGER NOT NULL, -- of the transaction: its messages are visible again
        messages TEXT NOT NULL -- JSON: [[id, receipt, former visible_at], ...]
    ) STRICT;
    -- To other machines.
    CREATE TABLE outgoing (
        id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, -- in the order of the commits
        uid BLOB NOT NULL UNIQUE,
        authority TEXT NOT NULL,
        queue TEXT NOT NULL,
        hop TEXT NOT NULL, -- the authority of the next machine
        status INTEGER NOT NULL, -- 1: ready; 2: sent, the next machine stores it; 3: visible there
        stored_at INTEGER NOT NULL,
        sent_at INTEGER,
        confirmed_at INTEGER,
        ends_at INTEGER, -- the age limit
        visited BLOB NOT NULL, -- 16 bytes for each machine before this one
        size INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        body BLOB NOT NULL -- empty from status 2 on
    ) STRICT;
    CREATE INDEX outgoing_ready ON outgoing (hop, id) WHERE status = 1;
    CREATE INDEX outgoing_sent ON outgoing (hop, id) WHERE status = 2;
    CREATE INDEX outgoing_history ON outgoing (confirmed_at) WHERE status = 3;
    CREATE INDEX outgoing_by_destination ON outgoing (hop, authority, queue, id)
        WHERE status = 1;
    CREATE INDEX outgoing_by_end ON outgoing (hop, ends_at)
        WHERE status = 1 AND ends_at IS NOT NULL;
    CREATE TABLE hops (
        authority TEXT NOT NULL PRIMARY KEY,
        receiver BLOB, -- the id of the file that answered last
        -- Messages up to this id may be stored at the hop already: only the hop knows.
        uncertain_upto INTEGER NOT NULL DEFAULT 0,
        connected_at INTEGER,
        last_error TEXT,
        last_error_at INTEGER
    ) STRICT, WITHOUT ROWID;
    -- The present connection of each sender; messages of an earlier one are refused. A machine
    -- that reaches this one under two names has two.
    CREATE TABLE senders (
        id INTEGER NOT NULL PRIMARY KEY,
        file BLOB NOT NULL,
        authority TEXT NOT NULL, -- by which the sender reaches this machine
        connection BLOB NOT NULL,
        seen_at INTEGER NOT NULL DEFAULT 0, -- the last Hello or Offer, by the file's clock
        principal TEXT, -- of the first Hello; NULL: any
        UNIQUE (file, authority)
    ) STRICT;
    -- From other machines: stored and not yet visible.
    CREATE TABLE inbound (
        id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
        sender INTEGER NOT NULL REFERENCES senders (id),
        uid BLOB NOT NULL,
        authority TEXT NOT NULL, -- '': this machine
        queue TEXT NOT NULL,
        arrived_at INTEGER NOT NULL,
        visited BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (uid, sender)
    ) STRICT;
    CREATE INDEX inbound_by_sender ON inbound (sender);
    -- History: messages that a committed transaction received.
    CREATE TABLE received (
        uid BLOB NOT NULL PRIMARY KEY,
        queue TEXT NOT NULL,
        size INTEGER NOT NULL,
        arrived_at INTEGER NOT NULL,
        received_at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX received_by_time ON received (received_at);
    CREATE TABLE dead_letters (
        id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
        uid BLOB NOT NULL UNIQUE,
        authority TEXT NOT NULL,
        queue TEXT NOT NULL,
        reason TEXT NOT NULL,
        stored_at INTEGER NOT NULL,
        died_at INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    -- Messages of which the relay was not notified, by the time from which they are visible.
    CREATE TABLE unnotified (
        queue INTEGER NOT NULL REFERENCES queues (id),
        due INTEGER NOT NULL, -- 0: visible when they were stored
        messages INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        revision INTEGER NOT NULL, -- changes with each message
        told INTEGER NOT NULL DEFAULT 0, -- 1: the relay was notified of the time, and again when it has come
        PRIMARY KEY (queue, due)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX unnotified_untold ON unnotified (queue, due) WHERE told = 0;
    CREATE INDEX unnotified_told ON unnotified (due) WHERE told = 1;
    -- The ids of messages that came from other machines, for a time: a restored copy of a sender brings
    -- its messages again, also those that a consumer has deleted.
    CREATE TABLE arrived (
        uid BLOB NOT NULL PRIMARY KEY,
        at INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX arrived_by_time ON arrived (at);
";
