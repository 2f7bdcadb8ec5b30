//! The protocol's names, numbers and types, against what `build.rs` compiled.
//!
//! The tables are the contract: whoever changes a number here breaks every client that is out there.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

/// Message, then `number name type` of each field; `*` is repeated, `?` of the oneof.
const MESSAGES: &str = "
WorkDetected: 1 storage_account string, 2 queue_name string, 3 payload_size uint64, 4 sequence uint64, 5 notifications uint64, 6 reason WakeReason, 7 publisher string, 8 published_at Timestamp, 9 delay Duration, 10 traceparent string, 12 messages uint64
NotifyRequest: 1 events WorkDetected*, 2 publisher string, 3 counted Counted*
Counted: 1 epoch string, 2 position uint64
NotifyResponse: 1 results EventResult*, 2 error Error, 3 counted Counted
EventResult: 1 sequence uint64, 2 listeners uint32, 3 error Error
Error: 1 code int32, 2 message string, 3 retry_after Duration
SubscribeRequest: 1 listener_id string, 2 selectors Selector*, 3 group string, 4 capacity uint32, 5 visibility_timeout Duration, 6 heartbeat Duration, 7 resume bytes, 8 agent bool
Selector: 1 storage_account string, 2 queue_name string
SubscribeResponse: 1 welcome Welcome?, 2 wake Wake?, 3 heartbeat Heartbeat?, 4 goodbye Goodbye?
Welcome: 1 relay_id string, 2 epoch string, 3 subscription_id string, 4 heartbeat Duration, 5 degraded bool, 6 version string
Wake: 1 work WorkDetected*
Heartbeat: 1 degraded bool, 2 resume bytes
Goodbye: 1 reason Reason, 2 reconnect_after Duration
ReportRequest: 1 subscription_id string, 2 storage_account string, 3 queue_name string, 4 state ReportState, 5 sequence uint64, 6 number uint64, 7 visible_in Duration, 8 current_queue_depth uint64, 9 active_dequeue_tasks uint32, 10 total_dequeue_tasks uint32, 12 mean_wake_latency Duration, 13 depth_age Duration, 14 busy_for Duration, 15 capacity uint32?
ReportResponse:
Flag: 1 name string, 2 set bool, 3 generation uint64, 4 set_by string, 5 reason string, 6 set_at Timestamp, 7 expires_at Timestamp
UnleashRequest: 1 flag string, 2 ttl Duration, 3 set_by string, 4 reason string
UnleashResponse: 1 flag Flag, 2 watchers uint32
LeashRequest: 1 flag string, 2 cleared_by string, 3 reason string
LeashResponse: 1 flag Flag
GetFlagRequest: 1 flag string
GetFlagResponse: 1 flag Flag
ListFlagsRequest: 1 prefix string, 2 page_size uint32, 3 page_token string
ListFlagsResponse: 1 flags Flag*, 2 next_page_token string
WatchFlagRequest: 1 flag string, 2 listener_id string, 3 heartbeat Duration, 4 acks bool
WatchFlagResponse: 1 flag Flag?, 2 heartbeat Heartbeat?, 3 goodbye Goodbye?, 4 acks Acks?
Acks: 1 generation uint64, 2 acknowledged uint32, 3 watchers uint32
ListFlagWatchersRequest: 1 flag string, 2 page_size uint32, 3 page_token string
ListFlagWatchersResponse: 1 watchers FlagWatcher*, 2 next_page_token string, 3 unanswered_relays string*
FlagWatcher: 1 flag string, 2 listener_id string, 3 streams uint32, 4 since Duration, 5 acknowledged bool
AckFlagRequest: 1 flag string, 2 generation uint64, 3 listener_id string
AckFlagResponse:
HandOverRequest: 1 number uint64, 2 hello HandOverHello?, 3 offer HandOverOffer?
HandOverResponse: 1 number uint64, 2 welcome HandOverWelcome?, 3 accept HandOverAccept?
HandOverHello: 1 version uint32, 2 sender bytes, 3 authority string
HandOverWelcome: 1 receiver bytes, 2 held bytes*
HandOverOffer: 1 messages OfferedMessage*
OfferedMessage: 1 id bytes, 2 authority string, 3 queue string, 4 visited bytes, 5 body bytes, 6 checksum fixed32
HandOverAccept: 1 verdicts HandOverVerdict*
HandOverVerdict: 1 refused string?, 2 postponed string?
";

