//! Verifies static tokens and issuers' secrets.
//!
//! Digests are compared in constant time. A credential with an unknown id or issuer is compared
//! with a dummy, so that the time of the answer does not tell which ids and issuers exist.

use std::{collections::HashMap, time::SystemTime};

use subtle::ConstantTimeEq as _;

use super::{
    denial::Denial,
    principal::{Principal, Verified},
    token::{Digest, digest, id_of},
    token_file::{KEYS_OF_ISSUER, TokenRecord},
};
use crate::error::Result;

/// The loaded tokens and secrets.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    /// The digest of the file.
    pub(super) source: Digest,
    pub(super) notes: Vec<String>,
    tokens: HashMap<Box<str>, Entry>,
    secrets: HashMap<Box<str>, Vec<Entry>>,
}

pub(super) struct Entry {
    id: Box<str>,
    pub(super) issuer: Option<Box<str>>,
    salt: [u8; 16],
    digest: Digest,
    pub(super) principal: Principal,
    expires: Option<SystemTime>,
}

impl TokenTable {
    pub(super) fn len(&self) -> usize {
        self.tokens.len() + self.secrets.values().map(Vec::len).sum::<usize>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn new(records: &[TokenRecord]) -> Result<Self> {
        let mut table = Self::default();
        for record in records {
            let entry = Entry {
                id: (*record.id).into(),
                issuer: record.issuer().map(Into::into),
                salt: record.check.salt.unwrap_or_default(),
                digest: record.check.digest,
                principal: Principal::new(&record.principal)?,
                expires: record.expires,
            };
            match record.issuer() {
                Some(issuer) => table.secrets.entry(issuer.into()).or_default().push(entry),
                None => drop(table.tokens.insert((*record.id).into(), entry)),
            }
        }
        Ok(table)
    }

    /// Returns the tokens and secrets by id.
    pub(super) fn by_id(&self) -> HashMap<&str, &Entry> {
        let all = self.tokens.values().chain(self.secrets.values().flatten());
        all.map(|entry| (&*entry.id, entry)).collect()
    }

    /// Verifies a token.
    pub(super) fn verify_token(&self, text: &str, now: SystemTime) -> Result<Verified, Denial> {
        let presented = digest(&[text.as_bytes()]);
        let id = id_of(text).ok_or(Denial::Malformed)?;
        let entry = self.tokens.get(id);
        let known = entry.map_or([0; 32], |entry| entry.digest);
        match (entry, bool::from(known.ct_eq(&presented))) {
            (Some(entry), true) => entry.accept(now),
            _ => Err(Denial::UnknownToken),
        }
    }

    /// Verifies an issuer's key.
    pub(super) fn verify_secret(
        &self,
        issuer: &str,
        key: &[u8],
        now: SystemTime,
    ) -> Result<Verified, Denial> {
        let entries = self.secrets.get(issuer).map_or(&[][..], Vec::as_slice);
        let mut found = None;
        for at in 0..KEYS_OF_ISSUER {
            let entry = entries.get(at);
            let salt = entry.map_or([0; 16], |entry| entry.salt);
            let known = entry.map_or([0; 32], |entry| entry.digest);
            let presented = digest(&[&salt, key]);
            if bool::from(known.ct_eq(&presented)) {
                found = entry.or(found);
            }
        }
        found.ok_or(Denial::UnknownToken)?.accept(now)
    }
}

impl Entry {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.salt, self.digest, &self.principal, self.expires)
            == (other.salt, other.digest, &other.principal, other.expires)
    }

    fn accept(&self, now: SystemTime) -> Result<Verified, Denial> {
        if let Some(expires) = self.expires
            && let Ok(ago) = now.duration_since(expires)
        {
            return Err(Denial::Expired { ago });
        }
        Ok(Verified {
            principal: self.principal.clone(),
            by: match &self.issuer {
                Some(issuer) => format!("secret {} of {issuer}", self.id).into(),
                None => format!("token {}", self.id).into(),
            },
            expires_at: self.expires,
        })
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "(secret of {})", self.principal)
    }
}
