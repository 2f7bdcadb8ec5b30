//! A job's file: the containers to sweep, the interval, and the account for dead blobs.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    base::duration,
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

/// Shows neither a signature nor a variable's value.
impl fmt::Debug for SweepContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables: Vec<_> = self.environment.keys().collect();
        f.debug_struct("SweepContainer")
            .field("id", &self.id())
            .field("off", &self.off)
            .field("environment", &variables)
            .finish()
    }
}

impl fmt::Debug for DeadAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables: Vec<_> = self.environment.keys().collect();
        f.debug_struct("DeadAccount")
            .field("environment", &variables)
            .finish_non_exhaustive()
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{
        "$schema": "sweep-job.schema.json",
        "name": "temporary-state", "state": "az://coordination", "interval": "10m",
        "page_size": 100, "parallel": 15,
        "containers": [
            {"id": "tmp", "url": "az://sessions", "prefix": "tmp/", "off": false, "environment": {"A": "b"}},
            {"url": "https://acct.blob.core.windows.net/c?sig=secret"}
        ],
        "dead": {"account": "az:", "environment": {"AZURE_STORAGE_CONNECTION_STRING": "env:DEAD"}}
    }"#;

    #[test]
    fn a_file_is_read_with_its_defaults() {
        let job = SweepJob::parse(WHOLE).expect("a job");
        assert_eq!(job.interval, Duration::from_secs(600));
        assert_eq!(job.containers[0].id(), "tmp");
        assert_eq!(
            job.containers[1].id(),
            "https://acct.blob.core.windows.net/c"
        );
        let least = r#"{"name": "a", "state": "memory:", "containers": [{"url": "memory:"}]}"#;
        let job = SweepJob::parse(least).expect("a job");
        assert_eq!((job.page_size, job.parallel, job.dead), (100, 15, None));
        assert_eq!(job.containers[0].id(), "memory:");
        assert_eq!(job.interval, default_interval());
    }

    #[test]
    fn an_error_names_its_field() {
        for (was, is, words) in [
            (
                "\"interval\": \"10m\"",
                "\"interval\": \"10\"",
                "interval: `10` is no duration",
            ),
            (
                "\"interval\": \"10m\"",
                "\"interval\": \"10ms\"",
                "interval: must be 1s to 30d",
            ),
            ("\"interval\"", "\"intervall\"", "unknown field `intervall`"),
            (
                "\"page_size\": 100",
                "\"page_size\": 0",
                "page_size: must be 1 to 5000",
            ),
            (
                "\"parallel\": 15",
                "\"parallel\": 257",
                "parallel: must be 1 to 256",
            ),
            ("\"parallel\": 15", "\"parallel\": \"x\"", "invalid type"),
            ("temporary-state", "a/b", "name: must not contain `/`"),
            ("az://coordination", "", "state: must be"),
            (
                "\"prefix\": \"tmp/\"",
                "\"prefixes\": \"tmp/\"",
                "unknown field `prefixes`",
            ),
            ("az://sessions", "", "containers[0].url: must be"),
            (
                "{\"url\": \"https://acct.blob.core.windows.net/c?sig=secret\"}",
                "\"https://acct.blob.core.windows.net/c?sig=secret\"",
                "invalid type: a text, expected",
            ),
        ] {
            let text = WHOLE.replace(was, is);
            assert_ne!(text, WHOLE, "{was}");
            let error = SweepJob::parse(&text).expect_err(is);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().contains(words), "{error}");
            assert!(!error.to_string().contains("sig=secret"), "{error}");
        }
        let twice = r#"{"name": "a", "state": "memory:",
            "containers": [{"url": "memory:"}, {"url": "memory:"}]}"#;
        let error = SweepJob::parse(twice).expect_err("twice");
        assert!(
            error.message().contains("containers[1]: is a duplicate of"),
            "{error}"
        );
    }

    #[test]
    fn a_variable_replaces_a_secret_in_the_file() {
        let process = BTreeMap::from([("DEAD".to_owned(), "secret".to_owned())]);
        let own = BTreeMap::from([("KEY".to_owned(), "env:DEAD".to_owned())]);
        let all = environment(&own, &process).expect("set");
        assert_eq!((&*all["KEY"], &*all["DEAD"]), ("secret", "secret"));
        let shown = format!("{:?}", SweepJob::parse(WHOLE).expect("a job"));
        assert!(
            !shown.contains("sig=secret") && !shown.contains("env:DEAD"),
            "{shown}"
        );
        let process = [
            ("AZURE_STORAGE_CONNECTION_STRING", "a"),
            ("AWS_REGION", "b"),
            ("HOME", "c"),
        ];
        let process = process.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let own = [("AZURE_STORAGE_ACCOUNT_NAME".to_owned(), "other".to_owned())].into();
        let all = environment(&own, &process).expect("set");
        let names: Vec<_> = all.keys().map(String::as_str).collect();
        assert_eq!(names, ["AWS_REGION", "AZURE_STORAGE_ACCOUNT_NAME", "HOME"]);
        let own = BTreeMap::from([("KEY".to_owned(), "env:DEAD".to_owned())]);
        let error = environment(&own, &BTreeMap::new()).expect_err("not set");
        assert!(error.message().contains("DEAD is not set"), "{error}");
    }

    /// The schema and the file have the same properties.
    #[test]
    fn the_schema_and_the_file_agree() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
        let whole: serde_json::Value = serde_json::from_str(WHOLE).expect("JSON");
        let keys = |value: &serde_json::Value| -> Vec<String> {
            let object = value.as_object().expect("an object");
            let mut keys: Vec<_> = object.keys().cloned().collect();
            keys.sort();
            keys
        };
        for (schema, sample) in [
            (&schema["properties"], &whole),
            (
                &schema["$defs"]["container"]["properties"],
                &whole["containers"][0],
            ),
            (&schema["properties"]["dead"]["properties"], &whole["dead"]),
        ] {
            assert_eq!(keys(schema), keys(sample));
        }
    }
}
