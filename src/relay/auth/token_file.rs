//! The file of static tokens and of issuers' secrets.
//!
//! It holds digests only. Writers take an advisory lock on `<file>.lock` and replace the file
//! atomically, so that two writers lose nothing and a reader sees a whole file.

mod form;
mod replace;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use self::replace::FileLock;
use super::{
    small_file,
    token::{Digest, IssuedToken, NewToken, digest, new_id, random},
    token_table::TokenTable,
};
use crate::{
    base::file::Content,
    error::{Error, ErrorKind, Result},
    types::{check_name, check_text},
};

/// The file of static tokens.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
}

/// A token or a secret in the file. It does not contain the token's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Ten letters and digits by which it is revoked.
    pub id: String,
    /// A token, or the secret of an issuer.
    pub kind: TokenKind,
    /// Name of the principal.
    pub principal: String,
    /// The time at which it was added, to the second.
    pub created: SystemTime,
    /// The time from which it is refused.
    pub expires: Option<SystemTime>,
    /// A note for operators.
    pub note: String,
    pub(super) check: Check,
}

/// The kind of a [`TokenRecord`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenKind {
    /// A random token, presented as `Bearer`.
    Token,
    /// The key of an issuer, presented as `Basic`.
    Secret {
        /// Name of the issuer, which callers present with the key.
        issuer: String,
    },
}

/// The digest of a token or a key, after a salt. A token has no salt.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) salt: Option<[u8; 16]>,
    pub(super) digest: Digest,
}

/// Keys that one issuer may have: the current one, and the next one during a rotation.
pub(super) const KEYS_OF_ISSUER: usize = 2;
/// Shortest key in bytes. Its digest is quick to compute, so a key must be random and long.
const SHORTEST_KEY: usize = 32;
const LONGEST_KEY: usize = 1024;
const LONGEST_NOTE: usize = 256;
/// Longest file in bytes: about 60,000 tokens.
const LONGEST_FILE: u64 = 16 << 20;
const FILE: &str = "token file";

impl TokenFile {
    /// Names a file, which need not exist before the first token is added.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a token and returns its text, which the file does not keep. A missing file is created.
    ///
    /// # Errors
    /// `Invalid` for a note that is too long; `Unavailable` if the file cannot be written.
    pub fn add(&self, new: &NewToken, now: SystemTime) -> Result<IssuedToken> {
        let token = IssuedToken::generate()?;
        let check = Check {
            salt: None,
            digest: digest(&[token.reveal().as_bytes()]),
        };
        let id = token.id().to_owned();
        let record = record(id, TokenKind::Token, new, check, now)?;
        self.append(record)?;
        Ok(token)
    }

    /// Adds a key of an issuer, at least 32 bytes, and returns the record's id. An issuer may have two
    /// keys, so that clients can change from one to the other.
    ///
    /// # Errors
    /// `Invalid` for a name, a key or a note that breaks its rule; `Exhausted` if the issuer has two
    /// keys; `Unavailable` if the file cannot be written.
    pub fn add_secret(
        &self,
        issuer: &str,
        key: &str,
        new: &NewToken,
        now: SystemTime,
    ) -> Result<String> {
        check_name("issuer", issuer)?;
        if !(SHORTEST_KEY..=LONGEST_KEY).contains(&key.len()) || key.chars().any(char::is_control) {
            let rule = "must be 32 to 1024 bytes of text without control characters";
            return Err(Error::invalid("key", rule));
        }
        let salt = random()?;
        let check = Check {
            salt: Some(salt),
            digest: digest(&[&salt, key.as_bytes()]),
        };
        let kind = TokenKind::Secret {
            issuer: issuer.to_owned(),
        };
        let id = new_id()?;
        self.append(record(id.clone(), kind, new, check, now)?)?;
        Ok(id)
    }

