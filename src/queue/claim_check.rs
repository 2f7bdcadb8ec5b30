//! A queue whose large messages lie in a blob store, and only a claim on them in the queue.
//!
//! What is too large for the queue is compressed and written into a blob, then put as a short
//! reference; whoever gets it through a claim check sees the body that was put. Each blob carries
//! when it is no longer needed, so that what a crash left behind can be swept. Knows no sweeper.

mod claim;
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

use self::claim::{Claim, ClaimId, is_marked};
use super::{
    Fault, Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue, lost,
    outcome,
};
use crate::{
    clock::wall,
    error::{Error, ErrorKind, Result},
    store::{BlobContent, BlobName, BlobStore},
    task,
    words::{GroupName, QueueAddress},
};

/// Takes messages that are too large for a queue, by a [`BlobStore`].
///
/// A body above [`ClaimConfig::inline`] is written as a blob first, and put as a reference to it; a
/// smaller one passes as it is, but for one that begins as a reference does: that one takes the same
/// way, whatever its size, so that no body that was put here is ever taken for a reference. Whoever
/// puts or gets without the claim check sees ordinary bodies as they are.
///
/// **A body that cannot be had.** A get returns the other messages all the same, and this one with
/// the reference as its body and a [`Fault`]:
/// * the store does not answer, or not within [`ClaimConfig::read_timeout`]: the kind of its error,
///   which [is retryable](ErrorKind::is_retryable). Give the message back with a delay, however often it was
///   got: the count says nothing of it, as the queue counted before the body was looked for (a
///   [`Listener`](crate::listener::Listener) keeps account of that);
/// * the blob is gone: [`ErrorKind::NotFound`]; it cannot be decompressed, is not as long as it was,
///   is above [`ClaimConfig::max_body`], or the reference is of a newer version:
///   [`ErrorKind::Invalid`]. That stays so: do away with the message as with one that cannot be
///   handled. Its delete leaves the blob, for whoever looks for the reason.
///
/// **What is left behind.** A blob is deleted after its message was. A crash in between, or between
/// the blob's write and the put, leaves it, and so do a put that the queue refuses,
/// [`WorkQueue::purge`] and a message's own time to live. Each blob therefore carries the metadata
/// `TimeToLive`, the UTC time (RFC 3339) from which on no message needs it. In a store that keeps no metadata, only the age of the blobs below
/// [`ClaimConfig::prefix`] tells.
///
/// Whatever tries again goes inside, around the queue itself, so that a try repeats no upload.
#[derive(Debug, Clone)]
pub struct ClaimCheck<Q> {
    inner: Q,
    store: Arc<dyn BlobStore>,
    config: ClaimConfig,
}

/// What is stored where, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimConfig {
    /// Bodies up to this pass as they are, where the queue takes them.
    pub inline: usize,
    /// The largest body that is put, and that is made of a blob; the limit on what a get may take of
    /// memory is [`QueueLimits::batch`] times that.
    pub max_body: usize,
    /// How long reading one body may take; then it is as where the store does not answer, and the
    /// other messages of its get wait no longer for it.
    pub read_timeout: Duration,
    /// What the blobs' names begin with. Queues may share it; nothing else may use it, as whoever
    /// can put into the queue can name any blob below it.
    pub prefix: String,
    /// How long the blob of a message without a time to live is kept: longer than any message waits
    /// and is tried. A message that outlives it has lost its body.
    pub keep: Duration,
}

/// What was made of a body that came from the queue.
struct Resolved {
    body: Bytes,
    fault: Option<Fault>,
    /// The blob that goes with the message.
    blob: Option<ClaimId>,
}

/// Blobs that are read or written at the same time: enough to hide a store's latency.
const AT_ONCE: usize = 8;
/// Clocks differ, and what was got just before its end is still worked on.
const MARGIN: Duration = Duration::from_secs(24 * 3600);
/// No life is longer, so that its end has a year of four digits.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// When a blob may be swept; the name that sweepers look for.
const TIME_TO_LIVE: &str = "TimeToLive";

impl<Q: WorkQueue> ClaimCheck<Q> {
    /// Wraps a queue.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a prefix that is empty, or that no blob's name can begin with.
    pub fn new(inner: Q, store: Arc<dyn BlobStore>, config: ClaimConfig) -> Result<Self> {
        if config.prefix.is_empty() {
            let rule = "must not be empty: all blobs of the store could be named by a message";
            return Err(Error::invalid("prefix", rule));
        }
        let claims = Self {
            inner,
            store,
            config,
        };
        claims.blob(&ClaimId::default())?;
        Ok(claims)
    }

