//! The file of static tokens, and the table of a loaded one.
//!
//! The file is TOML and holds digests only; times are RFC 3339 in UTC. Writers take an advisory lock on
//! `<file>.lock` and replace the file atomically, so that two writers lose nothing and a reader sees a
//! whole file.

mod replace;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use self::replace::FileLock;
use super::{
    denial::Denial,
    principal::{Principal, Verified, check_principal},
    small_file,
    token::{Digest, IssuedToken, NewToken, digest, from_hex, id_of, is_id, to_hex},
};
use crate::{
    base::file::Content,
    error::{Error, ErrorKind, Result},
    types::check_text,
};

/// The file of static tokens.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
}

/// A token in the file. It does not contain the token's text.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Ten letters and digits by which it is revoked.
    pub id: String,
    /// Name of the principal.
    pub principal: String,
    /// The time at which it was added, to the second.
    pub created: SystemTime,
    /// The time from which it is refused.
    pub expires: Option<SystemTime>,
    /// A note for operators.
    pub note: String,
    digest: Digest,
}

/// The loaded tokens, by id.
#[derive(Default)]
pub(super) struct TokenTable {
    /// The digest of the file.
    source: Digest,
    pub(super) notes: Vec<String>,
    tokens: BTreeMap<String, Entry>,
}

#[derive(PartialEq)]
struct Entry {
    digest: Digest,
    principal: Principal,
    expires: Option<SystemTime>,
}

/// A token that was added, changed or removed, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenChange {
    /// The id by which it is listed and revoked.
    pub(crate) id: String,
    /// The change, with the principal.
    pub(crate) what: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    #[serde(default)]
    token: Vec<RecordForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordForm {
    id: String,
    principal: String,
    created: String,
    expires: Option<String>,
    note: Option<String>,
    sha256: String,
}

const LONGEST_NOTE: usize = 256;
/// Longest file in bytes: about 60,000 tokens.
const LONGEST_FILE: u64 = 16 << 20;
const FILE: &str = "token file";
const HEADER: &str =
    "# Written by `reveille auth token`. It holds digests, not the tokens themselves.\n\n";
/// Changes beyond these are counted in one line.
const MOST_CHANGES: usize = 1000;

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
        if new.principal.is_anonymous() {
            return Err(Error::invalid("principal", "`anonymous` has no token"));
        }
        if new.expires.is_some_and(|expires| expires <= now) {
            return Err(Error::invalid("expires", "must be in the future"));
        }
        let token = IssuedToken::generate()?;
        let record = TokenRecord {
            id: token.id().to_owned(),
            principal: new.principal.name().to_owned(),
            created: to_second(now),
            expires: new.expires.map(to_second),
            note: new.note.clone(),
            digest: digest(&[token.reveal().as_bytes()]),
        };
        let lock = FileLock::acquire(&self.path)?;
        let mut records = self.list()?;
        records.push(record);
        lock.write(&encoded(&records)?)?;
        Ok(token)
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

    /// Removes a token, and returns its record. A relay that has loaded it refuses it after its next
    /// reload.
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
        lock.write(&encoded(&records)?)?;
        Ok(revoked)
    }

    /// Returns all records of a file that must exist.
    fn load(&self) -> Result<Vec<TokenRecord>> {
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
        let mut table = TokenTable::new(self.parse(content.bytes)?)?;
        table.source = source;
        table.notes.extend(notes);
        Ok(Arc::new(table))
    }

    fn read(&self) -> Result<Content> {
        small_file::read(FILE, &self.path, LONGEST_FILE)
    }

    fn parse(&self, bytes: Vec<u8>) -> Result<Vec<TokenRecord>> {
        let text = small_file::to_text(FILE, &self.path, bytes)?;
        let file: FileForm = small_file::parse_toml(FILE, &self.path, &text)?;
        let path = self.path.display();
        let invalid = |rule| Error::new(ErrorKind::Invalid, format!("{FILE} `{path}`: {rule}"));
        let mut records: Vec<TokenRecord> = Vec::new();
        for (at, form) in file.token.into_iter().enumerate() {
            let record = form
                .read()
                .map_err(|error| invalid(format!("token {}: {error}", at + 1)))?;
            records.push(record);
        }
        let mut ids: Vec<_> = records.iter().map(|record| &record.id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => Err(invalid(format!("id {:?} stands twice", twice[0]))),
            None => Ok(records),
        }
    }
}

