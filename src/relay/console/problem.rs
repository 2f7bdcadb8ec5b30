//! Refusals as RFC 9457 describes them: `application/problem+json`, with the field in the detail.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::wire::from_status;

/// A refusal.
#[derive(Debug)]
pub(super) struct Problem(Status, StatusCode);

impl Problem {
    pub(super) fn new(status: StatusCode, code: Code, detail: impl Into<String>) -> Self {
        Self(Status::new(code, detail), status)
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Status::invalid_argument(detail).into()
    }

    pub(super) fn value(&self) -> Value {
        json!({
            "type": "about:blank",
            "title": self.0.code().description(),
            "status": self.1.as_u16(),
            "detail": self.0.message(),
        })
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::Aborted | Code::AlreadyExists | Code::FailedPrecondition => StatusCode::CONFLICT,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, code)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.1, Json(self.value())).into_response();
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.1 == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(after) = from_status(self.0).retry_after() {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
