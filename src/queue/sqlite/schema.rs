//! The tables of a queue file, version by version.

use crate::backend::sqlite::Schema;

pub(super) const SCHEMA: Schema = Schema {
    // "revQ"
    application_id: 0x7265_7651,
    migrations: &[
        "CREATE TABLE queues (
            id INTEGER NOT NULL PRIMARY KEY,
            name TEXT NOT NULL UNIQUE
        ) STRICT;
        CREATE TABLE messages (
            -- Never used twice: a receipt of a message that is gone must not fit another one.
            id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
            queue INTEGER NOT NULL REFERENCES queues (id),
            visible_at INTEGER NOT NULL, -- microseconds since 1970, as all times
            ends_at INTEGER,
            inserted_at INTEGER NOT NULL,
            dequeue_count INTEGER NOT NULL DEFAULT 0,
            receipt INTEGER NOT NULL DEFAULT 0, -- of the newest hand-out
            body BLOB NOT NULL
        ) STRICT;
        CREATE INDEX messages_by_time ON messages (queue, visible_at);
        CREATE INDEX messages_by_end ON messages (ends_at) WHERE ends_at IS NOT NULL",
        // A counter, so that a depth need not scan all messages. The put adds to it, and a trigger
        // subtracts each removed message, for any reason. An insert trigger would copy three
        // pages per message into the journal of the put's savepoint. That journal becomes a file at
        // 64 KiB, which would cost a third of the throughput.
        "ALTER TABLE queues ADD COLUMN messages INTEGER NOT NULL DEFAULT 0;
        UPDATE queues SET messages = (SELECT count(*) FROM messages WHERE queue = queues.id);
        CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
            UPDATE queues SET messages = messages - 1 WHERE id = old.queue;
        END",
        // A get skips expired messages and a depth counts them; both need the index only. The clock
        // has one row.
        "DROP INDEX messages_by_time;
        CREATE INDEX messages_by_time ON messages (queue, visible_at, ends_at);
        DROP INDEX messages_by_end;
        CREATE INDEX messages_by_end ON messages (ends_at, queue) WHERE ends_at IS NOT NULL;
        CREATE TABLE clock (
            seen INTEGER NOT NULL, -- the greatest time that was reckoned with
            ahead INTEGER NOT NULL -- of the machine's clock, in microseconds
        ) STRICT;
        INSERT INTO clock (seen, ahead) SELECT coalesce(max(inserted_at), 0), 0 FROM messages",
        // Listeners of one file share its wake-ups, but not those of another file under the same
        // address.
        "CREATE TABLE identity (id BLOB NOT NULL) STRICT;
        INSERT INTO identity (id) VALUES (randomblob(16))",
    ],
};
