//! Columns that several queries read.

use std::time::SystemTime;

use rusqlite::Row;

use super::message::Destination;
use crate::queue::sqlite::system_time;

pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)?.max(0).unsigned_abs())
}

pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<SystemTime> {
    Ok(system_time(
        row.get::<_, Option<_>>(column)?.unwrap_or_default(),
    ))
}

/// Reads a destination from the columns of its machine and its queue.
pub(super) fn destination(row: &Row<'_>, column: usize) -> rusqlite::Result<Destination> {
    // A damaged name must not hide the rows that are read with it.
    let text = |column| {
        let text = row.get_ref(column)?.as_bytes()?;
        Ok::<_, rusqlite::Error>(String::from_utf8_lossy(text).into_owned())
    };
    Ok(Destination::stored(text(column)?, text(column + 1)?))
}