    /// Returns the queue that is wrapped.
    pub fn inner(&self) -> &Q {
        &self.inner
    }

    fn blob(&self, id: &ClaimId) -> Result<BlobName> {
        BlobName::new(&format!("{}{id}", self.config.prefix))
    }

    fn goes_by_reference(&self, body: &Bytes) -> bool {
        let inline = self.config.inline.min(self.inner.limits().body);
        body.len() > inline || is_marked(body)
    }

    /// Writes the body of a message into a blob where it must; returns the message to put, and the
    /// blob.
    async fn check_in(&self, message: NewMessage) -> Result<(NewMessage, Option<ClaimId>)> {
        if !self.goes_by_reference(&message.body) {
            return Ok((message, None));
        }
        let id = ClaimId::random()?;
        let body = message.body.clone();
        let (claim, bytes) = task::blocking(move || Claim::pack(id, body))
            .await
            .ok_or_else(ended)?;
        let mut content = BlobContent::from(bytes);
        if self.store.capabilities().metadata {
            let end = self.end(&message);
            content.metadata.insert(TIME_TO_LIVE.to_owned(), end);
        }
        self.store.create(&self.blob(&claim.id)?, content).await?;
        let body = Bytes::from(claim.to_string());
        Ok((NewMessage { body, ..message }, Some(claim.id)))
    }

    /// Checks all messages in, or none of them.
    async fn check_in_all(&self, messages: Vec<NewMessage>) -> Result<Vec<NewMessage>> {
        self.limits().check_put(&messages)?;
        let (mut checked, mut blobs, mut failed) = (Vec::new(), Vec::new(), None);
        let each = messages.into_iter().map(|message| self.check_in(message));
        let mut each = stream::iter(each).buffered(AT_ONCE);
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
        // No message has gone to the queue, and none will: nothing names these blobs.
        for id in &blobs {
            self.discard(id).await;
        }
        Err(error)
    }

    /// Returns from when on nothing needs the blob of a message that is put now.
    fn end(&self, message: &NewMessage) -> String {
        let life = match message.time_to_live {
            Some(life) => life.saturating_add(MARGIN),
            None => self.config.keep.saturating_add(message.delay),
        };
        let since = wall().duration_since(UNIX_EPOCH).unwrap_or_default() + life.min(LONGEST);
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        Timestamp { seconds, nanos: 0 }.to_string()
    }

    /// Looks for the body that was put.
    async fn resolve(&self, body: Bytes) -> Resolved {
        let found = match Claim::read(&body) {
            None => Ok((body.clone(), None)),
            Some(claim) => self.check_out_in_time(claim).await,
        };
        let (fault, (body, blob)) = match found {
            Ok(found) => (None, found),
            Err(error) => (Some(Fault::from(error)), (body, None)),
        };
        Resolved { body, fault, blob }
    }

    async fn check_out_in_time(&self, claim: Result<Claim>) -> Result<(Bytes, Option<ClaimId>)> {
        let limit = self.config.read_timeout;
        let read = tokio::time::timeout(limit, self.check_out(claim)).await;
        read.unwrap_or_else(|_| {
            let words = format!("its body was not read within {limit:?} from {}", self.store);
            Err(Error::new(ErrorKind::Timeout, words))
        })
    }

    async fn check_out(&self, claim: Result<Claim>) -> Result<(Bytes, Option<ClaimId>)> {
        let claim = claim?;
        claim.check(self.config.max_body)?;
        let (name, id) = (self.blob(&claim.id)?, claim.id.clone());
        let Some(blob) = self.store.get(&name).await? else {
            let words = format!("its body is gone: blob `{name}` of {}", self.store);
            return Err(Error::new(ErrorKind::NotFound, words));
        };
        let body = task::blocking(move || claim.unpack(&blob.content.bytes));
        let body = body.await.ok_or_else(ended)??;
        Ok((body, Some(id)))
    }

    async fn message(&self, message: Message) -> Message {
        let resolved = self.resolve(message.body).await;
        Message {
            body: resolved.body,
            fault: message.fault.or(resolved.fault),
            receipt: outer(resolved.blob.as_ref(), &message.receipt),
            ..message
        }
    }

    async fn peeked(&self, message: PeekedMessage) -> PeekedMessage {
        let resolved = self.resolve(message.body).await;
        PeekedMessage {
            body: resolved.body,
            fault: message.fault.or(resolved.fault),
            ..message
        }
    }

