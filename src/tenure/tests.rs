//! What a contender asks, when, and what it believes.

use std::time::Duration;

use super::*;

const D: u64 = 10_000;
/// The wall clock, in microseconds.
const WALL: u64 = 1_700_000_000_000_000;

/// A contender, and a store that answers when the test says so.
struct Desk {
    tenure: Tenure,
    /// In milliseconds.
    now: u64,
    blob: Option<Content>,
    writes: u32,
}

impl Desk {
    fn new(holder: &str) -> Self {
        let terms = Terms {
            holder: holder.to_owned(),
            duration: Duration::from_millis(D),
            poll: Duration::from_secs(1),
            fault: Fault::None,
        };
        Self {
            tenure: Tenure::new(terms, fastrand::Rng::with_seed(7)),
            now: 0,
            blob: None,
            writes: 0,
        }
    }

    /// One that holds the lease, taken at 0, with its answer after 100 ms.
    fn holding() -> Self {
        let mut desk = Self::new("a");
        assert_eq!(desk.step(), Step::Read);
        desk.answer(Answer::Found(None));
        let Step::Create(record) = desk.step() else {
            panic!("it creates");
        };
        desk.now = 100;
        let version = desk.lands(&record);
        desk.answer(Answer::Written(version));
        assert_eq!(desk.until(), Some(8_000));
        desk
    }

    fn tick(&self) -> Tick {
        Tick::from_nanos(self.now * 1_000_000)
    }

    fn step(&mut self) -> Step {
        self.tenure.step(self.tick(), WALL + self.now * 1_000)
    }

    /// Waits until there is something to do.
    fn next(&mut self) -> Step {
        for _ in 0..100 {
            match self.step() {
                Step::Wait(until) => self.now = until.as_nanos().div_ceil(1_000_000),
                step => return step,
            }
        }
        panic!("it waits for ever");
    }

    fn answer(&mut self, answer: Answer) {
        let taken = self.tenure.answered(self.tick(), answer);
        taken.expect("what it reads are leases");
    }

    /// Writes what was asked for, whatever the condition; returns its version.
    fn lands(&mut self, record: &Record) -> Version {
        self.writes += 1;
        let version: Version = self.writes.to_string().into();
        self.blob = Some(Content {
            version: Arc::clone(&version),
            bytes: record.bytes(),
        });
        version
    }

    /// Somebody else's record.
    fn other(&mut self, token: u64, nonce: u32, released: bool) {
        let mut terms = self.tenure.terms().clone();
        terms.holder = "b".to_owned();
        let record = Record::new(token, format!("{nonce:032x}"), &terms, released);
        self.lands(&record);
    }

    /// Answers a read by what is there.
    fn found(&mut self) {
        self.answer(Answer::Found(self.blob.clone()));
    }

    /// Returns until which millisecond it believes.
    fn until(&self) -> Option<u64> {
        let believed = self.tenure.believed(self.tick());
        believed.map(|(_, until)| until.as_nanos() / 1_000_000)
    }

    fn updates(&mut self) -> (Record, Version) {
        match self.next() {
            Step::Update(record, version) => (record, version),
            step => panic!("no update: {step:?}"),
        }
    }

    fn reads(&mut self) {
        assert_eq!(self.next(), Step::Read);
    }
}

#[test]
fn a_first_token_is_the_time_and_belief_counts_from_the_sending() {
    let desk = Desk::holding();
    assert_eq!(desk.tenure.believed(desk.tick()).map(|b| b.0), Some(WALL));
    // Sent at 0, answered at 100.
    assert_eq!(desk.until(), Some(8_000));
}

#[test]
fn a_renewal_comes_at_a_third_with_another_nonce_and_the_same_token() {
    let mut desk = Desk::holding();
    let before = Record::read(&desk.blob.clone().expect("a blob").bytes).expect("a record");
    let (record, version) = desk.updates();
    assert!((3_000..=3_700).contains(&desk.now), "{}", desk.now);
    assert_eq!(&*version, "1");
    assert_eq!((record.token, record.released), (WALL, false));
    assert_ne!(record.nonce, before.nonce);
    let sent = desk.now;
    desk.now += 500;
    let version = desk.lands(&record);
    desk.answer(Answer::Written(version));
    assert_eq!(desk.until(), Some(sent + 8_000));
}

