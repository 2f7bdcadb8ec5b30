//! The job's shared document: how far this round has come, decided without I/O.
//!
//! All instances of a job read and write it, each write under the condition of the ETag that was
//! read. So what is taken is taken once: a page's token moves on before the page is worked.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{counts::Counts, judge::stamp};
use crate::error::{Error, ErrorKind, Result};

/// What the blob holds, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    version: u32,
    /// Another one with each write: by it an instance knows its own.
    pub(super) nonce: String,
    /// Numbers the rounds: the start's multiple of the interval.
    pub(super) round: u64,
    /// Counts the rounds.
    pub(super) serial: u64,
    /// When the round began, in seconds since 1970. The next one begins at a later multiple of the
    /// interval, however long the interval was then.
    began: u64,
    pub(super) state: State,
    pub(super) started: Option<String>,
    pub(super) finished: Option<String>,
    /// When a page was last taken, in seconds since 1970.
    progressed: u64,
    pub(super) containers: Vec<Progress>,
    /// Of the round that runs, or ran last.
    pub(super) counts: Counts,
    /// Of all rounds.
    pub(super) total: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// No round runs.
    Init,
    /// One does.
    Current,
}

/// How far a container has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    /// Its address without a signature, and its prefix.
    pub(super) id: String,
    pub(super) status: Status,
    /// Where its next page begins.
    pub(super) token: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    /// No page was taken.
    Init,
    /// Some were.
    Current,
    /// The last one was.
    Last,
    /// The only one was.
    FirstAndLast,
    /// It is not swept.
    Off,
}

const VERSION: u32 = 1;
/// A round whose rest nobody here knows is begun anew when nobody has gone on with it for so long:
/// for three intervals, and no less than this.
const STUCK: Duration = Duration::from_secs(600);
/// So far the clocks of two instances may be apart.
const SKEW: Duration = Duration::from_secs(300);

impl Document {
    pub(super) fn new() -> Self {
        Self {
            version: VERSION,
            nonce: String::new(),
            round: 0,
            serial: 0,
            began: 0,
            state: State::Init,
            started: None,
            finished: None,
            progressed: 0,
            containers: Vec::new(),
            counts: Counts::default(),
            total: Counts::default(),
        }
    }

