//! The part of the Redis protocol (RESP2) that the bench needs: PUBLISH and SUBSCRIBE.

use super::raw_line::Line;

/// Returns the kind of a line. An answer to a PUBLISH is one line with a number, and so is the last
/// line of the confirmation of each channel.
pub(super) fn line(line: &[u8]) -> Line {
    match line.first() {
        Some(b':') => Line::Done,
        Some(b'-') => Line::Error,
        Some(b'+') if line == b"+PONG" => Line::Pong,
        _ => Line::Other,
    }
}

/// Returns the bytes before each payload.
pub(super) fn header(channel: &str, payload: usize) -> Vec<u8> {
    let channel = text(channel.as_bytes());
    [
        b"*3\r\n$7\r\nmessage\r\n",
        &channel[..],
        format!("${payload}\r\n").as_bytes(),
    ]
    .concat()
}

/// Returns the command that subscribes to all channels.
pub(super) fn subscription(channels: &[String]) -> Vec<u8> {
    let mut parts = vec!["SUBSCRIBE".as_bytes()];
    parts.extend(channels.iter().map(String::as_bytes));
    command(&parts)
}

/// Returns a message to publish.
pub(super) fn publication(channel: &str, payload: &[u8]) -> Vec<u8> {
    command(&[b"PUBLISH", channel.as_bytes(), payload])
}

fn command(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend_from_slice(&text(part));
    }
    bytes
}

/// Returns a bulk string: its length, then its bytes.
fn text(part: &[u8]) -> Vec<u8> {
    let length = format!("${}\r\n", part.len());
    [length.as_bytes(), part, b"\r\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages_have_the_form_of_redis() {
        let publish = publication("a.q", b"x\r\ny");
        let expected = b"*3\r\n$7\r\nPUBLISH\r\n$3\r\na.q\r\n$4\r\nx\r\ny\r\n";
        assert_eq!(publish, expected);
        let subscribe = subscription(&["a.q".to_owned(), "b".to_owned()]);
        let expected = b"*3\r\n$9\r\nSUBSCRIBE\r\n$3\r\na.q\r\n$1\r\nb\r\n";
        assert_eq!(subscribe, expected);
        let message = header("a.q", 35);
        assert_eq!(message, b"*3\r\n$7\r\nmessage\r\n$3\r\na.q\r\n$35\r\n");
    }

    #[test]
    fn only_numbers_are_confirmations() {
        for (bytes, meaning) in [
            (&b":12"[..], Line::Done),
            (b"-ERR no", Line::Error),
            (b"+PONG", Line::Pong),
            (b"+OK", Line::Other),
            (b"$9", Line::Other),
            (b"subscribe", Line::Other),
            (b"", Line::Other),
        ] {
            assert_eq!(line(bytes), meaning);
        }
    }
}
