//! The requests of a contender, their times, and the validity of its lease.

use std::time::Duration;

use super::*;

const D: u64 = 10_000;
/// The wall clock, in microseconds.
const WALL: u64 = 1_700_000_000_000_000;

/// A contender, and a store that answers on the test's command.
struct Harness {
    machine: LeaseMachine,
    /// In milliseconds.
    now: u64,
    blob: Option<Content>,
    writes: u32,
}

impl Harness {
    fn new(holder: &str) -> Self {
        let config = LeaseConfig {
            holder: holder.to_owned(),
            duration: Duration::from_millis(D),
            poll: Duration::from_secs(1),
        };
        Self {
            machine: LeaseMachine::new(config, fastrand::Rng::with_seed(7)),
            now: 0,
            blob: None,
            writes: 0,
        }
    }

    /// A contender that holds the lease: taken at 0 ms, answered at 100 ms.
    fn holding() -> Self {
        let mut harness = Self::new("a");
        assert_eq!(harness.step(), Action::Read);
        harness.answer(Answer::Found(None));
        let Action::Create(record) = harness.step() else {
            panic!("the first write creates the blob");
        };
        harness.now = 100;
        let version = harness.write_record(&record);
        harness.answer(Answer::Written(version));
        assert_eq!(harness.until(), Some(8_000));
        harness
    }

    fn tick(&self) -> Tick {
        Tick::from_nanos(self.now * 1_000_000)
    }

    fn step(&mut self) -> Action {
        self.machine.step(self.tick(), WALL + self.now * 1_000)
    }

    /// Waits until the next request is due.
    fn next(&mut self) -> Action {
        for _ in 0..100 {
            match self.step() {
                Action::Wait(until) => self.now = until.as_nanos().div_ceil(1_000_000),
                step => return step,
            }
        }
        panic!("it waits for ever");
    }

    fn answer(&mut self, answer: Answer) {
        let taken = self.machine.answered(self.tick(), answer);
        taken.expect("the content is a lease");
    }

    /// Writes the requested record without a condition. Returns its version.
    fn write_record(&mut self, record: &Record) -> Version {
        self.writes += 1;
        let version: Version = self.writes.to_string().into();
        self.blob = Some(Content {
            version: Arc::clone(&version),
            bytes: record.bytes(),
        });
        version
    }

    /// Writes another contender's record.
    fn write_other(&mut self, token: u64, nonce: u32, released: bool) {
        let mut config = self.machine.config().clone();
        config.holder = "b".to_owned();
        let record = Record::new(token, format!("{nonce:032x}"), &config, released);
        self.write_record(&record);
    }

    /// Answers a read with the present blob.
    fn answer_read(&mut self) {
        self.answer(Answer::Found(self.blob.clone()));
    }

    /// Returns the end of the validity, in milliseconds.
    fn until(&self) -> Option<u64> {
        let validity = self.machine.validity(self.tick());
        validity.map(|(_, until)| until.as_nanos() / 1_000_000)
    }

    fn expect_update(&mut self) -> (Record, Version) {
        match self.next() {
            Action::Update(record, version) => (record, version),
            step => panic!("no update: {step:?}"),
        }
    }

    fn expect_read(&mut self) {
        assert_eq!(self.next(), Action::Read);
    }
}

#[test]
fn the_first_token_is_the_time_and_validity_counts_from_the_sending() {
    let harness = Harness::holding();
    assert_eq!(
        harness.machine.validity(harness.tick()).map(|b| b.0),
        Some(WALL)
    );
    // Sent at 0, answered at 100.
    assert_eq!(harness.until(), Some(8_000));
}

#[test]
fn a_renewal_at_a_third_has_a_new_nonce_and_the_same_token() {
    let mut harness = Harness::holding();
    let before = Record::read(&harness.blob.clone().expect("a blob").bytes).expect("a record");
    let (record, version) = harness.expect_update();
    assert!((3_000..=3_700).contains(&harness.now), "{}", harness.now);
    assert_eq!(&*version, "1");
    assert_eq!((record.token, record.released), (WALL, false));
    assert_ne!(record.nonce, before.nonce);
    let sent = harness.now;
    harness.now += 500;
    let version = harness.write_record(&record);
    harness.answer(Answer::Written(version));
    assert_eq!(harness.until(), Some(sent + 8_000));
}

