//! The encoding of a message's bytes as the text that the service stores.
//!
//! The service stores text in XML. Whether that text is the message itself or its base64 form is a
//! convention of a queue's programs, and a message does not state it. [`MessageEncoding`] selects
//! the convention.

use std::str::FromStr;

use azure_core::base64;
use bytes::Bytes;

use crate::error::{Error, Result};

/// The encoding of bodies in Azure Queue Storage.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageEncoding {
    /// Base64: any bytes, up to 48 KiB. The default, because it carries every body; Azure Functions
    /// and the older SDKs write and expect it. A message that another program wrote as plain text is
    /// returned unchanged, unless it happens to be valid base64.
    #[default]
    Base64,
    /// Plain text up to 64 KiB, the default of the newer SDKs. A body that XML cannot carry is
    /// refused: invalid UTF-8 and control characters. Each body that was read can be put back.
    Text,
}

impl MessageEncoding {
    /// Returns the size of the largest body in bytes.
    pub(crate) fn largest(self) -> usize {
        /// The service's limit.
        const TEXT: usize = 64 * 1024;
        match self {
            Self::Base64 => TEXT / 4 * 3,
            Self::Text => TEXT,
        }
    }

    pub(crate) fn encode(self, body: &[u8]) -> Result<String> {
        match self {
            Self::Base64 => Ok(base64::encode(body)),
            Self::Text => match std::str::from_utf8(body) {
                Ok(text) if text.chars().all(is_kept) => Ok(text.to_owned()),
                _ => Err(not_text()),
            },
        }
    }

    /// Decodes a message's text, from any producer.
    pub(crate) fn decode(self, text: String) -> Bytes {
        match self {
            // The decoder is lenient, so text counts as base64 only if encoding it again gives the
            // same text.
            Self::Base64 => match base64::decode(&text) {
                Ok(bytes) if base64::encode(&bytes) == text => bytes.into(),
                _ => text.into(),
            },
            Self::Text => text.into(),
        }
    }
}

/// Returns the request's XML for a message's text.
pub(super) fn request(text: &str) -> String {
    const BEGIN: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessage><MessageText>";
    const END: &str = "</MessageText></QueueMessage>";
    let escaped = text.replace('&', "&amp;");
    let escaped = escaped.replace('<', "&lt;").replace('>', "&gt;");
    // As it is, a reader of XML takes it for a line feed.
    let escaped = escaped.replace('\r', "&#xD;");
    format!("{BEGIN}{escaped}{END}")
}

impl FromStr for MessageEncoding {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "base64" => Ok(Self::Base64),
            "text" => Ok(Self::Text),
            _ => Err(Error::invalid("encoding", "must be `base64` or `text`")),
        }
    }
}

/// Returns whether XML 1.0 carries a character, as itself or by its number.
fn is_kept(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{FFFD}' | '\u{10000}'..)
}

#[cold]
fn not_text() -> Error {
    let rule = "must be text without control characters in a queue with the encoding `text`; the \
                encoding `base64` carries any bytes";
    Error::invalid("body", rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn base64_carries_any_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        for body in [&all[..], b"", b"<&>", "é\r\n".as_bytes()] {
            let text = MessageEncoding::Base64.encode(body).expect("any");
            assert_eq!(MessageEncoding::Base64.decode(text), body);
        }
        let largest = vec![0; MessageEncoding::Base64.largest()];
        let text = MessageEncoding::Base64.encode(&largest).expect("any");
        assert_eq!(text.len(), MessageEncoding::Text.largest());
    }

    #[test]
    fn plain_text_of_other_programs_is_returned_unchanged() {
        for text in [
            "{\"order\": 7}",
            "hello",
            "YQ",
            "YR==",
            " YQ==",
            "a-_b",
            "é",
        ] {
            assert_eq!(MessageEncoding::Base64.decode(text.into()), text, "{text}");
        }
        assert_eq!(MessageEncoding::Text.decode("YQ==".into()), "YQ==");
    }

    #[test]
    fn text_that_xml_cannot_carry_is_refused() {
        for kept in ["", " a ", "<&>\"'", "]]>", "\t\r\n", "é\u{FFFD}\u{1F600}"] {
            let text = MessageEncoding::Text.encode(kept.as_bytes()).expect(kept);
            assert_eq!(text, kept);
        }
        for refused in [&b"\0"[..], b"\x1b", b"\xff", "\u{FFFF}".as_bytes()] {
            let error = MessageEncoding::Text.encode(refused).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with("body: "), "{error}");
        }
    }

    #[test]
    fn a_request_keeps_what_a_reader_of_xml_would_change() {
        let xml = request("a\r\n<&>\r");
        assert!(
            xml.ends_with("<MessageText>a&#xD;\n&lt;&amp;&gt;&#xD;</MessageText></QueueMessage>")
        );
    }

    #[test]
    fn an_encoding_is_named() {
        assert_eq!(
            "text".parse::<MessageEncoding>().expect("one"),
            MessageEncoding::Text
        );
        let error = "hex".parse::<MessageEncoding>().expect_err("none");
        assert_eq!(error.message(), "encoding: must be `base64` or `text`");
    }
}
