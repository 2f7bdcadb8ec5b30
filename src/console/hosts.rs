//! The host names that requests to the admin port may state.
//!
//! The owner of a web page can resolve its name to this machine's address, and read the answers
//! with an operator's browser (DNS rebinding). A browser states the page's name in `Host`, so names
//! other than the configured ones are refused. An IP address cannot be rebound.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, Version, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// Routes below this path may take a body.
const API: &str = "/api/";

/// The allowed names, in addition to IP addresses and `localhost`.
#[derive(Debug)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    pub(crate) fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| normal(name)).collect())
    }

    /// Returns whether a request may state this host, with or without a port.
    pub(crate) fn allow(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let host = normal(authority.host());
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        bare.unwrap_or(&host).parse::<IpAddr>().is_ok()
            || host == "localhost"
            || self.0.contains(&host)
    }
}

/// Returns a name in the form that is compared.
fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Refuses requests for other hosts, and requests with a body that no route takes.
pub(super) async fn check(
    State(hosts): State<Arc<Hosts>>,
    request: Request,
    next: Next,
) -> Response {
    // Probes with HTTP/1.0 state no host; browsers always do.
    let mut stated = request.headers().get_all(header::HOST).iter();
    let (stated, second) = (stated.next(), stated.next());
    let stated = stated.map(|host| host.to_str().unwrap_or_default());
    let required = request.version() > Version::HTTP_10;
    let target = request.uri().authority().map(Authority::as_str);
    let refused = match stated {
        None => required,
        // Of two, a proxy may have checked the other one.
        Some(host) => second.is_some() || !hosts.allow(host),
    } || target.is_some_and(|target| !hosts.allow(target));
    if refused {
        let text = "Host: must be an IP address, localhost, or a name of --admin-host\n";
        return (StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    let takes_body = request.method() == Method::POST && request.uri().path().starts_with(API);
    if !takes_body && has_body(request.headers()) {
        let text = "this request has no body\n";
        return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
    }
    next.run(request).await
}

fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    headers.contains_key(header::TRANSFER_ENCODING)
        || length.is_some_and(|length| length.as_bytes() != b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_allowed() {
        let hosts = Hosts::new(&["Relay.Internal".to_owned()]);
        for (host, ours) in [
            ("127.0.0.1", true),
            ("10.1.2.3:7601", true),
            ("[::1]:7601", true),
            ("[fe80::1]", true),
            ("localhost:80", true),
            ("localhost.", true),
            ("relay.internal:7601", true),
            ("RELAY.INTERNAL.", true),
            ("", false),
            ("relay.internal.attacker.example", false),
            ("attacker.example:7601", false),
            ("127.0.0.1.attacker.example", false),
            ("2130706433", false),
            ("a b", false),
        ] {
            assert_eq!(hosts.allow(host), ours, "{host:?}");
        }
    }
}
