//! Static tokens: their text and digest, random bytes, their file, and the table of a loaded one.
//!
//! A token is `rvl_`, ten characters of id, `_`, and 43 characters of base64url for 32 random bytes.
//! The id is not secret: it names the token in the file and in logs. The digest needs neither salt
//! nor stretching, because 256 random bits cannot be guessed.
//!
//! The file is TOML and holds digests only; times are RFC 3339 in UTC. Writers take an advisory lock on
//! `<file>.lock` and replace the file atomically, so that two writers lose nothing and a reader sees a
//! whole file.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use prost_types::Timestamp;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::{
    denial::Denial,
    file,
    principal::{Principal, Verified, check_principal},
};
use crate::{
    base::{random::random, secret::Secret, text::opaque_debug},
    error::{Error, ErrorKind, Result},
    types::check_text,
};

/// A token to be issued.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The principal of callers with this token.
    pub principal: Principal,
    /// The time from which it is refused; `None`: it is valid until it is revoked.
    pub expires: Option<SystemTime>,
    /// A note for operators, at most 256 bytes. Empty: none.
    pub note: String,
}

/// A new token. Only here does its text exist: the file keeps a digest.
#[derive(Debug, Clone)]
pub struct IssuedToken {
    id: String,
    text: Secret,
}

pub(super) type Digest = [u8; 32];

/// Begins every token, so that scanners for leaked secrets find it.
pub(super) const PREFIX: &str = "rvl_";
const ID: usize = 10;
const SECRET: usize = 43;
/// 32 letters and digits: five random bits each, without a bias.
const ID_LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The file of static tokens.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
}

/// A token in the file. It does not contain the token's text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRecord {
    /// Ten letters and digits by which it is revoked.
    pub id: String,
    /// Name of the principal.
    pub principal: String,
    created: TextTime,
    expires: Option<TextTime>,
    /// A note for operators.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// In base64url.
    sha256: String,
}

/// A time in RFC 3339, to the second.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct TextTime(SystemTime);

/// The loaded tokens, by id.
#[derive(Debug, Default)]
pub(crate) struct TokenTable(BTreeMap<String, TokenRecord>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    #[serde(default)]
    token: Vec<TokenRecord>,
}

const LONGEST_NOTE: usize = 256;
/// Longest file in bytes: about 60,000 tokens.
const LONGEST_FILE: u64 = 16 << 20;
const FILE: &str = "token file";
/// No text has this digest.
const NO_DIGEST: &str = "???????????????????????????????????????????";
const HEADER: &str =
    "# Written by `reveille auth token`. It holds digests, not the tokens themselves.\n\n";

impl IssuedToken {
    /// Creates a random token.
    pub(super) fn generate() -> Result<Self> {
        let id = new_id()?;
        let secret = URL_SAFE_NO_PAD.encode(random::<32>()?);
        let text = Secret::new(&format!("{PREFIX}{id}_{secret}"));
        Ok(Self { id, text })
    }

    /// Returns the id, which is not secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the token's text, to be shown once.
    pub fn reveal(&self) -> &str {
        self.text.reveal()
    }
}

/// Returns the id of a token, or `None` if the text does not have a token's form.
pub(super) fn id_of(text: &str) -> Option<&str> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_at_checked(ID)?;
    let secret = secret.strip_prefix('_')?;
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let has_form = is_id(id) && secret.len() == SECRET && secret.bytes().all(is_base64);
    has_form.then_some(id)
}

/// Returns whether this is the id of a token.
pub(super) fn is_id(id: &str) -> bool {
    id.len() == ID && id.bytes().all(|byte| ID_LETTERS.contains(&byte))
}

pub(super) fn new_id() -> Result<String> {
    let letter = |byte: u8| char::from(ID_LETTERS[usize::from(byte % 32)]);
    Ok(random::<ID>()?.into_iter().map(letter).collect())
}

