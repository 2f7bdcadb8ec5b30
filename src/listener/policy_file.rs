//! A scale policy in a file that is reloaded while the listener runs.
//!
//! A call of the policy reads the file, at most once a second; there is no background task. The
//! content is compared, not the file times: an editor that replaces the file, a copy with old times
//! or a coarse clock hides no change. `policy_file/format` defines the keys.

mod fleet;
pub(crate) mod format;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    base::sync::lock,
    error::{Error, ErrorKind, Result},
    listener::scaling::{Load, ScalePolicy},
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
/// Or as many tasks as empty the queue within a target time, by the recent mean handling time:
///
/// ```toml
/// policy = "target-latency"
/// target = "10s"
/// assumed = "100ms"
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
    found: Result<String, String>,
    checked_at: Instant,
}

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
        let policy = format::parse(&text).map_err(|rule| invalid(&path, &rule))?;
        let state = Mutex::new(Loaded {
            policy,
            found: Ok(text),
            checked_at,
        });
        Ok(Self { path, state })
    }

    /// Returns the file's present policy, or its last valid one.
    fn current(&self) -> Arc<dyn ScalePolicy> {
        // Held while the file is read: a concurrent caller would wait for the same result.
        let mut state = lock(&self.state);
        if state.checked_at.elapsed() >= CHECK_INTERVAL {
            self.reload(&mut state);
        }
        Arc::clone(&state.policy)
    }

    fn reload(&self, state: &mut Loaded) {
        let found = read(&self.path);
        if found != state.found {
            let parsed = found.as_deref().map_err(Clone::clone);
            match parsed.and_then(format::parse) {
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
        self.current().tasks(load)
    }
}

/// Reads the file's text; an error is one line.
fn read(path: &Path) -> Result<String, String> {
    let meta = std::fs::metadata(path).map_err(|error| error.to_string())?;
    // Opening a named pipe would block until a writer opens it.
    if !meta.is_file() {
        return Err("is no file".to_owned());
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let length = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    match length.map_err(|error| error.to_string())? as u64 {
        0..=MAX_BYTES => Ok(text),
        _ => Err(format!("must be at most {MAX_BYTES} bytes")),
    }
}

fn invalid(path: &Path, rule: &str) -> Error {
    let message = format!("policy file `{}`: {rule}", path.display());
    Error::new(ErrorKind::Invalid, message)
}
