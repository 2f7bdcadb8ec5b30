//! The operator's TOML file of rules, tokens, issuers and certificates.
//!
//! Reading it reads all files that it names, relative to its own directory. Every error names the
//! file, and the field or the rule's number. A reload reads everything again and applies each file by
//! itself: a file that cannot be read leaves what it said before, so that it holds back no change of
//! another one. The file itself is not applied while it names another token file that cannot be read.

mod rules;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;

use self::rules::RuleForm;
use super::{
    denial::Denial,
    jwt::IssuerSettings,
    policy::Policy,
    principal::{Principal, check_principal},
    public_key::{IssuerKey, PublicKey, parse_jwks},
    quota::LimitForm,
    token::{Digest, TokenFile, TokenTable, digest},
};
use crate::{
    base,
    error::{Error, ErrorKind, Result},
};

/// The operator's file.
#[derive(Debug, Clone)]
pub struct AuthFile {
    path: PathBuf,
}

/// A loaded file, with all that it names. Holds digests and public keys, no secret. The default
/// accepts no credential.
#[derive(Debug, Default)]
pub struct AuthConfig {
    own: Arc<Loaded<OwnPart>>,
    tokens: Arc<Loaded<TokenTable>>,
    /// Of each issuer of the file. The default has none: no token of the issuer is accepted.
    keys: Vec<Arc<Loaded<Vec<IssuerKey>>>>,
}

/// A file's content, and the digest of its bytes.
#[derive(Debug, Default)]
struct Loaded<T> {
    source: Digest,
    value: T,
}

/// What the file itself says.
#[derive(Debug, Default)]
struct OwnPart {
    policy: Policy,
    certificates: Certificates,
    /// The token file.
    tokens: Option<PathBuf>,
    issuers: Vec<IssuerSettings>,
}

/// The tables of the file, before their rules are checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    tokens: Option<PathBuf>,
    #[serde(default)]
    groups: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    rule: Vec<RuleForm>,
    #[serde(default)]
    limit: Vec<LimitForm>,
    #[serde(default)]
    jwt: Vec<IssuerSettings>,
    #[serde(default)]
    certificates: BTreeMap<String, String>,
}

/// The principals of certificates by a name of the certificate.
#[derive(Debug, Default)]
pub(super) struct Certificates(HashMap<Box<str>, Principal>);

/// Longest file of rules, key file or key set, in bytes.
const LONGEST_FILE: u64 = 1 << 20;
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
        let own = Loaded::again(
            &former.own,
            read(FILE, &self.path, LONGEST_FILE),
            |bytes| {
                let own = OwnPart::new(self.parse(bytes)?).map_err(|error| self.named(&error))?;
                // Not the tokens of the former file under another name.
                if let Some(path) = &own.tokens
                    && own.tokens != former.own.value.tokens
                {
                    let file = TokenFile::new(self.beside(path));
                    file.table(&file.read()?)?;
                }
                Ok(own)
            },
            &mut failures,
        );
        let tokens = own.value.tokens.as_ref().map(|path| {
            let file = TokenFile::new(self.beside(path));
            let parse = |bytes: &[u8]| file.table(bytes);
            Loaded::again(&former.tokens, file.read(), parse, &mut failures)
        });
        let keys = own.value.issuers.iter().map(|issuer| {
            let mut known = former.issuers();
            let known = known.find(|(known, _)| known.issuer == issuer.issuer);
            let known = known.map(|(_, keys)| Arc::clone(keys)).unwrap_or_default();
            self.read_keys(issuer, &known, &mut failures)
        });
        let config = AuthConfig {
            keys: keys.collect(),
            tokens: tokens.unwrap_or_default(),
            own,
        };
        (config, failures)
    }

    fn read_keys(
        &self,
        issuer: &IssuerSettings,
        former: &Arc<Loaded<Vec<IssuerKey>>>,
        failures: &mut Vec<Error>,
    ) -> Arc<Loaded<Vec<IssuerKey>>> {
        let path = self.key_path(issuer);
        let file = format!("key file of `{}`", issuer.issuer);
        let parse = |bytes: &[u8]| {
            let keys = match issuer.jwks {
                Some(_) => parse_jwks(bytes),
                None => PublicKey::from_pem(bytes).map(|key| vec![IssuerKey { id: None, key }]),
            };
            keys.map_err(|error| {
                Error::invalid(&format!("{file} `{}`", path.display()), error.message())
            })
        };
        let bytes = read(&file, &path, LONGEST_FILE);
        Loaded::again(former, bytes, parse, failures)
    }

    /// Returns a note on each file of a configuration that every user of the machine can write.
    pub fn notes(&self, config: &AuthConfig) -> Vec<String> {
        let own = &config.own.value;
        let keys = own.issuers.iter().map(|issuer| self.key_path(issuer));
        let tokens = own.tokens.iter().map(|path| self.beside(path));
        std::iter::once(self.path.clone())
            .chain(tokens)
            .chain(keys)
            .filter_map(|path| base::file::note_open(&path, false))
            .collect()
    }

    /// Returns the token file that the file names, which need not exist. Reads no other file.
    ///
    /// # Errors
    /// `Invalid` if the file breaks its form; `NotFound` or `Unavailable` if it cannot be read.
    pub fn token_file(&self) -> Result<Option<TokenFile>> {
        let form = self.parse(&read(FILE, &self.path, LONGEST_FILE)?)?;
        let path = form.tokens.map(|tokens| self.beside(&tokens));
        Ok(path.map(TokenFile::new))
    }

    fn key_path(&self, issuer: &IssuerSettings) -> PathBuf {
        let path = issuer.jwks.as_ref().or(issuer.key.as_ref());
        self.beside(Path::new(path.map_or("", |path| path)))
    }

    fn parse(&self, bytes: &[u8]) -> Result<FileForm> {
        parse_toml(FILE, &self.path, bytes)
    }

    /// Returns a path that is relative to the directory of the file.
    fn beside(&self, path: &Path) -> PathBuf {
        self.path
            .parent()
            .unwrap_or_else(|| Path::new(""))
            .join(path)
    }

    fn named(&self, error: &Error) -> Error {
        Error::invalid(&format!("{FILE} `{}`", self.path.display()), error)
    }
}

