//! The caller of a request: what it may do, and whether it may still do it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};
use tonic::Status;

use super::callers::Callers;
#[cfg(feature = "courier")]
use crate::courier::SenderRights;
use crate::{
    base::{backoff::about, clock::wall},
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, AuditEvent, Caller, Grants, Resource, Share, Target},
        hub::CursorPool,
        server::http2::tls::Peer,
    },
    types::{FlagName, Goodbye, GoodbyeReason, QueueAddress, Selector},
};

/// The caller of a request. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Requester(Option<Arc<Known>>);

#[derive(Debug)]
struct Known {
    access: Arc<Callers>,
    caller: Caller,
    peer: Arc<Peer>,
}

/// What a stream needs to go on.
#[derive(Debug)]
pub(crate) enum Needs {
    /// The action on each of these.
    Queues(Action, Vec<Selector>),
    /// To watch the flag.
    Flag(FlagName),
    /// The action on some queue; each request is checked.
    Some(Action),
    /// The action on the relay.
    Relay(Action),
}

/// Ends a stream whose caller may no longer have it.
#[derive(Debug)]
pub(crate) struct StreamGuard {
    known: Arc<Known>,
    needs: Needs,
    timer: Pin<Box<Sleep>>,
}

/// What a sender needs for messages that pass through to other machines.
#[cfg(feature = "courier")]
const ALL_QUEUES: &str = "*/*";
/// Interval between two checks of a stream's caller; a stream ends within 60 s of a revocation,
/// which the relay reads within 10 s.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// Reconnections after a revocation are spread over this span.
const RECONNECT_SPREAD: Duration = Duration::from_secs(1);

impl Requester {
    /// One of them on a queue is needed to see the queue.
    pub(crate) const OF_QUEUES: [Action; 3] = [Action::Subscribe, Action::Notify, Action::Report];

    pub(crate) fn new(access: Arc<Callers>, caller: Caller, peer: Arc<Peer>) -> Self {
        Self(Some(Arc::new(Known {
            access,
            caller,
            peer,
        })))
    }

    /// Returns the caller of a relay without access control, which may do everything.
    pub(crate) fn anyone() -> Self {
        Self(None)
    }

    /// Returns what the caller may do; `None`: everything.
    fn grants(&self) -> Option<&Grants> {
        self.0.as_ref().map(|known| &**known.caller.grants())
    }

    /// Returns whether a request with this header on the same connection has this caller, with the
    /// rules in use.
    pub(super) fn is_current(&self, authorization: Option<&[u8]>) -> bool {
        self.0.as_ref().is_some_and(|known| {
            let names = &known.peer.certificate.names;
            let authenticator = &known.access.authenticator;
            authenticator.is_current(&known.caller, authorization, names, wall())
        })
    }

    /// Returns whether the caller may do this, for lists that leave out the rest.
    pub(crate) fn allows(&self, action: Action, target: Target<'_>) -> bool {
        let grants = self.grants();
        grants.is_none_or(|grants| grants.allows(action, target))
    }

    /// Returns whether the caller may see every queue and listener, so that a list skips none.
    pub(crate) fn sees_all(&self) -> bool {
        self.allows(Action::Admin, Target::Relay)
    }

    /// Returns whether the caller may see a queue: it may use it, or administer the relay.
    pub(crate) fn may_see(&self, queue: &QueueAddress) -> bool {
        Self::OF_QUEUES
            .iter()
            .any(|action| self.allows(*action, Target::Queue(queue)))
            || self.sees_all()
    }

    /// Returns the first address from `from` on that could be a queue which the caller may use; `None`
    /// where there is none.
    pub(crate) fn seek_queue(&self, from: &str) -> Option<String> {
        match self.grants() {
            Some(grants) if !self.sees_all() => grants.seek_queue(from),
            _ => Some(from.to_owned()),
        }
    }

    /// Checks that the caller may do this.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`], whether the target exists or not.
    pub(crate) fn check(&self, action: Action, target: Target<'_>) -> Result<()> {
        match &self.0 {
            Some(known) if !self.allows(action, target) => known.allows_now(action, target),
            _ => Ok(()),
        }
    }

    /// Returns whether the caller may do this on some target.
    pub(crate) fn may_some(&self, action: Action) -> bool {
        self.grants().is_none_or(|grants| grants.may_some(action))
    }

