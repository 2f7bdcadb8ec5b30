//! The operators' page on the admin port, and its JSON interface.
//!
//! Each route of the interface is a method of the gRPC services, called in this process with the
//! rights of the caller: so the rules and the audit log are those of gRPC. Its limit is the number of
//! connections of the admin port. The JSON is protobuf's mapping of the messages. The page is a client
//! of this interface and has no other one.

mod api;
mod assets;
mod guard;
mod json;
mod problem;
mod session;

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::HeaderValue,
    middleware::{self, Next},
    response::Response,
};

use self::{json::Services, session::Sessions};
use crate::relay::{runtime::Relay, server::LocalCalls};

/// What the page and its interface may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsoleMode {
    /// There is no page, and no JSON interface.
    Off,
    /// They only show.
    Read,
    /// They also set and clear flags, notify queues and drain the relay.
    Act,
}

/// The state of the route handlers. Cheap to clone.
#[derive(Clone)]
struct Page(Arc<PageState>);

struct PageState {
    relay: Relay,
    calls: LocalCalls,
    services: Services,
    sessions: Sessions,
    mode: ConsoleMode,
}

/// The page loads only its own files, and no other site may show it. Styles are set by scripts.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'";
const SECURITY: [(&str, &str); 5] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// Returns the routes of the page and of its interface.
pub(crate) fn routes(relay: Relay, calls: LocalCalls, mode: ConsoleMode) -> Router {
    if mode == ConsoleMode::Off {
        return Router::new();
    }
    let page = Page(Arc::new(PageState {
        relay,
        calls,
        services: Services::of_relay(),
        sessions: Sessions::default(),
        mode,
    }));
    let api = api::routes().layer(middleware::from_fn_with_state(page.clone(), guard::check));
    assets::routes()
        .merge(api)
        .with_state(page)
        .layer(middleware::from_fn(secure))
}

async fn secure(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in SECURITY {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}
