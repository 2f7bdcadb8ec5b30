//! Reads a JSON Web Key Set (RFC 7517): the keys that this relay can use, by id.
//!
//! Keys for encryption and of other types are left out, because issuers publish them in the same
//! set. A key for signatures that cannot be used is left out with a note (RFC 7517, section 5): the
//! others of the set stay valid. A private key is an error: it does not belong on a relay.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;

use super::{Algorithm, IssuerKey, PublicKey};
use crate::error::{Error, ErrorKind, Result};

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

/// Parses a set. An error and a note name the key by its number, from 1.
pub(in crate::relay::auth) fn parse_jwks(
    json: &[u8],
    notes: &mut Vec<String>,
) -> Result<Vec<IssuerKey>> {
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

fn invalid(rule: &str) -> Error {
    Error::new(ErrorKind::Invalid, rule)
}
