//! The callers of a server: their authentication, the audit log, the counts of refusals, and the callers that
//! were refused last.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
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
    recent: RecentRefusals,
    /// Why what a file said before is in use.
    stale: Mutex<Option<String>>,
}

/// A caller that was refused, for findings: one entry for each caller, action and target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedCaller {
    /// Its principal; the address of a caller whose credential was refused.
    pub(crate) caller: String,
    pub(crate) action: &'static str,
    /// As `account/queue`, or another target; empty for a credential.
    pub(crate) target: String,
    pub(crate) why: String,
    /// How often since it is in the list.
    pub(crate) count: u64,
    /// Time since the newest refusal.
    pub(crate) before: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct RecentRefusals(Mutex<VecDeque<(RefusedCaller, Tick)>>);

/// The tokens of a reload with a line of their own in the audit log.
const RECORDED_TOKENS: usize = 100;
/// Characters of a target that is remembered.
const LONGEST_TARGET: usize = 512;
const KEPT: usize = 32;
/// An older refusal explains nothing that happens now.
const RECENT: Duration = Duration::from_secs(600);

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
            recent: RecentRefusals::default(),
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
        if let Some(audit) = &self.audit {
            audit.record_suppressed(wall(), self.now());
        }
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
        let mut changes = config.token_changes(former);
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
        let address = peer.address.ip();
        let action = RefusedCaller::AUTHENTICATE;
        let caller = address.to_string();
        self.recent
            .add(caller, action, String::new(), &why, self.now());
        self.record(&AuditEvent {
            at: wall(),
            principal: "",
            credential: "",
            from: Some(address),
            action,
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

    /// Counts a denial, and remembers it for findings.
    pub(super) fn note_denial(
        &self,
        principal: &str,
        action: &'static str,
        target: &dyn std::fmt::Display,
        why: &str,
    ) {
        self.denied.fetch_add(1, Relaxed);
        // Findings go to other relays: a path may have 8 KiB.
        let target = target.to_string().chars().take(LONGEST_TARGET).collect();
        let principal = principal.to_owned();
        self.recent.add(principal, action, target, why, self.now());
    }

    /// Returns the callers that were refused within the last ten minutes, newest first.
    pub(crate) fn recently_refused(&self) -> Vec<RefusedCaller> {
        self.recent.list(self.now())
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

impl RefusedCaller {
    /// The action of a caller whose credential was refused.
    pub(crate) const AUTHENTICATE: &str = "authenticate";
    /// The action of a caller that asked why a queue is not served.
    pub(crate) const EXPLAIN: &str = "explain";
}

impl RecentRefusals {
    pub(crate) fn add(
        &self,
        caller: String,
        action: &'static str,
        target: String,
        why: &str,
        now: Tick,
    ) {
        let mut list = lock(&self.0);
        let known = list.iter().position(|(known, _)| {
            (&known.caller, known.action, &known.target) == (&caller, action, &target)
        });
        let known = known.and_then(|at| list.remove(at));
        if list.len() == KEPT {
            list.pop_front();
        }
        let refused = RefusedCaller {
            caller,
            action,
            target,
            why: why.to_owned(),
            count: known.map_or(0, |(known, _)| known.count) + 1,
            before: Duration::ZERO,
        };
        list.push_back((refused, now));
    }

    /// Returns those of the last ten minutes, newest first.
    pub(crate) fn list(&self, now: Tick) -> Vec<RefusedCaller> {
        let list = lock(&self.0);
        let recent = list.iter().rev().filter(|(_, at)| now.since(*at) < RECENT);
        let aged = recent.map(|(refused, at)| RefusedCaller {
            before: now.since(*at),
            ..refused.clone()
        });
        aged.collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_refusal_is_one_entry_and_the_oldest_gives_way() {
        let (refusals, start) = (RecentRefusals::default(), Tick::default());
        let second = Duration::from_secs(1);
        let denied = |queue: usize, at: Tick| {
            let target = format!("acct/q{queue}");
            refusals.add("billing".to_owned(), "notify", target, "no rule", at);
        };
        (0..KEPT).for_each(|queue| denied(queue, start));
        denied(0, start + second);
        denied(99, start + second * 2);
        let listed = refusals.list(start + second * 3);
        assert_eq!(listed.len(), KEPT);
        let newest = |at: usize| (&*listed[at].target, listed[at].count, listed[at].before);
        assert_eq!(newest(0), ("acct/q99", 1, second));
        assert_eq!(newest(1), ("acct/q0", 2, second * 2));
        assert!(listed.iter().all(|one| one.target != "acct/q1"));
        assert!(refusals.list(start + RECENT + second * 2).is_empty());
    }
}