    /// Checks that the caller may do this on any target.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`].
    pub(super) fn check_some(&self, action: Action) -> Result<()> {
        match &self.0 {
            Some(known) if !self.may_some(action) => {
                let why = "no rule allows the action";
                Err(known.deny(action.as_str(), Target::Relay, "anything", why))
            }
            _ => Ok(()),
        }
    }

    /// Denies a call that no rule covers.
    #[cold]
    pub(super) fn deny_call(&self, path: &str) -> Status {
        const WHY: &str = "no rule covers this call";
        if let Some(known) = &self.0 {
            known.access.denied.fetch_add(1, Relaxed);
            known.record("call", path, false, WHY);
        }
        Status::permission_denied(WHY)
    }

    /// Checks that the caller may see a queue.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`], whether the queue exists or not.
    pub(crate) fn check_sees(&self, queue: &QueueAddress) -> Result<()> {
        match &self.0 {
            Some(known) if !self.may_see(queue) => {
                let why = "no rule allows an action on the queue";
                Err(known.deny("explain", Target::Queue(queue), queue, why))
            }
            _ => Ok(()),
        }
    }

    /// Records an action that was allowed and that operators want to trace.
    pub(crate) fn record(&self, action: &str, target: impl fmt::Display, why: &str) {
        if let Some(known) = &self.0 {
            known.record(action, target, true, why);
        }
    }

    /// Records that a recorded action has failed, or may have.
    pub(crate) fn record_failure(&self, action: &str, target: impl fmt::Display, error: &Error) {
        self.record(action, target, &format!("failed: {error}"));
    }

    /// Takes this many of a resource from the quota of the caller; `None` where nothing is counted.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] with the name of the limit.
    pub(crate) fn take(&self, resource: Resource, count: usize) -> Result<Option<Share>> {
        let Some(known) = &self.0 else {
            return Ok(None);
        };
        let quota = known.caller.grants().quota();
        let taken = known.caller.usage().take(resource, count, quota);
        taken.map(Some).inspect_err(|_| known.note_over_quota())
    }

    /// Takes this many notifications from the rate of the caller.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`] with the time after which they would be within the rate.
    pub(crate) fn take_notifications(&self, count: usize) -> Result<()> {
        let Some(known) = &self.0 else {
            return Ok(());
        };
        let (quota, now) = (known.caller.grants().quota(), known.access.now());
        let taken = known.caller.usage().take_notifications(count, quota, now);
        taken.inspect_err(|_| known.note_over_quota())
    }

    /// Returns the caller as the sender of messages to the queues of an account.
    #[cfg(feature = "courier")]
    pub(crate) fn sender(&self, account: &str) -> SenderRights {
        let Some(known) = &self.0 else {
            return SenderRights::default();
        };
        let (requester, account) = (self.clone(), account.to_owned());
        let may = move |target: Target<'_>| requester.check(Action::HandOver, target).is_ok();
        let may_send = move |queue: Option<&str>| match queue {
            Some(queue) => {
                QueueAddress::new(&account, queue).is_ok_and(|address| may(Target::Queue(&address)))
            }
            None => ALL_QUEUES
                .parse()
                .is_ok_and(|all| may(Target::Selector(&all))),
        };
        SenderRights {
            principal: Some(known.caller.principal().name().to_owned()),
            may_send: Some(Arc::new(may_send)),
        }
    }

    /// Returns the pool of the cursors of the caller; `None` where nothing is counted.
    pub(crate) fn cursor_pool(&self) -> Option<Arc<CursorPool>> {
        let known = self.0.as_ref()?;
        let quota = known.caller.grants().quota();
        Some(known.caller.usage().cursors(quota))
    }

    /// Returns the guard of a stream; `None` on a relay without access control.
    pub(crate) fn guard(&self, needs: impl FnOnce() -> Needs) -> Option<Box<StreamGuard>> {
        let known = Arc::clone(self.0.as_ref()?);
        let timer = Box::pin(tokio::time::sleep(known.check_after()));
        Some(Box::new(StreamGuard {
            known,
            needs: needs(),
            timer,
        }))
    }
}

