//! What a queue has acknowledged, and the check of its content after a loss of power.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::support::Violation;

/// A call: when it began, and when it was acknowledged. Moments are numbers of events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) begun: usize,
    pub(crate) done: Option<usize>,
}

/// A put of several messages.
#[derive(Debug, Clone)]
pub(crate) struct Put {
    pub(crate) span: Span,
    pub(crate) messages: Vec<u64>,
    /// The error promised that nothing was put.
    pub(crate) refused: bool,
}

/// The calls on a queue. A message is known by a number.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    pub(crate) created: Option<usize>,
    pub(crate) puts: Vec<Put>,
    pub(crate) bodies: BTreeMap<u64, Bytes>,
    pub(crate) deletes: BTreeMap<u64, Span>,
}

impl Span {
    pub(crate) fn has_begun(&self, point: usize) -> bool {
        self.begun <= point
    }

    pub(crate) fn is_done(&self, point: usize) -> bool {
        self.done.is_some_and(|done| done <= point)
    }
}

impl History {
    /// Records a delete; of several attempts the first begin and the first acknowledgement count.
    pub(crate) fn delete(&mut self, number: u64, begun: usize, done: Option<usize>) {
        let span = self.deletes.entry(number).or_insert(Span { begun, done });
        span.done = span.done.or(done);
    }

    /// Checks the messages of a queue after a loss of power at `point`. `None` is a queue that does
    /// not exist.
    pub(crate) fn check(&self, point: usize, found: Option<&[Bytes]>) -> Result<(), Violation> {
        let Some(found) = found else {
            return match self.created {
                Some(created) if created <= point => Err("the created queue is gone".to_owned()),
                _ => Ok(()),
            };
        };
        let mut numbers = BTreeSet::new();
        for body in found {
            let number = number_of(body).ok_or("a message without a number")?;
            match self.bodies.get(&number) {
                Some(expected) if expected == body => {}
                Some(_) => return Err(format!("message {number} was altered")),
                None => return Err(format!("message {number} was never put")),
            }
            if !numbers.insert(number) {
                return Err(format!("message {number} is there twice"));
            }
        }
        self.puts
            .iter()
            .try_for_each(|put| self.check_put(put, point, &numbers))
    }

    fn check_put(&self, put: &Put, point: usize, found: &BTreeSet<u64>) -> Result<(), Violation> {
        let mut kept = BTreeSet::new();
        for number in &put.messages {
            let is_there = found.contains(number);
            let delete = self.deletes.get(number);
            if is_there && !put.span.has_begun(point) {
                return Err(format!("message {number} is there before its put"));
            }
            if is_there && put.refused {
                return Err(format!("message {number} is there although it was refused"));
            }
            if is_there && delete.is_some_and(|delete| delete.is_done(point)) {
                return Err(format!("deleted message {number} is back"));
            }
            if !delete.is_some_and(|delete| delete.has_begun(point)) {
                if !is_there && put.span.is_done(point) {
                    return Err(format!("acknowledged message {number} is lost"));
                }
                kept.insert(is_there);
            }
        }
        match kept.len() {
            2 => Err(format!("half of a put is there: {:?}", put.messages)),
            _ => Ok(()),
        }
    }
}

/// Makes a message's body: its number, and bytes that follow from it.
pub(crate) fn body(number: u64, len: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(number);
    let rest = (0..len).map(|_| random.u8(..));
    number.to_be_bytes().into_iter().chain(rest).collect()
}

/// Returns the number of a message.
pub(crate) fn number_of(body: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(body.get(..8)?.try_into().ok()?))
}

#[test]
fn the_check_finds_each_violation() {
    let span = |begun, done| Span {
        begun,
        done: Some(done),
    };
    let mut history = History {
        created: Some(1),
        ..History::default()
    };
    for (number, put) in [(1, span(2, 4)), (2, span(2, 4)), (3, span(6, 8))] {
        history.bodies.insert(number, body(number, 20));
        let messages = if number == 1 {
            vec![1, 2]
        } else {
            vec![number]
        };
        let refused = false;
        if number != 2 {
            history.puts.push(Put {
                span: put,
                messages,
                refused,
            });
        }
    }
    history.delete(1, 9, Some(11));
    let at = |point: usize, numbers: &[u64]| {
        let found: Vec<_> = numbers.iter().map(|number| body(*number, 20)).collect();
        history.check(point, Some(&found)).err().unwrap_or_default()
    };
    for (point, numbers) in [
        (2, &[][..]),
        (3, &[1, 2]),
        (7, &[1, 2]),
        (8, &[1, 2, 3]),
        (10, &[2, 3]),
        (10, &[1, 2, 3]),
        (12, &[2, 3]),
    ] {
        assert_eq!(at(point, numbers), "", "{point} {numbers:?}");
    }
    assert!(at(1, &[1, 2]).contains("before its put"));
    assert!(at(3, &[1]).contains("half"));
    assert!(at(4, &[]).contains("lost"));
    assert!(at(8, &[1, 2]).contains("lost"));
    assert!(at(11, &[1, 2, 3]).contains("is back"));
    assert!(at(8, &[1, 2, 3, 3]).contains("twice"));
    assert!(at(8, &[1, 2, 3, 4]).contains("never put"));
    assert!(history.check(1, None).is_err() && history.check(0, None).is_ok());
    let mut altered = body(1, 20).to_vec();
    altered[20] ^= 1;
    let found = [altered.into(), body(2, 20)];
    let violation = history.check(5, Some(&found)).expect_err("altered");
    assert!(violation.contains("altered"), "{violation}");
}