    /// Deletes the blob of a message that is not there; one that stays is left to its end.
    async fn discard(&self, id: &ClaimId) {
        let deleted = match self.blob(id) {
            Ok(name) => self.store.delete(&name, None).await,
            Err(error) => Err(error),
        };
        if let Err(error) = deleted {
            tracing::warn!(queue = %self, blob = %id, %error, "a blob is left to its time to live");
        }
    }

    /// Returns the blob of a receipt's message, and the receipt that the queue gave.
    fn split(&self, receipt: &Receipt) -> Result<(Option<ClaimId>, Receipt)> {
        let unknown = || lost(self, receipt);
        let (blob, token) = receipt.token().split_once(':').ok_or_else(unknown)?;
        let blob = match blob {
            "" => None,
            id => Some(ClaimId::parse(id).ok_or_else(unknown)?),
        };
        Ok((blob, Receipt::new(receipt.message_id().clone(), token)))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<Q: WorkQueue> WorkQueue for ClaimCheck<Q> {
    fn address(&self) -> &QueueAddress {
        self.inner.address()
    }

    fn addresses(&self) -> Vec<&QueueAddress> {
        self.inner.addresses()
    }

    fn listener_group(&self) -> GroupName {
        self.inner.listener_group()
    }

    /// Returns the queue's limits, and [`ClaimConfig::max_body`] as that of a body.
    fn limits(&self) -> QueueLimits {
        QueueLimits {
            body: self.config.max_body,
            ..self.inner.limits()
        }
    }

    async fn create(&self) -> Result<bool> {
        self.inner.create().await
    }

    async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
        outcome::of_all(self.put_each(messages).await)
    }

    async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
        let count = messages.len();
        match self.check_in_all(messages).await {
            // Whatever it comes to, no blob is deleted: what a queue says of a put that failed is
            // not worth a body. The blob of a message that was not put has its time to live.
            Ok(checked) => self.inner.put_each(checked).await,
            Err(error) => outcome::of_each(count, Err(error)),
        }
    }

    async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
        let got = self.inner.get(max, visibility_timeout).await?;
        let each = got.into_iter().map(|message| self.message(message));
        Ok(stream::iter(each).buffered(AT_ONCE).collect().await)
    }

    /// Deletes the message, then its blob; where that fails it is left to its time to live.
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
        Ok(outer(blob.as_ref(), &renewed))
    }

    async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        let (_, receipt) = self.split(receipt)?;
        self.inner.release(&receipt, delay).await
    }

    async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
        let (_, receipt) = self.split(receipt)?;
        self.inner.release_untried(&receipt, delay).await
    }

    async fn depth(&self) -> Result<u64> {
        self.inner.depth().await
    }

    /// A message that is deleted meanwhile may be returned with the fault of a blob that is gone.
    async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
        let peeked = self.inner.peek(max).await?;
        let each = peeked.into_iter().map(|message| self.peeked(message));
        Ok(stream::iter(each).buffered(AT_ONCE).collect().await)
    }

    /// Deletes all messages; their blobs are left to their time to live.
    async fn purge(&self) -> Result<()> {
        self.inner.purge().await
    }

    fn empty_is_certain(&self) -> bool {
        self.inner.empty_is_certain()
    }
}

impl<Q: Display> Display for ClaimCheck<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Default for ClaimConfig {
    fn default() -> Self {
        Self {
            // Services that take 64 KiB count them in base64, which leaves 48; half of the 64 fits
            // with all that others may add, and smaller ones are not worth a transaction of a blob.
            inline: 32 * 1024,
            // A full get of 32 is 256 MiB then.
            max_body: 8 * 1024 * 1024,
            // Ten times what the largest takes at 10 MB/s; and a full get of 32, so many at a time
            // as they are read, stays below the minute after which a listener gives it up.
            read_timeout: Duration::from_secs(10),
            prefix: "claims/".to_owned(),
            // No service keeps a message for longer than two weeks unless it is told to.
            keep: Duration::from_secs(90 * 24 * 3600),
        }
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the runtime has ended")
}

/// A receipt says which blob goes with the message, so that a delete needs no look at either.
fn outer(blob: Option<&ClaimId>, receipt: &Receipt) -> Receipt {
    let blob = blob.map_or("", ClaimId::as_str);
    let token = format!("{blob}:{}", receipt.token());
    Receipt::new(receipt.message_id().clone(), &token)
}