/// Returns the SHA-256 digest of the parts, one after the other.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut context = Context::new(&SHA256);
    parts.into_iter().for_each(|part| context.update(part));
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

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
        check_text("note", &new.note, LONGEST_NOTE)?;
        if new.expires.is_some_and(|expires| expires <= now) {
            return Err(Error::invalid("expires", "must be in the future"));
        }
        let token = IssuedToken::generate()?;
        let record = TokenRecord {
            id: token.id().to_owned(),
            principal: new.principal.name().to_owned(),
            created: TextTime(now),
            expires: new.expires.map(TextTime),
            note: new.note.clone(),
            sha256: sha256(token.reveal()),
        };
        self.change(|records| {
            records.push(record);
            Ok(())
        })?;
        Ok(token)
    }

    /// Returns all records, or none if the file does not exist.
    ///
    /// # Errors
    /// `Invalid` if the file breaks its form; `Unavailable` if it cannot be read.
    pub fn list(&self) -> Result<Vec<TokenRecord>> {
        match self.read() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            read => self.parse(&read?),
        }
    }

    /// Removes a token, and returns its record. A relay that has loaded it refuses it after its next
    /// reload.
    ///
    /// # Errors
    /// `NotFound` if the file has no such id; `Unavailable` if it cannot be written.
    pub fn revoke(&self, id: &str) -> Result<TokenRecord> {
        // Without a file there is nothing to lock.
        self.read()?;
        self.change(|records| {
            let at = records.iter().position(|record| record.id == id);
            at.map(|at| records.remove(at)).ok_or_else(|| {
                let shown: String = id.chars().take(20).collect();
                let message = format!("token {shown:?} is not in `{}`", self.path.display());
                Error::new(ErrorKind::NotFound, message)
            })
        })
    }

    /// Reads a file that must exist.
    pub(super) fn read(&self) -> Result<Vec<u8>> {
        file::read(FILE, &self.path, LONGEST_FILE)
    }

    pub(super) fn table(&self, bytes: &[u8]) -> Result<TokenTable> {
        let records = self.parse(bytes)?.into_iter();
        Ok(TokenTable(
            records.map(|record| (record.id.clone(), record)).collect(),
        ))
    }

    fn parse(&self, bytes: &[u8]) -> Result<Vec<TokenRecord>> {
        let records = file::parse_toml::<FileForm>(FILE, &self.path, bytes)?.token;
        let mut ids = HashSet::new();
        for (at, record) in records.iter().enumerate() {
            // Else a copy would stay valid when one of them is revoked.
            let checked = match ids.insert(&record.id) {
                true => record.check(),
                false => Err(Error::invalid("id", "stands twice")),
            };
            checked.map_err(|error| {
                let path = self.path.display();
                Error::invalid(&format!("{FILE} `{path}`: token {}", at + 1), error)
            })?;
        }
        Ok(records)
    }

    /// Changes the records under the lock, which the system ends with the process.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<TokenRecord>) -> Result<T>) -> Result<T> {
        let failed = |error: io::Error| {
            let message = format!(
                "{FILE} `{}` cannot be written: {error}",
                self.path.display()
            );
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        // A rename would replace a symbolic link instead of its file.
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let lock = open_private(&beside(&path, ".lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut records = self.list()?;
        let changed = change(&mut records)?;
        let text = toml::to_string(&FileForm { token: records }).map_err(|error| {
            Error::new(ErrorKind::Internal, "the token file cannot be encoded").with_source(error)
        })?;
        replace(&path, &format!("{HEADER}{text}")).map_err(failed)?;
        Ok(changed)
    }
}

impl TokenRecord {
    /// Returns the time at which it was added, to the second.
    pub fn created(&self) -> SystemTime {
        self.created.0
    }

    /// Returns the time from which it is refused.
    pub fn expires(&self) -> Option<SystemTime> {
        self.expires.map(|time| time.0)
    }

    fn check(&self) -> Result<()> {
        if !is_id(&self.id) {
            return Err(Error::invalid("id", "must be ten of [a-z2-7]"));
        }
        check_principal("principal", &self.principal)
    }
}

impl TokenTable {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the tokens that were added, changed or removed since another table.
    pub(crate) fn changes<'a>(
        &'a self,
        former: &'a Self,
    ) -> impl Iterator<Item = (&'a TokenRecord, &'static str)> {
        let is_gone = |token: &&TokenRecord| !self.0.contains_key(&token.id);
        let removed = former.0.values().filter(is_gone);
        let present = self
            .0
            .values()
            .filter_map(|token| match former.0.get(&token.id) {
                None => Some((token, "added")),
                Some(known) => (known != token).then_some((token, "changed")),
            });
        removed.map(|token| (token, "removed")).chain(present)
    }

    /// Verifies a token. Digests are compared in constant time, that of an unknown id with a dummy, so
    /// that the time of the answer does not tell which ids exist.
    pub(super) fn verify(&self, text: &str, now: SystemTime) -> Result<Verified, Denial> {
        let presented = sha256(text);
        let id = id_of(text).ok_or(Denial::Malformed)?;
        let record = self.0.get(id);
        let known = record.map_or(NO_DIGEST, |record| &record.sha256);
        let is_same = bool::from(known.as_bytes().ct_eq(presented.as_bytes()));
        let record = record.filter(|_| is_same).ok_or(Denial::UnknownToken)?;
        if let Some(expires) = record.expires()
            && let Ok(ago) = now.duration_since(expires)
        {
            return Err(Denial::Expired { ago });
        }
        Ok(Verified {
            principal: Principal::new(&record.principal).map_err(|_| Denial::NoPrincipal)?,
            by: format!("token {id}").into(),
            expires_at: record.expires(),
        })
    }
}

