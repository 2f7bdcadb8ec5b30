//! The layer around the services of one connection.
//!
//! Refuses requests that are not gRPC, bounds the request's body, notes unary answers for the
//! stream's deadline, and cuts large answers into chunks.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tonic::{body::Body, service::Routes};
use tower::Service;

use super::{
    access::{Access, LastCaller},
    activity::Activity,
    answers::{AnswerPermit, ChunkedBody, ConnectionAnswers},
    body::RequestBody,
    calls::{Call, CallKind},
    certificate::Peer,
    incidents::Incident,
    requests::SharedBody,
};

/// The routes of one connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionService {
    routes: Routes,
    activity: Arc<Activity>,
    access: Access,
    peer: Arc<Peer>,
    caller: LastCaller,
    answers: ConnectionAnswers,
}

/// The future of an answer. Not an `async` block, because that would store the routes' future twice
/// while the stream is open.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for each request, to save nothing but for refusals"
)]
pub(super) enum Answer {
    Routed {
        routes: <Routes as Service<Request<Body>>>::Future,
        call: Call,
        activity: Arc<Activity>,
    },
    /// Taken by the poll that returns it.
    Refused(Option<Response<Body>>, Arc<Activity>),
}

/// Prefix of the content type of every gRPC request.
const GRPC: &[u8] = b"application/grpc";

impl ConnectionService {
    pub(super) fn new(
        routes: Routes,
        activity: Arc<Activity>,
        access: Access,
        peer: Arc<Peer>,
    ) -> Self {
        Self {
            routes,
            activity,
            access,
            peer,
            caller: LastCaller::default(),
            answers: ConnectionAnswers::default(),
        }
    }
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, request: Request<Incoming>) -> Answer {
        if let Some(refusal) = refusal(request.method(), request.headers()) {
            self.activity.note(Incident::NoGrpc);
            return Answer::Refused(Some(refusal), Arc::clone(&self.activity));
        }
        let path = request.uri().path();
        let admitted = self
            .access
            .admit(path, request.headers(), &self.peer, &self.caller);
        let requester = match admitted {
            Ok(requester) => requester,
            Err(status) => {
                let refusal = Some(status.into_http());
                return Answer::Refused(refusal, Arc::clone(&self.activity));
            }
        };
        let call = Call::of(path);
        let activity = &self.activity;
        let mut shared = None;
        let mut request = request.map(|incoming| {
            let body = RequestBody::new(incoming, call, Arc::clone(activity));
            match call.kind {
                CallKind::NotifyStream => Body::new(shared.insert(SharedBody::new(body)).clone()),
                _ => Body::new(body),
            }
        });
        if let Some(shared) = shared {
            request.extensions_mut().insert(shared);
        }
        if let Some(requester) = requester {
            request.extensions_mut().insert(requester);
        }
        if call.is_list {
            request.extensions_mut().insert(self.answers.clone());
        }
        Answer::Routed {
            routes: self.routes.call(request),
            call,
            activity: Arc::clone(&self.activity),
        }
    }
}

impl Future for Answer {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (routes, call, activity) = match &mut *self {
            Self::Routed {
                routes,
                call,
                activity,
            } => (routes, call, activity),
            Self::Refused(response, activity) => {
                activity.note_unary_answer();
                return Poll::Ready(Ok(response.take().expect("polled to its end once")));
            }
        };
        let answer = std::task::ready!(Pin::new(routes).poll(cx));
        if call.kind == CallKind::Unary {
            activity.note_unary_answer();
        }
        Poll::Ready(answer.map(|mut response| {
            match response.extensions_mut().remove::<AnswerPermit>() {
                Some(permit) => response.map(|body| Body::new(ChunkedBody::new(body, permit))),
                None => response,
            }
        }))
    }
}

/// Returns the refusal of a request that is not gRPC, or `None` for a gRPC request.
fn refusal(method: &Method, headers: &HeaderMap) -> Option<Response<Body>> {
    if *method != Method::POST {
        let text = "this port speaks gRPC, whose requests are POST; health and metrics are on the \
                    admin port\n";
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, text);
        let allowed = http::HeaderValue::from_static("POST");
        response.headers_mut().insert(header::ALLOW, allowed);
        return Some(response);
    }
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], |kind| kind.as_bytes());
    let is_grpc = kind
        .get(..GRPC.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
        && matches!(kind.get(GRPC.len()), None | Some(b'+' | b';' | b' '));
    let text = "this port speaks gRPC: content-type must be application/grpc\n";
    (!is_grpc).then(|| refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

#[cold]
fn refuse(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::new(text.to_owned()));
    *response.status_mut() = status;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::relay::server::incidents::Incidents;

    #[test]
    fn a_refusal_has_the_same_deadline_as_a_unary_answer() {
        let activity = Activity::for_test(Arc::new(Incidents::new()), CancellationToken::new());
        let refused = refusal(&Method::GET, &HeaderMap::new());
        let answer = Answer::Refused(refused, Arc::clone(&activity));
        let answer = answer.now_or_never().expect("at once").expect("an answer");
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert!(activity.take_unary_answer());
    }
}
