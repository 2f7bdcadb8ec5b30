//! The notify request of the hot path: decoded directly into notifications and encoded from them.
//!
//! Replaces the generated message, field for field; a test compares both. Two owned strings for
//! each event of a burst would cost more than all of the counting. An event that breaks a rule is kept
//! as an error, which the service answers.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::{Buf, BufMut};
use prost::{
    DecodeError, Message,
    encoding::{
        self, DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint,
        encoded_len_varint, key_len, skip_field,
    },
};

use super::{
    proto,
    time::{checked_span, checked_time, span_to_wire, time_to_wire},
};
use crate::{
    base::text::opaque_debug,
    error::{Error, Result},
    types::{Limits, Notification, QueueAddress, check_text},
};

/// A notify request.
#[derive(Clone)]
pub(crate) struct NotifyRequest {
    publisher: Arc<str>,
    notifications: Vec<Notification>,
    /// C8: what relays have counted of it.
    counted: Vec<proto::Counted>,
    /// Number of events, including invalid ones.
    events: usize,
    /// The invalid events.
    refusals: Refusals,
    /// The publisher's name breaks a rule.
    rule_error: Option<Error>,
}

/// Relays of which a request states what they have counted.
pub(crate) const MOST_COUNTED: usize = 8;
/// The refused events of a request, by their index.
pub(crate) type Refusals = BTreeMap<usize, Error>;

/// One event while it is decoded, with raw names for the comparison with the previous event.
#[derive(Default)]
struct DecodedEvent {
    account: Text,
    name: Text,
    traceparent: Text,
    payload_size: u64,
    notifications: u64,
    messages: u64,
    published_at: Option<prost_types::Timestamp>,
    delay: Option<prost_types::Duration>,
}

/// A text on the stack. A text beyond the limits is cut one byte above them, and so refused.
struct Text {
    bytes: [u8; Self::CAPACITY],
    length: usize,
}

/// The field numbers of the schema.
mod field {
    pub(super) const EVENTS: u32 = 1;
    pub(super) const PUBLISHER: u32 = 2;
    pub(super) const COUNTED: u32 = 3;
    pub(super) const ACCOUNT: u32 = 1;
    pub(super) const QUEUE: u32 = 2;
    pub(super) const PAYLOAD_SIZE: u32 = 3;
    pub(super) const NOTIFICATIONS: u32 = 5;
    pub(super) const PUBLISHED_AT: u32 = 8;
    pub(super) const DELAY: u32 = 9;
    pub(super) const TRACEPARENT: u32 = 10;
    pub(super) const MESSAGES: u32 = 12;
}

impl NotifyRequest {
    pub(crate) fn new(publisher: Arc<str>, notifications: Vec<Notification>) -> Self {
        let events = notifications.len();
        Self {
            publisher,
            notifications,
            counted: Vec::new(),
            events,
            refusals: Refusals::new(),
            rule_error: None,
        }
    }

    /// States what relays have counted of this request.
    pub(crate) fn with_counted(self, counted: Vec<proto::Counted>) -> Self {
        Self { counted, ..self }
    }

    /// Returns up to which position the relay of this epoch has counted the request.
    pub(crate) fn counted_by(&self, epoch: &str) -> Option<u64> {
        let counted = self.counted.iter().find(|counted| counted.epoch == epoch);
        counted.map(|counted| counted.position)
    }

    /// Returns the publisher, the valid notifications in their order, and the other events.
    ///
    /// # Errors
    /// `Invalid`, with field and rule, if the request breaks a rule as a whole.
    pub(crate) fn into_parts(self) -> Result<(Arc<str>, Vec<Notification>, Refusals)> {
        if !(1..=Limits::EVENTS).contains(&self.events) {
            let rule = format_args!(
                "must hold 1 to {} events, but has {}",
                Limits::EVENTS,
                self.events
            );
            return Err(Error::invalid("events", rule));
        }
        match self.rule_error {
            Some(error) => Err(error),
            None => Ok((self.publisher, self.notifications, self.refusals)),
        }
    }

    fn merge_event(&mut self, buf: &mut impl Buf, ctx: &DecodeContext) -> Result<(), DecodeError> {
        let mut event = DecodedEvent::default();
        let previous = self.notifications.last();
        merge_nested(buf, |tag, wire, buf| {
            event.merge(tag, wire, buf, ctx.clone())
        })?;
        let index = self.events;
        self.events += 1;
        // Further events are not kept, as the whole request is refused.
        if index >= Limits::EVENTS {
            return Ok(());
        }
        match event.finish(previous) {
            Ok(notification) => self.notifications.push(notification),
            Err(error) => _ = self.refusals.insert(index, error),
        }
        Ok(())
    }

