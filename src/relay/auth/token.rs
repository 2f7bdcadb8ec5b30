//! The text of a static token, its digest, and random bytes.
//!
//! A token is `rvl_`, ten characters of id, `_`, and 43 characters of base64url for 32 random bytes.
//! The id is not secret: it names the token in the file and in logs. The digest needs neither salt
//! nor stretching, because 256 random bits cannot be guessed.

use std::{fmt, time::SystemTime};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::digest::{Context, SHA256};

use super::principal::Principal;
use crate::{
    base::secret::Secret,
    error::{Error, ErrorKind, Result},
};

/// A token to be issued.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The principal of callers with this token.
    pub principal: Principal,
    /// The time from which it is refused; `None`: it is valid until it is revoked.
    pub expires: Option<SystemTime>,
    /// A note for operators, at most 256 bytes. Empty: none.
    pub note: String,
}

/// A new token. Only here does its text exist: the file keeps a digest.
#[derive(Clone)]
pub struct IssuedToken {
    id: String,
    text: Secret,
}

pub(super) type Digest = [u8; 32];

/// Begins every token, so that scanners for leaked secrets find it.
pub(super) const PREFIX: &str = "rvl_";
const ID: usize = 10;
const SECRET: usize = 43;
/// 32 letters and digits: five random bits each, without a bias.
const ID_LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl IssuedToken {
    /// Creates a random token.
    pub(super) fn generate() -> Result<Self> {
        let id = new_id()?;
        let secret = URL_SAFE_NO_PAD.encode(random::<32>()?);
        let text = Secret::new(&format!("{PREFIX}{id}_{secret}"));
        Ok(Self { id, text })
    }

    /// Returns the id, which is not secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the token's text, to be shown once.
    pub fn reveal(&self) -> &str {
        self.text.reveal()
    }
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IssuedToken({}, (secret))", self.id)
    }
}

/// Returns the id of a token, or `None` if the text does not have a token's form.
pub(super) fn id_of(text: &str) -> Option<&str> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_at_checked(ID)?;
    let secret = secret.strip_prefix('_')?;
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let has_form = is_id(id) && secret.len() == SECRET && secret.bytes().all(is_base64);
    has_form.then_some(id)
}

/// Returns whether this is the id of a token.
pub(super) fn is_id(id: &str) -> bool {
    id.len() == ID && id.bytes().all(|byte| ID_LETTERS.contains(&byte))
}

pub(super) fn new_id() -> Result<String> {
    let letter = |byte: u8| char::from(ID_LETTERS[usize::from(byte % 32)]);
    Ok(random::<ID>()?.into_iter().map(letter).collect())
}

pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = "the system gives no random bytes for a token";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?;
    Ok(bytes)
}

/// Returns the SHA-256 digest of the parts, one after the other.
pub(super) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut context = Context::new(&SHA256);
    parts.into_iter().for_each(|part| context.update(part));
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_documented_form_and_names_its_id() {
        let token = IssuedToken::generate().expect("random");
        assert_eq!(token.reveal().len(), 58);
        assert_eq!(id_of(token.reveal()), Some(token.id()));
        let other = IssuedToken::generate().expect("random");
        assert_ne!(token.reveal(), other.reveal());
    }

    #[test]
    fn a_text_of_another_form_has_no_id() {
        let token = IssuedToken::generate().expect("random");
        let text = token.reveal();
        let (long, short) = (format!("{text}x"), &text[..57]);
        let upper = text.replace(token.id(), "ABCDEFGHIJ");
        for bad in [
            "",
            "rvl_",
            "rvl_ä",
            "rvl_aaaaaaaaaä_",
            &long,
            short,
            &upper,
            &text[1..],
        ] {
            assert_eq!(id_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_is_not_shown_by_debug() {
        let token = IssuedToken::generate().expect("random");
        let secret = &token.reveal()[15..];
        assert!(!format!("{token:?}").contains(secret));
    }
}
