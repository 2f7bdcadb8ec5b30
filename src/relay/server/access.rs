//! Who may call: authenticates requests, and holds the rules, the audit log and the counts.
//!
//! One for each server, below gRPC and the admin port. Without a file of rules every caller may do
//! everything, which suits a relay on loopback. The files are read again every ten seconds, and at
//! once on request; a file that breaks a rule leaves in use what it said before.
//!
//! `Call::of` has the served calls: their form, what their callers need, and the most bytes of a request.

pub(super) mod callers;
pub(super) mod local_calls;
pub(super) mod requester;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
};

use http::{Extensions, HeaderMap};
use tonic::Status;

pub use self::callers::AccessFiles;
use self::{
    callers::{Callers, authorization},
    requester::Requester,
};
#[cfg(feature = "keda")]
use super::http2::activity::Activity;
use super::http2::{body::UNKNOWN_BYTES, tls::Peer};
use crate::{
    base::{sync::lock, task::blocking},
    console::{Admission, Metrics, Refusal, metric_table},
    error::Result,
    relay::auth::{Action, AuditLog, Target},
    types::Limits,
    wire::from_status,
};

/// The access control of a server. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access(Option<Arc<Callers>>);

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

impl Access {
    /// Reads the files, where there are some.
    ///
    /// # Errors
    /// `Invalid`, `NotFound` or `Unavailable`, with the file and the rule that it breaks.
    pub(crate) fn load(files: Option<&AccessFiles>) -> Result<Self> {
        Ok(Self(files.map(Callers::load).transpose()?.map(Arc::new)))
    }

    /// Returns whether callers must be known.
    pub(crate) fn is_controlled(&self) -> bool {
        self.0.is_some()
    }

    /// Reads the files again, and opens the audit log again by its path. Returns whether the files
    /// have changed.
    ///
    /// # Errors
    /// As [`Access::load`]; what those files said before stays in use.
    pub(crate) async fn reload(&self) -> Result<bool> {
        let Some(state) = self.0.clone() else {
            return Ok(false);
        };
        state.reopen_audit_log();
        blocking(move || state.reload()).await?
    }

    /// Records in the audit log what the operator did on the relay's machine.
    pub(crate) fn record_own(&self, action: &str, why: &str) {
        if let Some(state) = &self.0 {
            state.record_own(action, "relay", true, why);
        }
    }

    /// Reads the files again, where there are some; a failure is logged.
    pub(crate) async fn refresh(&self) {
        let Some(state) = self.0.clone() else {
            return;
        };
        if let Ok(Err(error)) = blocking(move || state.reload()).await {
            // A revocation may wait for it.
            tracing::error!(%error, "what the files of access said before stays in use");
        }
    }

    /// Returns why what a file said before is in use.
    pub(crate) fn stale(&self) -> Option<String> {
        self.0.as_ref()?.stale()
    }

    /// Adds the metrics of refused callers; without access control they are 0.
    pub(crate) fn add_metrics(&self, all: &mut Metrics) {
        let of = |count: fn(&Callers) -> u64| self.0.as_deref().map_or(0, count);
        all.gauges.extend(metric_table! {
            access_rules_stale = u64::from(self.stale().is_some()),
                "1 while a file of access cannot be read, and what it said before is in use";
        });
        all.counters.extend(metric_table! {
            requests_unauthenticated = of(|callers| callers.unauthenticated.load(Relaxed)),
                "Requests refused for their credential";
            requests_denied = of(|callers| callers.denied.load(Relaxed)),
                "Requests refused because no rule allows them to their caller";
            requests_over_quota = of(|callers| callers.over_quota.load(Relaxed)),
                "Requests refused at a limit of their principal";
            audit_lines_lost = of(|callers| callers.audit.as_ref().map_or(0, AuditLog::lost)),
                "Lines of the audit log lost because the disk did not take them";
        });
    }

