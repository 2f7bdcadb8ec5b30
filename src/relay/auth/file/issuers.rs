//! Checks the tables `[[jwt]]` and reads the keys that they name.

use std::{path::Path, time::Duration};

use super::{LONGEST_FILE, form::JwtForm};
use crate::{
    base::duration,
    error::{Error, Result},
    relay::auth::{
        issuer::Issuer,
        public_key::{Algorithm, IssuerKey, PublicKey, parse_jwks},
        small_file,
    },
    types::check_text,
};

const DEFAULT_LEEWAY: Duration = Duration::from_secs(60);
/// A greater difference is a wrong clock, which the operator should know of.
const GREATEST_LEEWAY: Duration = Duration::from_secs(5 * 60);
/// Longest name of an issuer, an audience or a claim, in bytes.
const LONGEST_TEXT: usize = 1024;

pub(super) fn read(directory: &Path, forms: Vec<JwtForm>) -> Result<Vec<Issuer>> {
    let mut issuers: Vec<Issuer> = Vec::new();
    for (at, form) in forms.into_iter().enumerate() {
        let number = at + 1;
        let issuer = form.read(directory);
        let issuer = issuer.map_err(|error| {
            let message = format!("jwt {number}: {error}");
            Error::new(error.kind(), message).with_source(error)
        })?;
        if issuers.iter().any(|other| other.name == issuer.name) {
            let rule = format_args!("issuer `{}` stands twice", issuer.name);
            return Err(Error::invalid(&format!("jwt {number}"), rule));
        }
        issuers.push(issuer);
    }
    Ok(issuers)
}

impl JwtForm {
    fn read(self, directory: &Path) -> Result<Issuer> {
        let principal = self.principal.unwrap_or_else(|| "sub".to_owned());
        text("issuer", &self.issuer)?;
        text("audience", &self.audience)?;
        text("principal", &principal)?;
        if let Some(claim) = &self.groups {
            text("groups", claim)?;
        }
        let (field, keys) = match (self.key, self.jwks) {
            (Some(path), None) => ("key", vec![read_pem(&directory.join(path))?]),
            (None, Some(path)) => ("jwks", read_jwks(&directory.join(path))?),
            _ => return Err(Error::invalid("key", "either `key` or `jwks` is required")),
        };
        let issuer = Issuer {
            name: self.issuer,
            audience: self.audience,
            algorithms: algorithms(self.algorithms)?,
            keys,
            principal_claim: principal,
            groups_claim: self.groups,
            leeway: leeway(self.leeway.as_deref())?,
        };
        issuer.check_keys(field)?;
        Ok(issuer)
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

fn read_pem(path: &Path) -> Result<IssuerKey> {
    let pem = small_file::read("key: file", path, LONGEST_FILE)?;
    let key = PublicKey::from_pem(&pem).map_err(|error| in_file("key", path, error))?;
    Ok(IssuerKey { id: None, key })
}

fn read_jwks(path: &Path) -> Result<Vec<IssuerKey>> {
    let json = small_file::read("jwks: file", path, LONGEST_FILE)?;
    parse_jwks(&json).map_err(|error| in_file("jwks", path, error))
}

fn in_file(field: &str, path: &Path, error: Error) -> Error {
    let rule = error.message().trim_start_matches("key: ");
    let message = format!("{field}: file `{}`: {rule}", path.display());
    Error::new(error.kind(), message).with_source(error)
}
