//! The frames of a hand-over, from both sides.

use prost::Message as _;

use crate::{
    courier::{
        handover::{ReceiverContent, ReceiverFrame, SenderContent, SenderFrame},
        host::wire,
    },
    types::Limits,
    wire::proto::{HandOverRequest, HandOverResponse},
};

/// The most bytes and messages of an offer, and the longest text of a peer.
const MAX_OFFER: usize = 1 << 20;
const MAX_MESSAGES: usize = 256;
const MAX_TEXT: usize = 512;

pub(super) fn hand_over(data: &[u8]) {
    if let Ok(request) = HandOverRequest::decode(data)
        && let Ok(frame) = wire::frame(request)
    {
        check_sender(&frame);
        let encoded = wire::request(frame.clone()).encode_to_vec();
        let decoded = HandOverRequest::decode(&encoded[..]).expect("ours");
        assert_eq!(wire::frame(decoded).expect("ours"), frame);
    }
    if let Ok(response) = HandOverResponse::decode(data)
        && let Ok(frame) = wire::answer(response)
    {
        check_receiver(&frame);
        let encoded = wire::response(frame.clone()).encode_to_vec();
        let decoded = HandOverResponse::decode(&encoded[..]).expect("ours");
        assert_eq!(wire::answer(decoded).expect("ours"), frame);
    }
}

fn check_sender(frame: &SenderFrame) {
    match &frame.content {
        SenderContent::Hello(hello) => {
            assert!(hello.name.len() <= MAX_TEXT);
            assert!(hello.authority.contains(':'));
        }
        SenderContent::Offer(messages) => {
            assert!(messages.len() <= MAX_MESSAGES);
            let bytes: usize = messages.iter().map(|message| message.body.len()).sum();
            assert!(bytes <= MAX_OFFER);
            for message in messages {
                assert!((1..=Limits::NAME).contains(&message.queue.len()));
                assert_eq!(message.visited.len() % 16, 0);
                assert!(message.authority.is_empty() || message.authority.contains(':'));
            }
        }
        SenderContent::Confirm(_) => {}
    }
}

fn check_receiver(frame: &ReceiverFrame) {
    if let ReceiverContent::Accept(accept) = &frame.content {
        let mut reasons = accept.refused.iter().chain(&accept.postponed);
        assert!(reasons.all(|(_, reason)| reason.len() <= MAX_TEXT));
    }
}
