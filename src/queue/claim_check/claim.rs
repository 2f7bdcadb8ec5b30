//! What stands in the queue in the place of a large body, and what stands in the blob.
//!
//! A reference is a line of text, as some services take nothing else:
//! `reveille-claim 1 gzip 1048576 0123456789abcdef0123456789abcdef`: the marker, the version, how
//! the blob is coded, the body's length, and the last part of the blob's name. Only the last part,
//! so that a message can name no blob elsewhere in the store. What is read is not trusted: a length
//! is checked before anything is made room for.

use std::{fmt, io::Read, sync::Arc};

use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, read::GzEncoder};

use crate::error::{Error, ErrorKind, Result};

/// A reference to a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    coding: Coding,
    length: usize,
    pub(super) id: ClaimId,
}

/// The last part of a blob's name: 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimId(Arc<str>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    /// With a checksum, and `gunzip` reads it where somebody looks at a blob by hand.
    Gzip,
    /// What does not become smaller is stored as it is.
    Plain,
}

/// No body that begins so is put as it is.
const MARKER: &str = "reveille-claim ";
const VERSION: &str = "1";

/// Returns whether a body begins as a reference does.
pub(super) fn is_marked(body: &[u8]) -> bool {
    body.starts_with(MARKER.as_bytes())
}

impl Claim {
    /// Compresses a body where that is worth it; returns the reference to put, and the blob's bytes.
    pub(super) fn pack(id: ClaimId, body: Bytes) -> (Self, Bytes) {
        let mut packed = Vec::new();
        // The fastest level: most of what there is to gain, for a quarter of the time.
        let mut encoder = GzEncoder::new(&body[..], Compression::fast());
        let read = encoder.read_to_end(&mut packed);
        let length = body.len();
        let (coding, bytes) = match read {
            Ok(size) if size < length => (Coding::Gzip, packed.into()),
            _ => (Coding::Plain, body),
        };
        (Self { coding, length, id }, bytes)
    }

    /// Reads a body from the queue; `None` where it is an ordinary one.
    pub(super) fn read(body: &[u8]) -> Option<Result<Self>> {
        let rest = body.strip_prefix(MARKER.as_bytes())?;
        Some(Self::parse(rest))
    }

    fn parse(rest: &[u8]) -> Result<Self> {
        let bad = || Error::invalid("body", "begins as a claim check does, and is none");
        let text = std::str::from_utf8(rest).map_err(|_| bad())?;
        let (version, rest) = text.split_once(' ').ok_or_else(bad)?;
        if version != VERSION {
            let shown: String = version.chars().take(10).collect();
            let rule = format_args!("is a claim check of version {shown:?}, not of {VERSION}");
            return Err(Error::invalid("body", rule));
        }
        let mut parts = rest.split(' ');
        let claim = match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [Some(coding), Some(length), Some(id), None] => Coding::parse(coding)
                .zip(length.parse().ok())
                .zip(ClaimId::parse(id))
                .map(|((coding, length), id)| Self { coding, length, id }),
            _ => None,
        };
        claim.ok_or_else(bad)
    }

    /// Checks the length that it states.
    pub(super) fn check(&self, max: usize) -> Result<()> {
        if self.length <= max {
            return Ok(());
        }
        let rule = format_args!("must be at most {max} bytes, but has {}", self.length);
        Err(Error::invalid("body", rule))
    }

    /// Makes the body of the blob's bytes; takes no more memory than the stated length.
    pub(super) fn unpack(&self, blob: &Bytes) -> Result<Bytes> {
        let body = match self.coding {
            Coding::Plain => blob.clone(),
            Coding::Gzip => {
                let mut body = Vec::with_capacity(self.length + 1);
                // One more than it may have, so that a longer one shows, however long it is.
                let limit = self.length as u64 + 1;
                let mut decoder = GzDecoder::new(&blob[..]).take(limit);
                decoder.read_to_end(&mut body).map_err(|error| {
                    let words = format!("blob `{}` cannot be decompressed", self.id);
                    Error::new(ErrorKind::Invalid, words).with_source(error)
                })?;
                body.into()
            }
        };
        if body.len() == self.length {
            return Ok(body);
        }
        let words = format!("blob `{}` is no body of {} bytes", self.id, self.length);
        Err(Error::new(ErrorKind::Invalid, words))
    }
}

