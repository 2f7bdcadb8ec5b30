//! The credential of a call: its form, its digest, its verification.

use std::{sync::Arc, time::SystemTime};

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use subtle::ConstantTimeEq as _;

use crate::{
    base::secret::Secret,
    relay::auth::{
        denial::Denial,
        file::AuthConfig,
        jwt::{self, LONGEST_TOKEN},
        principal::Verified,
        token::{self, Digest},
    },
};

/// A credential as the call presents it.
#[derive(Clone, Copy)]
pub(super) enum Presented<'a> {
    /// A static token or a JWT.
    Bearer(&'a str),
    /// `issuer:key` in base64.
    Basic(&'a str),
    /// The names of a client certificate.
    Certificate(&'a [String]),
}

/// A credential that outlives its call.
#[derive(Debug, Clone)]
pub(super) enum OwnedCredential {
    Bearer(Secret),
    Basic(Secret),
    Certificate(Arc<[String]>),
}

/// Basic credentials are sent with and without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl<'a> Presented<'a> {
    pub(super) fn read(
        authorization: Option<&'a [u8]>,
        certificate_names: &'a [String],
    ) -> Result<Self, Denial> {
        match authorization {
            Some(header) => Self::from_header(header).ok_or(Denial::Malformed),
            None if certificate_names.is_empty() => Err(Denial::NoCredential),
            None => Ok(Self::Certificate(certificate_names)),
        }
    }

    /// Reads `Bearer <token>` or `Basic <base64>`; the scheme ignores case (RFC 9110).
    fn from_header(header: &'a [u8]) -> Option<Self> {
        let header = std::str::from_utf8(header).ok()?;
        let (scheme, credential) = header.trim_matches(' ').split_once(' ')?;
        let credential = credential.trim_start_matches(' ');
        let is_plain = credential.bytes().all(|byte| byte.is_ascii_graphic());
        if credential.is_empty() || credential.len() > LONGEST_TOKEN || !is_plain {
            return None;
        }
        if scheme.eq_ignore_ascii_case("bearer") {
            Some(Self::Bearer(credential))
        } else if scheme.eq_ignore_ascii_case("basic") {
            Some(Self::Basic(credential))
        } else {
            None
        }
    }

    /// Returns whether its check is that of a signature, the costliest one.
    pub(super) fn needs_signature(&self) -> bool {
        matches!(self, Self::Bearer(text) if !text.starts_with(token::PREFIX))
    }

    /// Returns the digest by which the credential is cached.
    pub(super) fn digest(&self) -> Digest {
        match self {
            Self::Bearer(token) => token::digest(&[b"bearer ", token.as_bytes()]),
            Self::Basic(pair) => token::digest(&[b"basic ", pair.as_bytes()]),
            Self::Certificate(names) => {
                // No name contains a zero byte, which ends each of them.
                let parts = names.iter().flat_map(|name| [name.as_bytes(), b"\0"]);
                token::digest_all(std::iter::once(&b"certificate "[..]).chain(parts))
            }
        }
    }

    pub(super) fn verify(self, config: &AuthConfig, now: SystemTime) -> Result<Verified, Denial> {
        match self {
            Self::Bearer(text) if text.starts_with(token::PREFIX) => {
                config.tokens.verify_token(text, now)
            }
            Self::Bearer(text) => jwt::verify(&config.issuers, text, now),
            Self::Basic(pair) => {
                let pair = BASE64.decode(pair).map_err(|_| Denial::Malformed)?;
                let colon = pair.iter().position(|byte| *byte == b':');
                let (issuer, key) = pair.split_at(colon.ok_or(Denial::Malformed)?);
                let issuer = std::str::from_utf8(issuer).map_err(|_| Denial::Malformed)?;
                config.tokens.verify_secret(issuer, &key[1..], now)
            }
            Self::Certificate(names) => {
                let (principal, is_only) = config
                    .certificates()
                    .principal(names)
                    .ok_or(Denial::UnknownCertificate)?;
                match is_only {
                    true => Ok(Verified {
                        principal: principal.clone(),
                        by: "certificate".into(),
                        expires_at: None,
                    }),
                    false => Err(Denial::NoPrincipal),
                }
            }
        }
    }

    pub(super) fn to_owned(self) -> OwnedCredential {
        match self {
            Self::Bearer(text) => OwnedCredential::Bearer(Secret::new(text)),
            Self::Basic(pair) => OwnedCredential::Basic(Secret::new(pair)),
            Self::Certificate(names) => OwnedCredential::Certificate(names.into()),
        }
    }
}

/// Compares texts of one length in constant time, eight bytes at a time: a JWT has hundreds.
fn is_same(own: &[u8], other: &[u8]) -> bool {
    let ((own, own_rest), (other, other_rest)) = (own.as_chunks::<8>(), other.as_chunks::<8>());
    let pairs = own.iter().zip(other);
    let equal = pairs.fold(own_rest.ct_eq(other_rest), |equal, (one, two)| {
        equal & u64::from_le_bytes(*one).ct_eq(&u64::from_le_bytes(*two))
    });
    own.len() == other.len() && equal.into()
}

impl OwnedCredential {
    pub(super) fn presented(&self) -> Presented<'_> {
        match self {
            Self::Bearer(text) => Presented::Bearer(text.reveal()),
            Self::Basic(pair) => Presented::Basic(pair.reveal()),
            Self::Certificate(names) => Presented::Certificate(names),
        }
    }

    /// Returns whether this credential is presented. In constant time: clients behind a proxy may
    /// share a connection, and one must not learn another one's credential.
    pub(super) fn is(&self, presented: Presented<'_>) -> bool {
        match (self, presented) {
            (Self::Bearer(own), Presented::Bearer(text))
            | (Self::Basic(own), Presented::Basic(text)) => {
                is_same(own.reveal().as_bytes(), text.as_bytes())
            }
            (Self::Certificate(own), Presented::Certificate(names)) => **own == *names,
            _ => false,
        }
    }

    pub(super) const fn is_certificate(&self) -> bool {
        matches!(self, Self::Certificate(_))
    }
}
