//! A queue that stores large bodies in a blob store and puts only a reference to the queue.
//!
//! A body that is too large for the queue is compressed and written into a blob. The message then
//! carries a short reference, and a get through a claim check restores the body. Each blob carries
//! an expiry in its metadata, so that a sweep can remove the blobs that a crash left behind. This
//! module does not know the sweeper.

pub(crate) mod claim;
#[cfg(test)]
mod tests;

use std::{
    fmt::{self, Display},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost_types::Timestamp;

use self::claim::{Claim, is_id, is_marked, random_id};
use super::{
    Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue, invalid_receipt,
};
use crate::{
    base::{clock::wall, task},
    error::{Error, ErrorKind, Result},
    store::{BlobContent, BlobName, BlobStore},
    types::{GroupName, QueueAddress},
};

/// Takes messages that are too large for a queue, with the help of a [`BlobStore`].
///
/// A body above [`ClaimConfig::inline`] is written as a blob, and the message carries a reference to
/// it. A smaller body is put unchanged, except a body that begins like a reference: it goes into a
/// blob too, at any size, so that no body is mistaken for a reference. Producers and consumers
/// without the claim check see ordinary bodies unchanged.
///
/// **Unreadable bodies.** A get returns the other messages normally, and this message with the
/// reference as its body and a [`fault`](Message::fault):
/// * The store does not answer, or not within 10 s: the fault has the kind of that error, which [is
///   retryable](ErrorKind::is_retryable). Release the message with a delay, at any dequeue count: the queue
///   counts a get before the body is read, so the count does not mean failed handling (a
///   [`Listener`](crate::listener::Listener) takes that into account).
/// * The blob is gone: [`ErrorKind::NotFound`].
/// * The blob cannot be decompressed, has another length than stated, or is above
///   [`ClaimConfig::max_body`], or the reference has a newer version: [`ErrorKind::Invalid`].
///
/// The last two kinds of faults are permanent: treat the message like any other that cannot be
/// handled. Its delete keeps the blob for an analysis.
///
/// **Leftover blobs.** The blob is deleted after its message. It is left over after a crash in
/// between, after a crash between the blob's write and the put, after a put that the queue refuses,
/// and after [`WorkQueue::purge`]. Each blob therefore carries the metadata `TimeToLive`: the UTC time (RFC
/// 3339) after which no message needs it.
///
/// Put a [`Retrying`](super::Retrying) inside, around the queue itself, so that a retry repeats no
/// upload. Where the answer of a put was lost, two messages have one blob: after the first one is
/// deleted, the body of the second one is gone.
#[derive(Debug, Clone)]
pub struct ClaimCheck {
    inner: Arc<dyn WorkQueue>,
    store: Arc<dyn BlobStore>,
    config: ClaimConfig,
}

/// Sizes, names and lifetimes of the blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimConfig {
    /// Bodies up to this size are put unchanged, if the queue's limit allows it.
    pub inline: usize,
    /// The largest body that is put or read from a blob. A get takes at most
    /// [`QueueLimits::batch`] times this much memory.
    pub max_body: usize,
    /// The prefix of the blobs' names. Queues may share it, but other programs must not use it: a
    /// producer of the queue can name any blob below it.
    pub prefix: String,
    /// The lifetime of a blob. It must be longer than any message
    /// waits and is retried: a message that outlives its blob has lost its body.
    pub keep: Duration,
}

/// The number of blobs that one call reads or writes at the same time: enough to hide a store's
/// latency.
const CONCURRENT_BLOBS: usize = 8;
/// The time limit for reading one body, so that the other messages of the get do not wait longer. A full
/// get of 32 bodies, eight at a time, stays below the minute after which a listener cancels a get.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest lifetime of a blob, so that its expiry has a four-digit year.
const MAX_LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The metadata key for a blob's expiry, which sweepers read.
const TIME_TO_LIVE: &str = "TimeToLive";

impl ClaimCheck {
    /// Wraps a queue.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an empty prefix, or a prefix that is invalid in a blob's name.
    pub fn new(
        inner: Arc<dyn WorkQueue>,
        store: Arc<dyn BlobStore>,
        config: ClaimConfig,
    ) -> Result<Self> {
        if config.prefix.is_empty() {
            let rule = "must not be empty: a message could name any blob of the store";
            return Err(Error::invalid("prefix", rule));
        }
        let claims = Self {
            inner,
            store,
            config,
        };
        claims.blob(&"0".repeat(32))?;
        Ok(claims)
    }

