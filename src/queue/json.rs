//! Values as JSON in the bodies of messages.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::NewMessage;
use crate::error::{Error, Result};

/// Encodes a value as a message to put.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the value cannot be written as JSON.
pub fn encode<T: Serialize>(value: &T) -> Result<NewMessage> {
    let body = serde_json::to_vec(value).map_err(|error| {
        let rule = format_args!("the value cannot be written as JSON: {error}");
        Error::invalid("body", rule)
    })?;
    Ok(NewMessage::new(body))
}

/// Decodes a body, for a handler that receives plain messages.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the body is not JSON, or not a value of this
/// type. The message states the reason and the position.
pub fn decode<T: DeserializeOwned>(body: &Bytes) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| {
        let rule = format_args!("is not the JSON that is expected: {error}");
        Error::invalid("body", rule).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde::Deserialize;

    use super::*;
    use crate::error::ErrorKind;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Job {
        number: u32,
        name: String,
    }

    #[test]
    fn a_value_comes_out_as_it_went_in() {
        let job = Job {
            number: 7,
            name: "job \u{e4} 7".to_owned(),
        };
        let message = encode(&job).expect("JSON");
        assert_eq!(decode::<Job>(&message.body).expect("a job"), job);
    }

    #[test]
    fn a_body_that_cannot_be_decoded_is_an_error_with_the_reason() {
        let bodies: [(&'static [u8], &str); 4] = [
            (b"\xff\xfe", "expected value"),
            (b"{\"number\":", "EOF while parsing"),
            (b"{\"number\":-1}", "invalid value"),
            (b"", "EOF while parsing"),
        ];
        for (body, words) in bodies {
            let error = decode::<Job>(&Bytes::from_static(body)).expect_err(words);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error.message().starts_with("body: is not the JSON"),
                "{error}"
            );
            assert!(error.message().contains(words), "{error}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_encoded_is_an_error() {
        let error = encode(&HashMap::from([((1, 2), 3)])).expect_err("a key");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
