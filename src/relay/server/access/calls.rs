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
    /// `None` for an unknown call, which is refused.
    pub(crate) right: Option<Right>,
    /// The most bytes of a request.
    pub(crate) most: usize,
    /// The answer is a page of a list, or a history: it may be large.
    pub(crate) is_list: bool,
    /// Reflection, whose service knows no caller: its stream ends after a time.
    pub(crate) is_reflection: bool,
}

/// What a caller needs for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing: probes of balancers and orchestrators are not known to the relay.
    Anyone,
    /// To be known by what the request states: the service checks it.
    #[cfg(feature = "keda")]
    Stated,
    /// To be known. The answer has only what the caller may see.
    Known,
    /// The action on some queue or flag. The service checks those of the request.
    Some(Action),
    /// The action on the relay.
    Relay(Action),
}

impl Right {
    /// Returns whether the caller needs not be known before the service has the request.
    pub(crate) fn is_checked_later(self) -> bool {
        match self {
            Self::Anyone => true,
            #[cfg(feature = "keda")]
            Self::Stated => true,
            Self::Known | Self::Some(_) | Self::Relay(_) => false,
        }
    }
}

impl Call {
    /// Returns the properties of the call with this path.
    pub(crate) fn of(path: &str) -> Self {
        use Action::{Admin, HandOver, Notify, Report, Subscribe, Unleash, Watch};
        match path {
            "/reveille.v1.Relay/Notify" => {
                Self::unary(Right::Some(Notify)).up_to(Limits::NOTIFY_BYTES)
            }
            "/reveille.v1.Relay/NotifyStream" => {
                Self::client_stream(Right::Some(Notify)).up_to(Limits::NOTIFY_BYTES)
            }
            "/reveille.v1.Relay/Subscribe" => {
                Self::server_stream(Right::Some(Subscribe)).up_to(Limits::SUBSCRIBE_BYTES)
            }
            "/reveille.v1.Relay/Report" => Self::unary(Right::Some(Report)),
            "/reveille.v1.Courier/HandOver" => {
                Self::client_stream(Right::Some(HandOver)).up_to(Limits::HAND_OVER_BYTES)
            }
            "/reveille.v1.Flags/Unleash" | "/reveille.v1.Flags/Leash" => {
                Self::unary(Right::Some(Unleash))
            }
            "/reveille.v1.Flags/GetFlag" | "/reveille.v1.Flags/AckFlag" => {
                Self::unary(Right::Some(Watch))
            }
            "/reveille.v1.Flags/WatchFlag" => Self::server_stream(Right::Some(Watch)),
            "/reveille.v1.Admin/OpenConsole" => Self::unary(Right::Known),
            "/reveille.v1.Flags/ListFlags"
            | "/reveille.v1.Flags/ListFlagWatchers"
            | "/reveille.v1.Admin/ListListeners"
            | "/reveille.v1.Admin/ListQueues"
            | "/reveille.v1.Admin/Explain" => Self::unary(Right::Known).list(),
            "/reveille.v1.Admin/ListRelays"
            | "/reveille.v1.Admin/GetHistory"
            | "/reveille.v1.Admin/GetStore" => Self::unary(Right::Relay(Admin)).list(),
            "/reveille.v1.Admin/WatchStats" => Self::server_stream(Right::Relay(Admin)),
            "/reveille.v1.Admin/Drain" => Self::unary(Right::Relay(Admin)),
            "/grpc.health.v1.Health/Check" => Self::unary(Right::Anyone).up_to(UNKNOWN_BYTES),
            "/grpc.health.v1.Health/Watch" => {
                Self::server_stream(Right::Anyone).up_to(UNKNOWN_BYTES)
            }
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Self {
                is_reflection: true,
                ..Self::client_stream(Right::Known)
            },
            #[cfg(feature = "keda")]
            "/externalscaler.ExternalScaler/IsActive"
            | "/externalscaler.ExternalScaler/GetMetricSpec"
            | "/externalscaler.ExternalScaler/GetMetrics" => {
                Self::unary(Right::Stated).up_to(UNKNOWN_BYTES)
            }
            // A newer KEDA does without `StreamMetricSpec`, which is not implemented.
            #[cfg(feature = "keda")]
            "/externalscaler.ExternalScaler/StreamIsActive"
            | "/externalscaler.ExternalScaler/StreamMetricSpec" => {
                Self::server_stream(Right::Stated).up_to(UNKNOWN_BYTES)
            }
            _ => Self::new(CallKind::Unary, None),
        }
    }

    fn new(kind: CallKind, right: Option<Right>) -> Self {
        Self {
            kind,
            right,
            most: Limits::REQUEST_BYTES,
            is_list: false,
            is_reflection: false,
        }
    }

    fn unary(right: Right) -> Self {
        Self::new(CallKind::Unary, Some(right))
    }

    fn server_stream(right: Right) -> Self {
        Self::new(CallKind::ServerStream, Some(right))
    }

    fn client_stream(right: Right) -> Self {
        Self::new(CallKind::ClientStream, Some(right))
    }

    fn up_to(self, most: usize) -> Self {
        Self { most, ..self }
    }

    fn list(self) -> Self {
        Self {
            is_list: true,
            ..self
        }
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
            assert!(Call::of(&path).right.is_some(), "{path} has no rule");
        }
        assert_eq!(Call::of("/reveille.v1.Relay/Unknown").right, None);
    }

    #[test]
    fn requests_before_their_caller_is_known_are_small() {
        for (path, ..) in methods() {
            let call = Call::of(&path);
            let is_later = call.right.is_some_and(Right::is_checked_later);
            assert_eq!(is_later, call.most == UNKNOWN_BYTES, "{path}");
        }
    }

    #[test]
    fn every_list_is_known_as_one() {
        for (path, ..) in methods() {
            let is_list = path.rsplit('/').next().is_some_and(|name| {
                name.starts_with("List") || matches!(name, "Explain" | "GetHistory" | "GetStore")
            });
            assert_eq!(Call::of(&path).is_list, is_list, "{path}");
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