    /// Returns all records, or none if the file does not exist.
    ///
    /// # Errors
    /// `Invalid` if the file breaks its form; `Unavailable` if it cannot be read.
    pub fn list(&self) -> Result<Vec<TokenRecord>> {
        match self.load() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            result => result,
        }
    }

    /// Removes a token or a secret, and returns its record. A relay that has loaded it refuses it
    /// after its next reload.
    ///
    /// # Errors
    /// `NotFound` if the file has no such id; `Unavailable` if it cannot be written.
    pub fn revoke(&self, id: &str) -> Result<TokenRecord> {
        let lock = FileLock::acquire(&self.path)?;
        let mut records = self.list()?;
        let Some(at) = records.iter().position(|record| record.id == id) else {
            let shown: String = id.chars().take(20).collect();
            let message = format!("token {shown:?} is not in `{}`", self.path.display());
            return Err(Error::new(ErrorKind::NotFound, message));
        };
        let revoked = records.remove(at);
        lock.write(&form::write(&records)?)?;
        Ok(revoked)
    }

    /// Returns all records of a file that must exist.
    pub(super) fn load(&self) -> Result<Vec<TokenRecord>> {
        self.parse(self.read()?.bytes)
    }

    /// Returns the table of a file that must exist, the former one if the file holds the same.
    pub(super) fn load_table(&self, former: &Arc<TokenTable>) -> Result<Arc<TokenTable>> {
        let content = self.read()?;
        let source = digest(&[&content.bytes]);
        if former.source == source {
            return Ok(Arc::clone(former));
        }
        let notes = small_file::note_open(&self.path, &content);
        let mut table = TokenTable::new(&self.parse(content.bytes)?)?;
        table.source = source;
        table.notes.extend(notes);
        Ok(Arc::new(table))
    }

    fn read(&self) -> Result<Content> {
        small_file::read(FILE, &self.path, LONGEST_FILE)
    }

    fn parse(&self, bytes: Vec<u8>) -> Result<Vec<TokenRecord>> {
        let text = small_file::to_text(FILE, &self.path, bytes)?;
        let records = form::parse(FILE, &self.path, &text)?;
        self.check(&records)?;
        Ok(records)
    }

    fn append(&self, record: TokenRecord) -> Result<()> {
        let lock = FileLock::acquire(&self.path)?;
        let mut records = self.list()?;
        records.push(record);
        self.check(&records)?;
        lock.write(&form::write(&records)?)
    }

    /// Checks the rules that hold between records.
    fn check(&self, records: &[TokenRecord]) -> Result<()> {
        let mut ids: Vec<&str> = records.iter().map(|record| &*record.id).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!(
                "{FILE} `{}`: id {:?} stands twice",
                self.path.display(),
                twice[0]
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut issuers: Vec<&str> = records.iter().filter_map(TokenRecord::issuer).collect();
        issuers.sort_unstable();
        let too_many = |names: &&[&str]| names.iter().all(|name| *name == names[0]);
        if let Some(names) = issuers.windows(KEYS_OF_ISSUER + 1).find(too_many) {
            let message = format!(
                "issuer `{}` has {KEYS_OF_ISSUER} keys, the limit: revoke one of them first",
                names[0]
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }
}

impl TokenRecord {
    /// Returns the issuer of a secret.
    pub fn issuer(&self) -> Option<&str> {
        match &self.kind {
            TokenKind::Token => None,
            TokenKind::Secret { issuer } => Some(issuer),
        }
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(digest)")
    }
}

fn record(
    id: String,
    kind: TokenKind,
    new: &NewToken,
    check: Check,
    now: SystemTime,
) -> Result<TokenRecord> {
    check_text("note", &new.note, LONGEST_NOTE)?;
    if new.principal.is_anonymous() {
        return Err(Error::invalid("principal", "`anonymous` has no token"));
    }
    if new.expires.is_some_and(|expires| expires <= now) {
        return Err(Error::invalid("expires", "must be in the future"));
    }
    Ok(TokenRecord {
        id,
        kind,
        principal: new.principal.name().to_owned(),
        created: form::to_second(now),
        expires: new.expires.map(form::to_second),
        note: new.note.clone(),
        check,
    })
}