#[test]
fn a_write_whose_answer_was_lost_is_recognised_and_valid_from_its_sending() {
    let mut harness = Harness::holding();
    let (record, _) = harness.expect_update();
    let sent = harness.now;
    harness.write_record(&record);
    harness.now += 1_600;
    harness.answer(Answer::Unknown);
    assert_eq!(harness.until(), Some(8_000), "not known yet");
    harness.expect_read();
    harness.answer_read();
    assert_eq!(harness.until(), Some(sent + 8_000));
    // The network sent the write twice, and the second one failed.
    let (record, _) = harness.expect_update();
    let sent = harness.now;
    harness.write_record(&record);
    harness.answer(Answer::Conflict);
    harness.expect_read();
    harness.answer_read();
    assert_eq!(harness.until(), Some(sent + 8_000));
}

#[test]
fn a_write_that_is_repeated_is_valid_from_its_first_sending() {
    let mut harness = Harness::holding();
    let (older, _) = harness.expect_update();
    let sent = harness.now;
    harness.now += 1_600;
    harness.answer(Answer::Unknown);
    harness.expect_read();
    harness.answer_read();
    let (newer, version) = harness.expect_update();
    assert_eq!(newer, older, "the same write once more");
    assert_eq!(&*version, "1", "it has not arrived yet");
    harness.write_record(&older);
    harness.answer(Answer::Conflict);
    harness.expect_read();
    harness.answer_read();
    assert_eq!(harness.until(), Some(sent + 8_000));
    assert_eq!(&*harness.expect_update().1, "2", "the renewal replaces it");
}

#[test]
fn of_two_challengers_with_the_same_token_one_takes_the_lease() {
    let mut harness = Harness::new("a");
    harness.write_other(5, 1, true);
    harness.expect_read();
    harness.answer_read();
    let (record, _) = harness.expect_update();
    assert_eq!(record.token, 6);
    harness.write_other(6, 2, false);
    harness.answer(Answer::Conflict);
    harness.expect_read();
    harness.answer_read();
    assert_eq!(harness.until(), None, "the other challenger holds it");
}

#[test]
fn a_lease_is_taken_after_its_duration_without_a_seen_change() {
    let mut harness = Harness::new("a");
    harness.write_other(5, 1, false);
    // The time of the write is unknown; it may be long ago.
    for (nonce, until) in [(1, 4_000), (2, 4_000 + D)] {
        if nonce > 1 {
            harness.write_other(5, nonce, false);
        }
        while harness.now < until {
            match harness.next() {
                Action::Read => harness.answer_read(),
                step => panic!("{} ms: {step:?}", harness.now),
            }
        }
    }
    let (record, version) = harness.expect_update();
    assert_eq!((record.token, &*version), (6, "2"));
    // The renewal was seen at 4,000 ms or by the next read.
    let seen = harness.now - D;
    assert!((4_000..=5_200).contains(&seen), "{seen}");
}

#[test]
fn a_holder_that_cannot_renew_loses_the_lease_in_time_and_for_good() {
    let mut harness = Harness::holding();
    let mut tries = 0;
    let end = loop {
        match harness.next() {
            Action::Ended(end) => break end,
            _ => {
                tries += 1;
                harness.now += 300;
                harness.answer(Answer::Unknown);
            }
        }
    };
    // Its request had no answer when its validity ended.
    assert!((8_000..8_300).contains(&harness.now), "{}", harness.now);
    assert_eq!(end, EndReason::Lapsed);
    assert!(tries >= 5, "{tries}");
    assert_eq!(harness.until(), None);
    // A late answer changes nothing.
    let mut harness = Harness::holding();
    let (record, _) = harness.expect_update();
    harness.now = 8_000;
    let version = harness.write_record(&record);
    harness.answer(Answer::Written(version));
    assert_eq!(harness.until(), None);
    assert_eq!(harness.step(), Action::Ended(EndReason::Lapsed));
}

#[test]
fn a_lease_that_is_taken_deleted_or_overwritten_is_lost_at_once() {
    for (what, end) in [
        ("robbed", EndReason::Taken("b".to_owned())),
        ("deleted", EndReason::Gone),
        ("overwritten", EndReason::Unreadable("{}".to_owned())),
    ] {
        let mut harness = Harness::holding();
        harness.expect_update();
        match what {
            "robbed" => harness.write_other(WALL + 1, 9, false),
            "deleted" => harness.blob = None,
            _ => {
                harness.blob = Some(Content {
                    version: "9".into(),
                    bytes: "{}".into(),
                });
            }
        }
        harness.answer(Answer::Conflict);
        harness.expect_read();
        harness.answer_read();
        assert_eq!(harness.until(), None, "{what}");
        assert_eq!(harness.step(), Action::Ended(end), "{what}");
    }
}

