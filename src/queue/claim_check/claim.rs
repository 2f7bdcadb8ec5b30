//! The reference that replaces a large body in the queue, and the compression of the blob.
//!
//! A reference is one line of text, because some services accept text only:
//! `reveille-claim 1 1048576 0123456789abcdef0123456789abcdef`. Its parts are the marker with the
//! version, the body's length, and the last part of the blob's name. Without the rest of the name, a
//! message cannot refer to a blob elsewhere in the store. References are not trusted: the length is
//! checked before memory is allocated. `gunzip` can read the blob by hand.

use std::{fmt, io::Read, sync::Arc};

use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, read::GzEncoder};

use crate::{
    base::random::random,
    error::{Error, ErrorKind, Result},
};

/// A reference to a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) length: usize,
    /// The last part of the blob's name: 32 hexadecimal digits.
    pub(crate) id: Arc<str>,
}

/// The beginning of a reference. A body that begins with it is never put inline.
const MARKER: &str = "reveille-claim ";
const VERSION: &str = "1 ";

pub(crate) fn is_marked(body: &[u8]) -> bool {
    body.starts_with(MARKER.as_bytes())
}

/// Creates an unguessable, unique id.
pub(crate) fn random_id() -> Result<Arc<str>> {
    Ok(format!("{:032x}", u128::from_be_bytes(random()?)).into())
}

pub(crate) fn is_id(text: &str) -> bool {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 32 && text.bytes().all(digit)
}

impl Claim {
    /// Compresses a body; returns the reference and the blob's bytes.
    pub(crate) fn pack(id: Arc<str>, body: &[u8]) -> (Self, Bytes) {
        let mut packed = Vec::new();
        // The fastest level: most of the gain for a quarter of the time.
        GzEncoder::new(body, Compression::fast())
            .read_to_end(&mut packed)
            .expect("a slice can be read");
        let length = body.len();
        (Self { length, id }, packed.into())
    }

    /// Parses a body from the queue; `None` for an ordinary body.
    pub(crate) fn parse(body: &[u8]) -> Option<Result<Self>> {
        let rest = body.strip_prefix(MARKER.as_bytes())?;
        let read = || {
            let rest = std::str::from_utf8(rest).ok()?.strip_prefix(VERSION)?;
            let (length, id) = rest.split_once(' ').filter(|(_, id)| is_id(id))?;
            let (length, id) = (length.parse().ok()?, id.into());
            Some(Self { length, id })
        };
        let rule = "begins like a claim check but is none of this version";
        Some(read().ok_or_else(|| Error::invalid("body", rule)))
    }

    /// Restores the body from the blob's bytes; allocates no more memory than the stated length.
    pub(crate) fn unpack(&self, blob: &[u8]) -> Result<Bytes> {
        let mut body = Vec::with_capacity(self.length + 1);
        // One byte more than stated, so that a longer body is detected.
        let mut decoder = GzDecoder::new(blob).take(self.length as u64 + 1);
        decoder.read_to_end(&mut body).map_err(|error| {
            let message = format!("blob `{}` cannot be decompressed", self.id);
            Error::new(ErrorKind::Invalid, message).with_source(error)
        })?;
        if body.len() == self.length {
            return Ok(body.into());
        }
        let message = format!("blob `{}` is not a body of {} bytes", self.id, self.length);
        Err(Error::new(ErrorKind::Invalid, message))
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARKER}{VERSION}{} {}", self.length, self.id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(body: &[u8]) -> (Claim, Bytes) {
        Claim::pack("0123456789abcdef0123456789abcdef".into(), body)
    }

    proptest! {
        #[test]
        fn a_body_comes_out_as_it_went_in(body in prop::collection::vec(any::<u8>(), 0..3_000)) {
            for body in [body.clone(), body.repeat(20)] {
                let (claim, blob) = packed(&body);
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
            let _ = packed(&rest).0.unpack(&text);
        }
    }

    #[test]
    fn only_a_complete_reference_of_this_version_is_accepted() {
        let id = "0123456789abcdef0123456789abcdef";
        let good = format!("{MARKER}1 70000 {id}");
        let claim = Claim::parse(good.as_bytes())
            .expect("marked")
            .expect("sound");
        assert_eq!(claim.to_string(), good);
        for bad in [
            format!("{MARKER}2 7 {id}"),
            format!("{MARKER}1 7 {id} x"),
            format!("{MARKER}1 7 ../{}", &id[3..]),
            format!("{MARKER}1 7 {}", id.to_uppercase()),
            format!("{MARKER}1 -7 {id}"),
            MARKER.to_owned(),
        ] {
            let error = Claim::parse(bad.as_bytes())
                .expect("marked")
                .expect_err(&bad);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains("but is none"), "{bad}: {error}");
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
        assert!(claim.length > 1024);
        let false_length = Claim {
            length: 1024,
            ..claim
        };
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
