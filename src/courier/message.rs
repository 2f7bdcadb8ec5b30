//! Message ids and destinations.

use std::{fmt, str::FromStr};

use serde::Deserialize;

use crate::{
    base::{
        clock::{micros, wall},
        random::random,
    },
    error::{Error, Result},
    types::QueueAddress,
};

/// The id of a message that was sent in a transaction, with 74 random bits. It stays the same on each
/// machine that the message passes. The text is 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId([u8; 16]);

/// Where a message goes: a queue of this machine (`QUEUE`), or of another one
/// (`reveille://HOST:PORT/QUEUE`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Destination {
    /// `HOST:PORT`; empty for this machine.
    authority: String,
    queue: String,
}

/// The scheme of a destination on another machine.
const SCHEME: &str = "reveille://";

impl MessageId {
    /// Creates an id from its bytes.
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the 16 bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl Destination {
    /// A queue of this machine.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the name breaks the rule for names of
    /// queues.
    pub fn local(queue: &str) -> Result<Self> {
        check_queue(queue)?;
        Ok(Self {
            authority: String::new(),
            queue: queue.to_owned(),
        })
    }

    /// Creates a destination from the columns of a row, which were checked when it was stored.
    pub(crate) fn stored(authority: String, queue: String) -> Self {
        Self { authority, queue }
    }

    /// Returns `HOST:PORT` of another machine, or `None` for this machine.
    pub fn authority(&self) -> Option<&str> {
        Some(&*self.authority).filter(|authority| !authority.is_empty())
    }

    /// Returns the queue's name.
    pub fn queue(&self) -> &str {
        &self.queue
    }
}

fn check_queue(queue: &str) -> Result<()> {
    QueueAddress::new("local", queue)
        .map(drop)
        .map_err(|_| Error::invalid("destination", format_args!("`{queue}` is no queue name: use 1 to 128 letters, digits, dots, hyphens or underscores")))
}

/// Returns a UUID of version 7 (RFC 9562, section 5.7): the time in milliseconds, and 74 random bits.
///
/// Ids of messages that are sent together are neighbours, so that the indexes by id grow at one end
/// only. With random ids each message would write another page of each of these indexes.
pub(super) fn new_id() -> Result<[u8; 16]> {
    let mut bytes: [u8; 16] = random()?;
    let millis = micros(wall()) / 1_000;
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    bytes[6] = bytes[6] & 0x0f | 0x70;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

/// Checks `HOST:PORT`. An IPv6 address is in brackets.
pub(crate) fn check_authority(authority: &str) -> Result<()> {
    let valid = authority.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let host_is_valid = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.len() <= 253 && host.chars().all(plain),
        };
        // One text for each port: an authority identifies a machine.
        let is_port = |number: u16| number > 0 && number.to_string() == port;
        host_is_valid && port.parse().is_ok_and(is_port)
    });
    if valid {
        return Ok(());
    }
    let rule = format_args!("`{authority}` is no machine: use HOST:PORT");
    Err(Error::invalid("destination", rule))
}

impl TryFrom<String> for Destination {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for Destination {
    type Err = Error;

    /// Parses `QUEUE` or `reveille://HOST:PORT/QUEUE`.
    fn from_str(text: &str) -> Result<Self> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Self::local(text);
        };
        let Some((authority, queue)) = rest.split_once('/') else {
            let rule = format_args!("`{text}` names no queue: use reveille://HOST:PORT/QUEUE");
            return Err(Error::invalid("destination", rule));
        };
        check_authority(authority)?;
        check_queue(queue)?;
        Ok(Self {
            authority: authority.to_ascii_lowercase(),
            queue: queue.to_owned(),
        })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.authority() {
            Some(authority) => write!(f, "{SCHEME}{authority}/{}", self.queue),
            None => f.write_str(&self.queue),
        }
    }
}

impl FromStr for MessageId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let rule = || Error::invalid("message id", "must be 32 hexadecimal digits");
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(rule());
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| rule())?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_parsed_and_shown() {
        for text in [
            "orders",
            "reveille://host:7600/orders",
            "reveille://[::1]:7600/orders",
        ] {
            let destination: Destination = text.parse().expect("valid");
            assert_eq!(destination.to_string(), text);
            assert_eq!(destination.queue(), "orders");
        }
        for text in [
            "",
            "a/b",
            "reveille://host/orders",
            "reveille://host:0/orders",
            "reveille://host:+80/orders",
            "reveille://host:080/orders",
            "reveille://host:7600",
            "reveille://:7600/orders",
            "reveille://host:7600/",
            "http://host:7600/orders",
        ] {
            text.parse::<Destination>().expect_err(text);
        }
    }

    #[test]
    fn ids_are_parsed_and_shown() {
        let id = MessageId::from_bytes([0xab; 16]);
        assert_eq!(id.to_string().parse::<MessageId>().expect("valid"), id);
        for text in ["", "12", &"g".repeat(32), &"+".repeat(32)] {
            text.parse::<MessageId>().expect_err(text);
        }
    }
}
