//! Sessions of the page, by a cookie. A revoked token ends its sessions.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header, uri::Authority};
use tokio::time::Instant;

use crate::{error::Result, relay::auth::Tickets};

/// The sessions of a console.
pub(super) struct Sessions(Tickets);

const SESSIONS: usize = 1_000;
const LASTS: Duration = Duration::from_secs(12 * 3600);
/// Followed by the port: browsers send a cookie to all ports of a host, so that the sessions of two
/// relays on one machine need two names.
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
    pub(super) fn begin(
        &self,
        headers: &HeaderMap,
        authorization: HeaderValue,
        now: Instant,
    ) -> Result<HeaderValue> {
        let id = self.0.issue(authorization, now)?;
        Ok(cookie(headers, &id, LASTS))
    }

    /// Ends the session of a request, and returns the value of `Set-Cookie`.
    pub(super) fn end(&self, headers: &HeaderMap, now: Instant) -> HeaderValue {
        if let Some(id) = id(headers) {
            self.0.take(id, now);
        }
        cookie(headers, "", Duration::ZERO)
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

fn name(headers: &HeaderMap) -> String {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let authority = host.and_then(|host| host.parse::<Authority>().ok());
    let port = authority.and_then(|authority| authority.port_u16());
    format!("{COOKIE}_{}", port.unwrap_or_default())
}

fn id(headers: &HeaderMap) -> Option<&str> {
    let own_name = name(headers);
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut pairs = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let own = pairs.find(|(name, _)| *name == own_name);
    own.map(|(_, value)| value)
}

fn cookie(headers: &HeaderMap, id: &str, lasts: Duration) -> HeaderValue {
    let (name, seconds) = (name(headers), lasts.as_secs());
    let text = format!("{name}={id}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&text).expect("letters and digits")
}
