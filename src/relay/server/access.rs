//! Who may call: authenticates requests, and holds the rules, the audit log and the counts.
//!
//! One for each server, below gRPC and the admin port. Without a file of rules every caller may do
//! everything, which suits a relay on loopback. The files are read again every ten seconds, and at
//! once on request; files that break a rule leave the former ones in use.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Extensions, HeaderMap, header::AUTHORIZATION};
use tonic::Status;

use super::{
    calls::{Call, Right},
    certificate::PeerCertificate,
    requester::Requester,
};
use crate::{
    base::{
        clock::{Clock, wall},
        task::blocking,
    },
    console::Admission,
    error::{Error, ErrorKind, Result},
    relay::auth::{
        Action, Attempts, AuditEvent, AuditLog, AuthFile, Authenticator, Caller, Denial, Target,
    },
    wire::to_status,
};

/// The files of a server's access control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessFiles {
    /// The rules, and the files of tokens and keys that they name; see
    /// [`AuthFile`](crate::auth::AuthFile).
    pub rules: PathBuf,
    /// The audit log: denials, and changes of flags, one JSON object a line. Default: none.
    pub audit_log: Option<PathBuf>,
}

/// The access control of a server. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access(Option<Arc<AccessState>>);

#[derive(Debug)]
pub(super) struct AccessState {
    file: AuthFile,
    /// The digest of the files that are in use.
    digest: std::sync::Mutex<[u8; 32]>,
    pub(super) authenticator: Authenticator,
    attempts: Attempts,
    audit: Option<AuditLog>,
    clock: Clock,
    unauthenticated: AtomicU64,
    denied: AtomicU64,
}

/// The other side of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) certificate: PeerCertificate,
}

/// The counts of refused requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refusals {
    pub(crate) unauthenticated: u64,
    pub(crate) denied: u64,
    pub(crate) audit_lines_lost: u64,
}

const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

