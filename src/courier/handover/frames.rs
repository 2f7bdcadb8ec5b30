//! The frames of a hand-over, independent of their encoding.

use bytes::Bytes;

use crate::error::{Error, Result};

/// 16 random bytes that identify a queue file.
pub(crate) type FileId = [u8; 16];
/// The id of a message: a UUID of version 7.
pub(crate) type Uid = [u8; 16];

/// A frame with its number in its direction: 1, 2, 3, ...
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbered<T> {
    pub(crate) frame: u64,
    pub(crate) content: T,
}

/// Numbers the frames that leave, and checks the numbers of those that arrive.
#[derive(Debug, Default)]
pub(crate) struct FrameNumbers {
    sent: u64,
    received: u64,
}

/// What to do with a frame that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    Next,
    /// It was handled before.
    Repeated,
    /// A frame before it is missing.
    Gap,
}

/// A frame of the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SenderContent {
    Hello(Hello),
    Offer(Vec<OfferedMessage>),
    Confirm(Upto),
}

/// A frame of the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReceiverContent {
    Welcome(Welcome),
    Accept(Accept),
    Visible(Upto),
}

pub(crate) type SenderFrame = Numbered<SenderContent>;
pub(crate) type ReceiverFrame = Numbered<ReceiverContent>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The newest version that the sender knows.
    pub(crate) version: u32,
    /// The oldest one; 0 is the newest.
    pub(crate) least_version: u32,
    pub(crate) sender: FileId,
    pub(crate) name: String,
    /// The authority by which the sender reaches the receiver.
    pub(crate) authority: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// The version of this connection.
    pub(crate) version: u32,
    pub(crate) receiver: FileId,
    /// Messages of this sender that are stored and not visible.
    pub(crate) held: Vec<Uid>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OfferedMessage {
    /// 1, 2, 3, ... within the connection.
    pub(crate) number: u64,
    pub(crate) uid: Uid,
    /// Empty: the receiver itself.
    pub(crate) authority: String,
    pub(crate) queue: String,
    /// The files that the message has passed, 16 bytes each.
    pub(crate) visited: Vec<u8>,
    pub(crate) checksum: u32,
    pub(crate) body: Bytes,
    /// Ends the postponement of its destination.
    pub(crate) resume: bool,
}

/// The answer to all offered messages up to a number: they are stored, except for those named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) upto: u64,
    /// Never to be stored here, with the reasons.
    pub(crate) refused: Vec<(u64, String)>,
    /// To be offered again later.
    pub(crate) postponed: Vec<(u64, String)>,
}

/// Names messages: those of this connection up to a number, and optionally the ones that Welcome
/// named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Upto {
    pub(crate) number: u64,
    pub(crate) held: bool,
}

/// Microseconds of a file's clock, or of a machine's.
pub(super) type Micros = i64;

/// The newest and the oldest version of the hand-over that this program knows.
pub(crate) const VERSION: u32 = 1;
pub(crate) const LEAST_VERSION: u32 = 1;

/// Returns the newest version that both sides know.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if there is none.
pub(crate) fn agreed_version(least: u32, newest: u32) -> Result<u32> {
    let least = if least == 0 { newest } else { least };
    let agreed = newest.min(VERSION);
    if agreed >= least.max(LEAST_VERSION) {
        return Ok(agreed);
    }
    let rule = format_args!(
        "of the hand-over is {least} to {newest} there and {LEAST_VERSION} to {VERSION} here: use \
         programs of neighbouring versions"
    );
    Err(Error::invalid("version", rule))
}

impl FrameNumbers {
    /// Numbers a frame that leaves.
    pub(crate) fn number<T>(&mut self, content: T) -> Numbered<T> {
        self.sent += 1;
        Numbered {
            frame: self.sent,
            content,
        }
    }

    /// Checks the number of a frame that arrived.
    pub(crate) fn arrive(&mut self, frame: u64) -> Arrival {
        match frame.cmp(&(self.received + 1)) {
            std::cmp::Ordering::Less => Arrival::Repeated,
            std::cmp::Ordering::Greater => Arrival::Gap,
            std::cmp::Ordering::Equal => {
                self.received = frame;
                Arrival::Next
            }
        }
    }
}
