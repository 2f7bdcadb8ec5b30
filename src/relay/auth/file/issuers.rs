//! Checks the tables `[[jwt]]` and reads the keys that they name.

use std::{path::Path, sync::Arc, time::Duration};

use super::{LONGEST_FILE, form::JwtForm};
use crate::{
    base::duration,
    error::{Error, Result},
    relay::auth::{
        issuer::{Issuer, IssuerKeys, IssuerSettings},
        public_key::{Algorithm, IssuerKey, PublicKey, parse_jwks},
        small_file,
        token::digest,
    },
    types::check_text,
};

const DEFAULT_LEEWAY: Duration = Duration::from_secs(60);
/// A greater difference is a wrong clock, which the operator should know of.
const GREATEST_LEEWAY: Duration = Duration::from_secs(5 * 60);
/// Longest name of an issuer, an audience or a claim, in bytes.
const LONGEST_TEXT: usize = 1024;

/// A table `[[jwt]]` whose fields follow the rules.
#[derive(Debug)]
pub(super) struct IssuerForm {
    settings: IssuerSettings,
    keys: KeyFile,
}

/// Where the keys are.
#[derive(Debug)]
enum KeyFile {
    Pem(String),
    KeySet(String),
}

pub(super) fn read(forms: Vec<JwtForm>) -> Result<Vec<IssuerForm>> {
    let mut issuers: Vec<IssuerForm> = Vec::new();
    for (at, form) in forms.into_iter().enumerate() {
        let issuer = form.read().map_err(|error| numbered(at, error))?;
        if issuers.iter().any(|other| other.name() == issuer.name()) {
            let rule = format_args!("issuer `{}` stands twice", issuer.name());
            return Err(Error::invalid(&format!("jwt {}", at + 1), rule));
        }
        issuers.push(issuer);
    }
    Ok(issuers)
}

/// Names the table of an error.
pub(super) fn numbered(at: usize, error: Error) -> Error {
    let message = format!("jwt {}: {error}", at + 1);
    Error::new(error.kind(), message).with_source(error)
}

impl JwtForm {
    fn read(self) -> Result<IssuerForm> {
        let principal = self.principal.unwrap_or_else(|| "sub".to_owned());
        text("issuer", &self.issuer)?;
        text("audience", &self.audience)?;
        text("principal", &principal)?;
        if let Some(claim) = &self.groups {
            text("groups", claim)?;
        }
        let keys = match (self.key, self.jwks) {
            (Some(path), None) => KeyFile::Pem(path),
            (None, Some(path)) => KeyFile::KeySet(path),
            _ => return Err(Error::invalid("key", "either `key` or `jwks` is required")),
        };
        let settings = IssuerSettings {
            name: self.issuer,
            audience: self.audience,
            algorithms: algorithms(self.algorithms)?,
            principal_claim: principal,
            groups_claim: self.groups,
            leeway: leeway(self.leeway.as_deref())?,
        };
        Ok(IssuerForm { settings, keys })
    }
}

impl IssuerForm {
    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn issuer(&self, keys: Arc<IssuerKeys>) -> Issuer {
        Issuer {
            settings: self.settings.clone(),
            keys,
        }
    }

    /// Reads the keys. Returns the former ones if their file holds the same.
    pub(super) fn read_keys(
        &self,
        directory: &Path,
        former: Option<&Arc<IssuerKeys>>,
    ) -> Result<Arc<IssuerKeys>> {
        let (field, path) = match &self.keys {
            KeyFile::Pem(path) => ("key", directory.join(path)),
            KeyFile::KeySet(path) => ("jwks", directory.join(path)),
        };
        let content = small_file::read(&format!("{field}: file"), &path, LONGEST_FILE)?;
        let bytes = &content.bytes;
        let source = digest(&[field.as_bytes(), bytes]);
        if let Some(former) = former.filter(|former| former.source == source) {
            return Ok(Arc::clone(former));
        }
        let mut notes: Vec<_> = small_file::note_open(&path, &content).into_iter().collect();
        let list = match &self.keys {
            KeyFile::Pem(_) => {
                PublicKey::from_pem(bytes).map(|key| vec![IssuerKey { id: None, key }])
            }
            KeyFile::KeySet(_) => parse_jwks(bytes, &mut notes),
        };
        let list = list.map_err(|error| in_file(field, &path, error))?;
        let keys = IssuerKeys {
            source,
            list,
            notes,
        };
        self.settings.check_keys(field, &keys)?;
        Ok(Arc::new(keys))
    }
}

fn text(field: &str, text: &str) -> Result<()> {
    match text.is_empty() {
        true => Err(Error::invalid(field, "must not be empty")),
        false => check_text(field, text, LONGEST_TEXT),
    }
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
    match leeway <= GREATEST_LEEWAY {
        true => Ok(leeway),
        false => Err(Error::invalid("leeway", "must be 0s to 5m")),
    }
}

fn in_file(field: &str, path: &Path, error: Error) -> Error {
    let rule = error.message().trim_start_matches("key: ");
    let message = format!("{field}: file `{}`: {rule}", path.display());
    Error::new(error.kind(), message).with_source(error)
}
