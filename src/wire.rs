//! Generated messages, and their conversion to and from the shared types.
//!
//! Only this module, `server` and `client` know gRPC. Checks what the shared types do not enforce:
//! presence, ranges and signs. Never logs, never waits.

#[cfg(feature = "relay")]
mod cluster;
mod codec;
mod flags;
mod notify;
mod relay;
mod status;
mod time;

/// The code that `build.rs` generates from `proto/`.
#[allow(
    dead_code,
    missing_docs,
    unnameable_types,
    unreachable_pub,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    clippy::too_many_lines,
    reason = "generated code"
)]
pub(crate) mod proto {
    tonic::include_proto!("reveille.v1");
    include!(concat!(env!("OUT_DIR"), "/client/reveille.v1.rs"));

    pub(crate) use crate::wire::{NotifyRequest, SubscribeResponse};

    /// All of `proto/`, for reflection.
    pub(crate) const DESCRIPTORS: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/reveille.fds.bin"));

    /// KEDA's interface of external scalers.
    #[cfg(feature = "keda")]
    pub(crate) mod scaler {
        tonic::include_proto!("externalscaler");

        pub(crate) const DESCRIPTORS: &[u8] =
            include_bytes!(concat!(env!("OUT_DIR"), "/externalscaler.fds.bin"));
    }
}

#[cfg(feature = "keda")]
pub(crate) use proto::scaler;

/// Metadata of a health check's answer: why the server is not ready.
pub(crate) const NOT_READY: &str = "reveille-not-ready";

#[cfg(feature = "relay")]
pub(crate) use cluster::{
    ClusterContent, ClusterMessage, cluster_message_from_wire, cluster_message_to_wire,
    frame_entry_len, link, peer_failure, peer_reply_from_wire, peer_request_from_wire, peer_status,
    timer_to_wire, timers_from_wire,
};
pub(crate) use codec::ClientCodec;
#[cfg(feature = "relay")]
pub(crate) use codec::ServerCodec;
pub(crate) use flags::{flag_event, flag_from_wire, flag_to_wire};
pub(crate) use notify::{MOST_COUNTED, NotifyRequest, Refusals};
pub(crate) use relay::{
    EntryFields, Event as SubscribeResponseEvent, NotifyAnswer, SubscribeResponse,
    answer_from_wire, encode_entry, goodbye_to_wire, reason_to_wire, report_from_wire,
    report_to_wire, results_to_wire, selector_to_wire, subscribe_event, subscribe_event_to_wire,
    subscribe_from_wire, subscribe_to_wire,
};
pub(crate) use status::{error_to_wire, from_status, to_status};
pub(crate) use time::{checked_span, span_from_wire, span_to_wire};

#[cfg(test)]
mod tests;