impl TokenTable {
    fn new(records: Vec<TokenRecord>) -> Result<Self> {
        let mut table = Self::default();
        for record in records {
            let entry = Entry {
                digest: record.digest,
                principal: Principal::new(&record.principal)?,
                expires: record.expires,
            };
            table.tokens.insert(record.id, entry);
        }
        Ok(table)
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Verifies a token. Digests are compared in constant time, that of an unknown id with a dummy, so
    /// that the time of the answer does not tell which ids exist.
    pub(super) fn verify(&self, text: &str, now: SystemTime) -> Result<Verified, Denial> {
        let presented = digest(&[text.as_bytes()]);
        let id = id_of(text).ok_or(Denial::Malformed)?;
        let entry = self.tokens.get(id);
        let known = entry.map_or([0; 32], |entry| entry.digest);
        let is_same = bool::from(known.ct_eq(&presented));
        let entry = entry.filter(|_| is_same).ok_or(Denial::UnknownToken)?;
        if let Some(expires) = entry.expires
            && let Ok(ago) = now.duration_since(expires)
        {
            return Err(Denial::Expired { ago });
        }
        Ok(Verified {
            principal: entry.principal.clone(),
            by: format!("token {id}").into(),
            expires_at: entry.expires,
        })
    }

    /// Returns the changes from a former table, by id.
    pub(super) fn changes_since(&self, former: &Self) -> Vec<TokenChange> {
        let added = self
            .tokens
            .iter()
            .filter_map(|(id, entry)| match former.tokens.get(id) {
                None => Some(entry.change(id, "added")),
                Some(before) if before != entry => Some(entry.change(id, "changed")),
                Some(_) => None,
            });
        let removed = former.tokens.iter();
        let removed = removed.filter(|(id, _)| !self.tokens.contains_key(*id));
        let mut all: Vec<_> = added
            .chain(removed.map(|(id, entry)| entry.change(id, "removed")))
            .collect();
        all.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        if all.len() > MOST_CHANGES {
            let further = all.len() - MOST_CHANGES;
            all.truncate(MOST_CHANGES);
            all.push(TokenChange {
                id: "(others)".to_owned(),
                what: format!("{further} further changes"),
            });
        }
        all
    }
}

impl Entry {
    fn change(&self, id: &str, done: &str) -> TokenChange {
        TokenChange {
            id: id.to_owned(),
            what: format!("{done}: a token of `{}`", self.principal),
        }
    }
}

impl RecordForm {
    fn new(record: &TokenRecord) -> Self {
        Self {
            id: record.id.clone(),
            principal: record.principal.clone(),
            created: Timestamp::from(record.created).to_string(),
            expires: record.expires.map(|at| Timestamp::from(at).to_string()),
            note: Some(record.note.clone()).filter(|note| !note.is_empty()),
            sha256: to_hex(&record.digest),
        }
    }

    fn read(self) -> Result<TokenRecord> {
        if !is_id(&self.id) {
            return Err(Error::invalid("id", "must be ten of [a-z2-7]"));
        }
        check_principal("principal", &self.principal)?;
        Ok(TokenRecord {
            id: self.id,
            principal: self.principal,
            created: time("created", &self.created)?,
            expires: self.expires.map(|at| time("expires", &at)).transpose()?,
            note: self.note.unwrap_or_default(),
            digest: from_hex(&self.sha256)
                .ok_or_else(|| Error::invalid("sha256", "must be 64 hexadecimal digits"))?,
        })
    }
}

impl std::fmt::Debug for TokenRecord {
    /// Without the digest.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenRecord({} of {})", self.id, self.principal)
    }
}

impl std::fmt::Debug for TokenTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenTable({} tokens)", self.len())
    }
}

fn encoded(records: &[TokenRecord]) -> Result<String> {
    let token = records.iter().map(RecordForm::new).collect();
    let text = toml::to_string(&FileForm { token }).map_err(|error| {
        Error::new(ErrorKind::Internal, "the token file cannot be encoded").with_source(error)
    })?;
    Ok(format!("{HEADER}{text}"))
}

/// Rounds up to a whole second, as the file keeps it.
fn to_second(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let up = u64::from(since.subsec_nanos() > 0);
    let seconds = Duration::from_secs(since.as_secs().saturating_add(up));
    UNIX_EPOCH.checked_add(seconds).unwrap_or(time)
}

fn time(field: &str, text: &str) -> Result<SystemTime> {
    text.parse::<Timestamp>()
        .ok()
        .and_then(|time| SystemTime::try_from(time).ok())
        .ok_or_else(|| Error::invalid(field, "must be a time such as \"2027-01-31T12:00:00Z\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_that_was_added_or_removed_is_named_and_a_rotation_too() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = TokenFile::new(directory.path().join("tokens.toml"));
        let add = |principal| {
            let new = NewToken {
                principal: Principal::new(principal).expect("a name"),
                expires: None,
                note: String::new(),
            };
            let issued = file.add(&new, SystemTime::UNIX_EPOCH).expect("issued");
            issued.id().to_owned()
        };
        let table = || TokenTable::new(file.load().expect("read")).expect("a table");
        let old = add("billing");
        let kept = add("orders");
        let before = table();
        assert_eq!(table().changes_since(&before), []);
        file.revoke(&old).expect("revoked");
        let new = add("billing");
        let mut changes = table().changes_since(&before);
        changes.sort_by(|one, other| one.what.cmp(&other.what));
        let named = changes.iter().map(|change| (&*change.id, &*change.what));
        let expected = [
            (&*new, "added: a token of `billing`"),
            (&*old, "removed: a token of `billing`"),
        ];
        assert_eq!(named.collect::<Vec<_>>(), expected);
        assert!(changes.iter().all(|change| change.id != kept));
    }
}
