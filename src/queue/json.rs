//! Typed messages: values that are put and got as JSON.
//!
//! A body that cannot be decoded does not fail the whole get. Its message comes with an error in
//! place of the value, so that the listener can dispose of it and handle the others.

use std::{fmt, marker::PhantomData, time::Duration};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::{Message, MessageId, NewMessage, WorkQueue};
use crate::error::{Error, Result};

/// A queue whose messages are values of one type, written as JSON.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> reveille::Result<()> {
/// use std::time::Duration;
/// use reveille::queue::{JsonQueue, MemoryQueue, WorkQueue};
///
/// let jobs: JsonQueue<(u32, String), _> = JsonQueue::new(MemoryQueue::new("acct/jobs".parse()?));
/// jobs.put(&[(7, "seven".to_owned())]).await?;
/// for got in jobs.get(32, Duration::from_secs(30)).await? {
///     match got.value {
///         Ok((number, name)) => println!("{number} is {name}"),
///         Err(error) => eprintln!("{error}"), // not decodable: see `got.message`
///     }
///     jobs.inner().delete(&got.message.receipt).await?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct JsonQueue<T, Q> {
    inner: Q,
    of: PhantomData<fn(T) -> T>,
}

/// A message returned by a get, with its decoded value.
#[derive(Debug)]
#[non_exhaustive]
pub struct JsonMessage<T> {
    /// The decoded value. The error is [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the
    /// body is not such a value, or has the kind of the message's fault.
    pub value: Result<T>,
    /// The message, with its receipt and its raw body.
    pub message: Message,
}

impl<T, Q: WorkQueue> JsonQueue<T, Q> {
    /// Wraps a queue.
    pub fn new(inner: Q) -> Self {
        let of = PhantomData;
        Self { inner, of }
    }

    /// Returns the wrapped queue, which deletes, renews and releases messages.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    /// Puts values that are visible at once; returns their ids in the same order.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a value cannot be written as JSON; then
    /// nothing was put. Otherwise as [`WorkQueue::put`].
    pub fn put(&self, values: &[T]) -> impl Future<Output = Result<Vec<MessageId>>> + Send
    where
        T: Serialize,
    {
        // Encoded outside of the future: it stays `Send` even if the values are not `Sync`.
        let messages: Result<Vec<_>> = values.iter().map(encode).collect();
        async { self.inner.put(messages?).await }
    }

    /// Gets up to `max` values and hides them, as [`WorkQueue::get`] does.
    ///
    /// # Errors
    /// As [`WorkQueue::get`]. An error of one message is in its [`JsonMessage::value`].
    pub async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<JsonMessage<T>>>
    where
        T: DeserializeOwned,
    {
        let got = self.inner.get(max, visibility_timeout).await?;
        let typed = got.into_iter().map(|message| JsonMessage {
            value: self.read(&message),
            message,
        });
        Ok(typed.collect())
    }

    fn read(&self, message: &Message) -> Result<T>
    where
        T: DeserializeOwned,
    {
        let value = message.payload().and_then(decode);
        value.map_err(|error| {
            let (id, queue) = (&message.id, &self.inner);
            let words = format!("message `{id}` of queue `{queue}`: {error}");
            Error::new(error.kind(), words).with_source(error)
        })
    }
}

/// Encodes a value as a message, for callers that set a delay or a time to live.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the value cannot be written as JSON.
pub fn encode<T: Serialize>(value: &T) -> Result<NewMessage> {
    let body = serde_json::to_vec(value).map_err(|error| {
        let rule = format_args!("the value cannot be written as JSON: {error}");
        Error::invalid("body", rule)
    })?;
    Ok(NewMessage::new(body))
}

/// Decodes a body, for a handler that receives plain messages.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the body is not UTF-8, not JSON, or not a
/// value of this type. The message states the reason and the position.
pub fn decode<T: DeserializeOwned>(body: &Bytes) -> Result<T> {
    let invalid = |rule: fmt::Arguments<'_>| Error::invalid("body", rule);
    let text = std::str::from_utf8(body)
        .map_err(|error| invalid(format_args!("is not UTF-8: {error}")).with_source(error))?;
    serde_json::from_str(text).map_err(|error| {
        let words = match error.classify() {
            serde_json::error::Category::Data => "is not the value that is expected",
            _ => "is not JSON",
        };
        invalid(format_args!("{words}: {error}")).with_source(error)
    })
}

impl<T, Q: Clone> Clone for JsonQueue<T, Q> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            of: PhantomData,
        }
    }
}

impl<T, Q: fmt::Debug> fmt::Debug for JsonQueue<T, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JsonQueue").field(&self.inner).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::Arc};

    use serde::Deserialize;

    use super::{super::MemoryQueue, *};
    use crate::error::ErrorKind;

    const LONG: Duration = Duration::from_secs(600);

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Job {
        number: u32,
        name: String,
    }

    fn queue<T>() -> JsonQueue<T, Arc<dyn WorkQueue>> {
        let address = "local/jobs".parse().expect("an address");
        JsonQueue::new(Arc::new(MemoryQueue::new(address)))
    }

    fn job(number: u32) -> Job {
        let name = format!("job \u{e4} {number}");
        Job { number, name }
    }

    #[tokio::test]
    async fn a_value_comes_out_as_it_went_in() {
        let queue = queue();
        let ids = queue.put(&[job(1), job(2)]).await.expect("put");
        let got = queue.get(32, LONG).await.expect("get");
        for (number, (id, got)) in (1..).zip(ids.iter().zip(&got)) {
            assert_eq!(&got.message.id, id);
            assert_eq!(got.value.as_ref().expect("a job"), &job(number));
            queue
                .inner()
                .delete(&got.message.receipt)
                .await
                .expect("delete");
        }
        assert_eq!(queue.inner().depth().await.expect("depth"), 0);
    }

    #[tokio::test]
    async fn a_body_that_cannot_be_decoded_is_an_error_of_its_message_only() {
        let queue = queue::<Job>();
        let bodies: [(&[u8], &str); 4] = [
            (b"\xff\xfe", "body: is not UTF-8"),
            (b"{\"number\":", "body: is not JSON: EOF while parsing"),
            (
                b"{\"number\":-1}",
                "body: is not the value that is expected",
            ),
            (b"", "body: is not JSON"),
        ];
        let good = encode(&job(5)).expect("JSON");
        queue.inner().put(vec![good]).await.expect("put");
        for (body, words) in bodies {
            let put = queue.inner().put(vec![NewMessage::new(body)]).await;
            let id = put.expect("put").remove(0);
            let got = queue.get(32, LONG).await.expect("the get succeeds");
            let bad = got.last().expect("it was put last");
            let error = bad.value.as_ref().expect_err(words);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let named = format!("message `{id}` of queue `memory:jobs`: {words}");
            assert!(error.message().starts_with(&named), "{error}");
            assert_eq!(bad.message.body, body);
            let deleted = queue.inner().delete(&bad.message.receipt).await;
            deleted.expect("the receipt came with it");
            if let [one, _] = &got[..] {
                assert_eq!(one.value.as_ref().expect("a job"), &job(5));
            }
        }
    }

    #[tokio::test]
    async fn a_value_that_cannot_be_encoded_is_not_put() {
        let queue: JsonQueue<HashMap<(u8, u8), u8>, _> = queue();
        let bad = HashMap::from([((1, 2), 3)]);
        let error = queue.put(&[HashMap::new(), bad]).await.expect_err("a key");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(queue.inner().depth().await.expect("depth"), 0);
    }
}
