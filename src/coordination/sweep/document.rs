//! The job's shared document: the state of the round. Pure.
//!
//! All instances of a job read and write it. Each write is conditional on the ETag that was read,
//! and moves a page's token before the page is worked. So each page is taken once.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::judge::{stamp, time};
use crate::error::{Error, ErrorKind, Result};

/// The content of the blob, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    /// Counts the rounds.
    pub(crate) round: u64,
    pub(crate) state: RoundState,
    /// The next round begins at a later multiple of the interval than this time.
    pub(crate) started: Option<String>,
    pub(crate) finished: Option<String>,
    pub(crate) containers: Vec<ContainerProgress>,
    /// Of the running or last round.
    pub(crate) counts: Counts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RoundState {
    /// No round runs.
    #[default]
    Init,
    /// A round runs.
    Current,
}

/// The progress of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContainerProgress {
    /// Its address without a signature, and its prefix.
    pub(crate) id: String,
    pub(crate) status: ContainerStatus,
    /// The start of its next page.
    pub(crate) token: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContainerStatus {
    /// No page was taken.
    Init,
    /// Some pages were taken.
    Current,
    /// The last page was taken.
    Last,
    /// The only page was taken.
    FirstAndLast,
    /// It is not swept.
    Off,
}

/// Blobs of a sweep, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Counts {
    /// Seen.
    pub seen: u64,
    /// Without an expiry.
    pub unmarked: u64,
    /// Not expired.
    pub alive: u64,
    /// Deleted.
    pub deleted: u64,
    /// Moved to a dead-blob container.
    pub moved: u64,
    /// Changed or deleted during the work, and left to the next round.
    pub changed: u64,
    /// Left alone for a reason that an operator must remove.
    pub left: u64,
    /// Failed. The next round retries them.
    pub failed: u64,
}

impl Document {
    /// Parses the blob.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a malformed document, with its beginning. It was edited by hand.
    pub(crate) fn parse(text: &[u8], shown: &str) -> Result<Self> {
        serde_json::from_slice(text).map_err(|error| {
            let text = String::from_utf8_lossy(text);
            let start: String = text.chars().take(60).collect();
            let message = format!(
                "{shown} is not a valid job document: {error}; it begins with {start:?}. Repair or \
                 delete it; after a deletion the next round begins at once"
            );
            Error::new(ErrorKind::Invalid, message)
        })
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Joins the running round, or begins one if it is due. Returns whether a round runs. `again`
    /// begins one more round in an interval that has had its round.
    ///
    /// `containers` are those of the job's file, with whether each is switched off. The round leaves
    /// out the others.
    pub(crate) fn join(
        &mut self,
        containers: &[(String, bool)],
        now: SystemTime,
        interval: Duration,
        again: bool,
    ) -> bool {
        if self.state == RoundState::Current {
            let is_on = |id: &str| containers.iter().any(|(own, off)| own == id && !off);
            for progress in &mut self.containers {
                if !progress.is_done() && !is_on(&progress.id) {
                    progress.status = ContainerStatus::Off;
                }
            }
            self.finish_if_done(now);
        }
        let started = self.started.as_deref().and_then(time);
        // Another number, and not only a later one: a clock that once ran far ahead must not block
        // later rounds.
        let due = started.is_none_or(|at| number_at(at, interval) != number_at(now, interval));
        if self.is_finished() && (due || again) {
            let progress = containers.iter().map(|(id, off)| ContainerProgress {
                id: id.clone(),
                status: match off {
                    true => ContainerStatus::Off,
                    false => ContainerStatus::Init,
                },
                token: None,
            });
            *self = Self {
                round: self.round.wrapping_add(1),
                state: RoundState::Current,
                started: Some(stamp(now)),
                finished: None,
                containers: progress.collect(),
                counts: Counts::default(),
            };
            self.finish_if_done(now);
        }
        !self.is_finished()
    }

    /// Returns the container of the next page.
    pub(crate) fn next(&self) -> Option<usize> {
        self.containers.iter().position(|one| !one.is_done())
    }

    /// Notes a taken page. `next` is the token of the page after it.
    pub(crate) fn record_page(&mut self, at: usize, next: Option<String>, now: SystemTime) {
        let progress = &mut self.containers[at];
        progress.status = match (progress.status, next.is_some()) {
            (_, true) => ContainerStatus::Current,
            (ContainerStatus::Init, false) => ContainerStatus::FirstAndLast,
            (_, false) => ContainerStatus::Last,
        };
        progress.token = next;
        self.finish_if_done(now);
    }

    /// Returns whether every page was taken.
    pub(crate) fn is_finished(&self) -> bool {
        self.state == RoundState::Init
    }

    fn finish_if_done(&mut self, now: SystemTime) {
        if self.containers.iter().all(ContainerProgress::is_done) {
            self.state = RoundState::Init;
            self.finished = Some(stamp(now));
        }
    }
}

impl ContainerProgress {
    /// Returns whether no page is left to take.
    pub(crate) fn is_done(&self) -> bool {
        !matches!(
            self.status,
            ContainerStatus::Init | ContainerStatus::Current
        )
    }
}

impl Counts {
    /// Returns the number of blobs that were deleted or moved.
    pub fn removed(&self) -> u64 {
        self.deleted.saturating_add(self.moved)
    }

