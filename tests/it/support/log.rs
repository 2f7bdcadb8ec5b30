//! A log that a test reads. The library's unit tests include this file as well.

use std::sync::{Arc, LazyLock, Mutex};

use tracing::{
    Dispatch, Subscriber,
    subscriber::{DefaultGuard, NoSubscriber},
};

/// The captured log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

/// Sends what this thread logs to a subscriber, until the guard is dropped.
///
/// As long as a process has one subscriber, tracing asks the thread that passes an event first whether
/// it is wanted, and keeps the answer for all threads: with the "no" of another test's thread this
/// subscriber would never get the event. A second one, which stays, makes tracing ask both.
pub(crate) fn log_to(subscriber: impl Subscriber + Send + Sync + 'static) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(subscriber)
}

impl Log {
    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock().expect("no test panics with it");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns how many lines have these words.
    pub(crate) fn count(&self, words: &str) -> usize {
        let text = self.text();
        text.lines().filter(|line| line.contains(words)).count()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut log = self.0.lock().expect("no test panics with it");
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
