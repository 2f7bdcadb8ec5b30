//! An issuer of JWTs that the relay trusts, and the choice of its key.

use std::{sync::Arc, time::Duration};

use super::{
    denial::Denial,
    public_key::{Algorithm, IssuerKey, PublicKey},
    token::Digest,
};
use crate::error::{Error, Result};

/// An issuer of the file. It may name any principal, so it is trusted with all rules.
#[derive(Debug)]
pub(super) struct Issuer {
    pub(super) settings: IssuerSettings,
    pub(super) keys: Arc<IssuerKeys>,
}

#[derive(Debug, Clone)]
pub(super) struct IssuerSettings {
    /// The claim `iss` of its tokens.
    pub(super) name: String,
    /// A value of the claim `aud` of its tokens.
    pub(super) audience: String,
    pub(super) algorithms: Vec<Algorithm>,
    /// The claim that names the principal.
    pub(super) principal_claim: String,
    /// The claim with the principal's groups.
    pub(super) groups_claim: Option<String>,
    /// Difference between the clocks that is tolerated.
    pub(super) leeway: Duration,
}

/// The keys of an issuer's file. The default has none: no token of the issuer is accepted.
#[derive(Debug, Default)]
pub(super) struct IssuerKeys {
    /// The digest of the file.
    pub(super) source: Digest,
    pub(super) list: Vec<IssuerKey>,
    /// Why keys of the file are not used.
    pub(super) notes: Vec<String>,
}

impl IssuerSettings {
    /// Checks that a key fits one of the algorithms. `field` names the keys' place in the file.
    pub(super) fn check_keys(&self, field: &str, keys: &IssuerKeys) -> Result<()> {
        let fits = |key: &IssuerKey| self.algorithms.contains(&key.key.algorithm());
        if keys.list.iter().any(fits) {
            return Ok(());
        }
        let names = self.algorithms.iter().map(|algorithm| algorithm.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let notes = keys.notes.iter().map(|note| format!("; {note}"));
        let notes = notes.collect::<String>();
        let rule = format_args!("no key fits the algorithms {names}{notes}");
        Err(Error::invalid(field, rule))
    }
}

impl Issuer {
    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.settings.name == name
    }

    /// Returns the key for a token: by its id, or the only key of the algorithm.
    pub(super) fn key(&self, algorithm: Algorithm, id: Option<&str>) -> Result<&PublicKey, Denial> {
        if !self.settings.algorithms.contains(&algorithm) {
            return Err(Denial::Algorithm);
        }
        let same_id = |key: &&IssuerKey| id.is_some() && key.id.as_deref() == id;
        let keys = &self.keys.list;
        if keys.iter().any(|key| same_id(&key)) {
            let fits = |key: &&IssuerKey| same_id(key) && key.key.algorithm() == algorithm;
            let key = keys.iter().find(fits);
            return key.map(|key| &key.key).ok_or(Denial::Algorithm);
        }
        // An unknown id is a rotated key, unless the keys have no ids, as in a PEM file.
        let anonymous = keys.iter().filter(|key| id.is_none() || key.id.is_none());
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
