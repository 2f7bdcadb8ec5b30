//! The callers of a server: their authentication, the audit log, and the counts of refusals.

use std::{
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderMap, header::AUTHORIZATION};
use tonic::Status;

use super::certificate::Peer;
use crate::{
    base::{
        clock::{Clock, Tick, wall},
        log_limiter::LimitedCounts,
        sync::lock,
    },
    error::{Error, ErrorKind, Result},
    relay::auth::{Attempts, AuditEvent, AuditLog, AuthFile, Authenticator, Caller, Denial},
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

/// The rules of a server and its callers, behind [`Access`](super::access::Access).
#[derive(Debug)]
pub(super) struct Callers {
    file: AuthFile,
    /// The digest of the files that are in use.
    digest: Mutex<[u8; 32]>,
    pub(super) authenticator: Authenticator,
    attempts: Attempts,
    audit: Option<AuditLog>,
    clock: Clock,
    unauthenticated: AtomicU64,
    denied: AtomicU64,
    over_quota: LimitedCounts<1>,
    /// The files could not be read again.
    is_stale: AtomicBool,
}

/// The counts of refused requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refusals {
    pub(crate) unauthenticated: u64,
    pub(crate) denied: u64,
    pub(crate) over_quota: u64,
    pub(crate) audit_lines_lost: u64,
    /// The rules in use are former ones, because the files cannot be read.
    pub(crate) is_stale: bool,
}

/// Minimum interval between log lines of refused requests.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

impl Callers {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] or [`ErrorKind::Unavailable`] with the file and the rule that it breaks.
    pub(super) fn load(files: &AccessFiles) -> Result<Self> {
        let file = AuthFile::new(&files.rules);
        // Before the files are read: a change in between is found by the next look.
        let (digest, config) = file
            .digest()
            .and_then(|digest| Ok((digest, file.read()?)))
            // A file of the configuration that is missing is a wrong configuration.
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::new(ErrorKind::Invalid, error.to_string()),
                _ => error,
            })?;
        let audit = files.audit_log.as_ref().map(AuditLog::open).transpose()?;
        Ok(Self {
            file,
            digest: Mutex::new(digest),
            authenticator: Authenticator::new(config),
            attempts: Attempts::default(),
            audit,
            clock: Clock::new(),
            unauthenticated: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            over_quota: LimitedCounts::new(LOG_INTERVAL),
            is_stale: AtomicBool::new(false),
        })
    }

    /// Opens the audit log again by its path, after it was rotated.
    pub(super) fn reopen_audit_log(&self) {
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
    }

    pub(super) fn refusals(&self) -> Refusals {
        Refusals {
            unauthenticated: self.unauthenticated.load(Relaxed),
            denied: self.denied.load(Relaxed),
            over_quota: self.over_quota.count(0),
            audit_lines_lost: self.audit.as_ref().map_or(0, AuditLog::lost),
            is_stale: self.is_stale.load(Relaxed),
        }
    }

    /// Returns whether the files have changed, and applies them.
    pub(super) fn reload(&self) -> Result<bool> {
        let reloaded = self.read_again();
        self.is_stale.store(reloaded.is_err(), Relaxed);
        reloaded
    }

    /// One at a time: an earlier reading must not replace a later one, which may lack a revoked token.
    fn read_again(&self) -> Result<bool> {
        let mut in_use = lock(&self.digest);
        let digest = self.file.digest()?;
        if *in_use == digest {
            return Ok(false);
        }
        let config = self.file.read()?;
        let (rules, tokens) = (config.policy().rule_count(), config.token_count());
        let former = self.authenticator.config();
        let changes = config.token_changes(&former);
        self.authenticator.replace(config);
        *in_use = digest;
        tracing::info!(rules, tokens, "other rules are in use");
        self.record_own(
            "reload",
            "relay",
            &format!("{rules} rules, {tokens} tokens"),
        );
        for change in &changes {
            self.record_own("token", &change.id, &change.what);
        }
        Ok(true)
    }

    /// Records what the operator did on the relay's machine: with a file or a signal.
    pub(super) fn record_own(&self, action: &str, target: &str, why: &str) {
        self.record(&AuditEvent {
            at: wall(),
            principal: "",
            from: None,
            action,
            target,
            allowed: true,
            why,
        });
    }

    /// Returns the caller of a request.
    ///
    /// # Errors
    /// The answer to a caller that is not known.
    pub(super) fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: &Peer,
        target: &str,
    ) -> std::result::Result<Caller, Status> {
        let authorization = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let (names, now) = (&peer.certificate.names, wall());
        let by_certificate = authorization.is_none();
        let known = self.authenticator.known(authorization, names, now);
        let caller = match known {
            Some(caller) => Ok(caller),
            None => self.verify(authorization, peer, now),
        };
        match (caller, peer.certificate.expires_at) {
            (Ok(_), Some(end)) if by_certificate && end <= now => {
                let ago = now.duration_since(end).unwrap_or_default();
                Err(self.refuse(Denial::Expired { ago }, peer, target))
            }
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
        let names = &peer.certificate.names;
        let (address, tick) = (peer.address.ip(), self.clock.now());
        if Authenticator::needs_signature(authorization) {
            self.attempts.check_signature(address, tick)?;
        }
        let caller = self.authenticator.authenticate(authorization, names, now);
        let Err(denial) = caller else {
            return caller;
        };
        if denial.is_guess() {
            self.attempts.check(address, tick)?;
            self.attempts.failed(address, tick);
        }
        Err(denial)
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

    /// Counts a request over the quota of its principal, and logs it unless one was logged within
    /// the last second.
    #[cold]
    pub(super) fn note_over_quota(&self, error: &Error) {
        if let Some(suppressed) = self.over_quota.note(0, self.now()) {
            tracing::warn!(%error, suppressed, "refused a request over the quota of its principal");
        }
    }

    pub(super) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(super) fn record(&self, event: &AuditEvent<'_>) {
        if let Some(audit) = &self.audit {
            audit.record(event);
        }
    }
}
