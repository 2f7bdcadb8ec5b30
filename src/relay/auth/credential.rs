//! Turns the credential of a call into its caller.
//!
//! An accepted credential is cached by its digest until it expires or the configuration is
//! replaced: the next call costs one hash and one lookup. A header wins over a certificate, and a
//! bad header is refused even if the certificate would be accepted.

mod presented;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use self::presented::{OwnedCredential, Presented};
use super::{
    cache::CredentialCache,
    denial::Denial,
    file::AuthConfig,
    policy::Grants,
    principal::Principal,
    usage::{RateOfNotify, Usage},
    usage_table::UsageTable,
};
use crate::base::sync::lock;

/// Authenticates callers with a configuration that can be replaced at run time.
#[derive(Debug)]
pub struct Authenticator {
    /// Number of the configuration. It changes under the lock of `state` only.
    generation: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    config: Arc<AuthConfig>,
    /// Callers of this generation.
    cache: CredentialCache<Caller>,
    /// What the principals use. Outlives a configuration.
    usages: UsageTable,
}

/// An authenticated caller with its grants. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Caller {
    principal: Principal,
    by: Arc<str>,
    grants: Arc<Grants>,
    usage: Arc<Usage>,
    rate: Option<Arc<RateOfNotify>>,
    expires_at: Option<SystemTime>,
    /// Kept to be verified again with the next configuration.
    credential: OwnedCredential,
    generation: u64,
}

impl Authenticator {
    /// Creates an authenticator.
    pub fn new(config: AuthConfig) -> Self {
        Self {
            generation: AtomicU64::new(0),
            state: Mutex::new(State {
                config: Arc::new(config),
                cache: CredentialCache::default(),
                usages: UsageTable::default(),
            }),
        }
    }

    /// Replaces the configuration. [`Authenticator::still_valid`] applies it to present callers.
    pub fn replace(&self, config: AuthConfig) {
        let config = Arc::new(config);
        let mut state = self.lock();
        let old = std::mem::replace(&mut state.config, config);
        self.generation.fetch_add(1, Ordering::AcqRel);
        state.cache.clear();
        drop(state);
        // Not under the lock: it may free many tokens.
        drop(old);
    }

    /// Returns the current configuration.
    pub fn config(&self) -> Arc<AuthConfig> {
        Arc::clone(&self.lock().config)
    }

    /// Authenticates a call by its `authorization` header, or else by the names (DNS and URI) of its
    /// verified client certificate.
    ///
    /// # Errors
    /// The reason for which the credential is refused.
    pub fn authenticate(
        &self,
        authorization: Option<&[u8]>,
        certificate_names: &[String],
        now: SystemTime,
    ) -> Result<Caller, Denial> {
        let presented = Presented::read(authorization, certificate_names)?;
        self.caller(presented, now)
    }

    /// Returns the caller of a credential that was accepted lately, without a check of a signature.
    pub(crate) fn known(
        &self,
        authorization: Option<&[u8]>,
        certificate_names: &[String],
        now: SystemTime,
    ) -> Option<Caller> {
        let presented = Presented::read(authorization, certificate_names).ok()?;
        let digest = presented.digest();
        let state = self.lock();
        let cached = state.cache.get(&digest);
        cached
            .filter(|caller| caller.expired(now).is_none())
            .cloned()
    }

    /// Returns whether a call's credential would have its signature checked.
    pub(crate) fn needs_signature(authorization: Option<&[u8]>) -> bool {
        let presented = Presented::read(authorization, &[]);
        presented.is_ok_and(|presented| presented.needs_signature())
    }

    /// Returns whether a call with this credential has this caller, with the current grants. It takes
    /// no lock. If not, the call has to be authenticated.
    pub(crate) fn is_current(
        &self,
        caller: &Caller,
        authorization: Option<&[u8]>,
        certificate_names: &[String],
        now: SystemTime,
    ) -> bool {
        self.generation() == caller.generation
            && caller.expired(now).is_none()
            && Presented::read(authorization, certificate_names)
                .is_ok_and(|presented| caller.credential.is(presented))
    }

    /// Checks a caller again, for a stream that lasts. It returns the caller with the current grants.
    ///
    /// # Errors
    /// The credential has expired, or the current configuration refuses it.
    pub fn still_valid(&self, caller: &Caller, now: SystemTime) -> Result<Caller, Denial> {
        if let Some(ago) = caller.expired(now) {
            return Err(Denial::Expired { ago });
        }
        if self.generation() == caller.generation {
            return Ok(caller.clone());
        }
        let again = self.caller(caller.credential.presented(), now)?;
        Ok(match caller.expires_at {
            Some(expires_at) if caller.credential.is_certificate() => again.with_expiry(expires_at),
            _ => again,
        })
    }

    fn caller(&self, presented: Presented<'_>, now: SystemTime) -> Result<Caller, Denial> {
        let digest = presented.digest();
        let (config, generation) = {
            let state = self.lock();
            let cached = state.cache.get(&digest);
            if let Some(caller) = cached.filter(|caller| caller.expired(now).is_none()) {
                return Ok(caller.clone());
            }
            (Arc::clone(&state.config), self.generation())
        };
        // Not under the lock: a signature takes up to a millisecond.
        let verified = presented.verify(&config, now)?;
        let grants = config.policy().grants(&verified.principal);
        let mut state = self.lock();
        let usage = state.usages.of(&verified.principal);
        let caller = Caller {
            rate: usage.rate(grants.quota()),
            usage,
            grants,
            principal: verified.principal,
            by: verified.by.into(),
            expires_at: verified.expires_at,
            credential: presented.to_owned(),
            generation,
        };
        // A replaced configuration must not leave its callers in the cache.
        if self.generation() == generation {
            state.cache.insert(digest, caller.clone());
        }
        Ok(caller)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Caller {
    /// Returns the principal.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Returns the kind of the credential and which it was: the id of a token or a secret, the issuer of
    /// a JWT. Never its text.
    pub fn credential(&self) -> &str {
        &self.by
    }

    /// Returns the rules that apply to the caller.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// Returns what the principal uses at present.
    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Returns the rate of the principal's notifications; `None` without a limit.
    pub(crate) fn rate(&self) -> Option<&RateOfNotify> {
        self.rate.as_deref()
    }

    /// Returns the time from which the credential is refused, with the leeway of its issuer.
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.expires_at
    }

    /// Sets an earlier expiry, such as that of the client certificate.
    #[must_use]
    pub fn with_expiry(mut self, at: SystemTime) -> Self {
        self.expires_at = Some(self.expires_at.map_or(at, |earlier| earlier.min(at)));
        self
    }

    /// Returns the time since the expiry, if it has passed.
    fn expired(&self, now: SystemTime) -> Option<std::time::Duration> {
        now.duration_since(self.expires_at?).ok()
    }
}
