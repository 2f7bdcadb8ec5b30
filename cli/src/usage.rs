//! Parsers of values.

use std::{str::FromStr, time::Duration};

use reveille::duration;

/// Parses a number that may be 0.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| "must be a whole number, 0 or more".to_owned())
}

/// Parses a number of at least 1.
pub(crate) fn positive<T: FromStr + Default + PartialEq>(text: &str) -> Result<T, String> {
    let positive = text.parse().ok().filter(|number| *number != T::default());
    positive.ok_or_else(|| "must be a whole number, 1 or more".to_owned())
}

/// Parses a duration above zero.
pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    match span.is_zero() {
        true => Err("must be above zero".to_owned()),
        false => Ok(span),
    }
}

/// Returns the user's name, or an empty text.
pub(crate) fn user() -> String {
    std::env::var("USER").unwrap_or_default()
}