// Without the digest.
opaque_debug!(TokenRecord: id, principal);

impl From<TextTime> for String {
    fn from(time: TextTime) -> Self {
        let nanos = 0;
        let seconds = Timestamp::from(time.0).seconds;
        Timestamp { seconds, nanos }.to_string()
    }
}

impl TryFrom<String> for TextTime {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let time = text.parse::<Timestamp>().ok();
        let time = time.and_then(|time| SystemTime::try_from(time).ok());
        time.map(Self)
            .ok_or("must be a time such as \"2027-01-31T12:00:00Z\"")
    }
}

fn sha256(token: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest([token.as_bytes()]))
}

/// Replaces a file: after a crash it is the old one or the new one. The caller holds the lock, so a
/// file beside it is one that a crash has left.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = beside(path, ".new");
    let mut file = open_private(&new)?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())?;
    keep_owner(&file, path)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    #[cfg(unix)]
    {
        // A bare name has an empty parent.
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// Gives the new file the owner of the former one, and lets its group read it as before: the user that
/// adds a token may not be the relay's user.
#[cfg(unix)]
fn keep_owner(new: &File, former: &Path) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
    let Ok(former) = fs::metadata(former) else {
        return Ok(());
    };
    let own = new.metadata()?;
    if (own.uid(), own.gid()) != (former.uid(), former.gid()) {
        fchown(new, Some(former.uid()), Some(former.gid()))?;
    }
    // Its group may read it where that was so; others never.
    let mode = former.mode() & 0o640 | 0o600;
    new.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn keep_owner(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}

fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_documented_form_and_names_its_id() {
        let token = IssuedToken::generate().expect("random");
        assert_eq!(token.reveal().len(), 58);
        assert_eq!(id_of(token.reveal()), Some(token.id()));
        let other = IssuedToken::generate().expect("random");
        assert_ne!(token.reveal(), other.reveal());
    }

    #[test]
    fn a_text_of_another_form_has_no_id() {
        let token = IssuedToken::generate().expect("random");
        let text = token.reveal();
        let (long, short) = (format!("{text}x"), &text[..57]);
        let upper = text.replace(token.id(), "ABCDEFGHIJ");
        for bad in [
            "",
            "rvl_",
            "rvl_ä",
            "rvl_aaaaaaaaaä_",
            &long,
            short,
            &upper,
            &text[1..],
        ] {
            assert_eq!(id_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_is_not_shown_by_debug() {
        let token = IssuedToken::generate().expect("random");
        let secret = &token.reveal()[15..];
        assert!(!format!("{token:?}").contains(secret));
    }
}
