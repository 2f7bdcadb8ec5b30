//! The reference that replaces a large body in the queue, and the encoding of the blob.
//!
//! A reference is one line of text, because some services accept text only:
//! `reveille-claim 1 gzip 1048576 0123456789abcdef0123456789abcdef`. Its parts are the marker, the
//! version, the blob's encoding, the body's length, and the last part of the blob's name. Without
//! the rest of the name, a message cannot refer to a blob elsewhere in the store. References are not
//! trusted: the length is checked before memory is allocated.

use std::{fmt, io::Read, sync::Arc};

use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, read::GzEncoder};

use crate::error::{Error, ErrorKind, Result};

/// A reference to a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    encoding: Encoding,
    length: usize,
    pub(crate) id: ClaimId,
}

/// The last part of a blob's name: 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimId(Arc<str>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// Has a checksum, and `gunzip` can read the blob by hand.
    Gzip,
    /// Uncompressed, for a body that compression does not make smaller.
    Plain,
}

/// The beginning of a reference. A body that begins with it is never put inline.
const MARKER: &str = "reveille-claim ";
const VERSION: &str = "1";

pub(crate) fn is_marked(body: &[u8]) -> bool {
    body.starts_with(MARKER.as_bytes())
}

impl Claim {
    /// Compresses a body if that makes it smaller; returns the reference and the blob's bytes.
    pub(crate) fn pack(id: ClaimId, body: Bytes) -> (Self, Bytes) {
        let mut packed = Vec::new();
        // The fastest level: most of the gain for a quarter of the time.
        let mut encoder = GzEncoder::new(&body[..], Compression::fast());
        let read = encoder.read_to_end(&mut packed);
        let length = body.len();
        let (encoding, bytes) = match read {
            Ok(size) if size < length => (Encoding::Gzip, packed.into()),
            _ => (Encoding::Plain, body),
        };
        (
            Self {
                encoding,
                length,
                id,
            },
            bytes,
        )
    }

    /// Parses a body from the queue; `None` for an ordinary body.
    pub(crate) fn parse(body: &[u8]) -> Option<Result<Self>> {
        let rest = body.strip_prefix(MARKER.as_bytes())?;
        Some(Self::parse_fields(rest))
    }

    fn parse_fields(rest: &[u8]) -> Result<Self> {
        let bad = || Error::invalid("body", "begins like a claim check but is not one");
        let text = std::str::from_utf8(rest).map_err(|_| bad())?;
        let (version, rest) = text.split_once(' ').ok_or_else(bad)?;
        if version != VERSION {
            let shown: String = version.chars().take(10).collect();
            let rule = format_args!("is a claim check of version {shown:?}, not of {VERSION}");
            return Err(Error::invalid("body", rule));
        }
        let mut parts = rest.split(' ');
        let claim = match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [Some(encoding), Some(length), Some(id), None] => Encoding::parse(encoding)
                .zip(length.parse().ok())
                .zip(ClaimId::parse(id))
                .map(|((encoding, length), id)| Self {
                    encoding,
                    length,
                    id,
                }),
            _ => None,
        };
        claim.ok_or_else(bad)
    }

    /// Checks the stated length.
    pub(crate) fn check(&self, max: usize) -> Result<()> {
        if self.length <= max {
            return Ok(());
        }
        let rule = format_args!("must be at most {max} bytes, but has {}", self.length);
        Err(Error::invalid("body", rule))
    }

    /// Restores the body from the blob's bytes; allocates no more memory than the stated length.
    pub(crate) fn unpack(&self, blob: &Bytes) -> Result<Bytes> {
        let body = match self.encoding {
            Encoding::Plain => blob.clone(),
            Encoding::Gzip => {
                let mut body = Vec::with_capacity(self.length + 1);
                // One byte more than stated, so that a longer body is detected.
                let limit = self.length as u64 + 1;
                let mut decoder = GzDecoder::new(&blob[..]).take(limit);
                decoder.read_to_end(&mut body).map_err(|error| {
                    let message = format!("blob `{}` cannot be decompressed", self.id);
                    Error::new(ErrorKind::Invalid, message).with_source(error)
                })?;
                body.into()
            }
        };
        if body.len() == self.length {
            return Ok(body);
        }
        let message = format!("blob `{}` is not a body of {} bytes", self.id, self.length);
        Err(Error::new(ErrorKind::Invalid, message))
    }
}

impl Encoding {
    fn parse(text: &str) -> Option<Self> {
        [Self::Gzip, Self::Plain]
            .into_iter()
            .find(|encoding| encoding.as_str() == text)
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Plain => "plain",
        }
    }
}