    /// Checks the caller of a gRPC request, and that it has the right to the call at all. The
    /// service checks the queues and the flags. Returns `None` where no caller needs to be known. `last` is
    /// the caller of the connection's last request: most connections have one caller only, whose next
    /// request is then recognised without a look into the table of all callers.
    ///
    /// # Errors
    /// The answer to a caller that is not admitted.
    pub(super) fn admit(
        &self,
        path: &str,
        call: Call,
        headers: &HeaderMap,
        peer: &Arc<Peer>,
        last: &Mutex<Option<Requester>>,
    ) -> std::result::Result<Option<Requester>, Status> {
        let Some(state) = &self.0 else {
            return Ok(None);
        };
        if call.right == Right::Anyone {
            return Ok(None);
        }
        let sent_it =
            |known: &Requester| authorization(headers).is_ok_and(|of| known.is_current(of));
        let known = lock(last).clone();
        let requester = match known.filter(sent_it) {
            Some(requester) => requester,
            None => {
                let caller = state.authenticate(headers, peer, path)?;
                let requester = Requester::new(Arc::clone(state), caller, Arc::clone(peer));
                *lock(last) = Some(requester.clone());
                requester
            }
        };
        match call.right {
            Right::Relay(action) => requester.check(action, Target::Relay)?,
            Right::Some(action) => requester.check_some(action)?,
            Right::Known | Right::Anyone => {}
            Right::Unknown => return Err(requester.deny_call(path)),
        }
        Ok(Some(requester))
    }

    /// Returns the caller of a request that may state its token in itself, in place of a header.
    ///
    /// # Errors
    /// The answer to a caller that is not known, or that is at a limit.
    #[cfg(feature = "keda")]
    pub(super) fn requester_of(
        &self,
        connection: &Activity,
        headers: &HeaderMap,
        token: Option<&str>,
    ) -> std::result::Result<Requester, Status> {
        let Some(state) = &self.0 else {
            return Ok(Requester::anyone());
        };
        let mut headers = headers.clone();
        if let Some(token) = token {
            let value = http::HeaderValue::try_from(format!("Bearer {token}"));
            let value = value.map_err(|_| Status::invalid_argument("token: is malformed"))?;
            headers.insert(http::header::AUTHORIZATION, value);
        }
        let peer = &connection.peer;
        let caller = state.authenticate(&headers, peer, "scaler")?;
        let requester = Requester::new(Arc::clone(state), caller, Arc::clone(peer));
        connection.admit(&requester)?;
        Ok(requester)
    }

    /// Returns the principal of a caller, which is empty where no caller needs to be known.
    ///
    /// # Errors
    /// As [`Access::admit`].
    pub(super) fn principal(
        &self,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> std::result::Result<String, Status> {
        let Some(state) = &self.0 else {
            return Ok(String::new());
        };
        let caller = state.authenticate(headers, peer, "console")?;
        Ok(caller.principal().to_string())
    }

    /// Returns the check of requests to the admin port; `None` without access control.
    pub(crate) fn admission(&self) -> Option<Admission> {
        let this = self.clone();
        self.is_controlled().then(|| -> Admission {
            Arc::new(move |path, headers, peer| this.admit_admin(path, headers, peer))
        })
    }

    fn admit_admin(
        &self,
        route: &str,
        headers: &HeaderMap,
        peer: SocketAddr,
    ) -> std::result::Result<(), Refusal> {
        let Some(state) = &self.0 else {
            return Ok(());
        };
        let peer = Arc::new(Peer::of_admin_port(peer));
        let caller = state.authenticate(headers, &peer, route);
        let caller = caller.map_err(|status| {
            let text = status.message().to_owned();
            match from_status(status).retry_after() {
                Some(after) => Refusal::Later(text, after),
                None => Refusal::Unknown(text),
            }
        })?;
        let requester = Requester::new(Arc::clone(state), caller, peer);
        let checked = requester.check(Action::Admin, Target::Relay);
        checked.map_err(|error| Refusal::Denied(error.to_string()))
    }

    /// Returns the caller of a request that [`Access::admit`] has admitted.
    ///
    /// # Errors
    /// A request that was not admitted: a mistake of this server, which must not be a right.
    pub(super) fn requester(
        &self,
        extensions: &Extensions,
    ) -> std::result::Result<Requester, Status> {
        match (&self.0, extensions.get::<Requester>()) {
            (None, _) => Ok(Requester::anyone()),
            (Some(_), Some(requester)) => Ok(requester.clone()),
            (Some(_), None) => Err(Status::internal("the request has no caller")),
        }
    }
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