#[test]
fn a_write_whose_answer_was_lost_is_recognised_and_believed_from_its_sending() {
    let mut desk = Desk::holding();
    let (record, _) = desk.updates();
    let sent = desk.now;
    desk.lands(&record);
    desk.now += 1_600;
    desk.answer(Answer::Unknown);
    assert_eq!(desk.until(), Some(8_000), "not known yet");
    desk.reads();
    desk.found();
    assert_eq!(desk.until(), Some(sent + 8_000));
    // Somewhere on the way it was sent twice, and the second one failed.
    let (record, _) = desk.updates();
    let sent = desk.now;
    desk.lands(&record);
    desk.answer(Answer::Conflict);
    desk.reads();
    desk.found();
    assert_eq!(desk.until(), Some(sent + 8_000));
}

#[test]
fn an_older_write_that_lands_late_is_ours_but_no_younger_for_that() {
    let mut desk = Desk::holding();
    let (older, _) = desk.updates();
    let sent = desk.now;
    desk.now += 1_600;
    desk.answer(Answer::Unknown);
    desk.reads();
    desk.found();
    let (newer, version) = desk.updates();
    assert_ne!(newer.nonce, older.nonce);
    assert_eq!(&*version, "1", "nothing has come of it yet");
    desk.lands(&older);
    desk.answer(Answer::Conflict);
    desk.reads();
    desk.found();
    assert_eq!(desk.until(), Some(sent + 8_000));
    assert_eq!(&*desk.updates().1, "2", "it is renewed on top of that");
}

#[test]
fn two_challengers_write_the_same_token_and_one_has_it() {
    let mut desk = Desk::new("a");
    desk.other(5, 1, true);
    desk.reads();
    desk.found();
    let (record, _) = desk.updates();
    assert_eq!(record.token, 6);
    desk.other(6, 2, false);
    desk.answer(Answer::Conflict);
    desk.reads();
    desk.found();
    assert_eq!(desk.until(), None, "the other one's");
}

#[test]
fn a_lease_is_taken_when_its_duration_has_passed_since_the_last_change_that_was_seen() {
    let mut desk = Desk::new("a");
    desk.other(5, 1, false);
    // It may have been written long ago; nobody here knows.
    for (nonce, until) in [(1, 4_000), (2, 4_000 + D)] {
        if nonce > 1 {
            desk.other(5, nonce, false);
        }
        while desk.now < until {
            match desk.next() {
                Step::Read => desk.found(),
                step => panic!("{} ms: {step:?}", desk.now),
            }
        }
    }
    let (record, version) = desk.updates();
    assert_eq!((record.token, &*version), (6, "2"));
    // The renewal was seen at 4,000 or in the look after it.
    let seen = desk.now - D;
    assert!((4_000..=5_200).contains(&seen), "{seen}");
}

#[test]
fn a_holder_that_cannot_renew_stops_believing_in_time_and_for_good() {
    let mut desk = Desk::holding();
    let mut tries = 0;
    let end = loop {
        match desk.next() {
            Step::Ended(end) => break end,
            _ => {
                tries += 1;
                desk.now += 300;
                desk.answer(Answer::Unknown);
            }
        }
    };
    // It was asking when its time was over.
    assert!((8_000..8_300).contains(&desk.now), "{}", desk.now);
    assert_eq!(end, End::Lapsed);
    assert!(tries >= 5, "{tries}");
    assert_eq!(desk.until(), None);
    // An answer that comes too late changes nothing.
    let mut desk = Desk::holding();
    let (record, _) = desk.updates();
    desk.now = 8_000;
    let version = desk.lands(&record);
    desk.answer(Answer::Written(version));
    assert_eq!(desk.until(), None);
    assert_eq!(desk.step(), Step::Ended(End::Lapsed));
}

#[test]
fn a_lease_that_is_robbed_deleted_or_overwritten_is_lost_at_once() {
    for (what, end) in [
        ("robbed", End::Taken("b".to_owned())),
        ("deleted", End::Gone),
        ("overwritten", End::Unreadable(Unreadable::of("{}"))),
    ] {
        let mut desk = Desk::holding();
        desk.updates();
        match what {
            "robbed" => desk.other(WALL + 1, 9, false),
            "deleted" => desk.blob = None,
            _ => {
                desk.blob = Some(Content {
                    version: "9".into(),
                    bytes: "{}".into(),
                });
            }
        }
        desk.answer(Answer::Conflict);
        desk.reads();
        desk.found();
        assert_eq!(desk.until(), None, "{what}");
        assert_eq!(desk.step(), Step::Ended(end), "{what}");
    }
}