    fn blob(&self, id: &str) -> Result<BlobName> {
        BlobName::new(&format!("{}{id}", self.config.prefix))
    }

    fn goes_by_reference(&self, body: &Bytes) -> bool {
        let inline = self.config.inline.min(self.inner.limits().body);
        body.len() > inline || is_marked(body)
    }

    /// Writes the body of a message into a blob if necessary; returns the message to put, and the
    /// blob.
    async fn store_body(&self, message: NewMessage) -> Result<(NewMessage, Option<Arc<str>>)> {
        if !self.goes_by_reference(&message.body) {
            return Ok((message, None));
        }
        let id = random_id()?;
        let body = message.body.clone();
        let (claim, bytes) = task::blocking(move || Claim::pack(id, &body)).await?;
        let mut content = BlobContent::from(bytes);
        let expiry = self.expiry(message.delay);
        content.metadata.insert(TIME_TO_LIVE.to_owned(), expiry);
        self.store.create(&self.blob(&claim.id)?, content).await?;
        let body = Bytes::from(claim.to_string());
        Ok((NewMessage { body, ..message }, Some(claim.id)))
    }

    /// Writes the blobs of all messages, or of none.
    async fn store_bodies(&self, messages: Vec<NewMessage>) -> Result<Vec<NewMessage>> {
        self.limits().check_put(&messages)?;
        let (mut checked, mut blobs, mut failed) = (Vec::new(), Vec::new(), None);
        let each = messages.into_iter().map(|message| self.store_body(message));
        let mut each = stream::iter(each).buffered(CONCURRENT_BLOBS);
        while let Some(done) = each.next().await {
            match done {
                Ok((message, blob)) => {
                    checked.push(message);
                    blobs.extend(blob);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let Some(error) = failed else {
            return Ok(checked);
        };
        // No message was or will be put, so nothing refers to these blobs.
        for id in &blobs {
            self.discard(id).await;
        }
        Err(error)
    }

    /// Returns the expiry of the blob of a message that is put now.
    fn expiry(&self, delay: Duration) -> String {
        let lifetime = self.config.keep.saturating_add(delay);
        let now = wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let expiry = now + lifetime.min(MAX_LIFETIME);
        let seconds = i64::try_from(expiry.as_secs()).unwrap_or(i64::MAX);
        Timestamp { seconds, nanos: 0 }.to_string()
    }

    /// Restores the body that was put. Returns it with the fault of an unreadable one, and the message's
    /// blob if the body was read from one.
    async fn resolve(&self, body: Bytes) -> (Bytes, Option<Error>, Option<Arc<str>>) {
        let Some(claim) = Claim::parse(&body) else {
            return (body, None, None);
        };
        let read = tokio::time::timeout(READ_TIMEOUT, self.load_body(claim)).await;
        let read = read.unwrap_or_else(|_| {
            let message = format!("its body was not read in time from {}", self.store);
            Err(Error::new(ErrorKind::Timeout, message))
        });
        match read {
            Ok((body, blob)) => (body, None, Some(blob)),
            Err(error) => (body, Some(error), None),
        }
    }

    async fn load_body(&self, claim: Result<Claim>) -> Result<(Bytes, Arc<str>)> {
        let claim = claim?;
        QueueLimits::check_body(claim.length, self.config.max_body)?;
        let (name, id) = (self.blob(&claim.id)?, Arc::clone(&claim.id));
        let Some(blob) = self.store.get(&name).await? else {
            let message = format!("its body is gone: blob `{name}` of {}", self.store);
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        let body = task::blocking(move || claim.unpack(&blob.content.bytes)).await??;
        Ok((body, id))
    }

    async fn message(&self, message: Message) -> Message {
        let (body, fault, blob) = self.resolve(message.body).await;
        Message {
            body,
            fault: message.fault.or(fault),
            receipt: outer_receipt(blob.as_deref(), &message.receipt),
            ..message
        }
    }

    async fn peeked(&self, message: PeekedMessage) -> PeekedMessage {
        let (body, fault, _) = self.resolve(message.body).await;
        PeekedMessage {
            body,
            fault: message.fault.or(fault),
            ..message
        }
    }

    /// Deletes the blob of a message that does not exist. After a failure the blob stays until its
    /// expiry.
    async fn discard(&self, id: &str) {
        let deleted = match self.blob(id) {
            Ok(name) => self.store.delete(&name, None).await,
            Err(error) => Err(error),
        };
        if let Err(error) = deleted {
            tracing::warn!(
                queue = %self, blob = %id, %error,
                "a blob could not be deleted and stays until its expiry"
            );
        }
    }

    /// Returns the blob of a receipt's message, and the wrapped queue's receipt.
    fn split(&self, receipt: &Receipt) -> Result<(Option<Arc<str>>, Receipt)> {
        let unknown = || invalid_receipt(self, receipt);
        let (blob, token) = receipt.token().split_once(':').ok_or_else(unknown)?;
        let blob = match blob {
            "" => None,
            id if is_id(id) => Some(id.into()),
            _ => return Err(unknown()),
        };
        Ok((blob, Receipt::new(receipt.message_id().clone(), token)))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl WorkQueue for ClaimCheck {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    fn listener_group(&self) -> GroupName {
        self.inner.listener_group()
    }

    fn empty_is_certain(&self) -> bool {
        self.inner.empty_is_certain()
    }

    async fn create(&self) -> Result<bool> {
        self.inner.create().await
    }

    async fn depth(&self) -> Result<u64> {
        self.inner.depth().await
    }

    /// Leaves the blobs until their expiry.
    async fn purge(&self) -> Result<()> {
        self.inner.purge().await
    }

    /// Returns the queue's limits, and [`ClaimConfig::max_body`] as that of a body.
    fn limits(&self) -> QueueLimits {
        QueueLimits {
            body: self.config.max_body,
            ..self.inner.limits()
        }
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        let checked = self.store_bodies(messages).await?;
        // No blob is deleted, even if the put fails: the message may have been put despite the
        // error, and a lost body is worse. The blob of a message that was not put stays until
        // its expiry.
        self.inner.put(checked).await
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let got = self.inner.get(max, visibility_timeout).await?;
        let each = stream::iter(got).map(|message| self.message(message));
        Ok(each.buffered(CONCURRENT_BLOBS).collect().await)
    }

    /// Deletes the message, then its blob. If the blob's delete fails, the blob stays until its
    /// expiry.
    async fn delete(&self, receipt: &Receipt) -> Result<()> {
        let (blob, receipt) = self.split(receipt)?;
        self.inner.delete(&receipt).await?;
        if let Some(id) = &blob {
            self.discard(id).await;
        }
        Ok(())
    }

    async fn renew(&self, receipt: &Receipt, visibility_timeout: Duration) -> Result<Receipt> {
        let (blob, receipt) = self.split(receipt)?;
        let renewed = self.inner.renew(&receipt, visibility_timeout).await?;
        Ok(outer_receipt(blob.as_deref(), &renewed))
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        let (_, receipt) = self.split(receipt)?;
        self.inner.release(&receipt, delay).await
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        let (_, receipt) = self.split(receipt)?;
        self.inner.release_untried(&receipt, delay).await
    }

    /// A message that is deleted at the same time may come with the fault of a missing blob.
    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        let peeked = self.inner.peek(max).await?;
        let each = stream::iter(peeked).map(|message| self.peeked(message));
        Ok(each.buffered(CONCURRENT_BLOBS).collect().await)
    }
}

impl Display for ClaimCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Default for ClaimConfig {
    fn default() -> Self {
        Self {
            // A service limit of 64 KiB counts base64, which leaves 48 KiB. 32 KiB leaves room for
            // what other wrappers add. Smaller bodies are not worth a blob transaction.
            inline: 32 * 1024,
            // A full get of 32 messages takes 256 MiB then.
            max_body: 8 * 1024 * 1024,
            prefix: "claims/".to_owned(),
            // No service keeps a message for longer than two weeks unless configured otherwise.
            keep: Duration::from_secs(90 * 24 * 3600),
        }
    }
}

/// Adds the blob to the receipt, so that a delete needs to read neither message nor blob.
fn outer_receipt(blob: Option<&str>, receipt: &Receipt) -> Receipt {
    let token = format!("{}:{}", blob.unwrap_or_default(), receipt.token());
    Receipt::new(receipt.message_id().clone(), &token)
}