impl Needs {
    /// Returns the action for the audit log.
    fn action(&self) -> &'static str {
        match self {
            Self::Queues(action, _) | Self::Some(action) | Self::Relay(action) => action.as_str(),
            Self::Flag(_) => Action::Watch.as_str(),
        }
    }

    fn are_met(&self, grants: &Grants) -> bool {
        match self {
            Self::Queues(action, selectors) => selectors
                .iter()
                .all(|selector| grants.allows(*action, Target::Selector(selector))),
            Self::Flag(flag) => grants.allows(Action::Watch, Target::Flag(flag)),
            Self::Some(action) => grants.may_some(*action),
            Self::Relay(action) => grants.allows(*action, Target::Relay),
        }
    }
}

impl StreamGuard {
    /// Returns the caller with its present rights.
    pub(crate) fn requester(&self) -> Requester {
        Requester(Some(Arc::clone(&self.known)))
    }

    /// Ready once the stream must end. Checks the caller from time to time.
    pub(crate) fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            std::task::ready!(self.timer.as_mut().poll(cx));
            match self.known.again(&self.needs) {
                Ok(known) => {
                    let next = Instant::now() + known.check_after();
                    self.known = Arc::new(known);
                    self.timer.as_mut().reset(next);
                }
                Err(why) => {
                    let ended = format!("the stream is ended: {why}");
                    self.known.record(self.needs.action(), "", false, &ended);
                    return Poll::Ready(());
                }
            }
        }
    }

    /// Waits until a stream with this guard must end. Cancel safe.
    pub(crate) async fn revoked(guard: &mut Option<Box<Self>>) {
        match guard {
            Some(guard) => std::future::poll_fn(|cx| guard.poll_revoked(cx)).await,
            None => std::future::pending().await,
        }
    }

    /// Returns the last message of such a stream.
    pub(crate) fn goodbye() -> Goodbye {
        let spread = crate::base::backoff::jitter(RECONNECT_SPREAD, &mut fastrand::Rng::new());
        Goodbye {
            reason: GoodbyeReason::Revoked,
            reconnect_after: spread,
        }
    }
}

impl Known {
    /// Returns the time until the next check: at the credential's end at the latest.
    fn check_after(&self) -> Duration {
        let interval = about(CHECK_INTERVAL, &mut fastrand::Rng::new());
        match self.caller.expires_at() {
            Some(end) => interval.min(end.duration_since(wall()).unwrap_or_default()),
            None => interval,
        }
    }

    /// Returns the caller with its present rights.
    ///
    /// # Errors
    /// Why the stream must end.
    fn again(&self, needs: &Needs) -> std::result::Result<Self, String> {
        let caller = self.access.authenticator.still_valid(&self.caller, wall());
        let caller = caller.map_err(|denial| denial.to_string())?;
        let is_same = Arc::ptr_eq(caller.grants(), self.caller.grants());
        if !is_same && !needs.are_met(caller.grants()) {
            return Err(format!("the rules allow `{}` no longer", needs.action()));
        }
        Ok(Self {
            access: Arc::clone(&self.access),
            caller,
            peer: Arc::clone(&self.peer),
        })
    }

    /// Checks the action by the rules in use. A stream may have those of its last check, and a
    /// notification that is denied by former rules would be lost.
    #[cold]
    fn allows_now(&self, action: Action, target: Target<'_>) -> Result<()> {
        let current = self.access.authenticator.still_valid(&self.caller, wall());
        match current {
            Ok(caller) if caller.grants().allows(action, target) => Ok(()),
            _ => {
                let principal = self.caller.principal();
                let verdict = self.caller.grants().verdict(principal, action, target);
                Err(self.deny(action.as_str(), target, target, &verdict.why))
            }
        }
    }

    /// Counts a denial, and records it in the audit log.
    #[cold]
    fn deny(
        &self,
        action: &'static str,
        recorded: Target<'_>,
        target: impl fmt::Display,
        why: &str,
    ) -> Error {
        let principal = self.caller.principal();
        self.access.denied.fetch_add(1, Relaxed);
        self.record(action, recorded, false, why);
        Error::new(
            ErrorKind::Denied,
            format!("`{principal}` may not {action} {target}"),
        )
    }

    #[cold]
    fn note_over_quota(&self) {
        self.access.over_quota.fetch_add(1, Relaxed);
    }

    fn record(&self, action: &str, target: impl fmt::Display, allowed: bool, why: &str) {
        self.access.record(&AuditEvent {
            at: wall(),
            principal: self.caller.principal().name(),
            credential: self.caller.credential(),
            from: Some(self.peer.address.ip()),
            action,
            target: &target.to_string(),
            allowed,
            why,
        });
    }
}
