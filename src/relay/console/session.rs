//! Sessions of the page, by a cookie. A revoked token ends its sessions.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use tokio::time::Instant;

use crate::{error::Result, relay::auth::Tickets};

/// The sessions of a console.
pub(super) struct Sessions(Tickets);

const SESSIONS: usize = 1_000;
const LASTS: Duration = Duration::from_secs(12 * 3600);
const COOKIE: &str = "reveille_session";

impl Default for Sessions {
    fn default() -> Self {
        Self(Tickets::new(SESSIONS, LASTS))
    }
}

impl Sessions {
    /// Begins a session, and returns the value of `Set-Cookie`.
    ///
    /// # Errors
    /// As [`Tickets::issue`].
    pub(super) fn begin(&self, authorization: HeaderValue, now: Instant) -> Result<HeaderValue> {
        Ok(cookie(&self.0.issue(authorization, now)?, LASTS))
    }

    /// Ends the session of a request, and returns the value of `Set-Cookie`.
    pub(super) fn end(&self, headers: &HeaderMap, now: Instant) -> HeaderValue {
        if let Some(id) = id(headers) {
            self.0.take(id, now);
        }
        cookie("", Duration::ZERO)
    }

    /// Returns the headers of a request with the credential of its session, unless it has its own.
    pub(super) fn authorized(&self, mut headers: HeaderMap, now: Instant) -> HeaderMap {
        if !headers.contains_key(header::AUTHORIZATION)
            && let Some(authorization) = id(&headers).and_then(|id| self.0.get(id, now))
        {
            headers.insert(header::AUTHORIZATION, authorization);
        }
        headers
    }
}

fn id(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut pairs = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let own = pairs.find(|(name, _)| *name == COOKIE);
    own.map(|(_, value)| value)
}

fn cookie(id: &str, lasts: Duration) -> HeaderValue {
    let seconds = lasts.as_secs();
    let text = format!("{COOKIE}={id}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&text).expect("letters and digits")
}