const ENUMS: &str = "
WakeReason: 0 WAKE_REASON_UNSPECIFIED, 1 WAKE_REASON_NOTIFIED, 2 WAKE_REASON_CATCH_UP, 3 WAKE_REASON_SENTINEL, 4 WAKE_REASON_TIMED, 5 WAKE_REASON_REASSIGNED
ReportState: 0 REPORT_STATE_UNSPECIFIED, 1 REPORT_STATE_BUSY, 2 REPORT_STATE_DRAINED
Goodbye.Reason: 0 UNSPECIFIED, 1 DRAINING, 2 ROTATION, 4 REVOKED
RelayState: 0 RELAY_STATE_UNSPECIFIED, 1 RELAY_STATE_SELF, 2 RELAY_STATE_PRESENT, 3 RELAY_STATE_MISSING, 4 RELAY_STATE_LEFT
QueueOrder: 0 QUEUE_ORDER_UNSPECIFIED, 1 QUEUE_ORDER_RATE, 2 QUEUE_ORDER_BACKLOG, 3 QUEUE_ORDER_IDLE, 4 QUEUE_ORDER_LISTENERS
FindingKind: 0 FINDING_KIND_UNSPECIFIED, 1 FINDING_KIND_NO_LISTENER, 2 FINDING_KIND_AT_CAPACITY, 3 FINDING_KIND_SILENT, 4 FINDING_KIND_GONE, 5 FINDING_KIND_BUSY, 6 FINDING_KIND_FULL, 7 FINDING_KIND_DRAINING, 8 FINDING_KIND_CUT_OFF, 9 FINDING_KIND_STORE, 10 FINDING_KIND_POLLING, 11 FINDING_KIND_RELAY_MISSING
DecisionKind: 0 DECISION_KIND_UNSPECIFIED, 1 DECISION_KIND_NOTIFIED, 2 DECISION_KIND_WOKEN, 3 DECISION_KIND_STOOD_ASIDE, 4 DECISION_KIND_REASSIGNED, 5 DECISION_KIND_CHECKED, 6 DECISION_KIND_BUSY, 7 DECISION_KIND_EMPTY, 8 DECISION_KIND_JOINED, 9 DECISION_KIND_LEFT
";

/// Service and method; `<` and `>` stream requests and answers.
const METHODS: &str = "
Relay: Notify, NotifyStream <>, Subscribe >, Report
Flags: Unleash, Leash, GetFlag, ListFlags, WatchFlag >, ListFlagWatchers, AckFlag
Courier: HandOver <>
Admin: ListListeners, ListQueues, ListRelays, WatchStats >, GetHistory, Explain, OpenConsole, Drain
";

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(super::proto::DESCRIPTORS).expect("what build.rs wrote")
}

/// Reads a table's lines as name and entries.
fn table(text: &str) -> BTreeMap<String, Vec<String>> {
    let line = |line: &str| {
        let (name, entries) = line.split_once(':').expect("a name and its entries");
        let entries = entries.split(',').map(|entry| entry.trim().to_owned());
        let entries = entries.filter(|entry| !entry.is_empty()).collect();
        (name.to_owned(), entries)
    };
    text.trim().lines().map(line).collect()
}

fn kind(field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::String => "string",
        Type::Bytes => "bytes",
        Type::Bool => "bool",
        Type::Int32 => "int32",
        Type::Uint32 => "uint32",
        Type::Uint64 => "uint64",
        Type::Fixed32 => "fixed32",
        _ => field.type_name().rsplit('.').next().expect("a name"),
    };
    let mark = match (field.label(), field.oneof_index) {
        (Label::Repeated, _) => "*",
        (_, Some(_)) => "?",
        _ => "",
    };
    format!("{name}{mark}")
}

fn fields(message: &DescriptorProto) -> Vec<String> {
    let line = |field: &FieldDescriptorProto| {
        format!("{} {} {}", field.number(), field.name(), kind(field))
    };
    message.field.iter().map(line).collect()
}

fn numbers(values: &[prost_types::EnumValueDescriptorProto]) -> Vec<String> {
    let line = |value: &prost_types::EnumValueDescriptorProto| {
        format!("{} {}", value.number(), value.name())
    };
    values.iter().map(line).collect()
}

#[test]
fn messages_are_numbered_as_the_protocol_says() {
    let mut compiled = BTreeMap::new();
    for file in descriptors().file {
        if file.package() == "reveille.v1" && !file.name().ends_with("admin.proto") {
            for message in &file.message_type {
                compiled.insert(message.name().to_owned(), fields(message));
            }
        }
    }
    assert_eq!(compiled, table(MESSAGES));
}

#[test]
fn enums_are_numbered_as_the_protocol_says() {
    let mut compiled = BTreeMap::new();
    for file in descriptors().file {
        if file.package() != "reveille.v1" {
            continue;
        }
        for kind in &file.enum_type {
            compiled.insert(kind.name().to_owned(), numbers(&kind.value));
        }
        for message in &file.message_type {
            for kind in &message.enum_type {
                let name = format!("{}.{}", message.name(), kind.name());
                compiled.insert(name, numbers(&kind.value));
            }
        }
    }
    assert_eq!(compiled, table(ENUMS));
}

#[test]
fn services_have_the_protocols_methods() {
    let mut compiled = BTreeMap::new();
    for file in descriptors().file {
        for service in file.service {
            let methods = service.method.iter().map(|method| {
                let client = if method.client_streaming() { "<" } else { "" };
                let server = if method.server_streaming() { ">" } else { "" };
                format!("{} {client}{server}", method.name())
                    .trim()
                    .to_owned()
            });
            compiled.insert(service.name().to_owned(), methods.collect());
        }
    }
    assert_eq!(compiled, table(METHODS));
}
