//! The issuers of JWTs that the relay trusts: their tables `[[jwt]]`, their keys, and the choice of a key.

use std::{path::Path, sync::Arc, time::Duration};

use serde::Deserialize;

use super::{
    denial::Denial,
    file::LONGEST_FILE,
    public_key::{Algorithm, IssuerKey, PublicKey, parse_jwks},
    small_file,
    token::{Digest, digest},
};
use crate::{
    base::duration,
    error::{Error, Result},
    types::check_text,
};

/// A table `[[jwt]]`, before its rules are checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JwtForm {
    issuer: String,
    audience: String,
    algorithms: Option<Vec<String>>,
    key: Option<String>,
    jwks: Option<String>,
    principal: Option<String>,
    pub(super) groups: Option<String>,
    leeway: Option<String>,
}

/// An issuer of the file. It may name any principal, so it is trusted with all rules.
#[derive(Debug)]
pub(super) struct Issuer {
    pub(super) settings: Arc<IssuerSettings>,
    pub(super) keys: Arc<IssuerKeys>,
}

#[derive(Debug)]
pub(super) struct IssuerSettings {
    /// The claim `iss` of its tokens.
    pub(super) name: String,
    /// A value of the claim `aud` of its tokens.
    pub(super) audience: String,
    algorithms: Vec<Algorithm>,
    /// The claim that names the principal.
    pub(super) principal_claim: String,
    /// The claim with the principal's groups.
    pub(super) groups_claim: Option<String>,
    /// Difference between the clocks that is tolerated.
    pub(super) leeway: Duration,
    /// The setting that names the file of the keys: `key` or `jwks`.
    key_setting: &'static str,
    key_file: String,
}

/// The keys of an issuer's file. The default has none: no token of the issuer is accepted.
#[derive(Debug, Default)]
pub(super) struct IssuerKeys {
    /// The digest of the file.
    source: Digest,
    list: Vec<IssuerKey>,
    /// Why keys of the file are not used.
    pub(super) notes: Vec<String>,
}

const DEFAULT_LEEWAY: Duration = Duration::from_secs(60);
/// A greater difference is a wrong clock, which the operator should know of.
const GREATEST_LEEWAY: Duration = Duration::from_secs(5 * 60);
/// Longest name of an issuer, an audience or a claim, in bytes.
const LONGEST_TEXT: usize = 1024;

/// Checks the tables `[[jwt]]`.
pub(super) fn read(forms: Vec<JwtForm>) -> Result<Vec<Arc<IssuerSettings>>> {
    let mut issuers: Vec<Arc<IssuerSettings>> = Vec::new();
    for (at, form) in forms.into_iter().enumerate() {
        let issuer = form.read().map_err(|error| numbered(at, error))?;
        if issuers.iter().any(|other| other.name == issuer.name) {
            let rule = format_args!("issuer `{}` stands twice", issuer.name);
            return Err(Error::invalid(&format!("jwt {}", at + 1), rule));
        }
        issuers.push(Arc::new(issuer));
    }
    Ok(issuers)
}

/// Names the table of an error.
pub(super) fn numbered(at: usize, error: Error) -> Error {
    let message = format!("jwt {}: {error}", at + 1);
    Error::new(error.kind(), message).with_source(error)
}

impl JwtForm {
    fn read(self) -> Result<IssuerSettings> {
        let principal = self.principal.unwrap_or_else(|| "sub".to_owned());
        text("issuer", &self.issuer)?;
        text("audience", &self.audience)?;
        text("principal", &principal)?;
        if let Some(claim) = &self.groups {
            text("groups", claim)?;
        }
        let (key_setting, key_file) = match (self.key, self.jwks) {
            (Some(path), None) => ("key", path),
            (None, Some(path)) => ("jwks", path),
            _ => return Err(Error::invalid("key", "either `key` or `jwks` is required")),
        };
        Ok(IssuerSettings {
            name: self.issuer,
            audience: self.audience,
            algorithms: algorithms(self.algorithms)?,
            principal_claim: principal,
            groups_claim: self.groups,
            leeway: leeway(self.leeway.as_deref())?,
            key_setting,
            key_file,
        })
    }
}

impl IssuerSettings {
    /// Reads the keys. Returns the former ones if their file holds the same.
    pub(super) fn read_keys(
        &self,
        directory: &Path,
        former: Option<&Arc<IssuerKeys>>,
    ) -> Result<Arc<IssuerKeys>> {
        let (setting, path) = (self.key_setting, directory.join(&self.key_file));
        let content = small_file::read(&format!("{setting}: file"), &path, LONGEST_FILE)?;
        let source = digest(&[setting.as_bytes(), &content.bytes]);
        if let Some(former) = former.filter(|former| former.source == source) {
            return Ok(Arc::clone(former));
        }
        let mut notes: Vec<_> = small_file::note_open(&path, &content).into_iter().collect();
        let list = match setting {
            "key" => {
                PublicKey::from_pem(&content.bytes).map(|key| vec![IssuerKey { id: None, key }])
            }
            _ => parse_jwks(&content.bytes, &mut notes),
        };
        let keys = IssuerKeys {
            source,
            list: list.map_err(|error| in_file(setting, &path, error))?,
            notes,
        };
        self.check_keys(&keys)?;
        Ok(Arc::new(keys))
    }

    /// Checks that a key fits one of the algorithms.
    fn check_keys(&self, keys: &IssuerKeys) -> Result<()> {
        let fits = |key: &IssuerKey| self.algorithms.contains(&key.key.algorithm());
        if keys.list.iter().any(fits) {
            return Ok(());
        }
        let names = self.algorithms.iter().map(|algorithm| algorithm.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        let notes = keys.notes.iter().map(|note| format!("; {note}"));
        let notes = notes.collect::<String>();
        let rule = format_args!("no key fits the algorithms {names}{notes}");
        Err(Error::invalid(self.key_setting, rule))
    }
}

impl Issuer {
    pub(super) fn name(&self) -> &str {
        &self.settings.name
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

fn text(field: &str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    check_text(field, text, LONGEST_TEXT)
}

fn algorithms(names: Option<Vec<String>>) -> Result<Vec<Algorithm>> {
    let Some(names) = names else {
        return Ok(Algorithm::ALL.to_vec());
    };
    if names.is_empty() {
        return Err(Error::invalid("algorithms", "must not be empty"));
    }
    names.iter().map(|name| name.parse()).collect()
}

fn leeway(text: Option<&str>) -> Result<Duration> {
    let Some(text) = text else {
        return Ok(DEFAULT_LEEWAY);
    };
    let leeway = duration::parse(text).map_err(|error| Error::invalid("leeway", error))?;
    if leeway > GREATEST_LEEWAY {
        return Err(Error::invalid("leeway", "must be 0s to 5m"));
    }
    Ok(leeway)
}

fn in_file(setting: &str, path: &Path, error: Error) -> Error {
    let rule = error.message().trim_start_matches("key: ");
    let message = format!("{setting}: file `{}`: {rule}", path.display());
    Error::new(error.kind(), message).with_source(error)
}
