//! Turns the credential of a call into its caller.
//!
//! An accepted credential is cached by its digest until it expires or the configuration is
//! replaced: the next call costs one hash and one lookup. A header wins over a certificate, and a
//! bad header is refused even if the certificate would be accepted.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use subtle::ConstantTimeEq as _;

use super::{
    denial::Denial,
    file::AuthConfig,
    jwt::{self, LONGEST_TOKEN},
    policy::Grants,
    principal::{Principal, Verified},
    quota::{Usage, UsageTable},
    token::{self, Digest},
};
use crate::base::{secret::Secret, sync::lock};

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
    cache: HashMap<Digest, Caller>,
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
    expires_at: Option<SystemTime>,
    /// The header, to be verified again with the next configuration. `None`: a certificate.
    authorization: Option<Secret>,
    certificate_names: Arc<[String]>,
    generation: u64,
}

/// A credential as the call presents it.
#[derive(Clone, Copy)]
enum Presented<'a> {
    /// A static token or a JWT.
    Bearer(&'a str),
    /// The names of a client certificate.
    Certificate(&'a [String]),
}

/// About 1 MiB, without the principals. Refused credentials are not kept, so that a flood of them
/// displaces nothing. A full cache is emptied, which costs a check of each credential.
pub(super) const MOST_CACHED: usize = 4096;

impl Authenticator {
    /// Creates an authenticator.
    pub fn new(config: AuthConfig) -> Self {
        Self {
            generation: AtomicU64::new(0),
            state: Mutex::new(State {
                config: Arc::new(config),
                cache: HashMap::new(),
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
        let header = authorization.and_then(|header| std::str::from_utf8(header).ok());
        let caller = Caller {
            grants,
            usage: state.usages.of(&verified.principal),
            principal: verified.principal,
            by: verified.by.into(),
            expires_at: verified.expires_at,
            authorization: header.map(Secret::new),
            certificate_names: certificate_names.into(),
            generation,
        };
        // A replaced configuration must not leave its callers in the cache.
        if self.generation() == generation {
            if state.cache.len() >= MOST_CACHED {
                state.cache.clear();
            }
            state.cache.insert(digest, caller.clone());
        }
        Ok(caller)
    }

    /// Returns whether a signature must be verified, which costs more than other checks.
    pub(crate) fn needs_signature(&self, authorization: Option<&[u8]>) -> bool {
        match Presented::read(authorization, &[]) {
            Ok(jwt @ Presented::Bearer(text)) if !text.starts_with(token::PREFIX) => {
                !self.lock().cache.contains_key(&jwt.digest())
            }
            _ => false,
        }
    }

    /// Returns whether a call with this credential has this caller, with the current grants. It takes
    /// no lock. If not, the call has to be authenticated. In constant time: clients behind a proxy may
    /// share a connection, and one must not learn another one's credential.
    pub(crate) fn is_current(
        &self,
        caller: &Caller,
        authorization: Option<&[u8]>,
        certificate_names: &[String],
        now: SystemTime,
    ) -> bool {
        self.generation() == caller.generation
            && caller.expired(now).is_none()
            && match (&caller.authorization, authorization) {
                (Some(own), Some(header)) => own.reveal().as_bytes().ct_eq(header).into(),
                (None, None) => *caller.certificate_names == *certificate_names,
                _ => false,
            }
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
        let header = caller.authorization.as_ref();
        let header = header.map(|header| header.reveal().as_bytes());
        let again = self.authenticate(header, &caller.certificate_names, now)?;
        Ok(match caller.expires_at {
            Some(expires_at) if header.is_none() => again.with_expiry(expires_at),
            _ => again,
        })
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

impl<'a> Presented<'a> {
    fn read(
        authorization: Option<&'a [u8]>,
        certificate_names: &'a [String],
    ) -> Result<Self, Denial> {
        match authorization {
            Some(header) => Self::from_header(header).ok_or(Denial::Malformed),
            None if certificate_names.is_empty() => Err(Denial::NoCredential),
            None => Ok(Self::Certificate(certificate_names)),
        }
    }

    /// Reads `Bearer <token>`; the scheme ignores case (RFC 9110).
    fn from_header(header: &'a [u8]) -> Option<Self> {
        let header = std::str::from_utf8(header).ok()?;
        let (scheme, credential) = header.trim_matches(' ').split_once(' ')?;
        let credential = credential.trim_start_matches(' ');
        let is_token = (1..=LONGEST_TOKEN).contains(&credential.len())
            && credential.bytes().all(|byte| byte.is_ascii_graphic());
        (is_token && scheme.eq_ignore_ascii_case("bearer")).then_some(Self::Bearer(credential))
    }

    /// Returns the digest by which the credential is cached.
    fn digest(&self) -> Digest {
        match self {
            Self::Bearer(token) => token::digest([b"bearer ", token.as_bytes()]),
            Self::Certificate(names) => {
                // No name contains a zero byte, which ends each of them.
                let parts = names.iter().flat_map(|name| [name.as_bytes(), b"\0"]);
                token::digest(std::iter::once(&b"certificate "[..]).chain(parts))
            }
        }
    }

    fn verify(self, config: &AuthConfig, now: SystemTime) -> Result<Verified, Denial> {
        match self {
            Self::Bearer(text) if text.starts_with(token::PREFIX) => {
                config.tokens().verify(text, now)
            }
            Self::Bearer(text) => jwt::verify(config.issuer_keys(), text, now),
            Self::Certificate(names) => Ok(Verified {
                principal: config.certificates().principal(names)?.clone(),
                by: "certificate".into(),
                expires_at: None,
            }),
        }
    }
}
