//! The callers of a server: their authentication, the audit log, and the counts of refusals.

use std::{
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use http::{HeaderMap, header::AUTHORIZATION};
use tonic::Status;

use crate::{
    base::{
        clock::{Clock, Tick, wall},
        sync::lock,
    },
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{
            Attempts, AuditEvent, AuditLog, AuthConfig, AuthFile, Authenticator, Caller, Denial,
        },
        server::http2::tls::Peer,
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

/// The rules of a server and its callers, behind [`Access`](crate::relay::server::access::Access).
#[derive(Debug)]
pub(crate) struct Callers {
    file: AuthFile,
    /// One reading at a time: an earlier one must not replace a later one, which may lack a revoked
    /// token.
    reading: Mutex<()>,
    pub(super) authenticator: Authenticator,
    attempts: Attempts,
    pub(super) audit: Option<AuditLog>,
    clock: Clock,
    pub(super) unauthenticated: AtomicU64,
    pub(super) denied: AtomicU64,
    pub(super) over_quota: AtomicU64,
    /// Why what a file said before is in use.
    stale: Mutex<Option<String>>,
}

/// The tokens of a reload with a line of their own in the audit log.
const RECORDED_TOKENS: usize = 100;

impl Callers {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] or [`ErrorKind::Unavailable`] with the file and the rule that it breaks.
    pub(crate) fn load(files: &AccessFiles) -> Result<Self> {
        let file = AuthFile::new(&files.rules);
        // A file of the configuration that is missing is a wrong configuration.
        let config = file.read().map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(ErrorKind::Invalid, error.to_string()),
            _ => error,
        })?;
        log_notes(&file, &config);
        let audit = files.audit_log.as_ref().map(AuditLog::open).transpose()?;
        Ok(Self {
            file,
            reading: Mutex::new(()),
            authenticator: Authenticator::new(config),
            attempts: Attempts::default(),
            audit,
            clock: Clock::new(),
            unauthenticated: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            over_quota: AtomicU64::new(0),
            stale: Mutex::default(),
        })
    }

    /// Opens the audit log again by its path, after it was rotated.
    pub(super) fn reopen_audit_log(&self) {
        if let Some(audit) = &self.audit {
            audit.reopen();
        }
    }

    /// Returns why what a file said before is in use.
    pub(crate) fn stale(&self) -> Option<String> {
        let stale = lock(&self.stale);
        stale.as_ref().map(|why| format!("not applied: {why}"))
    }

    /// Returns whether the files have changed, and applies those that can be read.
    ///
    /// # Errors
    /// Why files are not applied.
    pub(crate) fn reload(&self) -> Result<bool> {
        let _one_at_a_time = lock(&self.reading);
        let former = self.authenticator.config();
        let (config, failures) = self.file.read_again(&former);
        let is_changed = !config.is_same(&former);
        if is_changed {
            self.apply(config, &former);
        }
        let why: Vec<_> = failures.iter().map(ToString::to_string).collect();
        let why = why.join("; ");
        let Some(first) = failures.into_iter().next() else {
            *lock(&self.stale) = None;
            return Ok(is_changed);
        };
        let known = lock(&self.stale).replace(why.clone());
        if known.as_ref() != Some(&why) {
            self.record_own("reload", "relay", false, &why);
        }
        Err(Error::new(first.kind(), why).with_source(first))
    }

    fn apply(&self, config: AuthConfig, former: &AuthConfig) {
        let mut changes = config.tokens().changes(former.tokens());
        for (token, what) in changes.by_ref().take(RECORDED_TOKENS) {
            let why = format!("{what}: a token of `{}`", token.principal);
            self.record_own("token", &token.id, true, &why);
        }
        let more = changes.count();
        if more > 0 {
            let why = format!("{more} further tokens were changed");
            self.record_own("token", "", true, &why);
        }
        log_notes(&self.file, &config);
        let (rules, tokens) = (config.policy().rule_count(), config.token_count());
        self.authenticator.replace(config);
        tracing::info!(rules, tokens, "other rules are in use");
        let why = format!("{rules} rules, {tokens} tokens");
        self.record_own("reload", "relay", true, &why);
    }

    /// Records what the operator did on the relay's machine: with a file or a signal.
    pub(super) fn record_own(&self, action: &str, target: &str, allowed: bool, why: &str) {
        self.record(&AuditEvent {
            at: wall(),
            principal: "",
            credential: "",
            from: None,
            action,
            target,
            allowed,
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
        let authorization =
            authorization(headers).map_err(|denial| self.refuse(denial, peer, target))?;
        let now = wall();
        let by_certificate = authorization.is_none();
        let caller = self.verify(authorization, peer, now);
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
        now: SystemTime,
    ) -> std::result::Result<Caller, Denial> {
        let address = peer.address.ip();
        // A connection costs more than a signature, so its first one is not limited: the failures of
        // a neighbour behind the same address do not lock it out.
        let signs = self.authenticator.needs_signature(authorization);
        if signs && peer.has_failed.load(Relaxed) {
            self.attempts.check_signature(address, self.now())?;
        }
        let names = &peer.certificate.names;
        let caller = self.authenticator.authenticate(authorization, names, now);
        match &caller {
            // Another credential does not vouch for the next signature.
            Ok(_) if signs => peer.has_failed.store(false, Relaxed),
            Ok(_) => {}
            Err(denial) if denial.is_guess() => {
                peer.has_failed.store(true, Relaxed);
                self.attempts.failed(address, self.now())?;
            }
            Err(_) => {}
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
            credential: "",
            from: Some(peer.address.ip()),
            action: "authenticate",
            target,
            allowed: false,
            why: &why,
        });
        match denial {
            // Not RESOURCE_EXHAUSTED: of a `Subscribe` that is a statement on its size.
            Denial::TooManyFailures { .. } => to_status(denial.into()),
            _ => Status::unauthenticated(why),
        }
    }

    pub(crate) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(crate) fn record(&self, event: &AuditEvent<'_>) {
        if let Some(audit) = &self.audit {
            audit.record(event, self.now());
        }
    }
}

fn log_notes(file: &AuthFile, config: &AuthConfig) {
    for note in file.notes(config) {
        tracing::warn!("{note}");
    }
}

/// Returns the value of the header `authorization`.
///
/// # Errors
/// There are several: a proxy before this relay may have checked another one.
pub(crate) fn authorization(headers: &HeaderMap) -> std::result::Result<Option<&[u8]>, Denial> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value.map(http::HeaderValue::as_bytes)),
        _ => Err(Denial::SeveralHeaders),
    }
}
