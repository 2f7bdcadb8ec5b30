//! Who may call: authenticates requests, and holds the rules, the audit log and the counts.
//!
//! One for each server, below gRPC and the admin port. Without a file of rules every caller may do
//! everything, which suits a relay on loopback. The files are read again every ten seconds, and at
//! once on request; a file that breaks a rule leaves in use what it said before.

pub(super) mod callers;
pub(super) mod calls;
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
    calls::{Call, Right},
    requester::Requester,
};
#[cfg(feature = "keda")]
use super::http2::activity::Activity;
use super::http2::tls::Peer;
use crate::{
    base::{sync::lock, task::blocking},
    console::{Admission, Metrics, Refusal, metric_table},
    error::Result,
    relay::auth::{Action, AuditLog, Target},
    wire::from_status,
};

/// The access control of a server. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access(Option<Arc<Callers>>);

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