#[test]
fn what_is_no_lease_is_shown_and_never_overwritten() {
    let mut desk = Desk::new("a");
    for text in [
        "",
        "now",
        r#"{"token":1}"#,
        r#"{"token":18446744073709551615,"holder":"b","nonce":"00000000000000000000000000000000","duration_ms":1000,"released":false}"#,
        r#"{"token":1,"holder":"b","nonce":"00000000000000000000000000000000","duration_ms":0,"released":false}"#,
    ] {
        desk.reads();
        let content = Content {
            version: "1".into(),
            bytes: text.into(),
        };
        let taken = desk
            .tenure
            .answered(desk.tick(), Answer::Found(Some(content)));
        let shown: String = text.chars().take(60).collect();
        assert_eq!(taken, Err(Unreadable::of(&shown)));
    }
    desk.reads();
}

#[test]
fn a_release_is_believed_in_no_more_and_tried_for_a_while() {
    let mut desk = Desk::holding();
    desk.now = 1_000;
    desk.tenure.release(desk.tick());
    assert_eq!(desk.until(), None);
    let (tombstone, version) = desk.updates();
    assert_eq!((tombstone.released, tombstone.token), (true, WALL));
    assert_eq!(&*version, "1");
    desk.answer(Answer::Unknown);
    desk.reads();
    desk.found();
    let (again, _) = desk.updates();
    desk.lands(&again);
    desk.answer(Answer::Unknown);
    desk.reads();
    desk.found();
    assert_eq!(desk.step(), Step::Ended(End::Released));

    let mut desk = Desk::holding();
    desk.now = 1_000;
    desk.tenure.release(desk.tick());
    while !matches!(desk.next(), Step::Ended(_)) {
        desk.answer(Answer::Unknown);
    }
    assert_eq!(desk.step(), Step::Ended(End::Unsettled));
    assert!(desk.now <= 1_000 + D / 3 + 1, "{}", desk.now);
}

#[test]
fn a_renewal_that_lands_before_the_tombstone_is_released_as_well() {
    let mut desk = Desk::holding();
    let (renewal, _) = desk.updates();
    desk.tenure.release(desk.tick());
    // Nobody waits for its answer.
    desk.reads();
    desk.found();
    desk.updates();
    desk.lands(&renewal);
    desk.answer(Answer::Conflict);
    desk.reads();
    desk.found();
    let (tombstone, version) = desk.updates();
    assert_eq!((tombstone.released, &*version), (true, "2"));
}

#[test]
fn a_write_that_is_too_old_to_be_believed_is_taken_over_with_a_new_token() {
    let mut desk = Desk::new("a");
    desk.other(5, 1, true);
    desk.reads();
    desk.found();
    let (record, _) = desk.updates();
    desk.lands(&record);
    desk.answer(Answer::Unknown);
    desk.now += 8_000;
    desk.reads();
    desk.found();
    assert_eq!(desk.until(), None);
    let (record, version) = desk.updates();
    assert_eq!(
        (record.token, &*version),
        (7, "2"),
        "nobody else's to wait for"
    );
}

#[test]
fn a_lease_that_was_deleted_by_hand_is_waited_for_and_its_tokens_go_on() {
    let mut desk = Desk::new("a");
    let far = WALL + 1_000_000_000;
    desk.other(far, 1, false);
    desk.reads();
    desk.found();
    desk.blob = None;
    let record = loop {
        match desk.next() {
            Step::Read => desk.found(),
            Step::Create(record) => break record,
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(desk.now, D, "its holder may believe until then");
    assert_eq!(record.token, far + 1);
}

#[test]
fn a_lease_for_a_day_keeps_nobody_waiting_for_hours() {
    let mut terms = Desk::new("a").tenure.terms().clone();
    terms.duration = LONGEST;
    assert_eq!(terms.patience(), Duration::from_secs(10));
    let (mut rng, mut backoff) = (fastrand::Rng::with_seed(7), terms.backoff());
    for _ in 0..50 {
        assert!(backoff.next(&mut rng) <= Duration::from_secs(10));
    }
}

#[test]
fn the_record_is_readable_by_people() {
    let terms = Desk::new("node-7").tenure.terms().clone();
    let record = Record::new(42, format!("{:032x}", 7), &terms, false);
    assert_eq!(
        str::from_utf8(&record.bytes()),
        Ok(
            r#"{"token":42,"holder":"node-7","nonce":"00000000000000000000000000000007","duration_ms":10000,"released":false}"#
        )
    );
    assert_eq!(Record::read(&record.bytes()), Ok(record));
}