    /// Reads the blob.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for what is none, which is shown: somebody has edited it by hand.
    pub(super) fn parse(text: &[u8], shown: &str) -> Result<Self> {
        let bad = |what: String| {
            let text = String::from_utf8_lossy(text);
            let start: String = text.chars().take(60).collect();
            let message = format!(
                "{shown} is no job document: {what}; it begins with {start:?}. Mend it, or delete \
                 it: the next round then begins at once"
            );
            Error::new(ErrorKind::Invalid, message)
        };
        let document: Self = serde_json::from_slice(text).map_err(|e| bad(e.to_string()))?;
        if document.version != VERSION {
            return Err(bad(format!("version {} is not known", document.version)));
        }
        Ok(document)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Returns the number of the round that this moment belongs to.
    pub(super) fn round_at(now: SystemTime, interval: Duration) -> u64 {
        let nanos = since(now).as_nanos() / interval.as_nanos().max(1);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// Begins a round, if it is time for one; returns whether one runs now. `again` begins one in an
    /// interval that has had its round, and gives up a rest that nobody here knows.
    pub(super) fn begin(
        &mut self,
        containers: &[(String, bool)],
        now: SystemTime,
        interval: Duration,
        again: bool,
    ) -> bool {
        let round = Self::round_at(now, interval);
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(self.began);
        // A clock that ran far ahead once holds up nobody.
        let due = round > Self::round_at(began, interval) || began > now + SKEW;
        let quiet = since(now).saturating_sub(Duration::from_secs(self.progressed));
        let may = match self.state {
            State::Current => {
                let ours = |id: &str| containers.iter().any(|(own, off)| own == id && !off);
                let given_up = (due && quiet > STUCK.max(interval * 3)) || again;
                given_up && self.next(ours).is_none()
            }
            State::Init => due || again,
        };
        if may {
            self.state = State::Current;
            (self.round, self.serial) = (round, self.serial + 1);
            self.began = since(now).as_secs();
            (self.started, self.finished) = (Some(stamp(now)), None);
            self.progressed = since(now).as_secs();
            self.counts = Counts::default();
            let progress = containers.iter().map(|(id, off)| Progress {
                id: id.clone(),
                status: if *off { Status::Off } else { Status::Init },
                token: None,
            });
            self.containers = progress.collect();
            self.finish_if_done(now);
        }
        self.state == State::Current
    }

    /// Returns the container of which a page is to be taken next, among those that are known.
    pub(super) fn next(&self, known: impl Fn(&str) -> bool) -> Option<(usize, Option<String>)> {
        let open = |p: &Progress| matches!(p.status, Status::Init | Status::Current);
        let at = self
            .containers
            .iter()
            .position(|p| open(p) && known(&p.id))?;
        Some((at, self.containers[at].token.clone()))
    }

    /// Passes over containers that are off by now.
    pub(super) fn turn_off(&mut self, is_off: impl Fn(&str) -> bool, now: SystemTime) {
        let open = |p: &Progress| matches!(p.status, Status::Init | Status::Current);
        let off = |p: &&mut Progress| open(p) && is_off(&p.id);
        let mut any = false;
        for progress in self.containers.iter_mut().filter(off) {
            (progress.status, any) = (Status::Off, true);
        }
        if any {
            self.finish_if_done(now);
        }
    }

    /// A page was taken; `next` is where the following one begins.
    pub(super) fn took(&mut self, at: usize, next: Option<String>, now: SystemTime) {
        let progress = &mut self.containers[at];
        progress.status = match (progress.status, next.is_some()) {
            (_, true) => Status::Current,
            (Status::Init, false) => Status::FirstAndLast,
            (_, false) => Status::Last,
        };
        progress.token = next;
        self.progressed = since(now).as_secs();
        self.finish_if_done(now);
    }

    /// Adds what became of pages.
    pub(super) fn add(&mut self, counts: &Counts) {
        self.counts.add(counts);
        self.total.add(counts);
    }

    /// Every page was taken.
    pub(super) fn is_finished(&self) -> bool {
        self.state == State::Init
    }

    fn finish_if_done(&mut self, now: SystemTime) {
        let open = |p: &Progress| matches!(p.status, Status::Init | Status::Current);
        if !self.containers.iter().any(open) {
            self.state = State::Init;
            self.finished = Some(stamp(now));
        }
    }
}

/// Returns when the next round may begin.
pub(super) fn next_boundary(now: SystemTime, interval: Duration) -> SystemTime {
    let next = u128::from(Document::round_at(now, interval)) + 1;
    let nanos = u64::try_from(next * interval.as_nanos()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
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
        document.took(0, Some("2".into()), at(6_002));
        assert_eq!(document.next(|_| true), Some((0, Some("2".into()))));
        document.took(0, None, at(6_003));
        assert_eq!(document.next(|_| true), Some((2, None)));
        assert_eq!(document.next(|id| id != "b"), None, "another instance's");
        document.took(2, None, at(6_004));
        let statuses: Vec<_> = document.containers.iter().map(|p| p.status).collect();
        assert_eq!(statuses, [Status::Last, Status::Off, Status::FirstAndLast]);
        assert_eq!(document.state, State::Init);
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
    fn a_round_that_takes_long_is_gone_on_with() {
        let mut document = Document::new();
        let names = containers(&["a"]);
        document.begin(&names, at(6_000), INTERVAL, false);
        document.took(0, Some("2".into()), at(6_500));
        // However long a page takes, and however short the interval is.
        assert!(
            document.begin(&names, at(60_000), INTERVAL, false),
            "it runs on"
        );
        assert_eq!(document.next(|_| true), Some((0, Some("2".into()))));
        assert_eq!(document.round, 10);
    }

    #[test]
    fn a_round_whose_rest_nobody_knows_is_given_up_in_time() {
        let mut document = Document::new();
        document.begin(&containers(&["renamed"]), at(6_000), INTERVAL, false);
        document.took(0, Some("2".into()), at(6_500));
        let names = containers(&["a"]);
        assert!(document.begin(&names, at(6_500 + 1_800), INTERVAL, false));
        assert_eq!(document.containers[0].id, "renamed", "others may be at it");
        assert!(document.begin(&names, at(6_501 + 1_800), INTERVAL, false));
        assert_eq!(document.next(|_| true), Some((0, None)));
        assert_eq!((document.round, &*document.containers[0].id), (13, "a"));
    }

    #[test]
    fn another_interval_and_a_clock_that_ran_ahead_hold_up_nobody() {
        let mut document = Document::new();
        let names = containers(&["off"]);
        let minute = Duration::from_secs(60);
        assert!(
            !document.begin(&names, at(60_000), minute, false),
            "done at once"
        );
        assert_eq!((document.round, document.serial), (1_000, 1));
        // Ten times as long: the number is smaller now, and the multiple is later.
        document.begin(&names, at(60_599), INTERVAL, false);
        assert_eq!(document.serial, 1);
        document.begin(&names, at(60_600), INTERVAL, false);
        assert_eq!((document.round, document.serial), (101, 2));
        document.begin(&names, at(9_000_000), INTERVAL, false);
        document.begin(&names, at(60_700), INTERVAL, false);
        assert_eq!((document.round, document.serial), (101, 4));
    }

    #[test]
    fn what_is_off_by_now_is_passed_over() {
        let mut document = Document::new();
        document.begin(&containers(&["a", "b"]), at(6_000), INTERVAL, false);
        document.took(0, None, at(6_001));
        document.turn_off(|id| id == "b", at(6_002));
        assert_eq!(document.containers[1].status, Status::Off);
        assert!(document.is_finished());
    }

    #[test]
    fn by_hand_a_round_may_be_begun_again() {
        let mut document = Document::new();
        let names = containers(&["off"]);
        document.begin(&names, at(6_000), INTERVAL, false);
        assert_eq!(document.state, State::Init, "nothing to do is done");
        let names = containers(&["a"]);
        assert!(!document.begin(&names, at(6_001), INTERVAL, false));
        assert!(document.begin(&names, at(6_001), INTERVAL, true));
        assert_eq!(document.round, 10);
    }

    #[test]
    fn what_was_edited_into_nonsense_is_shown() {
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
                    .contains("blob `sweeps/a` is no job document"),
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
