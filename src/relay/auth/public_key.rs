//! Public keys of token issuers, and the verification of signatures with `ring`.
//!
//! Each key has one algorithm. So a token cannot choose how a key is used: neither `none` nor HMAC
//! with the public key as its secret exists here.
//!
//! Of a JSON Web Key Set (RFC 7517) keys for encryption and of other types are left out, because issuers
//! publish them in the same set. A key for signatures that cannot be used is left out with a note
//! (section 5): the others of the set stay valid. A private key is an error: it does not belong on a
//! relay.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use serde::Deserialize;
use x509_parser::{
    oid_registry::{OID_EC_P256, OID_SIG_ED25519},
    prelude::FromDer as _,
    public_key::PublicKey as Parsed,
    x509::SubjectPublicKeyInfo,
};

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

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

/// Members that are not named here are ignored, as the RFC demands.
#[derive(Deserialize)]
struct JsonKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    /// A shared key.
    k: Option<serde::de::IgnoredAny>,
}

/// Longest id of a key, in bytes.
const LONGEST_ID: usize = 256;
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
        Self::from_der(&der)
    }

    /// Parses a `SubjectPublicKeyInfo` (RFC 5280).
    fn from_der(der: &[u8]) -> Result<Self> {
        let malformed = || invalid("the public key is not valid DER");
        let (rest, info) = SubjectPublicKeyInfo::from_der(der).map_err(|_| malformed())?;
        if !rest.is_empty() {
            return Err(malformed());
        }
        let algorithm = &info.algorithm;
        let curve = algorithm
            .parameters
            .as_ref()
            .and_then(|any| any.as_oid().ok());
        if algorithm.algorithm == OID_SIG_ED25519 {
            return Self::ed25519(&info.subject_public_key.data);
        }
        match info.parsed().map_err(|_| malformed())? {
            Parsed::RSA(key) => Self::rsa(key.modulus, key.exponent),
            Parsed::EC(point) if curve == Some(OID_EC_P256) => Self::p256(point.data()),
            _ => Err(invalid(
                "the public key is of another type than Ed25519, P-256 and RSA",
            )),
        }
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

/// Parses a set. An error and a note name the key by its number, from 1.
pub(super) fn parse_jwks(json: &[u8], notes: &mut Vec<String>) -> Result<Vec<IssuerKey>> {
    let set: KeySet = serde_json::from_slice(json).map_err(|error| {
        // The error's own text may quote the file.
        let place = format!("line {}, column {}", error.line(), error.column());
        Error::new(
            ErrorKind::Invalid,
            format!("is not a JSON Web Key Set: {place}"),
        )
    })?;
    let mut keys: Vec<IssuerKey> = Vec::new();
    for (at, key) in set.keys.into_iter().enumerate() {
        let number = at + 1;
        if key.get("d").is_some() {
            return Err(invalid(&format!("key {number}: it is a private key")));
        }
        let read = match serde_json::from_value::<JsonKey>(key) {
            Ok(key) => key.read(),
            // The error's own text may quote the file.
            Err(_) => Err(invalid("it is no JSON Web Key")),
        };
        let is_twice = |key: &IssuerKey| {
            let same = |other: &&IssuerKey| other.id == key.id;
            let mut same = keys.iter().filter(same);
            key.id.is_some() && same.any(|other| other.key.algorithm() == key.key.algorithm())
        };
        match read {
            Ok(Some(key)) if is_twice(&key) => {
                notes.push(format!(
                    "key {number} is not used: its `kid` stands twice, and the first one counts"
                ));
            }
            Ok(Some(key)) => keys.push(key),
            Ok(None) => {}
            Err(error) => notes.push(format!("key {number} is not used: {}", error.message())),
        }
    }
    let anonymous = keys.iter().filter(|key| key.id.is_none());
    if anonymous.count() > 1 {
        notes.push(
            "several keys have no `kid`: only tokens of an algorithm with one key are accepted"
                .to_owned(),
        );
    }
    Ok(keys)
}

impl JsonKey {
    /// Returns the key, or `None` if it is not for signatures or of another type.
    fn read(self) -> Result<Option<IssuerKey>> {
        if self.k.is_some() || self.kty == "oct" {
            return Err(invalid(
                "it is a shared key, which does not belong on a relay",
            ));
        }
        let verifies = |ops: &Vec<String>| ops.iter().any(|op| op == "verify");
        let is_for_signatures = self
            .purpose
            .as_deref()
            .is_none_or(|purpose| purpose == "sig")
            && self.key_ops.as_ref().is_none_or(verifies);
        if !is_for_signatures {
            return Ok(None);
        }
        let key = match (&*self.kty, self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => PublicKey::ed25519(&number("x", self.x.as_deref())?)?,
            ("EC", Some("P-256")) => {
                let (x, y) = (
                    number("x", self.x.as_deref())?,
                    number("y", self.y.as_deref())?,
                );
                if (x.len(), y.len()) != (32, 32) {
                    return Err(invalid("`x` and `y` of a P-256 key have 32 bytes each"));
                }
                PublicKey::p256(&[&[4][..], &x, &y].concat())?
            }
            ("RSA", _) => {
                let (n, e) = (
                    number("n", self.n.as_deref())?,
                    number("e", self.e.as_deref())?,
                );
                PublicKey::rsa(&n, &e)?
            }
            _ => return Ok(None),
        };
        if !self.alg.is_none_or(|alg| fits(&alg, key.algorithm())) {
            return Ok(None);
        }
        if self.kid.as_ref().is_some_and(|id| id.len() > LONGEST_ID) {
            return Err(invalid("its `kid` is longer than 256 bytes"));
        }
        let id = self.kid.map(String::into_boxed_str);
        Ok(Some(IssuerKey { id, key }))
    }
}

/// Returns whether a key's stated algorithm is the given one. RFC 9864 renames EdDSA to Ed25519.
fn fits(stated: &str, algorithm: Algorithm) -> bool {
    stated == algorithm.as_str() || (stated == "Ed25519" && algorithm == Algorithm::EdDsa)
}

fn number(member: &str, text: Option<&str>) -> Result<Vec<u8>> {
    let decoded = text.and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    decoded.ok_or_else(|| invalid(&format!("`{member}` is missing or not base64url")))
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
