//! Policies in files: the scale policy of a listener, which is reloaded while that runs, and the
//! policy of a fleet, which a central agent reads once.
//!
//! A call of the scale policy reads the file, at most once a second; there is no background task.
//! The content is compared, not the file times: an editor that replaces the file, a copy with old
//! times or a coarse clock hides no change.

#[cfg(test)]
mod tests;

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde::Deserialize;
use tokio::time::Instant;

use crate::{
    base::{file, sync::lock},
    error::{Error, ErrorKind, Result},
    listener::{
        agent::FleetPolicy,
        scaling::{Load, ScalePolicy, StepPolicy},
    },
};

/// A scale policy in a TOML file; changes of the file apply at run time.
///
/// Steps, each "below this depth, this many tasks", and the number of tasks from the last step on:
///
/// ```toml
/// policy = "steps"
/// steps = [[100, 10], [1000, 50]]
/// most = 100
/// ```
///
/// A missing key has the policy's default, which is the value above; an unknown key is an error. A
/// change applies at the first call that comes a second or more after the last check of the file. A
/// listener calls the policy when it finds work, and every few seconds under load. If the file
/// becomes invalid or is removed, the last valid policy stays, and each such change is logged once.
/// Keep the file on a local disk: the caller's thread reads it.
///
/// ```
/// use reveille::{listener::{ListenerConfig, PolicyFile}, scaling::{Load, ScalePolicy}};
///
/// # let directory = tempfile::tempdir().expect("a directory");
/// # let path = directory.path().join("policy.toml");
/// let steps = "policy = \"steps\"\nsteps = [[10, 2]]\nmost = 8\n";
/// std::fs::write(&path, steps).expect("written");
/// let policy = PolicyFile::open(&path)?;
/// assert_eq!(policy.tasks(&Load::default()), 2);
/// let _config = ListenerConfig {
///     policy: std::sync::Arc::new(policy),
///     ..ListenerConfig::default()
/// };
/// # Ok::<(), reveille::Error>(())
/// ```
#[derive(Debug)]
pub struct PolicyFile {
    path: PathBuf,
    state: Mutex<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    /// The last valid policy.
    policy: Arc<dyn ScalePolicy>,
    /// The result of the last check: the text, or the error.
    found: Read<String>,
    checked_at: Instant,
}

/// The keys of a scale policy.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    #[serde(rename = "policy")]
    _policy: Kind,
    steps: Option<Vec<(u64, usize)>>,
    most: Option<NonZeroUsize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Steps,
}

/// An error is one line, without the file's name.
type Read<T> = std::result::Result<T, String>;

/// The minimum time between two checks of the file.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A policy has a few lines: a longer file is not a policy.
const MAX_BYTES: u64 = 64 * 1024;

impl PolicyFile {
    /// Reads a policy.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the file cannot be read or breaks a rule: names file, key and
    /// rule.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let checked_at = Instant::now();
        let text = read(&path).map_err(|rule| invalid(&path, &rule))?;
        let policy = parse(&text).map_err(|rule| invalid(&path, &rule))?;
        let state = Mutex::new(Loaded {
            policy,
            found: Ok(text),
            checked_at,
        });
        Ok(Self { path, state })
    }

    fn reload(&self, state: &mut Loaded) {
        let found = read(&self.path);
        if found != state.found {
            match found.as_deref().map_err(Clone::clone).and_then(parse) {
                Ok(policy) => {
                    tracing::info!(?policy, file = %self.path.display(), "the scale policy has changed");
                    state.policy = policy;
                }
                Err(rule) => {
                    let error = invalid(&self.path, &rule);
                    tracing::warn!(%error, "the scale policy is unchanged");
                }
            }
            state.found = found;
        }
        // After the read, so that a slow disk is not read continuously.
        state.checked_at = Instant::now();
    }
}

impl ScalePolicy for PolicyFile {
    fn tasks(&self, load: &Load) -> usize {
        // Held while the file is read: a concurrent caller would wait for the same result.
        let mut state = lock(&self.state);
        if state.checked_at.elapsed() >= CHECK_INTERVAL {
            self.reload(&mut state);
        }
        let policy = Arc::clone(&state.policy);
        drop(state);
        policy.tasks(load)
    }
}

impl FleetPolicy {
    /// Reads a policy from a TOML file, whose keys are the names of the fields. `max` and one of
    /// `backlog_per_node`, `latency` and `busy_share` must be stated; other keys have the defaults of
    /// [`FleetPolicy::default`].
    ///
    /// ```toml
    /// max = 20
    /// backlog_per_node = 100
    /// cool_down = "10m"
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where the file cannot be read or breaks a rule:
    /// names file, key and rule.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let policy = read(path).and_then(|text| parse_fleet(&text));
        policy.map_err(|rule| invalid(path, &rule))
    }
}

fn read(path: &Path) -> Read<String> {
    let bytes = file::read(path, MAX_BYTES).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Parses a scale policy.
pub(crate) fn parse(text: &str) -> Read<Arc<dyn ScalePolicy>> {
    let keys: Keys = toml::from_str(text).map_err(|error| one_line(error, text))?;
    let steps = keys.steps.unwrap_or_else(|| vec![(100, 10), (1_000, 50)]);
    let most = keys.most.map_or(100, NonZeroUsize::get);
    let policy = StepPolicy::new(steps, most).map_err(|error| error.message().to_owned())?;
    Ok(Arc::new(policy))
}

fn parse_fleet(text: &str) -> Read<FleetPolicy> {
    let policy: FleetPolicy = toml::from_str(text).map_err(|error| one_line(error, text))?;
    policy.check().map_err(|error| error.message().to_owned())?;
    Ok(policy)
}

/// Returns an error with its line and key.
fn one_line(mut error: toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = 1 + before.unwrap_or_default().matches('\n').count();
    error.set_input(None);
    let error = error.to_string().trim_end().replace('\n', " ");
    format!("line {line}: {error}")
}

fn invalid(path: &Path, rule: &str) -> Error {
    let message = format!("policy file `{}`: {rule}", path.display());
    Error::new(ErrorKind::Invalid, message)
}
