//! Fault D4: a flipped bit in a queue file alters no body silently, and hides no message silently
//! unless SQLite itself cannot find it.
//!
//! Each test opens many copies of a file, each with one random bit flipped, and reads all messages
//! through the public API: messages of local queues, messages to another machine, and dead letters.

mod copies;
mod damaged_rows;
mod hosted;
mod log;
mod plain;

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    history::number_of,
    support::{Violation, assert_none},
};

/// The bodies that were committed, by their numbers.
type Bodies = BTreeMap<u64, Bytes>;

/// What was read from a copy.
#[derive(Debug, Default)]
struct Found {
    bodies: Vec<Bytes>,
    /// The number of messages that were reported as damaged.
    reported: usize,
    /// The error that ended the reading.
    error: Option<String>,
}

/// The result of a flip.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// All messages are right, and no damage was reported.
    Right,
    /// Damage was reported; what was read is right.
    Detected,
    /// All that was read is right, but some messages are absent, and no damage was reported.
    Absent(Vec<u64>),
}

/// The outcomes of many flips, by the table or index of the flipped page.
#[derive(Debug, Default)]
struct Tally {
    counts: BTreeMap<String, [usize; 3]>,
    /// The absences without a report.
    absent: Vec<String>,
    violations: Vec<Violation>,
    /// Errors of the reading, after the file was opened without an error.
    blocked: Vec<String>,
}

impl Found {
    fn failed(error: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            ..Self::default()
        }
    }

    /// Compares with the bodies that were committed.
    ///
    /// # Errors
    /// A body was altered, or a message is there twice.
    fn judge(&self, committed: &Bodies) -> Result<Outcome, Violation> {
        let mut absent = committed.clone();
        for body in &self.bodies {
            let number = number_of(body).ok_or("a body without a number was read")?;
            match (committed.get(&number), absent.remove(&number)) {
                (Some(right), Some(_)) if right == body => {}
                (Some(right), None) if right == body => {
                    return Err(format!("message {number} is there twice"));
                }
                _ => return Err(format!("message {number} was altered")),
            }
        }
        let is_reported = self.error.is_some() || absent.len() <= self.reported;
        Ok(match (absent.is_empty(), is_reported) {
            (false, false) => Outcome::Absent(absent.into_keys().collect()),
            (true, _) if self.error.is_none() && self.reported == 0 => Outcome::Right,
            _ => Outcome::Detected,
        })
    }
}

impl Tally {
    /// Adds the outcome of a flip, which `place` describes, in a page of `area`.
    fn add(&mut self, area: &str, place: &str, found: &Found, committed: &Bodies) {
        let column = match found.judge(committed) {
            Ok(Outcome::Right) => 0,
            Ok(Outcome::Detected) => 1,
            Ok(Outcome::Absent(numbers)) => {
                self.absent
                    .push(format!("{place} in {area}: {numbers:?} are absent"));
                2
            }
            Err(violation) => {
                self.violations
                    .push(format!("{place} in {area}: {violation}"));
                return;
            }
        };
        self.counts.entry(area.to_owned()).or_default()[column] += 1;
    }

    fn total(&self, column: usize) -> usize {
        self.counts.values().map(|counts| counts[column]).sum()
    }

    /// Prints the tally. Fails if a body was altered, and if more than `bound` flips hid messages
    /// without a report.
    fn check(&self, bound: usize) {
        println!("right, detected, absent without a report:");
        for (area, counts) in &self.counts {
            println!("  {counts:4?} {area}");
        }
        for line in self.absent.iter().chain(&self.blocked) {
            println!("  {line}");
        }
        assert_none(&self.violations);
        assert!(self.total(0) > 0 && self.total(1) > 0, "both happen");
        let absent = self.total(2);
        assert!(absent <= bound, "{absent} flips hid messages: {self:#?}");
    }
}

#[test]
fn the_judge_of_flips_finds_each_violation() {
    use crate::history::body;
    let committed: Bodies = (1..=3).map(|number| (number, body(number, 20))).collect();
    let judge = |numbers: &[u64], reported: usize, error: Option<&str>| {
        let found = Found {
            bodies: numbers.iter().map(|number| body(*number, 20)).collect(),
            reported,
            error: error.map(str::to_owned),
        };
        found.judge(&committed)
    };
    assert_eq!(judge(&[1, 2, 3], 0, None), Ok(Outcome::Right));
    assert_eq!(judge(&[1, 2, 3], 1, None), Ok(Outcome::Detected));
    assert_eq!(judge(&[1, 3], 1, None), Ok(Outcome::Detected));
    assert_eq!(judge(&[], 0, Some("damaged")), Ok(Outcome::Detected));
    assert_eq!(judge(&[1, 3], 0, None), Ok(Outcome::Absent(vec![2])));
    assert_eq!(judge(&[3], 1, None), Ok(Outcome::Absent(vec![1, 2])));
    assert!(judge(&[1, 1, 2, 3], 0, None).is_err(), "twice");
    assert!(judge(&[1, 2, 4], 9, Some("x")).is_err(), "never put");
    let mut altered = body(2, 20).to_vec();
    altered[15] ^= 4;
    let found = Found {
        bodies: vec![altered.into()],
        ..Found::failed("a later error")
    };
    assert!(found.judge(&committed).is_err(), "altered");
}
