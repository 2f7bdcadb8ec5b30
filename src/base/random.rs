//! Random bytes of the operating system, for ids and secrets.

use crate::error::{Error, ErrorKind, Result};

/// Returns random bytes.
///
/// # Errors
/// `Unavailable` if the system has none.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = "the operating system gives no random bytes";
        Error::new(ErrorKind::Unavailable, message).with_source(error)
    })?;
    Ok(bytes)
}
