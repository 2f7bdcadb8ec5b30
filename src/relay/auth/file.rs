//! The operator's TOML file of rules, tokens, issuers and certificates.
//!
//! Reading it reads all files that it names, relative to its own directory. Every error names the
//! field or the rule's number. A reload reads everything again; after an error the caller keeps the
//! configuration that it has.

mod form;
mod issuers;
mod rules;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use self::form::FileForm;
use super::{
    issuer::Issuer,
    policy::Policy,
    principal::{Principal, check_principal},
    small_file,
    token::{Digest, digest},
    token_changes::{self, TokenChange},
    token_file::TokenFile,
    token_table::TokenTable,
};
use crate::error::{Error, ErrorKind, Result};

/// The operator's file.
#[derive(Debug, Clone)]
pub struct AuthFile {
    path: PathBuf,
}

/// A loaded file, with all that it names. Holds digests and public keys, no secret. The default
/// accepts no credential.
#[derive(Debug, Default)]
pub struct AuthConfig {
    pub(super) policy: Policy,
    pub(super) tokens: TokenTable,
    pub(super) issuers: Vec<Issuer>,
    pub(super) certificates: Certificates,
}

/// The principals of certificates by a name of the certificate.
#[derive(Debug, Default)]
pub(super) struct Certificates(HashMap<Box<str>, Principal>);

/// Longest file of rules, key file or key set, in bytes.
const LONGEST_FILE: u64 = 1 << 20;
/// Longest file that is part of a digest; each kind of file has its own limit.
const LONGEST_NAMED: u64 = 16 << 20;
const FILE: &str = "auth file";

impl AuthFile {
    /// Names a file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads the file and all files that it names.
    ///
    /// # Errors
    /// `Invalid` if a rule is broken; `NotFound` or `Unavailable` if a file cannot be read.
    pub fn load(path: impl AsRef<Path>) -> Result<AuthConfig> {
        Self::new(path.as_ref()).read()
    }

    /// As [`AuthFile::load`].
    ///
    /// # Errors
    /// As [`AuthFile::load`].
    pub fn read(&self) -> Result<AuthConfig> {
        let text = small_file::read_text(FILE, &self.path, LONGEST_FILE)?;
        let form: FileForm = small_file::parse_toml(FILE, &self.path, &text)?;
        self.read_form(form).map_err(|error| {
            let message = format!("{FILE} `{}`: {error}", self.path.display());
            Error::new(error.kind(), message).with_source(error)
        })
    }

    /// Returns a digest of the file and of all files that it names. It changes when one of them does.
    ///
    /// # Errors
    /// As [`AuthFile::read`], as far as the file itself is concerned.
    pub(crate) fn digest(&self) -> Result<Digest> {
        let text = small_file::read_text(FILE, &self.path, LONGEST_FILE)?;
        let form: FileForm = small_file::parse_toml(FILE, &self.path, &text)?;
        let directory = self.directory();
        let keys = form.jwt.iter().flat_map(|jwt| [&jwt.key, &jwt.jwks]);
        let mut digests = vec![digest(&[text.as_bytes()])];
        for name in keys.chain([&form.tokens]).flatten() {
            // A file that cannot be read is as an empty one; reading it gives the error.
            let bytes =
                small_file::read(FILE, &directory.join(name), LONGEST_NAMED).unwrap_or_default();
            digests.push(digest(&[&bytes]));
        }
        Ok(digest(&[digests.as_flattened()]))
    }

    /// Returns the token file that the file names, which need not exist. Reads no other file.
    ///
    /// # Errors
    /// `Invalid` if the file breaks its form; `NotFound` or `Unavailable` if it cannot be read.
    pub fn token_file(&self) -> Result<Option<TokenFile>> {
        let text = small_file::read_text(FILE, &self.path, LONGEST_FILE)?;
        let form: FileForm = small_file::parse_toml(FILE, &self.path, &text)?;
        let path = form.tokens.map(|tokens| self.directory().join(tokens));
        Ok(path.map(TokenFile::new))
    }

    /// Returns the directory that the paths in the file are relative to.
    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or_else(|| Path::new(""))
    }

    fn read_form(&self, form: FileForm) -> Result<AuthConfig> {
        let directory = self.directory();
        let states_groups = form.jwt.iter().any(|jwt| jwt.groups.is_some());
        Ok(AuthConfig {
            policy: rules::read(form.rule, form.limit, form.groups, states_groups)?,
            tokens: tokens(directory, form.tokens.as_deref())?,
            issuers: issuers::read(directory, form.jwt)?,
            certificates: Certificates::read(form.certificates)?,
        })
    }
}

impl AuthConfig {
    /// Returns the rules.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the number of tokens and of keys of issuers.
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the tokens and keys that differ from those of a former configuration.
    pub(crate) fn token_changes(&self, former: &Self) -> Vec<TokenChange> {
        token_changes::between(&former.tokens, &self.tokens)
    }

    /// Returns the number of issuers of JWTs.
    pub fn issuer_count(&self) -> usize {
        self.issuers.len()
    }

    /// Returns the number of certificates' names that have a principal.
    pub fn certificate_count(&self) -> usize {
        self.certificates.0.len()
    }
}

impl Certificates {
    fn read(form: std::collections::BTreeMap<String, String>) -> Result<Self> {
        let mut known = HashMap::new();
        for (name, principal) in form {
            let field = format!("certificates: `{name}`");
            let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'*';
            if name.is_empty() || !name.bytes().all(is_plain) {
                let rule = "must be one DNS name or URI, without spaces and `*`";
                return Err(Error::invalid(&field, rule));
            }
            check_principal(&field, &principal)?;
            if known
                .insert(comparable(&name), Principal::new(&principal)?)
                .is_some()
            {
                return Err(Error::invalid(&field, "stands twice"));
            }
        }
        Ok(Self(known))
    }

    /// Returns the principal of the first known name, and whether all known names have the same one.
    pub(super) fn principal(&self, names: &[String]) -> Option<(&Principal, bool)> {
        let mut known = names
            .iter()
            .filter_map(|name| self.0.get(&comparable(name)));
        let first = known.next()?;
        Some((first, known.all(|other| other == first)))
    }
}

/// DNS names ignore case; URIs do not.
fn comparable(name: &str) -> Box<str> {
    match name.contains("://") {
        true => name.into(),
        false => name.to_ascii_lowercase().into(),
    }
}

fn tokens(directory: &Path, path: Option<&str>) -> Result<TokenTable> {
    let Some(path) = path else {
        return Ok(TokenTable::default());
    };
    let records = TokenFile::new(directory.join(path)).load();
    let records = records.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => "; `reveille token new` creates it",
            _ => "",
        };
        Error::new(error.kind(), format!("tokens: {error}{hint}")).with_source(error)
    })?;
    TokenTable::new(&records)
}