impl<T> Loaded<T> {
    /// Returns the content of the bytes that were read: the former one if they are the same, or if
    /// they break a rule.
    fn again(
        former: &Arc<Self>,
        read: Result<Vec<u8>>,
        parse: impl FnOnce(&[u8]) -> Result<T>,
        failures: &mut Vec<Error>,
    ) -> Arc<Self> {
        let loaded = read.and_then(|bytes| {
            let source = digest([&*bytes]);
            if source == former.source {
                return Ok(Arc::clone(former));
            }
            let value = parse(&bytes)?;
            Ok(Arc::new(Self { source, value }))
        });
        loaded.unwrap_or_else(|error| {
            failures.push(error);
            Arc::clone(former)
        })
    }
}

impl OwnPart {
    fn new(form: FileForm) -> Result<Self> {
        for (at, jwt) in form.jwt.iter().enumerate() {
            let field = format!("jwt {}", at + 1);
            if jwt.key.is_some() == jwt.jwks.is_some() {
                return Err(Error::invalid(&field, "either `key` or `jwks` is required"));
            }
            let mut others = form.jwt[..at].iter();
            if others.any(|other| other.issuer == jwt.issuer) {
                let rule = format_args!("issuer `{}` stands twice", jwt.issuer);
                return Err(Error::invalid(&field, rule));
            }
        }
        Ok(Self {
            policy: rules::read(&form.rule, form.limit, form.groups)?,
            tokens: form.tokens,
            issuers: form.jwt,
            certificates: Certificates::read(form.certificates)?,
        })
    }
}

impl AuthConfig {
    /// Returns the rules.
    pub fn policy(&self) -> &Policy {
        &self.own.value.policy
    }

    pub(super) fn certificates(&self) -> &Certificates {
        &self.own.value.certificates
    }

    pub(crate) fn tokens(&self) -> &TokenTable {
        &self.tokens.value
    }

    fn issuers(&self) -> impl Iterator<Item = (&IssuerSettings, &Arc<Loaded<Vec<IssuerKey>>>)> {
        self.own.value.issuers.iter().zip(&self.keys)
    }

    pub(super) fn issuer_keys(&self) -> impl Iterator<Item = (&IssuerSettings, &[IssuerKey])> {
        self.issuers().map(|(issuer, keys)| (issuer, &*keys.value))
    }

    /// Returns the number of tokens.
    pub fn token_count(&self) -> usize {
        self.tokens().len()
    }

    /// Returns the number of issuers of JWTs.
    pub fn issuer_count(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of certificates' names that have a principal.
    pub fn certificate_count(&self) -> usize {
        self.certificates().0.len()
    }

    /// Returns whether all files hold the same as for the other configuration.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let sources =
            |config: &Self| -> Vec<Digest> { config.keys.iter().map(|keys| keys.source).collect() };
        self.own.source == other.own.source
            && self.tokens.source == other.tokens.source
            && sources(self) == sources(other)
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

    /// Returns the principal of the known names, which must be the same one.
    pub(super) fn principal(&self, names: &[String]) -> Result<&Principal, Denial> {
        let known = |name: &String| self.0.get(&comparable(name));
        let mut known = names.iter().filter_map(known);
        let first = known.next().ok_or(Denial::UnknownCertificate)?;
        match known.all(|other| other == first) {
            true => Ok(first),
            false => Err(Denial::NoPrincipal),
        }
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

/// Reads a regular file of at most `limit` bytes. `file` says in errors which file it is.
pub(super) fn read(file: &str, path: &Path, limit: u64) -> Result<Vec<u8>> {
    base::file::read(path, limit).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::FileTooLarge => ErrorKind::Invalid,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Unavailable,
        };
        let message = format!("{file} `{}` cannot be read: {error}", path.display());
        Error::new(kind, message).with_source(error)
    })
}

/// Parses TOML; an error is one line with the file and the line's number. It quotes no content of
/// the file, which may be secret.
pub(super) fn parse_toml<T: serde::de::DeserializeOwned>(
    file: &str,
    path: &Path,
    bytes: &[u8],
) -> Result<T> {
    toml::from_slice(bytes).map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| bytes.get(..span.start));
        let before = before.unwrap_or_default().iter();
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        let place = format!("{file} `{}`, line {line}", path.display());
        Error::invalid(&place, error.message().replace('\n', " "))
    })
}
