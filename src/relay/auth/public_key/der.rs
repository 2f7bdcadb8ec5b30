//! Reads the DER form of a public key (`SubjectPublicKeyInfo`, RFC 5280).

use rustls_pki_types::alg_id;

use super::PublicKey;
use crate::error::{Error, ErrorKind, Result};

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;
const INTEGER: u8 = 0x02;

pub(super) fn parse(der: &[u8]) -> Result<PublicKey> {
    let malformed = || Error::new(ErrorKind::Invalid, "the public key is not valid DER");
    let (algorithm, key) = parts(der).ok_or_else(malformed)?;
    if algorithm == alg_id::ED25519.as_ref() {
        PublicKey::ed25519(key)
    } else if algorithm == alg_id::ECDSA_P256.as_ref() {
        PublicKey::p256(key)
    } else if algorithm == alg_id::RSA_ENCRYPTION.as_ref() {
        let (modulus, exponent) = rsa_numbers(key).ok_or_else(malformed)?;
        PublicKey::rsa(modulus, exponent)
    } else {
        let message = "the public key is of another type than Ed25519, P-256 and RSA";
        Err(Error::new(ErrorKind::Invalid, message))
    }
}

/// Returns the content of the algorithm's identifier, and the key's bytes.
fn parts(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let info = only(der, SEQUENCE)?;
    let (algorithm, rest) = element(info, SEQUENCE)?;
    let bits = only(rest, BIT_STRING)?;
    match bits {
        [0, key @ ..] => Some((algorithm, key)),
        _ => None,
    }
}

/// Returns modulus and exponent.
fn rsa_numbers(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (modulus, rest) = element(only(key, SEQUENCE)?, INTEGER)?;
    Some((modulus, only(rest, INTEGER)?))
}

/// Returns the content of the one element that the input consists of.
fn only(input: &[u8], tag: u8) -> Option<&[u8]> {
    let (content, rest) = element(input, tag)?;
    rest.is_empty().then_some(content)
}

/// Returns the content of the first element, and the rest. Lengths below 64 KiB suffice for keys.
fn element(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (length, rest) = match input {
        [first, ..] if *first != tag => return None,
        [_, length @ 0..=0x7f, rest @ ..] => (usize::from(*length), rest),
        [_, 0x81, length @ 0x80..=0xff, rest @ ..] => (usize::from(*length), rest),
        [_, 0x82, high @ 1..=0xff, low, rest @ ..] => {
            (usize::from(u16::from_be_bytes([*high, *low])), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}
