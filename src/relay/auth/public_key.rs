//! Public keys of token issuers, and the verification of signatures with `ring`.
//!
//! Each key has one algorithm. So a token cannot choose how a key is used: neither `none` nor HMAC
//! with the public key as its secret exists here.

mod der;
mod jwks;

use std::{fmt, str::FromStr};

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use rustls_pki_types::pem::{PemObject as _, SectionKind};

pub(super) use self::jwks::parse_jwks;
use crate::error::{Error, ErrorKind, Result};

/// A signature algorithm of a JWT (RFC 7518, RFC 8037).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    EdDsa,
    Es256,
    Rs256,
}

/// A public key, checked for its algorithm.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum PublicKey {
    Ed25519([u8; 32]),
    /// An uncompressed point of the curve P-256.
    P256([u8; 65]),
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
}

/// A key of an issuer, and its id in a JWKS.
#[derive(Debug, Clone)]
pub(super) struct IssuerKey {
    pub(super) id: Option<Box<str>>,
    pub(super) key: PublicKey,
}

/// `ring` verifies signatures of these sizes, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

impl Algorithm {
    pub(super) const ALL: [Self; 3] = [Self::EdDsa, Self::Es256, Self::Rs256];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|alg| alg.as_str() == text);
        found.ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            let rule = format_args!("must be of EdDSA, ES256, RS256, but is {shown:?}");
            Error::invalid("algorithms", rule)
        })
    }
}

impl PublicKey {
    /// Parses a PEM file with one section `PUBLIC KEY`.
    pub(super) fn from_pem(pem: &[u8]) -> Result<Self> {
        let mut sections = <(SectionKind, Vec<u8>)>::pem_slice_iter(pem);
        let first = sections.next();
        let (Some(Ok((SectionKind::PublicKey, der))), None) = (first, sections.next()) else {
            let rule = "must hold one section `BEGIN PUBLIC KEY`, and no private key";
            return Err(Error::invalid("key", rule));
        };
        der::parse(&der)
    }

    pub(super) fn ed25519(bytes: &[u8]) -> Result<Self> {
        let bytes = bytes.try_into();
        bytes
            .map(Self::Ed25519)
            .map_err(|_| invalid("an Ed25519 key has 32 bytes"))
    }

    pub(super) fn p256(point: &[u8]) -> Result<Self> {
        match <[u8; 65]>::try_from(point) {
            Ok(point) if point[0] == 4 => Ok(Self::P256(point)),
            _ => Err(invalid("a P-256 key is an uncompressed point of 65 bytes")),
        }
    }

    pub(super) fn rsa(modulus: &[u8], exponent: &[u8]) -> Result<Self> {
        let (modulus, exponent) = (trimmed(modulus), trimmed(exponent));
        let zeros = modulus
            .first()
            .map_or(0, |byte| byte.leading_zeros() as usize);
        let bits = 8 * modulus.len() - zeros;
        if !RSA_BITS.contains(&bits) {
            let rule = format!("an RSA key has 2048 to 8192 bits, this one has {bits}");
            return Err(invalid(&rule));
        }
        // As ring: odd, at least 3, at most 33 bits.
        let is_odd = exponent.last().is_some_and(|last| last % 2 == 1);
        let is_long = exponent.len() > 5 || (exponent.len() == 5 && exponent[0] > 1);
        if !is_odd || exponent == [1] || is_long {
            return Err(invalid(
                "the exponent of an RSA key is odd, from 3, of at most 33 bits",
            ));
        }
        Ok(Self::Rsa {
            modulus: modulus.to_vec(),
            exponent: exponent.to_vec(),
        })
    }

    /// Returns the only algorithm of this key.
    pub(super) const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Ed25519(_) => Algorithm::EdDsa,
            Self::P256(_) => Algorithm::Es256,
            Self::Rsa { .. } => Algorithm::Rs256,
        }
    }

    /// Returns whether the signature of the message is valid.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Self::Rsa { modulus, exponent } => {
                let (n, e) = (modulus, exponent);
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
        };
        verified.is_ok()
    }
}

/// A key file with a private or a shared key must not be printed.
impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.algorithm().as_str())
    }
}

fn trimmed(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

fn invalid(rule: &str) -> Error {
    Error::new(ErrorKind::Invalid, rule)
}
