//! A put of many messages with a call for each.

use std::sync::OnceLock;

use futures_util::{StreamExt as _, stream};

use super::MessageId;
use crate::error::{Error, ErrorKind, Result};

/// The number of concurrent calls of one put: 16 at 10 ms each are 1,600 a second, below an Azure queue's
/// limit of 2,000, so that one call does not make the service turn others away.
const CONCURRENT_PUTS: usize = 16;

/// Puts messages with a call for each; returns their ids in order. After a failure no further one is put,
/// so that a put of many messages does not repeat the same failure for each. The calls in flight still
/// complete: if dropped, their messages would be in doubt.
///
/// # Errors
/// If some messages were put or may have been, the error's kind is not a refusal.
pub(super) async fn put_each<M, F>(
    messages: Vec<M>,
    put: impl Fn(M) -> F + Sync,
) -> Result<Vec<MessageId>>
where
    F: Future<Output = Result<MessageId>>,
{
    let (failed, put) = (&OnceLock::<Error>::new(), &put);
    let each = messages.into_iter().map(|message| async move {
        if let Some(error) = failed.get() {
            return Err(error.clone());
        }
        // Keeps the first error.
        put(message)
            .await
            .inspect_err(|error| drop(failed.set(error.clone())))
    });
    let outcomes = stream::iter(each).buffered(CONCURRENT_PUTS);
    combine(outcomes.collect().await)
}

/// Combines the outcomes of a put's messages: all ids in order, or one error. If some messages were
/// put or may have been, the error's kind is not a refusal.
fn combine(outcomes: Vec<Result<MessageId>>) -> Result<Vec<MessageId>> {
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
