//! A job's file: the containers to sweep, the interval, and the account for dead blobs.

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    base::{duration, text::opaque_debug},
    error::{Error, ErrorKind, Result},
    store::BlobName,
};

/// The JSON Schema of a job's file.
pub const SCHEMA: &str = include_str!("job.schema.json");

/// A checked job file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SweepJob {
    /// Names the job's document and lease. All instances of a job use the same name.
    pub name: String,
    /// The store of the document and the lease.
    pub state: String,
    /// Rounds begin at its multiples since 1970; 1 second to 30 days.
    #[serde(default = "default_interval", deserialize_with = "interval")]
    pub interval: Duration,
    /// Blobs of a page; 1 to 5,000.
    #[serde(default = "default_page_size")]
    pub page_size: usize,
    /// Blobs that are worked on at the same time; 1 to 256.
    #[serde(default = "default_parallel")]
    pub parallel: usize,
    /// The containers to sweep.
    pub containers: Vec<SweepContainer>,
    /// The account whose containers take dead blobs.
    pub dead: Option<DeadAccount>,
    /// For editors.
    #[serde(rename = "$schema", default)]
    _schema: Option<String>,
}

/// A container to sweep.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SweepContainer {
    /// Its name in the job's document and in messages. The default is its address without a
    /// signature, and its prefix. Set it if two accounts have containers of one name.
    #[serde(default)]
    pub id: Option<String>,
    /// A store's URL, or an `https` address with its signature. `env:NAME` stands for a variable.
    pub url: String,
    /// Only blobs with this prefix are swept.
    #[serde(default)]
    pub prefix: String,
    /// Whether it is skipped.
    #[serde(default)]
    pub off: bool,
    /// Overrides the process's environment. A value `env:NAME` stands for a variable.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// The account whose containers take dead blobs.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DeadAccount {
    /// `az:`, `s3:`, `gs:`, or a SQLite or memory store with a folder for each container.
    pub account: String,
    /// Like a container's `environment`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(30 * 24 * 3600);

fn default_interval() -> Duration {
    Duration::from_secs(600)
}

fn default_page_size() -> usize {
    100
}

fn default_parallel() -> usize {
    15
}

fn interval<'de, D: Deserializer<'de>>(value: D) -> std::result::Result<Duration, D::Error> {
    let text = String::deserialize(value)?;
    duration::parse(&text).map_err(|error| D::Error::custom(format!("interval: {error}")))
}

impl SweepJob {
    /// Reads and checks a job's file.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with the field or line, and the rule.
    pub fn parse(text: &str) -> Result<Self> {
        let job: Self = serde_json::from_str(text).map_err(|error| {
            let what = without_texts(&error.to_string());
            Error::new(ErrorKind::Invalid, format!("the job's file: {what}"))
        })?;
        job.check()?;
        Ok(job)
    }

    fn check(&self) -> Result<()> {
        BlobName::new(&self.name).map_err(|e| Error::invalid("name", e.message()))?;
        if self.name.contains('/') {
            return Err(Error::invalid("name", "must not contain `/`"));
        }
        if self.state.is_empty() {
            return Err(Error::invalid("state", "must be a store's URL"));
        }
        if !(MIN_INTERVAL..=MAX_INTERVAL).contains(&self.interval) {
            return Err(Error::invalid("interval", "must be 1s to 30d"));
        }
        if !(1..=5_000).contains(&self.page_size) {
            return Err(Error::invalid("page_size", "must be 1 to 5000"));
        }
        if !(1..=256).contains(&self.parallel) {
            return Err(Error::invalid("parallel", "must be 1 to 256"));
        }
        if self.containers.is_empty() {
            return Err(Error::invalid("containers", "must have at least one entry"));
        }
        for (at, container) in self.containers.iter().enumerate() {
            let before = &self.containers[..at];
            if container.url.is_empty() {
                let rule = "must be a store's URL or an address with its signature";
                return Err(Error::invalid(&format!("containers[{at}].url"), rule));
            }
            if before.iter().any(|other| other.id() == container.id()) {
                let rule = format_args!("is a duplicate of {}", container.id());
                return Err(Error::invalid(&format!("containers[{at}]"), rule));
            }
        }
        Ok(())
    }
}

// Without the signatures of the addresses, and the values of the variables.
opaque_debug!(SweepContainer: id(), off);
opaque_debug!(DeadAccount);

impl SweepContainer {
    /// Returns its name in the job's document and in messages, without a signature.
    pub(super) fn id(&self) -> String {
        if let Some(id) = &self.id {
            return id.clone();
        }
        let url = self.url.split('?').next().unwrap_or_default();
        match self.prefix.is_empty() {
            true => url.to_owned(),
            false => format!("{url} {}*", self.prefix),
        }
    }
}

/// Removes a quoted value from a message: it may be an address with its signature.
fn without_texts(message: &str) -> String {
    const FOUND: &str = "string \"";
    let Some((before, rest)) = message.split_once(FOUND) else {
        return message.to_owned();
    };
    let after = rest.rsplit_once("\", ").map_or("", |(_, after)| after);
    format!("{before}a text, {after}")
}

/// Prefixes of the variables of each cloud.
const FAMILIES: [&[&str]; 3] = [
    &["AZURE_", "MSI_ENDPOINT", "IDENTITY_"],
    &["AWS_"],
    &["GOOGLE_", "SERVICE_ACCOUNT"],
];

/// Adds a file's environment to the process's. If the file sets any variable of a cloud, all of the
/// process's variables for that cloud are ignored.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a variable that is not set.
pub(super) fn environment(
    own: &BTreeMap<String, String>,
    process: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let mut all = process.clone();
    // Two half credentials must not be combined.
    for family in FAMILIES {
        let is_of = |name: &str| family.iter().any(|prefix| name.starts_with(prefix));
        if own.keys().any(|name| is_of(name)) {
            all.retain(|name, _| !is_of(name));
        }
    }
    for (name, value) in own {
        all.insert(name.clone(), resolve(value, process)?);
    }
    Ok(all)
}

/// Resolves `env:NAME` to the variable's value.
pub(super) fn resolve(text: &str, process: &BTreeMap<String, String>) -> Result<String> {
    match text.strip_prefix("env:") {
        None => Ok(text.to_owned()),
        Some(name) => process.get(name).cloned().ok_or_else(|| {
            let rule = format_args!("the job names `env:{name}`, and {name} is not set");
            Error::invalid("environment", rule)
        }),
    }
}
