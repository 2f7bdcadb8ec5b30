//! The check of a database file for damage.
//!
//! Runs on a thread and a connection for this call only, before the file is opened for use. Changes
//! nothing; what to do with a damaged file is the caller's decision.

use std::path::Path;

use rusqlite::ErrorCode;
use tokio::sync::oneshot;

use super::{error, open::connect};
use crate::error::Result;

/// Checks the file and returns the first problem, or `None` if it is sound. A `thorough` check also
/// compares each index with its table.
///
/// # Errors
/// If the file could not be read, which says nothing about its content.
#[expect(clippy::disallowed_methods, reason = "SQLite blocks, for seconds")]
pub(crate) async fn check_file(path: &Path, thorough: bool) -> Result<Option<String>> {
    let (answer, outcome) = oneshot::channel();
    let owned = path.to_owned();
    std::thread::Builder::new()
        .name("reveille-check".into())
        .spawn(move || {
            // The caller may no longer wait.
            let _ = answer.send(first_problem(&owned, thorough));
        })
        .map_err(|source| error::no_thread(path, source))?;
    let checked = outcome.await.map_err(|_| error::panicked(path))?;
    checked.map_err(|source| error::sql(path, source))
}

fn first_problem(path: &Path, thorough: bool) -> rusqlite::Result<Option<String>> {
    let pragma = match thorough {
        true => "PRAGMA integrity_check(1)",
        false => "PRAGMA quick_check(1)",
    };
    let check =
        || -> rusqlite::Result<String> { connect(path)?.query_row(pragma, (), |row| row.get(0)) };
    match check() {
        Ok(answer) if answer == "ok" => Ok(None),
        Ok(problem) => Ok(Some(problem)),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Ok(Some(error.to_string()))
            }
            _ => Err(error),
        },
    }
}