    /// Returns each count with its name.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("seen", self.seen),
            ("unmarked", self.unmarked),
            ("alive", self.alive),
            ("deleted", self.deleted),
            ("moved", self.moved),
            ("changed", self.changed),
            ("left", self.left),
            ("failed", self.failed),
        ]
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        let all = [
            (&mut self.seen, other.seen),
            (&mut self.unmarked, other.unmarked),
            (&mut self.alive, other.alive),
            (&mut self.deleted, other.deleted),
            (&mut self.moved, other.moved),
            (&mut self.changed, other.changed),
            (&mut self.left, other.left),
            (&mut self.failed, other.failed),
        ];
        for (sum, more) in all {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Returns the number of the interval at this time.
fn number_at(now: SystemTime, interval: Duration) -> u128 {
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_nanos() / interval.as_nanos().max(1)
}

/// Returns the earliest start of the next round.
pub(crate) fn next_boundary(now: SystemTime, interval: Duration) -> SystemTime {
    let nanos = (number_at(now, interval) + 1) * interval.as_nanos();
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn containers(names: &[&str]) -> Vec<(String, bool)> {
        names
            .iter()
            .map(|name| ((*name).to_owned(), name.starts_with("off")))
            .collect()
    }

    /// Returns the next container and the token of its page.
    fn next(document: &Document) -> Option<(usize, Option<&str>)> {
        let at = document.next()?;
        Some((at, document.containers[at].token.as_deref()))
    }

    #[test]
    fn a_round_takes_every_page_once_and_then_waits_for_the_next_multiple() {
        let mut document = Document::default();
        let names = containers(&["a", "off", "b"]);
        assert!(document.join(&names, at(6_001), INTERVAL, false));
        assert_eq!(document.round, 1);
        assert_eq!(next(&document), Some((0, None)));
        document.record_page(0, Some("2".into()), at(6_002));
        assert_eq!(next(&document), Some((0, Some("2"))));
        document.record_page(0, None, at(6_003));
        assert_eq!(next(&document), Some((2, None)));
        document.record_page(2, None, at(6_004));
        let statuses: Vec<_> = document.containers.iter().map(|p| p.status).collect();
        assert_eq!(
            statuses,
            [
                ContainerStatus::Last,
                ContainerStatus::Off,
                ContainerStatus::FirstAndLast
            ]
        );
        assert_eq!(document.state, RoundState::Init);
        assert_eq!(document.finished.as_deref(), Some("1970-01-01T01:40:04Z"));

        assert!(
            !document.join(&names, at(6_599), INTERVAL, false),
            "this interval had its round"
        );
        assert_eq!(next_boundary(at(6_599), INTERVAL), at(6_600));
        assert!(document.join(&names, at(6_600), INTERVAL, false));
        assert_eq!((document.round, next(&document)), (2, Some((0, None))));
    }

    #[test]
    fn a_long_round_is_continued() {
        let mut document = Document::default();
        let names = containers(&["a"]);
        document.join(&names, at(6_000), INTERVAL, false);
        document.record_page(0, Some("2".into()), at(6_500));
        // A round is continued regardless of the time of a page and of the interval.
        assert!(
            document.join(&names, at(60_000), INTERVAL, false),
            "it is continued"
        );
        assert_eq!(next(&document), Some((0, Some("2"))));
        assert_eq!(document.round, 1);
    }

    #[test]
    fn containers_that_the_file_names_no_more_are_left_out_of_the_round() {
        let mut document = Document::default();
        document.join(&containers(&["renamed", "b"]), at(6_000), INTERVAL, false);
        document.record_page(0, Some("2".into()), at(6_100));
        let names = containers(&["a", "b"]);
        assert!(document.join(&names, at(6_200), INTERVAL, false));
        assert_eq!(document.containers[0].status, ContainerStatus::Off);
        assert_eq!(next(&document), Some((1, None)));
        document.record_page(1, None, at(6_300));
        assert!(!document.join(&names, at(6_400), INTERVAL, false));
        assert!(document.join(&names, at(6_600), INTERVAL, false));
        assert_eq!((document.round, &*document.containers[0].id), (2, "a"));
    }

    #[test]
    fn another_interval_and_a_clock_that_ran_ahead_block_no_round() {
        let mut document = Document::default();
        let names = containers(&["off"]);
        let minute = Duration::from_secs(60);
        let joined = document.join(&names, at(60_000), minute, false);
        assert!(!joined, "done at once");
        assert_eq!(document.round, 1);
        // With a ten times longer interval the multiple is later.
        document.join(&names, at(60_599), INTERVAL, false);
        assert_eq!(document.round, 1);
        document.join(&names, at(60_600), INTERVAL, false);
        assert_eq!(document.round, 2);
        document.join(&names, at(9_000_000), INTERVAL, false);
        document.join(&names, at(60_700), INTERVAL, false);
        assert_eq!(document.round, 4);
    }

    #[test]
    fn a_container_switched_off_during_a_round_is_skipped() {
        let mut document = Document::default();
        document.join(&containers(&["a", "off"]), at(6_000), INTERVAL, false);
        document.containers[1].status = ContainerStatus::Current;
        document.record_page(0, None, at(6_001));
        document.join(&containers(&["a", "off"]), at(6_002), INTERVAL, false);
        assert_eq!(document.containers[1].status, ContainerStatus::Off);
        assert!(document.is_finished());
    }

    #[test]
    fn another_round_may_be_begun_by_hand() {
        let mut document = Document::default();
        let names = containers(&["off"]);
        document.join(&names, at(6_000), INTERVAL, false);
        assert_eq!(
            document.state,
            RoundState::Init,
            "an empty round is finished"
        );
        let names = containers(&["a"]);
        assert!(!document.join(&names, at(6_001), INTERVAL, false));
        assert!(document.join(&names, at(6_001), INTERVAL, true));
        assert_eq!(document.round, 2);
    }

    #[test]
    fn a_malformed_document_is_reported_with_its_beginning() {
        let good = Document::default().to_bytes();
        assert_eq!(
            Document::parse(&good, "x").expect("our own"),
            Document::default()
        );
        for text in ["", "nonsense", "{}", "[1]", "{\"version\": 2}"] {
            let error = Document::parse(text.as_bytes(), "blob `sweeps/a`").expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error
                    .message()
                    .contains("blob `sweeps/a` is not a valid job document"),
                "{error}"
            );
        }
    }
}
