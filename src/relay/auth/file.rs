//! The operator's TOML file of rules, tokens, issuers and certificates.
//!
//! Reading it reads all files that it names, relative to its own directory. Every error names the
//! field or the rule's number. A reload reads everything again and applies each file by itself: a file
//! that cannot be read leaves what it said before, so that it holds back no change of another one.

mod rules;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;

use self::rules::RuleForm;
use super::{
    issuer::{self, Issuer, IssuerKeys, IssuerSettings, JwtForm},
    policy::Policy,
    principal::{Principal, check_principal},
    quota::LimitForm,
    small_file,
    token_file::{TokenChange, TokenFile, TokenTable},
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
    own: Arc<OwnPart>,
    pub(super) tokens: Arc<TokenTable>,
    pub(super) issuers: Vec<Issuer>,
}

/// What the file itself says.
#[derive(Debug, Default)]
struct OwnPart {
    text: String,
    policy: Policy,
    certificates: Certificates,
    /// The path of the token file.
    tokens: Option<String>,
    issuers: Vec<Arc<IssuerSettings>>,
    notes: Vec<String>,
}

/// The tables of the file, before their rules are checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    tokens: Option<String>,
    #[serde(default)]
    groups: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    rule: Vec<RuleForm>,
    #[serde(default)]
    limit: Vec<LimitForm>,
    #[serde(default)]
    jwt: Vec<JwtForm>,
    #[serde(default)]
    certificates: BTreeMap<String, String>,
}

/// The principals of certificates by a name of the certificate.
#[derive(Debug, Default)]
pub(super) struct Certificates(HashMap<Box<str>, Principal>);

/// Longest file of rules, key file or key set, in bytes.
pub(super) const LONGEST_FILE: u64 = 1 << 20;
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

    /// Does the same as [`AuthFile::load`].
    ///
    /// # Errors
    /// The same.
    pub fn read(&self) -> Result<AuthConfig> {
        let (config, failures) = self.read_again(&AuthConfig::default());
        match failures.into_iter().next() {
            Some(failure) => Err(failure),
            None => Ok(config),
        }
    }

    /// Reads all files again. A file that cannot be read or breaks a rule leaves its part of the
    /// former configuration, and its error is returned beside the new one.
    pub(crate) fn read_again(&self, former: &AuthConfig) -> (AuthConfig, Vec<Error>) {
        let mut failures = Vec::new();
        let own = self.read_own(&former.own).unwrap_or_else(|error| {
            failures.push(error);
            Arc::clone(&former.own)
        });
        let directory = self.directory();
        let mut note = |error: Error| {
            let message = format!("{FILE} `{}`: {error}", self.path.display());
            failures.push(Error::new(error.kind(), message).with_source(error));
        };
        let tokens = tokens(directory, own.tokens.as_deref(), &former.tokens);
        let tokens = tokens.unwrap_or_else(|error| {
            note(error);
            Arc::clone(&former.tokens)
        });
        let issuers = own.issuers.iter().enumerate().map(|(at, settings)| {
            let mut known = former.issuers.iter();
            let former = known.find(|issuer| issuer.name() == settings.name);
            let former = former.map(|issuer| &issuer.keys);
            let keys = settings
                .read_keys(directory, former)
                .unwrap_or_else(|error| {
                    note(issuer::numbered(at, error));
                    former.map(Arc::clone).unwrap_or_default()
                });
            Issuer {
                settings: Arc::clone(settings),
                keys,
            }
        });
        let issuers = issuers.collect();
        let config = AuthConfig {
            own,
            tokens,
            issuers,
        };
        (config, failures)
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

    /// Reads the file itself. Returns the former part if its text is the same.
    fn read_own(&self, former: &Arc<OwnPart>) -> Result<Arc<OwnPart>> {
        let content = small_file::read(FILE, &self.path, LONGEST_FILE)?;
        let note = small_file::note_open(&self.path, &content);
        let text = small_file::to_text(FILE, &self.path, content.bytes)?;
        if text == former.text {
            return Ok(Arc::clone(former));
        }
        let form: FileForm = small_file::parse_toml(FILE, &self.path, &text)?;
        let own = OwnPart::new(text, form).map_err(|error| {
            let message = format!("{FILE} `{}`: {error}", self.path.display());
            Error::new(error.kind(), message).with_source(error)
        });
        let mut own = own?;
        own.notes.extend(note);
        Ok(Arc::new(own))
    }
}

