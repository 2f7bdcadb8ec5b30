//! Converts between the outcome of a whole put and the outcomes of its messages.

use super::MessageId;
use crate::error::{Error, ErrorKind, Result};

/// Returns the outcome of each message of a put that succeeded or failed as a whole.
pub(super) fn for_each(messages: usize, put: Result<Vec<MessageId>>) -> Vec<Result<MessageId>> {
    match put {
        Ok(ids) => ids.into_iter().map(Ok).collect(),
        Err(error) => {
            let copies = std::iter::repeat_n(error.clone(), messages.saturating_sub(1));
            // The first keeps the error's source.
            let all = std::iter::once(error).chain(copies);
            all.take(messages).map(Err).collect()
        }
    }
}

/// Combines the outcomes of a put's messages: all ids in order, or one error. If some messages were
/// put or may have been, the error's kind is not a refusal.
pub(super) fn combine(outcomes: Vec<Result<MessageId>>) -> Result<Vec<MessageId>> {
    let messages = outcomes.len();
    let (mut ids, mut failed) = (Vec::with_capacity(messages), None::<Error>);
    for outcome in outcomes {
        match outcome {
            Ok(id) => ids.push(id),
            Err(error) => {
                let doubtful = !error.kind().is_refusal();
                // An error after which the message may have been put overrides earlier refusals.
                let decides = |first: &Error| doubtful && first.kind().is_refusal();
                if failed.as_ref().is_none_or(decides) {
                    failed = Some(error);
                }
            }
        }
    }
    match failed {
        None => Ok(ids),
        Some(error) if ids.is_empty() => Err(error),
        Some(error) => {
            let words = format!(
                "{} of {messages} messages were put; then {error}",
                ids.len()
            );
            Err(in_doubt(words, error))
        }
    }
}

/// Returns an error that is not a refusal and is retryable if `error` is; `error` is its source.
pub(super) fn in_doubt(words: String, error: Error) -> Error {
    let kind = match error.kind() {
        kind if !kind.is_refusal() => kind,
        kind if kind.is_retryable() => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    };
    let doubtful = Error::new(kind, words);
    let doubtful = match error.retry_after() {
        Some(after) => doubtful.with_retry_after(after),
        None => doubtful,
    };
    doubtful.with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_put_is_never_a_refusal() {
        use ErrorKind as K;
        let outcome = |kind: Option<ErrorKind>| match kind {
            None => Ok(MessageId::new("1")),
            Some(kind) => Err(Error::new(kind, "failed")),
        };
        for (outcomes, kind) in [
            (vec![Some(K::NotFound), Some(K::NotFound)], K::NotFound),
            (vec![None, Some(K::NotFound)], K::Internal),
            (vec![Some(K::Denied), None], K::Internal),
            (vec![None, Some(K::Exhausted)], K::Unavailable),
            (vec![None, Some(K::Timeout)], K::Timeout),
            (vec![Some(K::Exhausted), Some(K::Timeout)], K::Timeout),
        ] {
            let outcomes = outcomes.into_iter().map(outcome);
            let error = combine(outcomes.collect()).expect_err("one failed");
            assert_eq!(error.kind(), kind, "{error}");
        }
        let all = combine(vec![outcome(None), outcome(None)]);
        assert_eq!(all.expect("put").len(), 2);
    }
}
