//! What a request must show before it is handled: that a page of this console sent it.
//!
//! A page of another site can make an operator's browser send requests here. It can neither read the
//! answers, because the host names are checked (DNS rebinding), nor change anything, because a change
//! needs a header that only a page of the same origin may set.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tonic::Code;

use super::{ConsoleMode, Page, problem::Problem};

/// Each change states it. Browsers ask a server before they send it to another origin.
const ACTION: HeaderName = HeaderName::from_static("x-reveille-action");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Changes of the session only.
const OF_SESSION: [&str; 2] = ["/api/v1/login", "/api/v1/logout"];

pub(super) async fn check(State(page): State<Page>, request: Request, next: Next) -> Response {
    if request.method() == Method::POST {
        let path = request.uri().path();
        if let Err(problem) = check_change(request.headers()) {
            return problem.into_response();
        }
        if page.0.mode == ConsoleMode::Read && !OF_SESSION.contains(&path) {
            let why = "this console is read-only; `serve --console act` lets it act";
            return forbidden(why).into_response();
        }
    }
    next.run(request).await
}

fn check_change(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let kind = text(header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let rule = "Content-Type: must be application/json";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(Problem::new(status, Code::InvalidArgument, rule));
    }
    if text(ACTION) != Some("1") {
        return Err(forbidden("X-Reveille-Action: must be 1"));
    }
    if let Some(origin) = text(header::ORIGIN)
        && !is_of_host(origin, text(header::HOST).unwrap_or_default())
    {
        return Err(forbidden("Origin: must be that of this page"));
    }
    match text(FETCH_SITE) {
        None | Some("same-origin") => Ok(()),
        Some(_) => Err(forbidden("Sec-Fetch-Site: must be same-origin")),
    }
}

fn is_of_host(origin: &str, host: &str) -> bool {
    let (Some((_, origin)), Ok(host)) = (origin.split_once("://"), host.parse::<Authority>())
    else {
        return false;
    };
    let same = |one: Authority| one.as_str().eq_ignore_ascii_case(host.as_str());
    origin.parse::<Authority>().is_ok_and(same)
}

fn forbidden(why: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, Code::PermissionDenied, why)
}
