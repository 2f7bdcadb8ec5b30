//! The checksum of a body: CRC-32. It detects damage in the file, not an attack.

use crate::error::{Error, ErrorKind};

/// Returns the checksum of a body.
pub(crate) fn checksum(body: &[u8]) -> u32 {
    crc32fast::hash(body)
}

/// The fault of a message whose body does not have its checksum, and the reason of its dead letter.
pub(crate) const BAD_CHECKSUM: &str = "the body does not have its checksum: the file was damaged";

/// Returns whether a body has its checksum. A damaged row may have none, or a number that is no checksum
/// at all.
pub(crate) fn is_sound(body: &[u8], stored: Option<i64>) -> bool {
    stored == Some(i64::from(checksum(body)))
}

/// Returns the permanent fault of a body that does not have its checksum.
pub(super) fn fault(body: &[u8], stored: Option<i64>) -> Option<Error> {
    (!is_sound(body, stored)).then(|| Error::new(ErrorKind::Internal, BAD_CHECKSUM))
}