    fn merge_counted(&mut self, buf: &mut impl Buf, ctx: DecodeContext) -> Result<(), DecodeError> {
        let mut counted = proto::Counted::default();
        encoding::message::merge(WireType::LengthDelimited, &mut counted, buf, ctx)?;
        if self.counted.len() < MOST_COUNTED {
            self.counted.push(counted);
        }
        Ok(())
    }

    fn merge_publisher(&mut self, buf: &mut impl Buf) -> Result<(), DecodeError> {
        let text = Text::read(buf)?;
        match text.check("publisher", Limits::MAX_TEXT) {
            Ok(publisher) => self.publisher = publisher.into(),
            Err(error) => self.rule_error = Some(error),
        }
        Ok(())
    }
}

impl Message for NotifyRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        for notification in &self.notifications {
            encode_key(field::EVENTS, WireType::LengthDelimited, buf);
            encode_varint(event_len(notification) as u64, buf);
            encode_event(notification, buf);
        }
        encode_text(field::PUBLISHER, &self.publisher, buf);
        encoding::message::encode_repeated(field::COUNTED, &self.counted, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match (tag, wire_type) {
            (field::EVENTS, WireType::LengthDelimited) => self.merge_event(buf, &ctx),
            (field::PUBLISHER, WireType::LengthDelimited) => self.merge_publisher(buf),
            (field::COUNTED, WireType::LengthDelimited) => self.merge_counted(buf, ctx),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let event = |notification: &Notification| {
            let length = event_len(notification);
            key_len(field::EVENTS) + encoded_len_varint(length as u64) + length
        };
        self.notifications.iter().map(event).sum::<usize>()
            + text_len(field::PUBLISHER, &self.publisher)
            + encoding::message::encoded_len_repeated(field::COUNTED, &self.counted)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl DecodedEvent {
    fn merge(
        &mut self,
        tag: u32,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match (tag, wire) {
            (field::ACCOUNT, WireType::LengthDelimited) => self.account = Text::read(buf)?,
            (field::QUEUE, WireType::LengthDelimited) => self.name = Text::read(buf)?,
            (field::TRACEPARENT, WireType::LengthDelimited) => self.traceparent = Text::read(buf)?,
            (field::PAYLOAD_SIZE, WireType::Varint) => self.payload_size = decode_varint(buf)?,
            (field::NOTIFICATIONS, WireType::Varint) => self.notifications = decode_varint(buf)?,
            (field::MESSAGES, WireType::Varint) => self.messages = decode_varint(buf)?,
            (field::PUBLISHED_AT, WireType::LengthDelimited) => {
                let time = self.published_at.get_or_insert_default();
                encoding::message::merge(wire, time, buf, ctx)?;
            }
            (field::DELAY, WireType::LengthDelimited) => {
                encoding::message::merge(wire, self.delay.get_or_insert_default(), buf, ctx)?;
            }
            _ => skip_field(wire, tag, buf, ctx)?,
        }
        Ok(())
    }

    /// Converts to a notification. It shares equal names with the previous one, as in a burst.
    fn finish(self, previous: Option<&Notification>) -> Result<Notification> {
        let same = |text: &Arc<str>| text.as_bytes() == self.traceparent.as_bytes();
        let traceparent = match previous {
            Some(previous) if same(&previous.traceparent) => Arc::clone(&previous.traceparent),
            _ => self
                .traceparent
                .check("traceparent", Limits::TRACEPARENT)?
                .into(),
        };
        let queue = match previous {
            Some(previous) if self.is_for(&previous.queue) => previous.queue.clone(),
            _ => QueueAddress::new(
                self.account.as_str("storage_account")?,
                self.name.as_str("queue_name")?,
            )?,
        };
        let notification = Notification {
            queue,
            payload_size: self.payload_size,
            messages: self.messages,
            notifications: self.notifications,
            delay: checked_span("delay", self.delay)?.unwrap_or_default(),
            published_at: checked_time("published_at", self.published_at)?,
            traceparent,
        };
        notification.check()?;
        Ok(notification)
    }

    fn is_for(&self, queue: &QueueAddress) -> bool {
        queue.is(self.account.as_bytes(), self.name.as_bytes())
    }
}

impl Text {
    /// One more than the longest text of this message, so that longer texts are detected.
    const CAPACITY: usize = 129;

    fn read(buf: &mut impl Buf) -> Result<Self, DecodeError> {
        let length = usize::try_from(decode_varint(buf)?).unwrap_or(usize::MAX);
        if length > buf.remaining() {
            return Err(underflow());
        }
        let kept = length.min(Self::CAPACITY);
        let mut text = Self {
            length: kept,
            ..Self::default()
        };
        buf.copy_to_slice(&mut text.bytes[..kept]);
        buf.advance(length - kept);
        Ok(text)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn as_str(&self, field: &str) -> Result<&str> {
        let bytes = self.as_bytes();
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text),
            // Cut within a character: too long.
            Err(error) if self.length == Self::CAPACITY && error.error_len().is_none() => {
                Err(Error::invalid(field, "must be at most 128 bytes"))
            }
            Err(_) => Err(Error::invalid(field, "must be UTF-8")),
        }
    }

    fn check(&self, field: &str, limit: usize) -> Result<&str> {
        let text = self.as_str(field)?;
        check_text(field, text, limit)?;
        Ok(text)
    }
}

impl Default for Text {
    fn default() -> Self {
        Self {
            bytes: [0; Self::CAPACITY],
            length: 0,
        }
    }
}

impl Default for NotifyRequest {
    fn default() -> Self {
        Self::new(Arc::from(""), Vec::new())
    }
}

opaque_debug!(NotifyRequest: publisher, events);

/// Decodes the fields of a nested message.
fn merge_nested<B: Buf>(
    buf: &mut B,
    mut merge: impl FnMut(u32, WireType, &mut B) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let length = usize::try_from(decode_varint(buf)?).unwrap_or(usize::MAX);
    let Some(end) = buf.remaining().checked_sub(length) else {
        return Err(underflow());
    };
    while buf.remaining() > end {
        let (tag, wire) = decode_key(buf)?;
        merge(tag, wire, buf)?;
    }
    if buf.remaining() == end {
        Ok(())
    } else {
        Err(underflow())
    }
}

/// prost's error for a length beyond the end of the bytes.
#[cold]
fn underflow() -> DecodeError {
    let empty: &[u8] = &[];
    decode_varint(&mut { empty }).expect_err("there is no varint in nothing")
}

fn encode_event(notification: &Notification, buf: &mut impl BufMut) {
    let (account, name) = notification.queue.parts();
    encode_text(field::ACCOUNT, account, buf);
    encode_text(field::QUEUE, name, buf);
    encode_number(field::PAYLOAD_SIZE, notification.payload_size, buf);
    encode_number(field::NOTIFICATIONS, notification.notifications, buf);
    if let Some(time) = time_to_wire(notification.published_at) {
        encoding::message::encode(field::PUBLISHED_AT, &time, buf);
    }
    if let Some(delay) = delay(notification) {
        encoding::message::encode(field::DELAY, &delay, buf);
    }
    encode_text(field::TRACEPARENT, &notification.traceparent, buf);
    encode_number(field::MESSAGES, notification.messages, buf);
}

fn event_len(notification: &Notification) -> usize {
    let time = time_to_wire(notification.published_at);
    let (account, name) = notification.queue.parts();
    text_len(field::ACCOUNT, account)
        + text_len(field::QUEUE, name)
        + number_len(field::PAYLOAD_SIZE, notification.payload_size)
        + number_len(field::NOTIFICATIONS, notification.notifications)
        + time.map_or(0, |time| {
            encoding::message::encoded_len(field::PUBLISHED_AT, &time)
        })
        + delay(notification).map_or(0, |delay| {
            encoding::message::encoded_len(field::DELAY, &delay)
        })
        + text_len(field::TRACEPARENT, &notification.traceparent)
        + number_len(field::MESSAGES, notification.messages)
}

fn delay(notification: &Notification) -> Option<prost_types::Duration> {
    (notification.delay != Duration::ZERO).then(|| span_to_wire(notification.delay))
}

pub(super) fn encode_text(tag: u32, text: &str, buf: &mut impl BufMut) {
    if !text.is_empty() {
        encode_key(tag, WireType::LengthDelimited, buf);
        encode_varint(text.len() as u64, buf);
        buf.put_slice(text.as_bytes());
    }
}

fn text_len(tag: u32, text: &str) -> usize {
    if text.is_empty() {
        0
    } else {
        key_len(tag) + encoded_len_varint(text.len() as u64) + text.len()
    }
}

pub(super) fn encode_number(tag: u32, number: u64, buf: &mut impl BufMut) {
    if number != 0 {
        encode_key(tag, WireType::Varint, buf);
        encode_varint(number, buf);
    }
}

fn number_len(tag: u32, number: u64) -> usize {
    if number == 0 {
        0
    } else {
        key_len(tag) + encoded_len_varint(number)
    }
}
