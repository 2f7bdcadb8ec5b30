//! The served calls: form, what their callers need, and the most bytes of a request.

use crate::{
    relay::{auth::Action, server::http2::body::UNKNOWN_BYTES},
    types::Limits,
};

/// A call's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// One request, one answer.
    Unary,
    /// One request, answers while the stream is open.
    ServerStream,
    /// Requests and answers while the stream is open.
    ClientStream,
}

/// A call's properties, known before its request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: CallKind,
    pub(crate) right: Right,
    /// The most bytes of a request.
    pub(crate) most: usize,
}

/// What a caller needs for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing before the service has the request: probes of balancers and orchestrators are not known to
    /// the relay, and KEDA may state its token in the request.
    Anyone,
    /// To be known. The answer has only what the caller may see.
    Known,
    /// The action on some queue or flag. The service checks those of the request.
    Some(Action),
    /// The action on the relay.
    Relay(Action),
    /// The call is unknown, and refused.
    Unknown,
}

impl Call {
    /// Returns the properties of the call with this path.
    pub(crate) fn of(path: &str) -> Self {
        use Action::{Admin, HandOver, Notify, Report, Subscribe, Unleash, Watch};
        use CallKind::{ClientStream, ServerStream, Unary};
        let (kind, right) = match path {
            "/reveille.v1.Relay/Notify" => (Unary, Right::Some(Notify)),
            "/reveille.v1.Relay/NotifyStream" => (ClientStream, Right::Some(Notify)),
            "/reveille.v1.Relay/Subscribe" => (ServerStream, Right::Some(Subscribe)),
            "/reveille.v1.Relay/Report" => (Unary, Right::Some(Report)),
            "/reveille.v1.Courier/HandOver" => (ClientStream, Right::Some(HandOver)),
            "/reveille.v1.Flags/Unleash" | "/reveille.v1.Flags/Leash" => {
                (Unary, Right::Some(Unleash))
            }
            "/reveille.v1.Flags/GetFlag" | "/reveille.v1.Flags/AckFlag" => {
                (Unary, Right::Some(Watch))
            }
            "/reveille.v1.Flags/WatchFlag" => (ServerStream, Right::Some(Watch)),
            "/reveille.v1.Flags/ListFlags"
            | "/reveille.v1.Flags/ListFlagWatchers"
            | "/reveille.v1.Admin/ListListeners"
            | "/reveille.v1.Admin/ListQueues"
            | "/reveille.v1.Admin/Explain"
            | "/reveille.v1.Admin/OpenConsole" => (Unary, Right::Known),
            "/reveille.v1.Admin/ListRelays"
            | "/reveille.v1.Admin/GetHistory"
            | "/reveille.v1.Admin/Drain" => (Unary, Right::Relay(Admin)),
            "/reveille.v1.Admin/WatchStats" => (ServerStream, Right::Relay(Admin)),
            "/grpc.health.v1.Health/Check" => (Unary, Right::Anyone),
            // Not implemented, as gRPC allows.
            "/grpc.health.v1.Health/Watch" => (ServerStream, Right::Anyone),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                (ClientStream, Right::Known)
            }
            #[cfg(feature = "keda")]
            "/externalscaler.ExternalScaler/IsActive"
            | "/externalscaler.ExternalScaler/GetMetricSpec"
            | "/externalscaler.ExternalScaler/GetMetrics" => (Unary, Right::Anyone),
            // A newer KEDA does without `StreamMetricSpec`, which is not implemented.
            #[cfg(feature = "keda")]
            "/externalscaler.ExternalScaler/StreamIsActive"
            | "/externalscaler.ExternalScaler/StreamMetricSpec" => (ServerStream, Right::Anyone),
            _ => (Unary, Right::Unknown),
        };
        let most = match right {
            Right::Some(Notify) => Limits::NOTIFY_BYTES,
            Right::Some(Subscribe) => Limits::SUBSCRIBE_BYTES,
            Right::Some(HandOver) => Limits::HAND_OVER_BYTES,
            Right::Anyone => UNKNOWN_BYTES,
            _ => Limits::REQUEST_BYTES,
        };
        Self { kind, right, most }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::wire::proto;

    /// Every method of every service in the reflection data, with its two streaming flags.
    fn methods() -> Vec<(String, bool, bool)> {
        let mut found = Vec::new();
        for descriptors in [
            proto::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
            #[cfg(feature = "keda")]
            crate::wire::scaler::DESCRIPTORS,
        ] {
            let files = prost_types::FileDescriptorSet::decode(descriptors).expect("descriptors");
            for file in &files.file {
                for service in &file.service {
                    for method in &service.method {
                        let (package, service) = (file.package(), service.name());
                        let path = format!("/{package}.{service}/{}", method.name());
                        found.push((path, method.client_streaming(), method.server_streaming()));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn every_call_has_a_rule_of_access() {
        for (path, ..) in methods() {
            assert_ne!(Call::of(&path).right, Right::Unknown, "{path} has no rule");
        }
        let unknown = Call::of("/reveille.v1.Relay/Unknown");
        assert_eq!(unknown.right, Right::Unknown);
    }

    #[test]
    fn requests_before_their_caller_is_known_are_small() {
        for (path, ..) in methods() {
            let call = Call::of(&path);
            let is_later = call.right == Right::Anyone;
            assert_eq!(is_later, call.most == UNKNOWN_BYTES, "{path}");
        }
    }

    #[test]
    fn every_streaming_call_is_known_as_one() {
        let methods = methods();
        assert!(methods.len() > 15, "{methods:?}");
        for (path, from_client, from_server) in methods {
            let kind = Call::of(&path).kind;
            assert_eq!(kind == CallKind::ClientStream, from_client, "{path}");
            assert_eq!(
                kind == CallKind::Unary,
                !from_client && !from_server,
                "{path}"
            );
        }
    }
}