impl Access {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], [`ErrorKind::NotFound`] or [`ErrorKind::Unavailable`] with the file
    /// and the rule that it breaks.
    pub(crate) fn load(files: &AccessFiles) -> Result<Self> {
        let file = AuthFile::new(&files.rules);
        // Before the files are read: a change in between is found by the next look.
        let digest = file.digest()?;
        let config = file.read()?;
        let audit = files.audit_log.as_ref().map(AuditLog::open).transpose()?;
        Ok(Self(Some(Arc::new(AccessState {
            file,
            digest: std::sync::Mutex::new(digest),
            authenticator: Authenticator::new(config),
            attempts: Attempts::default(),
            audit,
            clock: Clock::new(),
            unauthenticated: AtomicU64::new(0),
            denied: AtomicU64::new(0),
        }))))
    }

    /// Returns whether callers must be known.
    pub(crate) fn is_controlled(&self) -> bool {
        self.0.is_some()
    }

    /// Reads the files again, and opens the audit log again by its path. Returns whether the files
    /// have changed.
    ///
    /// # Errors
    /// As [`Access::load`]; the former files stay in use.
    pub(crate) async fn reload(&self) -> Result<bool> {
        let Some(state) = self.0.clone() else {
            return Ok(false);
        };
        if let Some(audit) = &state.audit {
            audit.reopen();
        }
        let reloaded = blocking(move || state.reload()).await;
        reloaded.unwrap_or_else(|| Err(Error::new(ErrorKind::Closed, "the runtime ends")))
    }

    /// Reads the files again and again.
    pub(crate) async fn follow(self) {
        let Some(state) = self.0 else {
            return;
        };
        let mut failing = false;
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let this = Arc::clone(&state);
            match blocking(move || this.reload()).await {
                Some(Ok(_)) => failing = false,
                Some(Err(error)) => {
                    if !failing {
                        tracing::error!(%error, "the former rules stay in use");
                    }
                    failing = true;
                }
                None => return,
            }
        }
    }

    pub(crate) fn refusals(&self) -> Refusals {
        let Some(state) = &self.0 else {
            return Refusals::default();
        };
        Refusals {
            unauthenticated: state.unauthenticated.load(Relaxed),
            denied: state.denied.load(Relaxed),
            audit_lines_lost: state.audit.as_ref().map_or(0, AuditLog::lost),
        }
    }

    /// Checks the caller of a gRPC request, and that it has the right to the call at all. The
    /// service checks the queues and the flags. Returns `None` where no caller needs to be known.
    ///
    /// # Errors
    /// The answer to a caller that is not admitted.
    pub(super) fn admit(
        &self,
        path: &str,
        headers: &HeaderMap,
        peer: &Arc<Peer>,
    ) -> std::result::Result<Option<Requester>, Status> {
        let Some(state) = &self.0 else {
            return Ok(None);
        };
        let right = Call::right(path);
        if right == Some(Right::Anyone) {
            return Ok(None);
        }
        let caller = state.authenticate(headers, peer, path)?;
        let requester = Requester::new(Arc::clone(state), caller, Arc::clone(peer));
        match right {
            Some(Right::Anyone | Right::Known) => {}
            Some(Right::Relay(action)) => {
                requester.check(action, Target::Relay).map_err(to_status)?;
            }
            Some(Right::Some(action)) => requester.check_some(action).map_err(to_status)?,
            None => return Err(Status::permission_denied("no rule covers this call")),
        }
        Ok(Some(requester))
    }

    /// Returns the check of requests to the admin port; `None` without access control.
    pub(crate) fn admission(&self) -> Option<Admission> {
        let this = self.clone();
        self.is_controlled().then(|| -> Admission {
            Arc::new(move |path, headers, peer| this.admit_admin(path, headers, peer))
        })
    }

    fn admit_admin(&self, route: &str, headers: &HeaderMap, peer: SocketAddr) -> Result<()> {
        let Some(state) = &self.0 else {
            return Ok(());
        };
        let peer = Arc::new(Peer {
            address: peer,
            certificate: PeerCertificate::default(),
        });
        let caller = state.authenticate(headers, &peer, route);
        let caller = caller.map_err(|status| Error::new(ErrorKind::Denied, status.message()))?;
        let requester = Requester::new(Arc::clone(state), caller, peer);
        requester.check(Action::Admin, Target::Relay)
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

impl AccessState {
    /// Returns whether the files have changed, and applies them.
    fn reload(&self) -> Result<bool> {
        let digest = self.file.digest()?;
        if *crate::base::sync::lock(&self.digest) == digest {
            return Ok(false);
        }
        let config = self.file.read()?;
        let (rules, tokens) = (config.policy().rule_count(), config.token_count());
        self.authenticator.replace(config);
        *crate::base::sync::lock(&self.digest) = digest;
        tracing::info!(rules, tokens, "other rules are in use");
        self.record(&AuditEvent {
            at: wall(),
            principal: "",
            from: None,
            action: "reload",
            target: "relay",
            allowed: true,
            why: &format!("{rules} rules, {tokens} tokens"),
        });
        Ok(true)
    }

    fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: &Peer,
        target: &str,
    ) -> std::result::Result<Caller, Status> {
        let authorization = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let (names, now) = (&peer.certificate.names, wall());
        let by_certificate = authorization.is_none();
        // An address with failures must not lock out its known neighbours.
        let known = self.authenticator.known(authorization, names, now);
        let caller = match known {
            Some(caller) => Ok(caller),
            None => self.verify(authorization, peer, now),
        };
        match (caller, peer.certificate.expires_at) {
            (Ok(caller), Some(end)) if by_certificate => Ok(caller.with_expiry(end)),
            (Ok(caller), _) => Ok(caller),
            (Err(denial), _) => Err(self.refuse(denial, peer, target)),
        }
    }

    fn verify(
        &self,
        authorization: Option<&[u8]>,
        peer: &Peer,
        now: std::time::SystemTime,
    ) -> std::result::Result<Caller, Denial> {
        let (address, tick) = (peer.address.ip(), self.clock.now());
        self.attempts.check(address, tick)?;
        let names = &peer.certificate.names;
        let caller = self.authenticator.authenticate(authorization, names, now);
        if let Err(denial) = &caller
            && denial.is_guess()
        {
            self.attempts.failed(address, tick);
        }
        caller
    }

    #[cold]
    fn refuse(&self, denial: Denial, peer: &Peer, target: &str) -> Status {
        self.unauthenticated.fetch_add(1, Relaxed);
        let why = denial.to_string();
        self.record(&AuditEvent {
            at: wall(),
            principal: "",
            from: Some(peer.address.ip()),
            action: "authenticate",
            target,
            allowed: false,
            why: &why,
        });
        match denial {
            // Not RESOURCE_EXHAUSTED: of a `Subscribe` that is a statement on its size.
            Denial::TooManyFailures { retry_after } => {
                let error = Error::new(ErrorKind::Unavailable, why);
                to_status(error.with_retry_after(retry_after))
            }
            _ => Status::unauthenticated(why),
        }
    }

    /// Counts and records a denial.
    pub(super) fn note_denial(&self) {
        self.denied.fetch_add(1, Relaxed);
    }

    pub(super) fn record(&self, event: &AuditEvent<'_>) {
        if let Some(audit) = &self.audit {
            audit.record(event);
        }
    }
}
