//! Reads a JSON Web Key Set (RFC 7517): the keys that this relay can use, by id.
//!
//! Keys for encryption and of other types are left out, because issuers publish them in the same
//! set. A private or a shared key is an error: it does not belong on a relay.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;

use super::{Algorithm, IssuerKey, PublicKey};
use crate::error::{Error, ErrorKind, Result};

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<JsonKey>,
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
    /// A part of a private key.
    d: Option<serde::de::IgnoredAny>,
    /// A shared key.
    k: Option<serde::de::IgnoredAny>,
}

/// Longest id of a key, in bytes.
const LONGEST_ID: usize = 256;

/// Parses a set. An error names the key by its number, from 1.
pub(in crate::relay::auth) fn parse_jwks(json: &[u8]) -> Result<Vec<IssuerKey>> {
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
        let fail = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Invalid, format!("key {number}: {error}"))
        };
        let Some(key) = key.read().map_err(|error| fail(&error))? else {
            continue;
        };
        let is_twice =
            |other: &IssuerKey| other.id == key.id && other.key.algorithm() == key.key.algorithm();
        if key.id.is_some() && keys.iter().any(is_twice) {
            return Err(fail(&"its `kid` stands twice"));
        }
        keys.push(key);
    }
    Ok(keys)
}

impl JsonKey {
    /// Returns the key, or `None` if it is not for signatures or of another type.
    fn read(self) -> Result<Option<IssuerKey>> {
        if self.d.is_some() || self.k.is_some() || self.kty == "oct" {
            return Err(invalid("it is a private or a shared key"));
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

fn invalid(rule: &str) -> Error {
    Error::new(ErrorKind::Invalid, rule)
}