impl ClaimId {
    /// Creates an unguessable, unique id.
    pub(crate) fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            let message = "no random numbers from the operating system";
            Error::new(ErrorKind::Internal, message).with_source(error)
        })?;
        Ok(Self::of(u128::from_be_bytes(bytes)))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (text.len() == 32 && text.bytes().all(digit)).then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn of(number: u128) -> Self {
        Self(format!("{number:032x}").into())
    }
}

/// A placeholder of the usual length, to check a prefix.
impl Default for ClaimId {
    fn default() -> Self {
        Self::of(0)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            encoding,
            length,
            id,
        } = self;
        write!(f, "{MARKER}{VERSION} {} {length} {id}", encoding.as_str())
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(body: &[u8]) -> (Claim, Bytes) {
        Claim::pack(ClaimId::default(), Bytes::copy_from_slice(body))
    }

    proptest! {
        #[test]
        fn a_body_comes_out_as_it_went_in(body in prop::collection::vec(any::<u8>(), 0..3_000)) {
            for body in [body.clone(), body.repeat(20)] {
                let (claim, blob) = packed(&body);
                prop_assert!(blob.len() <= body.len());
                let text = claim.to_string();
                prop_assert!(is_marked(text.as_bytes()));
                let read = Claim::parse(text.as_bytes()).expect("marked").expect("sound");
                prop_assert_eq!(&read, &claim);
                prop_assert_eq!(&read.unpack(&blob).expect("sound")[..], &body[..]);
            }
        }

        #[test]
        fn nothing_that_is_read_panics(rest in prop::collection::vec(any::<u8>(), 0..80)) {
            let text = [MARKER.as_bytes(), &rest].concat();
            prop_assert!(Claim::parse(&text).is_some());
            prop_assert!(Claim::parse(&rest).is_none() || is_marked(&rest));
            let _ = packed(&rest).0.unpack(&Bytes::from(text));
        }
    }

    #[test]
    fn only_a_complete_reference_of_this_version_is_accepted() {
        let id = "0123456789abcdef0123456789abcdef";
        let good = format!("{MARKER}1 gzip 70000 {id}");
        let claim = Claim::parse(good.as_bytes())
            .expect("marked")
            .expect("sound");
        assert_eq!(claim.to_string(), good);
        for (bad, words) in [
            (format!("{MARKER}2 gzip 7 {id}"), "version \"2\", not of 1"),
            (format!("{MARKER}1 gzip 7 {id} x"), "but is not one"),
            (
                format!("{MARKER}1 gzip 7 ../{}", &id[3..]),
                "but is not one",
            ),
            (
                format!("{MARKER}1 gzip 7 {}", id.to_uppercase()),
                "but is not one",
            ),
            (format!("{MARKER}1 zstd 7 {id}"), "but is not one"),
            (format!("{MARKER}1 gzip -7 {id}"), "but is not one"),
            (MARKER.to_owned(), "but is not one"),
        ] {
            let error = Claim::parse(bad.as_bytes())
                .expect("marked")
                .expect_err(&bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains(words), "{bad}: {error}");
        }
    }

    #[test]
    fn a_blob_that_expands_beyond_its_stated_length_is_refused_without_allocating_it() {
        let (claim, bomb) = packed(&vec![0; 64 * 1024 * 1024]);
        // With a wrong checksum, reading it to its end would fail with another error.
        let mut bomb = bomb.to_vec();
        bomb.iter_mut().rev().take(8).for_each(|byte| *byte ^= 1);
        let bomb = Bytes::from(bomb);
        assert!(bomb.len() < 512 * 1024);
        claim
            .check(1024)
            .expect_err("its stated length is too large");
        let false_length = Claim {
            length: 1024,
            ..claim
        };
        false_length.check(1024).expect("its stated length fits");
        let error = false_length.unpack(&bomb).expect_err("longer");
        assert!(
            error.message().ends_with("is not a body of 1024 bytes"),
            "{error}"
        );
    }

    #[test]
    fn a_changed_blob_is_refused() {
        let (claim, blob) = packed(&[7; 5_000]);
        let mut flipped = blob.to_vec();
        *flipped.last_mut().expect("some") ^= 1;
        let cut = blob.slice(..blob.len() - 9);
        for changed in [flipped.into(), cut, Bytes::from_static(b"no gzip")] {
            let error = claim.unpack(&changed).expect_err("changed");
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}
