//! The served calls by path: form, and what their callers need.

use crate::relay::auth::Action;

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
    /// The answer is a page of a list, or a history: it may be large.
    pub(crate) is_list: bool,
    /// A call of the store is made for it.
    pub(crate) uses_store: bool,
    /// Reflection, whose service knows no caller: its stream is ended here.
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
    pub(super) fn is_checked_later(self) -> bool {
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
        let is_reflection = path.starts_with("/grpc.reflection.");
        let kind = match path {
            "/reveille.v1.Relay/Subscribe"
            | "/reveille.v1.Flags/WatchFlag"
            | "/reveille.v1.Admin/WatchStats"
            | "/externalscaler.ExternalScaler/StreamIsActive"
            | "/externalscaler.ExternalScaler/StreamMetricSpec"
            | "/grpc.health.v1.Health/Watch" => CallKind::ServerStream,
            "/reveille.v1.Relay/NotifyStream" | "/reveille.v1.Courier/HandOver" => {
                CallKind::ClientStream
            }
            _ if is_reflection => CallKind::ClientStream,
            _ => CallKind::Unary,
        };
        let is_list = matches!(
            path,
            "/reveille.v1.Admin/ListListeners"
                | "/reveille.v1.Admin/ListQueues"
                | "/reveille.v1.Admin/ListRelays"
                | "/reveille.v1.Admin/GetHistory"
                | "/reveille.v1.Admin/GetStore"
                | "/reveille.v1.Admin/Explain"
                | "/reveille.v1.Flags/ListFlags"
                | "/reveille.v1.Flags/ListFlagWatchers"
        );
        let uses_store = matches!(
            path,
            "/reveille.v1.Flags/Unleash"
                | "/reveille.v1.Flags/Leash"
                | "/reveille.v1.Flags/GetFlag"
                | "/reveille.v1.Admin/GetStore"
        );
        Self {
            kind,
            is_list,
            uses_store,
            is_reflection,
        }
    }
}

impl Call {
    /// Returns what a caller needs for the call with this path; `None` for an unknown call, which is
    /// refused.
    pub(crate) fn right(path: &str) -> Option<Right> {
        Some(match path {
            "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch" => Right::Anyone,
            "/reveille.v1.Relay/Notify" | "/reveille.v1.Relay/NotifyStream" => {
                Right::Some(Action::Notify)
            }
            "/reveille.v1.Relay/Subscribe" => Right::Some(Action::Subscribe),
            "/reveille.v1.Relay/Report" => Right::Some(Action::Report),
            "/reveille.v1.Flags/Unleash" | "/reveille.v1.Flags/Leash" => {
                Right::Some(Action::Unleash)
            }
            "/reveille.v1.Flags/GetFlag"
            | "/reveille.v1.Flags/WatchFlag"
            | "/reveille.v1.Flags/AckFlag" => Right::Some(Action::Watch),
            "/reveille.v1.Flags/ListFlags"
            | "/reveille.v1.Flags/ListFlagWatchers"
            | "/reveille.v1.Admin/ListListeners"
            | "/reveille.v1.Admin/ListQueues"
            | "/reveille.v1.Admin/OpenConsole"
            | "/reveille.v1.Admin/Explain"
            | "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Right::Known,
            "/reveille.v1.Admin/ListRelays"
            | "/reveille.v1.Admin/WatchStats"
            | "/reveille.v1.Admin/GetHistory"
            | "/reveille.v1.Admin/GetStore"
            | "/reveille.v1.Admin/Drain" => Right::Relay(Action::Admin),
            "/reveille.v1.Courier/HandOver" => Right::Some(Action::HandOver),
            // A newer KEDA does without `StreamMetricSpec`, which is not implemented.
            #[cfg(feature = "keda")]
            "/externalscaler.ExternalScaler/IsActive"
            | "/externalscaler.ExternalScaler/StreamMetricSpec"
            | "/externalscaler.ExternalScaler/StreamIsActive"
            | "/externalscaler.ExternalScaler/GetMetricSpec"
            | "/externalscaler.ExternalScaler/GetMetrics" => Right::Stated,
            _ => return None,
        })
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
            assert!(Call::right(&path).is_some(), "{path} has no rule");
        }
        assert_eq!(Call::right("/reveille.v1.Relay/Unknown"), None);
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
