//! The job's shared document: the state of the round. Pure.
//!
//! All instances of a job read and write it. Each write is conditional on the ETag that was read,
//! and moves a page's token before the page is worked. So each page is taken once.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{counts::Counts, judge::stamp};
use crate::error::{Error, ErrorKind, Result};

/// The content of the blob, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    version: u32,
    /// New in each write. An instance recognises its own write by it.
    pub(crate) nonce: String,
    /// Number of the round: its start as a multiple of the interval.
    pub(crate) round: u64,
    /// Counts the rounds.
    pub(crate) serial: u64,
    /// Start of the round, in seconds since 1970. The next one begins at a later multiple of the
    /// interval, also if the interval has changed.
    began: u64,
    pub(crate) state: RoundState,
    pub(crate) started: Option<String>,
    pub(crate) finished: Option<String>,
    /// When a page was last taken, in seconds since 1970.
    progressed: u64,
    pub(crate) containers: Vec<ContainerProgress>,
    /// Of the running or last round.
    pub(crate) counts: Counts,
    /// Of all rounds.
    pub(crate) total: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RoundState {
    /// No round runs.
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

const VERSION: u32 = 1;
/// A round whose open containers are unknown here is restarted when no page was taken for three
/// intervals, and at least for this time.
const STUCK: Duration = Duration::from_secs(600);
/// Largest expected difference between the clocks of two instances.
const SKEW: Duration = Duration::from_secs(300);

impl Document {
    pub(crate) fn new() -> Self {
        Self {
            version: VERSION,
            nonce: String::new(),
            round: 0,
            serial: 0,
            began: 0,
            state: RoundState::Init,
            started: None,
            finished: None,
            progressed: 0,
            containers: Vec::new(),
            counts: Counts::default(),
            total: Counts::default(),
        }
    }

    /// Parses the blob.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a malformed document, with its beginning. It was edited by hand.
    pub(crate) fn parse(text: &[u8], shown: &str) -> Result<Self> {
        let bad = |what: String| {
            let text = String::from_utf8_lossy(text);
            let start: String = text.chars().take(60).collect();
            let message = format!(
                "{shown} is not a valid job document: {what}; it begins with {start:?}. Repair or \
                 delete it; after a deletion the next round begins at once"
            );
            Error::new(ErrorKind::Invalid, message)
        };
        let document: Self = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        if document.version != VERSION {
            return Err(bad(format!("version {} is not known", document.version)));
        }
        if start_of(document.began).is_none() {
            return Err(bad("the time of its start is out of range".to_owned()));
        }
        Ok(document)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Returns the number of the round at this time.
    pub(crate) fn round_at(now: SystemTime, interval: Duration) -> u64 {
        let nanos = since(now).as_nanos() / interval.as_nanos().max(1);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// Begins a round if one is due. Returns whether a round runs now. `again` begins one more
    /// round in an interval that has had its round. It also gives up a round whose open containers
    /// are unknown here.
    pub(crate) fn begin(
        &mut self,
        containers: &[(String, bool)],
        now: SystemTime,
        interval: Duration,
        again: bool,
    ) -> bool {
        let round = Self::round_at(now, interval);
        let began = start_of(self.began).unwrap_or(now);
        // A clock that once ran far ahead must not block later rounds.
        let due = round > Self::round_at(began, interval) || began > now + SKEW;
        let quiet = since(now).saturating_sub(Duration::from_secs(self.progressed));
        let may = match self.state {
            RoundState::Current => {
                let ours = |id: &str| containers.iter().any(|(own, off)| own == id && !off);
                let given_up = (due && quiet > STUCK.max(interval * 3)) || again;
                given_up && self.next(ours).is_none()
            }
            RoundState::Init => due || again,
        };
        if may {
            self.state = RoundState::Current;
            (self.round, self.serial) = (round, self.serial.wrapping_add(1));
            self.began = since(now).as_secs();
            (self.started, self.finished) = (Some(stamp(now)), None);
            self.progressed = since(now).as_secs();
            self.counts = Counts::default();
            let progress = containers.iter().map(|(id, off)| ContainerProgress {
                id: id.clone(),
                status: if *off {
                    ContainerStatus::Off
                } else {
                    ContainerStatus::Init
                },
                token: None,
            });
            self.containers = progress.collect();
            self.finish_if_done(now);
        }
        self.state == RoundState::Current
    }

    /// Returns the known container of the next page, and the page's token.
    pub(crate) fn next(&self, known: impl Fn(&str) -> bool) -> Option<(usize, Option<String>)> {
        let at = self
            .containers
            .iter()
            .position(|p| !p.is_done() && known(&p.id))?;
        Some((at, self.containers[at].token.clone()))
    }

    /// Skips containers that were switched off.
    pub(crate) fn turn_off(&mut self, is_off: impl Fn(&str) -> bool, now: SystemTime) {
        let off = |p: &&mut ContainerProgress| !p.is_done() && is_off(&p.id);
        let mut any = false;
        for progress in self.containers.iter_mut().filter(off) {
            (progress.status, any) = (ContainerStatus::Off, true);
        }
        if any {
            self.finish_if_done(now);
        }
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
        self.progressed = since(now).as_secs();
        self.finish_if_done(now);
    }

    /// Adds the counts of worked pages.
    pub(crate) fn add(&mut self, counts: &Counts) {
        self.counts.add(counts);
        self.total.add(counts);
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

/// Returns the earliest start of the next round.
pub(crate) fn next_boundary(now: SystemTime, interval: Duration) -> SystemTime {
    let next = u128::from(Document::round_at(now, interval)) + 1;
    let nanos = u64::try_from(next * interval.as_nanos()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// Returns the start of a round; `None` if it is out of range.
fn start_of(began: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(began))
}

fn since(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
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

    #[test]
    fn a_round_takes_every_page_once_and_then_waits_for_the_next_multiple() {
        let mut document = Document::new();
        let names = containers(&["a", "off", "b"]);
        assert!(document.begin(&names, at(6_001), INTERVAL, false));
        assert_eq!(document.round, 10);
        assert_eq!(document.next(|_| true), Some((0, None)));
        document.record_page(0, Some("2".into()), at(6_002));
        assert_eq!(document.next(|_| true), Some((0, Some("2".into()))));
        document.record_page(0, None, at(6_003));
        assert_eq!(document.next(|_| true), Some((2, None)));
        assert_eq!(document.next(|id| id != "b"), None, "of another instance");
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
            !document.begin(&names, at(6_599), INTERVAL, false),
            "this interval had its round"
        );
        assert_eq!(next_boundary(at(6_599), INTERVAL), at(6_600));
        assert!(document.begin(&names, at(6_600), INTERVAL, false));
        assert_eq!(
            (document.round, document.next(|_| true)),
            (11, Some((0, None)))
        );
    }

    #[test]
    fn a_long_round_is_continued() {
        let mut document = Document::new();
        let names = containers(&["a"]);
        document.begin(&names, at(6_000), INTERVAL, false);
        document.record_page(0, Some("2".into()), at(6_500));
        // A round is continued regardless of the time of a page and of the interval.
        assert!(
            document.begin(&names, at(60_000), INTERVAL, false),
            "it is continued"
        );
        assert_eq!(document.next(|_| true), Some((0, Some("2".into()))));
        assert_eq!(document.round, 10);
    }

    #[test]
    fn a_round_with_only_unknown_open_containers_is_given_up_in_time() {
        let mut document = Document::new();
        document.begin(&containers(&["renamed"]), at(6_000), INTERVAL, false);
        document.record_page(0, Some("2".into()), at(6_500));
        let names = containers(&["a"]);
        assert!(document.begin(&names, at(6_500 + 1_800), INTERVAL, false));
        assert_eq!(
            document.containers[0].id, "renamed",
            "another instance may work on it"
        );
        assert!(document.begin(&names, at(6_501 + 1_800), INTERVAL, false));
        assert_eq!(document.next(|_| true), Some((0, None)));
        assert_eq!((document.round, &*document.containers[0].id), (13, "a"));
    }

    #[test]
    fn another_interval_and_a_clock_that_ran_ahead_block_no_round() {
        let mut document = Document::new();
        let names = containers(&["off"]);
        let minute = Duration::from_secs(60);
        assert!(
            !document.begin(&names, at(60_000), minute, false),
            "done at once"
        );
        assert_eq!((document.round, document.serial), (1_000, 1));
        // With a ten times longer interval the number is smaller and the multiple is later.
        document.begin(&names, at(60_599), INTERVAL, false);
        assert_eq!(document.serial, 1);
        document.begin(&names, at(60_600), INTERVAL, false);
        assert_eq!((document.round, document.serial), (101, 2));
        document.begin(&names, at(9_000_000), INTERVAL, false);
        document.begin(&names, at(60_700), INTERVAL, false);
        assert_eq!((document.round, document.serial), (101, 4));
    }

    #[test]
    fn a_container_switched_off_during_a_round_is_skipped() {
        let mut document = Document::new();
        document.begin(&containers(&["a", "b"]), at(6_000), INTERVAL, false);
        document.record_page(0, None, at(6_001));
        document.turn_off(|id| id == "b", at(6_002));
        assert_eq!(document.containers[1].status, ContainerStatus::Off);
        assert!(document.is_finished());
    }

    #[test]
    fn another_round_may_be_begun_by_hand() {
        let mut document = Document::new();
        let names = containers(&["off"]);
        document.begin(&names, at(6_000), INTERVAL, false);
        assert_eq!(
            document.state,
            RoundState::Init,
            "an empty round is finished"
        );
        let names = containers(&["a"]);
        assert!(!document.begin(&names, at(6_001), INTERVAL, false));
        assert!(document.begin(&names, at(6_001), INTERVAL, true));
        assert_eq!(document.round, 10);
    }

    #[test]
    fn the_greatest_numbers_of_a_document_do_not_overflow() {
        let far = |field: &str| {
            let good = String::from_utf8(Document::new().to_bytes()).expect("text");
            let edited = good.replace(
                &format!("\"{field}\": 0"),
                &format!("\"{field}\": {}", u64::MAX),
            );
            assert_ne!(edited, good);
            Document::parse(edited.as_bytes(), "x")
        };
        let error = far("began").expect_err("no time");
        assert!(error.message().contains("out of range"), "{error}");
        for field in ["serial", "round", "progressed"] {
            let mut document = far(field).expect(field);
            assert!(document.begin(&containers(&["a"]), at(6_000), INTERVAL, true));
        }
    }

    #[test]
    fn a_malformed_document_is_reported_with_its_beginning() {
        let good = Document::new().to_bytes();
        assert_eq!(
            Document::parse(&good, "x").expect("our own"),
            Document::new()
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
        let later = String::from_utf8(good)
            .expect("text")
            .replace("\"version\": 1", "\"version\": 2");
        let error = Document::parse(later.as_bytes(), "x").expect_err("a later version");
        assert!(
            error.message().contains("version 2 is not known"),
            "{error}"
        );
    }
}
