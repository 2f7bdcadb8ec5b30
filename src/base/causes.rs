//! An error with its causes, as one text for people.

use std::error::Error as StdError;

/// An error may name itself among its causes.
const MAX_CAUSES: usize = 64;

/// Returns an error and its causes.
pub(crate) fn causes<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source()).take(MAX_CAUSES)
}

/// Returns an error's text and those of its causes, each once: many errors repeat the text of their
/// cause.
pub(crate) fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
