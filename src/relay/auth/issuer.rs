//! An issuer of JWTs that the relay trusts, and the choice of its key.

use std::time::Duration;

use super::{
    denial::Denial,
    public_key::{Algorithm, IssuerKey, PublicKey},
};
use crate::error::{Error, Result};

/// An issuer of the file. It may name any principal, so it is trusted with all rules.
#[derive(Debug)]
pub(super) struct Issuer {
    /// The claim `iss` of its tokens.
    pub(super) name: String,
    /// A value of the claim `aud` of its tokens.
    pub(super) audience: String,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) keys: Vec<IssuerKey>,
    /// The claim that names the principal.
    pub(super) principal_claim: String,
    /// The claim with the principal's groups.
    pub(super) groups_claim: Option<String>,
    /// Difference between the clocks that is tolerated.
    pub(super) leeway: Duration,
}

impl Issuer {
    /// Checks that a key fits one of the algorithms. `field` names the keys' place in the file.
    pub(super) fn check_keys(&self, field: &str) -> Result<()> {
        let fits = |key: &IssuerKey| self.algorithms.contains(&key.key.algorithm());
        if self.keys.iter().any(fits) {
            return Ok(());
        }
        let names = self.algorithms.iter().map(|algorithm| algorithm.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let rule = format_args!("no key fits the algorithms {names}");
        Err(Error::invalid(field, rule))
    }

    /// Returns the key for a token: by its id, or the only key of the algorithm.
    pub(super) fn key(&self, algorithm: Algorithm, id: Option<&str>) -> Result<&PublicKey, Denial> {
        if !self.algorithms.contains(&algorithm) {
            return Err(Denial::Algorithm);
        }
        let same_id = |key: &&IssuerKey| id.is_some() && key.id.as_deref() == id;
        if self.keys.iter().any(|key| same_id(&key)) {
            let fits = |key: &&IssuerKey| same_id(key) && key.key.algorithm() == algorithm;
            let key = self.keys.iter().find(fits);
            return key.map(|key| &key.key).ok_or(Denial::Algorithm);
        }
        // An unknown id is a rotated key, unless the keys have no ids, as in a PEM file.
        let anonymous = self
            .keys
            .iter()
            .filter(|key| id.is_none() || key.id.is_none());
        let mut anonymous = anonymous.peekable();
        anonymous.peek().ok_or(Denial::UnknownKey)?;
        let mut fitting = anonymous.filter(|key| key.key.algorithm() == algorithm);
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(&key.key),
            (Some(_), Some(_)) => Err(Denial::UnknownKey),
            (None, _) => Err(Denial::Algorithm),
        }
    }
}
