//! The bodies of messages: references to blobs, entries of poison queues, and Azure's encodings.

use std::sync::Arc;

use bytes::Bytes;

use super::split_first;
use crate::{
    listener::PoisonedMessage,
    queue::{
        MessageEncoding,
        claim_check::claim::{Claim, is_marked},
    },
};

/// The longest body that a reference may stand for.
const MAX_BODY: usize = 1 << 20;

pub(super) fn queues(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n');
    let (line, blob) = data.split_at(end.unwrap_or(data.len()));
    claim(line, split_first(blob).1);
    poisoned(data);
    encodings(data);
}

/// Reads a reference and the blob behind it.
fn claim(line: &[u8], blob: &[u8]) {
    let Some(parsed) = Claim::parse(line) else {
        assert!(!is_marked(line));
        return;
    };
    let Ok(claim) = parsed else {
        return;
    };
    let shown = claim.to_string();
    let again = Claim::parse(shown.as_bytes()).expect("a reference");
    assert_eq!(again.expect("ours"), claim);
    let blob = Bytes::copy_from_slice(blob);
    let (packed, bytes) = Claim::pack(Arc::clone(&claim.id), &blob);
    assert_eq!(packed.unpack(&bytes).expect("ours"), blob);
    if claim.length > MAX_BODY {
        return;
    }
    if let Ok(body) = claim.unpack(&blob) {
        assert!(body.len() <= MAX_BODY);
        assert!(shown.contains(&format!(" {} ", body.len())));
    }
}

fn poisoned(data: &[u8]) {
    let Ok(message) = serde_json::from_slice::<PoisonedMessage>(data) else {
        return;
    };
    let written = serde_json::to_vec(&message).expect("texts and numbers");
    let again: PoisonedMessage = serde_json::from_slice(&written).expect("ours");
    assert_eq!(again, message);
}

fn encodings(data: &[u8]) {
    let text = MessageEncoding::Base64.encode(data).expect("any bytes");
    assert_eq!(MessageEncoding::Base64.decode(text), data);
    if let Ok(text) = MessageEncoding::Text.encode(data) {
        assert_eq!(MessageEncoding::Text.decode(text), data);
    }
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let decoded = MessageEncoding::Base64.decode(text.to_owned());
    let encoded = MessageEncoding::Base64.encode(&decoded).expect("any bytes");
    assert!(decoded == data || encoded == text);
}
