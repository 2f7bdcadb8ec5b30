//! JSON Web Tokens (RFC 7519): their issuers in tables `[[jwt]]`, and the verification of a token.
//!
//! The crate `jsonwebtoken` is not used for three reasons. It reads the system's clock, whereas time
//! is an argument here. Its cryptography is a setting of the whole process, which a library must not
//! take from the program. Its own providers bring `rsa` or a library in C; `ring` is linked anyway.
//!
//! The claims are believed only after the signature is verified; before that, `iss` selects the key.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    denial::Denial,
    principal::{self, Principal, Verified},
    public_key::{Algorithm, IssuerKey, PublicKey},
};

/// A table `[[jwt]]`. Its issuer may name any principal, so it is trusted with all rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IssuerSettings {
    /// The claim `iss` of its tokens.
    pub(super) issuer: String,
    /// A value of the claim `aud` of its tokens.
    audience: String,
    /// The file of one key, in PEM.
    pub(super) key: Option<String>,
    /// The file of a key set. Exactly one of the two files is stated.
    pub(super) jwks: Option<String>,
    /// The claim that names the principal.
    #[serde(default = "subject")]
    principal: String,
    /// The claim with the principal's groups.
    pub(super) groups: Option<String>,
}

/// The protected header. Members that are not named here are ignored, except `crit`.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a verifier must understand; this one understands none.
    crit: Option<serde::de::IgnoredAny>,
}

/// The verified claims of a token.
struct Claims(Map<String, Value>);

/// Longest token in bytes. Usual ones have less than 2 KiB.
pub(super) const LONGEST_TOKEN: usize = 8 * 1024;
/// Difference between the clocks that is tolerated.
const LEEWAY: Duration = Duration::from_secs(60);
/// Greatest time in seconds: the year 9999. It keeps sums in range.
const LATEST: f64 = 253_402_300_799.0;

fn subject() -> String {
    "sub".to_owned()
}

/// Verifies a token against the issuers, each with its keys.
pub(super) fn verify<'i>(
    mut issuers: impl Iterator<Item = (&'i IssuerSettings, &'i [IssuerKey])>,
    token: &str,
    now: SystemTime,
) -> Result<Verified, Denial> {
    if token.len() > LONGEST_TOKEN {
        return Err(Denial::Malformed);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(Denial::Malformed)?;
    let (header, claims) = signed.split_once('.').ok_or(Denial::Malformed)?;
    let header: Header = json(header)?;
    let claims = Claims(json(claims)?);
    // Refused before any key is chosen: `none`, HS256 and all others.
    let algorithm = Algorithm::named(&header.alg).ok_or(Denial::Algorithm)?;
    let name = claims.0.get("iss").and_then(Value::as_str);
    let issuer = issuers.find(|(settings, _)| Some(&*settings.issuer) == name);
    let (issuer, keys) = issuer.ok_or(Denial::UnknownIssuer)?;
    let key = select_key(keys, algorithm, header.kid.as_deref())?;
    if !key.verifies(signed.as_bytes(), &decode(signature)?) {
        return Err(Denial::BadSignature);
    }
    if header.crit.is_some() {
        return Err(bad(
            "`crit`",
            "names extensions, which this relay does not know",
        ));
    }
    claims.accept(issuer, now)
}

/// Returns the key for a token: by its id, or the only key of the algorithm.
fn select_key<'k>(
    keys: &'k [IssuerKey],
    algorithm: Algorithm,
    id: Option<&str>,
) -> Result<&'k PublicKey, Denial> {
    let has_id = |key: &&IssuerKey| id.is_some() && key.id.as_deref() == id;
    let is_named = keys.iter().any(|key| has_id(&key));
    // An unknown id is a rotated key, unless the keys have no ids, as in a PEM file.
    let candidates = keys.iter().filter(|key| match is_named {
        true => has_id(key),
        false => id.is_none() || key.id.is_none(),
    });
    let mut candidates = candidates.peekable();
    candidates.peek().ok_or(Denial::UnknownKey)?;
    let mut fitting = candidates.filter(|key| key.key.algorithm == algorithm);
    match (fitting.next(), fitting.next()) {
        (Some(key), None) => Ok(&key.key),
        (Some(_), Some(_)) => Err(Denial::UnknownKey),
        (None, _) => Err(Denial::Algorithm),
    }
}

impl Claims {
    fn accept(&self, issuer: &IssuerSettings, now: SystemTime) -> Result<Verified, Denial> {
        let expires = self.time("exp", "`exp`")?;
        let expires = expires.ok_or_else(|| bad("`exp`", "is missing"))?;
        let expires_at = expires + LEEWAY;
        if now >= expires_at {
            let ago = now.duration_since(expires).unwrap_or_default();
            return Err(Denial::Expired { ago });
        }
        if let Some(not_before) = self.time("nbf", "`nbf`")?
            && let Ok(wait) = not_before.duration_since(now)
            && wait > LEEWAY
        {
            return Err(Denial::NotYetValid { wait });
        }
        if !self.is_for(&issuer.audience) {
            return Err(Denial::WrongAudience);
        }
        Ok(Verified {
            principal: self.principal(issuer)?,
            by: format!("JWT of {}", issuer.issuer).into(),
            expires_at: Some(expires_at),
        })
    }

    /// Returns a time in seconds since 1970, which may have a fraction.
    fn time(&self, claim: &str, part: &'static str) -> Result<Option<SystemTime>, Denial> {
        let Some(value) = self.0.get(claim) else {
            return Ok(None);
        };
        let seconds = value.as_f64().filter(|at| (0.0..=LATEST).contains(at));
        let seconds = seconds.ok_or_else(|| bad(part, "must be a number of seconds since 1970"))?;
        Ok(Some(UNIX_EPOCH + Duration::from_secs_f64(seconds)))
    }

    fn is_for(&self, audience: &str) -> bool {
        match self.0.get("aud") {
            Some(Value::String(stated)) => stated == audience,
            Some(Value::Array(stated)) => stated.iter().any(|stated| stated == audience),
            _ => false,
        }
    }

    fn principal(&self, issuer: &IssuerSettings) -> Result<Principal, Denial> {
        let name = self.0.get(&issuer.principal).and_then(Value::as_str);
        let name = name.ok_or_else(|| bad("principal", "is missing, or no text"))?;
        let claim = issuer.groups.as_ref();
        let groups = match claim.and_then(|claim| self.0.get(claim)) {
            None | Some(Value::Null) => Some(Vec::new()),
            // Some identity services send a single group so.
            Some(Value::String(group)) => Some(vec![&**group]),
            Some(Value::Array(groups)) => groups.iter().map(Value::as_str).collect(),
            Some(_) => None,
        };
        let groups = groups.ok_or_else(|| bad("groups", "must be a list of texts"))?;
        Principal::with_groups(name, groups).map_err(|_| bad("principal", principal::RULE))
    }
}

fn bad(part: &'static str, rule: &'static str) -> Denial {
    Denial::BadClaim { part, rule }
}

fn json<T: serde::de::DeserializeOwned>(part: &str) -> Result<T, Denial> {
    serde_json::from_slice(&decode(part)?).map_err(|_| Denial::Malformed)
}

fn decode(part: &str) -> Result<Vec<u8>, Denial> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Denial::Malformed)
}
