//! Requests that are too large.

use super::*;
use crate::types::QueueAddress;

/// The longest names there are.
fn fullest(number: usize) -> Notification {
    let name = format!("{number:0>128}");
    Notification {
        payload_size: u64::MAX,
        messages: u64::MAX,
        notifications: u64::MAX,
        delay: Duration::from_secs(14 * 24 * 3600),
        traceparent: "t".repeat(128).into(),
        ..Notification::new(QueueAddress::new(&name, &name).expect("an address"))
    }
}

#[test]
fn a_request_stays_below_its_limit() {
    let mut session = PublisherSession::new(PublisherConfig {
        batch: 1024,
        request_bytes: 64 * 1024,
        ..PublisherConfig::default()
    });
    for number in 0..1024 {
        super::super::post(&mut session, fullest(number), at(0)).expect("taken");
    }
    let mut sent = 0;
    while let Some(request) = session.request(at(0)) {
        let bytes: usize = request.iter().map(Notification::encoded_at_most).sum();
        assert!(bytes <= 64 * 1024, "{bytes} bytes");
        assert!(
            bytes > 60 * 1024 || sent + request.len() == 1024,
            "{bytes} bytes"
        );
        sent += request.len();
        let accepted = vec![Ok(Accepted::default()); request.len()];
        session.answered(answer(accepted), at(0), &mut rng());
    }
    assert_eq!(sent, 1024);
}

#[test]
fn the_greatest_batch_of_the_longest_names_fits_a_request() {
    let bytes: usize = (0..1024)
        .map(|number| fullest(number).encoded_at_most())
        .sum();
    assert!(
        bytes <= crate::types::Limits::NOTIFY_BYTES - 200,
        "{bytes} bytes"
    );
}

#[test]
fn a_stream_that_ends_for_a_requests_size_is_followed_by_smaller_requests() {
    let mut session = publisher();
    for number in 0..100 {
        post(&mut session, &format!("a/{number}"), at(0));
    }
    let (mut now, mut sent) = (at(0), Vec::new());
    loop {
        let request = session.request(now).expect("a request");
        sent.push(request.len());
        if request.len() <= 30 {
            break;
        }
        let too_large = Error::new(ErrorKind::Exhausted, "request: the limit is 1000 bytes");
        session.broken(&too_large, now, &mut rng());
        now = session.retry_at();
    }
    assert_eq!(sent, [100, 50, 25]);
    assert_eq!(session.pending(), 100);
}
