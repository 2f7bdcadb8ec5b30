//! The calls that are served, by their paths: how large a request may be, and how it comes.

use crate::words::Limits;

/// A call's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// One request, one answer.
    Unary,
    /// One request, answers for as long as the stream is open.
    ServerStream,
    /// Requests and answers for as long as the stream is open; the service ends it at a drain.
    NotifyStream,
    /// As that, but the service knows of no drain.
    OtherStream,
}

/// What is known of a call before its request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) kind: CallKind,
    /// The greatest size of a request, as the codec has it by type.
    pub(super) limit: usize,
    /// Whether the answer is a page of a list, which may be large.
    pub(super) lists: bool,
}

impl CallKind {
    /// Returns whether the peer may send any number of requests, at any time.
    pub(super) fn takes_many(self) -> bool {
        matches!(self, Self::NotifyStream | Self::OtherStream)
    }
}

impl Call {
    /// Returns what is known of the call with this path.
    pub(super) fn of(path: &str) -> Self {
        use CallKind::{NotifyStream, OtherStream, ServerStream, Unary};
        let (kind, limit) = match path {
            "/reveille.v1.Relay/Notify" => (Unary, Limits::NOTIFY_BYTES),
            "/reveille.v1.Relay/NotifyStream" => (NotifyStream, Limits::NOTIFY_BYTES),
            "/reveille.v1.Relay/Subscribe" => (ServerStream, Limits::SUBSCRIBE_BYTES),
            "/reveille.v1.Flags/WatchFlag"
            | "/reveille.v1.Admin/WatchStats"
            | "/grpc.health.v1.Health/Watch" => (ServerStream, Limits::REQUEST_BYTES),
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                (OtherStream, Limits::REQUEST_BYTES)
            }
            _ => (Unary, Limits::REQUEST_BYTES),
        };
        let lists = matches!(
            path,
            "/reveille.v1.Admin/ListListeners"
                | "/reveille.v1.Admin/ListQueues"
                | "/reveille.v1.Flags/ListFlags"
                | "/reveille.v1.Flags/ListFlagWatchers"
        );
        Self { kind, limit, lists }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::wire::proto;

    /// Every method of every service that reflection tells of, with its two streaming marks.
    fn methods() -> Vec<(String, bool, bool)> {
        let mut found = Vec::new();
        for descriptors in [
            proto::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
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
    fn every_list_is_known_as_one() {
        for (path, ..) in methods() {
            let is_list = path
                .rsplit('/')
                .next()
                .is_some_and(|name| name.starts_with("List"));
            assert_eq!(Call::of(&path).lists, is_list, "{path}");
        }
    }

    #[test]
    fn every_streaming_call_is_known_as_one() {
        let methods = methods();
        assert!(methods.len() > 15, "{methods:?}");
        for (path, from_client, from_server) in methods {
            let kind = Call::of(&path).kind;
            assert_eq!(kind.takes_many(), from_client, "{path}");
            assert_eq!(
                kind == CallKind::Unary,
                !from_client && !from_server,
                "{path}"
            );
        }
    }
}