#[test]
fn foreign_content_is_reported_and_never_overwritten() {
    let mut harness = Harness::new("a");
    for text in [
        "",
        "now",
        r#"{"token":1}"#,
        r#"{"token":18446744073709551615,"holder":"b","nonce":"00000000000000000000000000000000","duration_ms":1000,"released":false}"#,
        r#"{"token":1,"holder":"b","nonce":"00000000000000000000000000000000","duration_ms":0,"released":false}"#,
    ] {
        harness.expect_read();
        let content = Content {
            version: "1".into(),
            bytes: text.into(),
        };
        let taken = harness
            .machine
            .answered(harness.tick(), Answer::Found(Some(content)));
        let shown: String = text.chars().take(60).collect();
        assert_eq!(taken, Err(shown));
    }
    harness.expect_read();
}

#[test]
fn a_release_ends_the_validity_and_is_retried_for_a_limited_time() {
    let mut harness = Harness::holding();
    harness.now = 1_000;
    harness.machine.release(harness.tick());
    assert_eq!(harness.until(), None);
    let (tombstone, version) = harness.expect_update();
    assert_eq!((tombstone.released, tombstone.token), (true, WALL));
    assert_eq!(&*version, "1");
    harness.answer(Answer::Unknown);
    harness.expect_read();
    harness.answer_read();
    let (again, _) = harness.expect_update();
    harness.write_record(&again);
    harness.answer(Answer::Unknown);
    harness.expect_read();
    harness.answer_read();
    assert_eq!(harness.step(), Action::Ended(EndReason::Released));

    let mut harness = Harness::holding();
    harness.now = 1_000;
    harness.machine.release(harness.tick());
    while !matches!(harness.next(), Action::Ended(_)) {
        harness.answer(Answer::Unknown);
    }
    assert_eq!(harness.step(), Action::Ended(EndReason::ReleaseUnknown));
    assert!(harness.now <= 1_000 + D / 3 + 1, "{}", harness.now);
}

#[test]
fn a_renewal_that_arrives_before_the_tombstone_is_released_as_well() {
    let mut harness = Harness::holding();
    let (renewal, _) = harness.expect_update();
    harness.machine.release(harness.tick());
    // Its answer is ignored.
    harness.expect_read();
    harness.answer_read();
    harness.expect_update();
    harness.write_record(&renewal);
    harness.answer(Answer::Conflict);
    harness.expect_read();
    harness.answer_read();
    let (tombstone, version) = harness.expect_update();
    assert_eq!((tombstone.released, &*version), (true, "2"));
}

#[test]
fn an_own_write_that_has_expired_is_replaced_with_a_new_token() {
    let mut harness = Harness::new("a");
    harness.write_other(5, 1, true);
    harness.expect_read();
    harness.answer_read();
    let (record, _) = harness.expect_update();
    harness.write_record(&record);
    harness.answer(Answer::Unknown);
    harness.now += 8_000;
    harness.expect_read();
    harness.answer_read();
    assert_eq!(harness.until(), None);
    let (record, version) = harness.expect_update();
    assert_eq!(
        (record.token, &*version),
        (7, "2"),
        "no other contender's lease to wait for"
    );
}

#[test]
fn a_contender_waits_for_a_lease_deleted_by_hand_and_its_tokens_grow() {
    let mut harness = Harness::new("a");
    let far = WALL + 1_000_000_000;
    harness.write_other(far, 1, false);
    harness.expect_read();
    harness.answer_read();
    harness.blob = None;
    let record = loop {
        match harness.next() {
            Action::Read => harness.answer_read(),
            Action::Create(record) => break record,
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(
        harness.now, D,
        "the holder may rely on the lease until then"
    );
    assert_eq!(record.token, far + 1);
}

#[test]
fn a_lease_for_a_day_has_short_timeouts() {
    let mut config = Harness::new("a").machine.config().clone();
    config.duration = MAX_DURATION;
    assert_eq!(config.request_timeout(), Duration::from_secs(10));
    let (mut rng, mut backoff) = (fastrand::Rng::with_seed(7), config.backoff());
    for _ in 0..50 {
        assert!(backoff.next(&mut rng) <= Duration::from_secs(10));
    }
}

#[test]
fn the_record_is_readable_by_people() {
    let config = Harness::new("node-7").machine.config().clone();
    let record = Record::new(42, format!("{:032x}", 7), &config, false);
    assert_eq!(
        str::from_utf8(&record.bytes()),
        Ok(
            r#"{"token":42,"holder":"node-7","nonce":"00000000000000000000000000000007","duration_ms":10000,"released":false}"#
        )
    );
    assert_eq!(Record::read(&record.bytes()), Ok(record));
}
