//! The token file's TOML form. Times are RFC 3339 in UTC.

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Check, TokenKind, TokenRecord};
use crate::{
    error::{Error, ErrorKind, Result},
    relay::auth::{
        principal::check_principal,
        small_file::parse_toml,
        token::{from_hex, is_id, to_hex},
    },
    types::check_name,
};

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
    /// Missing for a token.
    kind: Option<KindForm>,
    issuer: Option<String>,
    principal: String,
    created: String,
    expires: Option<String>,
    note: Option<String>,
    salt: Option<String>,
    sha256: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindForm {
    Token,
    Secret,
}

const HEADER: &str =
    "# Written by `reveille auth token`. It holds digests, not the tokens themselves.\n\n";

pub(super) fn parse(name: &str, path: &Path, text: &str) -> Result<Vec<TokenRecord>> {
    let file: FileForm = parse_toml(name, path, text)?;
    let records = file.token.into_iter().enumerate();
    let records = records.map(|(at, form)| {
        form.read().map_err(|error| {
            let place = format!("{name} `{}`: token {}", path.display(), at + 1);
            Error::new(ErrorKind::Invalid, format!("{place}: {error}"))
        })
    });
    records.collect()
}

pub(super) fn write(records: &[TokenRecord]) -> Result<String> {
    let token = records.iter().map(RecordForm::new).collect();
    let text = toml::to_string(&FileForm { token }).map_err(|error| {
        Error::new(ErrorKind::Internal, "the token file cannot be encoded").with_source(error)
    })?;
    Ok(format!("{HEADER}{text}"))
}

/// Rounds up to a whole second, as the file keeps it.
pub(super) fn to_second(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let up = u64::from(since.subsec_nanos() > 0);
    let seconds = Duration::from_secs(since.as_secs().saturating_add(up));
    UNIX_EPOCH.checked_add(seconds).unwrap_or(time)
}

impl RecordForm {
    fn new(record: &TokenRecord) -> Self {
        let issuer = record.issuer().map(str::to_owned);
        Self {
            id: record.id.clone(),
            kind: issuer.is_some().then_some(KindForm::Secret),
            issuer,
            principal: record.principal.clone(),
            created: Timestamp::from(record.created).to_string(),
            expires: record.expires.map(|at| Timestamp::from(at).to_string()),
            note: Some(record.note.clone()).filter(|note| !note.is_empty()),
            salt: record.check.salt.map(|salt| to_hex(&salt)),
            sha256: to_hex(&record.check.digest),
        }
    }

    fn read(self) -> Result<TokenRecord> {
        if !is_id(&self.id) {
            return Err(Error::invalid("id", "must be ten of [a-z2-7]"));
        }
        check_principal("principal", &self.principal)?;
        let salt = self.salt.map(|salt| {
            from_hex(&salt).ok_or_else(|| Error::invalid("salt", "must be 32 hexadecimal digits"))
        });
        let digest = from_hex(&self.sha256);
        let digest =
            digest.ok_or_else(|| Error::invalid("sha256", "must be 64 hexadecimal digits"))?;
        let check = Check {
            salt: salt.transpose()?,
            digest,
        };
        let kind = match (self.kind, self.issuer, check.salt) {
            (None | Some(KindForm::Token), None, None) => TokenKind::Token,
            (Some(KindForm::Secret), Some(issuer), Some(_)) => {
                check_name("issuer", &issuer)?;
                TokenKind::Secret { issuer }
            }
            (Some(KindForm::Secret), ..) => {
                return Err(Error::invalid("kind", "a secret has `issuer` and `salt`"));
            }
            _ => {
                return Err(Error::invalid(
                    "kind",
                    "a token has neither `issuer` nor `salt`",
                ));
            }
        };
        Ok(TokenRecord {
            id: self.id,
            kind,
            principal: self.principal,
            created: time("created", &self.created)?,
            expires: self.expires.map(|at| time("expires", &at)).transpose()?,
            note: self.note.unwrap_or_default(),
            check,
        })
    }
}

fn time(field: &str, text: &str) -> Result<SystemTime> {
    let time = text.parse::<Timestamp>().ok();
    let time = time.and_then(|time| SystemTime::try_from(time).ok());
    time.ok_or_else(|| Error::invalid(field, "must be a time such as \"2027-01-31T12:00:00Z\""))
}