impl OwnPart {
    fn new(text: String, form: FileForm) -> Result<Self> {
        let states_groups = form.jwt.iter().any(|jwt| jwt.groups.is_some());
        Ok(Self {
            text,
            policy: rules::read(form.rule, form.limit, form.groups, states_groups)?,
            tokens: form.tokens,
            issuers: issuer::read(form.jwt)?,
            certificates: Certificates::read(form.certificates)?,
            notes: Vec::new(),
        })
    }
}

impl AuthConfig {
    /// Returns the rules.
    pub fn policy(&self) -> &Policy {
        &self.own.policy
    }

    pub(super) fn certificates(&self) -> &Certificates {
        &self.own.certificates
    }

    /// Returns the number of tokens.
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the tokens that differ from those of a former configuration.
    pub(crate) fn token_changes(&self, former: &Self) -> Vec<TokenChange> {
        self.tokens.changes_since(&former.tokens)
    }

    /// Returns the number of issuers of JWTs.
    pub fn issuer_count(&self) -> usize {
        self.issuers.len()
    }

    /// Returns the number of certificates' names that have a principal.
    pub fn certificate_count(&self) -> usize {
        self.own.certificates.0.len()
    }

    /// Returns what an operator should look at, a line each: files that other users may write, and keys
    /// of a set that are not used.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let of_issuers = self.issuers.iter().flat_map(|issuer| {
            let notes = issuer.keys.notes.iter();
            notes.map(|note| format!("issuer `{}`: {note}", issuer.name()))
        });
        let others = self.own.notes.iter().chain(&self.tokens.notes).cloned();
        others.chain(of_issuers)
    }

    /// Returns whether all files hold the same as for the other configuration.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let keys = |config: &Self| -> Vec<*const IssuerKeys> {
            let issuers = config.issuers.iter();
            issuers.map(|issuer| Arc::as_ptr(&issuer.keys)).collect()
        };
        Arc::ptr_eq(&self.own, &other.own)
            && Arc::ptr_eq(&self.tokens, &other.tokens)
            && keys(self) == keys(other)
    }
}

impl Certificates {
    fn read(form: BTreeMap<String, String>) -> Result<Self> {
        let mut known = HashMap::new();
        for (name, principal) in form {
            let field = format!("certificates: `{name}`");
            if !is_uri(&name) && !is_host_name(&name) {
                let rule = "must be one DNS name or one URI, without spaces and `*`";
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

/// Returns whether a name can be that of a host. No URI can: the names of the two kinds never match.
pub(crate) fn is_host_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !name.is_empty() && name.bytes().all(is_plain)
}

/// Returns whether a name can be a URI: its scheme ends with a colon.
pub(crate) fn is_uri(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'*';
    name.contains(':') && name.bytes().all(is_plain)
}

/// DNS names ignore case; URIs do not.
fn comparable(name: &str) -> Box<str> {
    if is_uri(name) {
        name.into()
    } else {
        name.to_ascii_lowercase().into()
    }
}

fn tokens(
    directory: &Path,
    path: Option<&str>,
    former: &Arc<TokenTable>,
) -> Result<Arc<TokenTable>> {
    let Some(path) = path else {
        let is_same = former.len() == 0;
        return Ok(if is_same {
            Arc::clone(former)
        } else {
            Arc::default()
        });
    };
    let tokens = TokenFile::new(directory.join(path)).load_table(former);
    tokens.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound => "; `reveille auth token new` creates it",
            _ => "",
        };
        Error::new(error.kind(), format!("tokens: {error}{hint}")).with_source(error)
    })
}
