//! A scale policy in a file, which is read again while the listener runs.
//!
//! Whoever asks for a number of tasks has the file looked at, at most once a second, without a task
//! of its own. Its content is compared, not its times: no editor that replaces it, no copy that
//! keeps its times and no coarse clock hides a change. What the keys mean is `policy_file/format`'s.

mod format;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    error::{Error, ErrorKind, Result},
    scaling::{Load, ScalePolicy},
};

/// A scale policy that stands in a TOML file, and follows it.
///
/// Steps, each "below so many messages, so many tasks", and the tasks from the last of them on:
///
/// ```toml
/// policy = "steps"
/// steps = [[100, 10], [1000, 50]]
/// most = 100
/// ```
///
/// Or as many tasks as empty the queue within a span, by how long the handling took lately:
///
/// ```toml
/// policy = "target-latency"
/// target = "10s"
/// assumed = "100ms"
/// most = 100
/// ```
///
/// A key that is left out has the policy's own default, these very values; a key that the policy
/// does not have is an error. A change holds from the first question that comes a second or more
/// after the last look at the file; a listener asks when it finds work, and every few seconds under
/// load. A file that becomes bad, or vanishes, leaves the last good policy in force, and the log is
/// told once of each such change. Keep it on a local disk: it is read where the policy is asked.
///
/// ```
/// use reveille::{listener::{ListenerConfig, PolicyFile}, scaling::{Load, ScalePolicy}};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("policy.toml");
/// std::fs::write(&path, "policy = \"steps\"\nsteps = [[10, 2]]\nmost = 8\n").unwrap();
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
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The last good one.
    policy: Arc<dyn ScalePolicy>,
    /// What was found at the last look: the text, or why there is none.
    found: Result<String, String>,
    looked_at: Instant,
}

/// The file is looked at no more often.
const EVERY: Duration = Duration::from_secs(1);
/// A policy is a few lines: whatever is longer is another file.
const LONGEST: u64 = 64 * 1024;

impl PolicyFile {
    /// Reads a policy.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the file cannot be read or breaks a rule: names file, key and
    /// rule.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let looked_at = Instant::now();
        let text = read(&path).map_err(|rule| invalid(&path, &rule))?;
        let policy = format::parse(&text).map_err(|rule| invalid(&path, &rule))?;
        let state = Mutex::new(State {
            policy,
            found: Ok(text),
            looked_at,
        });
        Ok(Self { path, state })
    }

    /// Returns the file's policy as it is now, or as it was when it was good.
    fn current(&self) -> Arc<dyn ScalePolicy> {
        // Held while the file is read: whoever else asks would have to wait for the same answer.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked_at.elapsed() >= EVERY {
            self.look(&mut state);
        }
        Arc::clone(&state.policy)
    }

    fn look(&self, state: &mut State) {
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
                    tracing::warn!(%error, "the scale policy stays as it was");
                }
            }
            state.found = found;
        }
        // After the read: a slow disk is not asked all the time.
        state.looked_at = Instant::now();
    }
}

impl ScalePolicy for PolicyFile {
    fn tasks(&self, load: &Load) -> usize {
        self.current().tasks(load)
    }
}

/// Reads the file's text, or says why there is none.
fn read(path: &Path) -> Result<String, String> {
    let meta = std::fs::metadata(path).map_err(|error| error.to_string())?;
    // Opening a pipe would wait for whoever writes into it.
    if !meta.is_file() {
        return Err("is no file".to_owned());
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let length = file.take(LONGEST + 1).read_to_string(&mut text);
    match length.map_err(|error| error.to_string())? as u64 {
        0..=LONGEST => Ok(text),
        _ => Err(format!("must be at most {LONGEST} bytes")),
    }
}

fn invalid(path: &Path, rule: &str) -> Error {
    let message = format!("policy file `{}`: {rule}", path.display());
    Error::new(ErrorKind::Invalid, message)
}