impl Coding {
    fn parse(text: &str) -> Option<Self> {
        [Self::Gzip, Self::Plain]
            .into_iter()
            .find(|coding| coding.as_str() == text)
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Plain => "plain",
        }
    }
}

impl ClaimId {
    /// Makes one that nobody can guess, and that no other body has.
    pub(super) fn random() -> Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            let words = "no random numbers from the operating system";
            Error::new(ErrorKind::Internal, words).with_source(error)
        })?;
        Ok(Self::of(u128::from_be_bytes(bytes)))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (text.len() == 32 && text.bytes().all(digit)).then(|| Self(text.into()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    fn of(number: u128) -> Self {
        Self(format!("{number:032x}").into())
    }
}

/// As long as all others: for the check of a prefix.
impl Default for ClaimId {
    fn default() -> Self {
        Self::of(0)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { coding, length, id } = self;
        write!(f, "{MARKER}{VERSION} {} {length} {id}", coding.as_str())
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
                let read = Claim::read(text.as_bytes()).expect("marked").expect("sound");
                prop_assert_eq!(&read, &claim);
                prop_assert_eq!(&read.unpack(&blob).expect("sound")[..], &body[..]);
            }
        }

        #[test]
        fn nothing_that_is_read_panics(rest in prop::collection::vec(any::<u8>(), 0..80)) {
            let text = [MARKER.as_bytes(), &rest].concat();
            prop_assert!(Claim::read(&text).is_some());
            prop_assert!(Claim::read(&rest).is_none() || is_marked(&rest));
            let _ = packed(&rest).0.unpack(&Bytes::from(text));
        }
    }

    #[test]
    fn only_a_whole_reference_of_this_version_is_one() {
        let id = "0123456789abcdef0123456789abcdef";
        let good = format!("{MARKER}1 gzip 70000 {id}");
        let claim = Claim::read(good.as_bytes())
            .expect("marked")
            .expect("sound");
        assert_eq!(claim.to_string(), good);
        for (bad, words) in [
            (format!("{MARKER}2 gzip 7 {id}"), "version \"2\", not of 1"),
            (format!("{MARKER}1 gzip 7 {id} x"), "and is none"),
            (format!("{MARKER}1 gzip 7 ../{}", &id[3..]), "and is none"),
            (
                format!("{MARKER}1 gzip 7 {}", id.to_uppercase()),
                "and is none",
            ),
            (format!("{MARKER}1 zstd 7 {id}"), "and is none"),
            (format!("{MARKER}1 gzip -7 {id}"), "and is none"),
            (MARKER.to_owned(), "and is none"),
        ] {
            let error = Claim::read(bad.as_bytes())
                .expect("marked")
                .expect_err(&bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains(words), "{bad}: {error}");
        }
    }

    #[test]
    fn what_expands_beyond_its_length_is_refused_and_not_made_room_for() {
        let (claim, bomb) = packed(&vec![0; 64 * 1024 * 1024]);
        // Its checksum is wrong: whoever reads it to its end says so.
        let mut bomb = bomb.to_vec();
        bomb.iter_mut().rev().take(8).for_each(|byte| *byte ^= 1);
        let bomb = Bytes::from(bomb);
        assert!(bomb.len() < 512 * 1024);
        claim.check(1024).expect_err("it says so itself");
        let liar = Claim {
            length: 1024,
            ..claim
        };
        liar.check(1024).expect("it does not say so");
        let error = liar.unpack(&bomb).expect_err("longer");
        assert!(
            error.message().ends_with("is no body of 1024 bytes"),
            "{error}"
        );
    }

    #[test]
    fn a_blob_that_was_changed_is_no_body() {
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
