//! The check of a whole file for damage.

use std::path::Path;

use rusqlite::ErrorCode;

use super::{error, open::connect};
use crate::{base::task::blocking, error::Result};

/// Checks the file and returns the first problem, or `None` if it is sound. A `thorough` check also
/// compares each index with its table. Changes nothing.
///
/// # Errors
/// If the file could not be read, which says nothing about its content.
pub(crate) async fn check_file(path: &Path, thorough: bool) -> Result<Option<String>> {
    let owned = path.to_owned();
    let checked = blocking(move || first_problem(&owned, thorough));
    let checked = checked.await.map_err(|_| error::panicked(path))?;
    checked.map_err(|source| error::sql(path, source))
}

fn first_problem(path: &Path, thorough: bool) -> rusqlite::Result<Option<String>> {
    let pragma = match thorough {
        true => "PRAGMA integrity_check(1)",
        false => "PRAGMA quick_check(1)",
    };
    let check = || -> rusqlite::Result<String> {
        let connection = connect(path)?;
        connection.query_row(pragma, (), |row| row.get(0))
    };
    match check() {
        Ok(answer) if answer == "ok" => Ok(None),
        Ok(problem) => Ok(Some(problem)),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt) => Ok(Some(error.to_string())),
            _ => Err(error),
        },
    }
}
