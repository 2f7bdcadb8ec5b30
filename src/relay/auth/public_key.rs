//! Public keys of token issuers, and the verification of signatures with `ring`.
//!
//! Each key has one algorithm. So a token cannot choose how a key is used: neither `none` nor HMAC
//! with the public key as its secret exists here.
//!
//! Of a JSON Web Key Set (RFC 7517) the keys that cannot verify these signatures are left out
//! (section 5): issuers publish keys of other kinds in the same set.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use rustls_pki_types::{SubjectPublicKeyInfoDer, pem::PemObject as _};
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

/// A public key of its only algorithm.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PublicKey {
    pub(super) algorithm: Algorithm,
    /// The key or the uncompressed point; of RSA the modulus.
    bytes: Vec<u8>,
    /// Of RSA.
    exponent: Vec<u8>,
}

/// A key of an issuer, and its id in a JWKS.
#[derive(Debug, Clone)]
pub(super) struct IssuerKey {
    pub(super) id: Option<String>,
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
}

impl Algorithm {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            // RFC 9864 renames EdDSA.
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            "ES256" => Some(Self::Es256),
            "RS256" => Some(Self::Rs256),
            _ => None,
        }
    }
}

impl PublicKey {
    /// Parses the section `PUBLIC KEY` of a PEM file (RFC 5280).
    pub(super) fn from_pem(pem: &[u8]) -> Result<Self> {
        let invalid = |rule| Error::new(ErrorKind::Invalid, rule);
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem)
            .map_err(|_| invalid("has no section `BEGIN PUBLIC KEY`"))?;
        let malformed = "its public key is not valid DER";
        let (_, info) = SubjectPublicKeyInfo::from_der(&der).map_err(|_| invalid(malformed))?;
        let key = if info.algorithm.algorithm == OID_SIG_ED25519 {
            Self::ed25519(&info.subject_public_key.data)
        } else {
            let curve = info.algorithm.parameters.as_ref();
            let curve = curve.and_then(|any| any.as_oid().ok());
            match info.parsed().map_err(|_| invalid(malformed))? {
                Parsed::RSA(key) => Some(Self::rsa(key.modulus, key.exponent)),
                Parsed::EC(point) if curve == Some(OID_EC_P256) => Self::p256(point.data()),
                _ => None,
            }
        };
        key.ok_or_else(|| invalid("its public key is of another type than Ed25519, P-256 and RSA"))
    }

    fn ed25519(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == 32).then(|| Self::of_bytes(Algorithm::EdDsa, bytes))
    }

    fn p256(point: &[u8]) -> Option<Self> {
        (point.len() == 65 && point[0] == 4).then(|| Self::of_bytes(Algorithm::Es256, point))
    }

    fn of_bytes(algorithm: Algorithm, bytes: &[u8]) -> Self {
        Self {
            algorithm,
            bytes: bytes.to_vec(),
            exponent: Vec::new(),
        }
    }

    /// A key of a size or an exponent that `ring` refuses verifies no signature.
    fn rsa(modulus: &[u8], exponent: &[u8]) -> Self {
        // `ring` refuses numbers with zeros before them.
        let trimmed = |number: &[u8]| {
            let zeros = number.iter().take_while(|byte| **byte == 0).count();
            number[zeros..].to_vec()
        };
        Self {
            algorithm: Algorithm::Rs256,
            bytes: trimmed(modulus),
            exponent: trimmed(exponent),
        }
    }

    /// Returns whether the signature of the message is valid.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let (bytes, exponent) = (&self.bytes, &self.exponent);
        let verified = match self.algorithm {
            Algorithm::EdDsa => UnparsedPublicKey::new(&ED25519, bytes).verify(message, signature),
            Algorithm::Es256 => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes).verify(message, signature)
            }
            Algorithm::Rs256 => RsaPublicKeyComponents {
                n: bytes,
                e: exponent,
            }
            .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature),
        };
        verified.is_ok()
    }
}

/// Parses a set; keys that cannot be used are left out. No error quotes the file.
pub(super) fn parse_jwks(json: &[u8]) -> Result<Vec<IssuerKey>> {
    let invalid = |rule| Error::new(ErrorKind::Invalid, rule);
    let set: KeySet =
        serde_json::from_slice(json).map_err(|_| invalid("is not a JSON Web Key Set"))?;
    let keys = set.keys.into_iter().filter_map(|key| {
        let key: JsonKey = serde_json::from_value(key).ok()?;
        key.read()
    });
    let keys: Vec<_> = keys.collect();
    if keys.is_empty() {
        return Err(invalid("has no key for EdDSA, ES256 or RS256"));
    }
    Ok(keys)
}

impl JsonKey {
    /// Returns the key, or `None` if it cannot verify a signature.
    fn read(self) -> Option<IssuerKey> {
        let verifies = |ops: &Vec<String>| ops.iter().any(|op| op == "verify");
        let is_for_signatures = self.purpose.is_none_or(|purpose| purpose == "sig")
            && self.key_ops.as_ref().is_none_or(verifies);
        if !is_for_signatures {
            return None;
        }
        let key = match (&*self.kty, self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => PublicKey::ed25519(&number(self.x)?)?,
            ("EC", Some("P-256")) => {
                PublicKey::p256(&[&[4][..], &number(self.x)?, &number(self.y)?].concat())?
            }
            ("RSA", _) => PublicKey::rsa(&number(self.n)?, &number(self.e)?),
            _ => return None,
        };
        let fits = |alg: String| Algorithm::named(&alg) == Some(key.algorithm);
        self.alg
            .is_none_or(fits)
            .then_some(IssuerKey { id: self.kid, key })
    }
}

fn number(text: Option<String>) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text?).ok()
}

/// A key file may hold a private key by mistake, so no bytes are printed.
impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({:?})", self.algorithm)
    }
}
