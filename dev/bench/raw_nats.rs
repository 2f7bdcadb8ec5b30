//! The part of the NATS protocol that the bench needs.

use super::raw_line::Line;

/// `PING` and `PONG`, with their line ends. Redis accepts the same PING.
pub(super) const PING: &[u8; 6] = b"PING\r\n";
pub(super) const PONG: &[u8; 6] = b"PONG\r\n";
/// A client's first line.
pub(super) const HELLO: &[u8] =
    b"CONNECT {\"verbose\":false,\"pedantic\":false,\"echo\":false}\r\n";
/// The first subscription's id. All ids have the same number of digits.
const FIRST_ID: usize = 100_000;

/// Returns the kind of a line.
pub(super) fn line(line: &[u8]) -> Line {
    match line {
        b"PONG" => Line::Pong,
        b"PING" => Line::Ping,
        line if line.starts_with(b"-ERR") => Line::Error,
        _ => Line::Other,
    }
}

/// Returns the line before each payload.
pub(super) fn header(subject: &str, payload: usize) -> Vec<u8> {
    format!("MSG {subject} {FIRST_ID} {payload}\r\n").into_bytes()
}

/// Returns the commands that subscribe to each subject `count` times.
pub(super) fn subscriptions(subjects: &[String], count: u64) -> Vec<u8> {
    let each = subjects
        .iter()
        .flat_map(|subject| (0..count).map(move |_| subject));
    let lines = each
        .zip(FIRST_ID..)
        .map(|(subject, id)| format!("SUB {subject} {id}\r\n"));
    lines.collect::<String>().into_bytes()
}

/// Returns a message to publish.
pub(super) fn publication(subject: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("PUB {subject} {}\r\n", payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subscription_has_a_different_id() {
        let subjects = ["a.1".to_owned(), "a.2".to_owned()];
        let lines = String::from_utf8(subscriptions(&subjects, 2)).expect("text");
        let ids: Vec<_> = lines.lines().collect();
        let expected = [
            "SUB a.1 100000",
            "SUB a.1 100001",
            "SUB a.2 100002",
            "SUB a.2 100003",
        ];
        assert_eq!(ids, expected);
    }
}
