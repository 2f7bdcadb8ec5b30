//! The outcomes of one put: of each message, and of all of them together.

use super::MessageId;
use crate::error::{Error, ErrorKind, Result};

/// Returns each message's outcome of a put that did all or failed as a whole.
pub(super) fn of_each(messages: usize, put: Result<Vec<MessageId>>) -> Vec<Result<MessageId>> {
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

/// Returns the outcome of a put of each message: all ids in their order, or one error. Where a part
/// was put or may have been, the error's kind is no refusal.
pub(super) fn of_all(outcomes: Vec<Result<MessageId>>) -> Result<Vec<MessageId>> {
    let messages = outcomes.len();
    let (mut ids, mut failed) = (Vec::with_capacity(messages), None::<Error>);
    for outcome in outcomes {
        match outcome {
            Ok(id) => ids.push(id),
            Err(error) => {
                let doubtful = !error.kind().is_refusal();
                // A message that is in doubt decides, whatever was refused before it.
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

/// Returns an error that is no refusal, and as retryable as `error`, which becomes its source.
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
    fn a_put_that_put_a_part_is_never_a_refusal() {
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
            let error = of_all(outcomes.collect()).expect_err("one failed");
            assert_eq!(error.kind(), kind, "{error}");
        }
        let all = of_all(vec![outcome(None), outcome(None)]);
        assert_eq!(all.expect("put").len(), 2);
    }
}
