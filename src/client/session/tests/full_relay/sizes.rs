//! Requests that are too large.

use super::*;

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
