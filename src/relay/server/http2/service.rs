//! The layer around the services of one connection.
//!
//! Refuses requests that are not gRPC, sets a deadline for the request's body, notes unary answers for the
//! stream's deadline, and cuts large answers into chunks.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, service::Routes};
use tower::Service;

#[cfg(feature = "keda")]
use super::tls::Peer;
use super::{
    activity::Activity,
    answers::{ResponseBody, StreamShares},
    body::{RequestBody, discard_body},
    incidents::Incident,
};
use crate::relay::{
    auth::Resource,
    runtime::Relay,
    server::access::{
        Access, LastCaller,
        calls::{Call, CallKind, Right},
        requester::Requester,
    },
};

/// The routes of one connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionService {
    routes: Routes,
    activity: Arc<Activity>,
    access: Access,
    caller: LastCaller,
}

/// A request that goes to its service.
struct Admitted {
    requester: Option<Requester>,
    stream: Option<StreamShares>,
    /// Of a caller that is not known yet.
    unknown: Option<OwnedSemaphorePermit>,
}

/// The future of an answer. Not an `async` block, because that would store the routes' future twice
/// while the stream is open.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for each request, to save nothing but for refusals"
)]
pub(crate) enum Answer {
    Routed {
        routes: <Routes as Service<Request<Body>>>::Future,
        call: Call,
        activity: Arc<Activity>,
        /// Of a stream; moves to its answer.
        stream: Option<StreamShares>,
        /// Of a caller that is not known yet.
        _unknown: Option<OwnedSemaphorePermit>,
    },
    /// Taken by the poll that returns it.
    Refused(Option<Response<Body>>, Arc<Activity>),
}

/// The connection of a request, for its service. An extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct Connection(pub(in super::super) Arc<Activity>);

impl Connection {
    /// Cancelled when the connection takes no more streams: those without an age end then.
    pub(crate) fn ending(&self) -> &CancellationToken {
        self.0.ending_soon()
    }

    /// Ends a connection of at least this age: it takes no more streams.
    pub(crate) fn end_if_older(&self, age: Duration) {
        if self.0.age() >= age {
            self.0.end_soon();
        }
    }

    /// Returns whether the peer did not answer in time.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    pub(crate) fn store_calls(&self) -> &Semaphore {
        &self.0.store_calls
    }

    #[cfg(feature = "keda")]
    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.0.peer
    }

    /// Counts the connection as that of a caller, which the service has found to be known.
    ///
    /// # Errors
    /// Of the quota of the caller.
    #[cfg(feature = "keda")]
    pub(crate) fn admit(&self, requester: &Requester) -> crate::Result<()> {
        let take = || requester.take(Resource::Connections, 1);
        self.0.count_for(take)?;
        self.0.note_admitted();
        Ok(())
    }

    /// Takes one of the relay's streams, which is not done before the caller is known.
    ///
    /// # Errors
    /// [`ErrorKind::Exhausted`](crate::ErrorKind::Exhausted) if all are open.
    #[cfg(feature = "keda")]
    pub(crate) fn take_stream(&self) -> crate::Result<OwnedSemaphorePermit> {
        let taken = self.0.shared().take_stream();
        taken.inspect_err(|_| self.0.note(Incident::StreamRefused))
    }
}

/// Checks that the relay takes a stream. Where it drains, the connection takes no more: behind a balancer
/// the client's next one leads to another relay.
pub(crate) fn check_accepts_streams(relay: &Relay, extensions: &Extensions) -> crate::Result<()> {
    relay.check_accepts_streams().inspect_err(|_| {
        if let Some(Connection(activity)) = extensions.get() {
            activity.end_soon();
        }
    })
}

/// Prefix of the content type of every gRPC request.
const GRPC: &[u8] = b"application/grpc";

impl ConnectionService {
    pub(crate) fn new(routes: Routes, activity: Arc<Activity>, access: Access) -> Self {
        Self {
            routes,
            activity,
            access,
            caller: LastCaller::default(),
        }
    }

    /// Returns the caller, and what the request takes.
    ///
    /// # Errors
    /// The answer to a caller that is not admitted, or that is at a limit.
    #[allow(clippy::result_large_err, reason = "a status is an answer")]
    fn admit(&self, path: &str, headers: &HeaderMap, call: Call) -> Result<Admitted, Status> {
        let requester =
            self.access
                .admit(path, call, headers, &self.activity.peer, &self.caller)?;
        let take = |resource| match &requester {
            Some(requester) => requester.take(resource, 1),
            None => Ok(None),
        };
        self.activity
            .count_for(|| take(Resource::Connections))
            // A connection over the limit must not stay.
            .inspect_err(|_| self.activity.end_soon())?;
        let shared = self.activity.shared();
        let unknown = if requester.is_some() || !self.access.is_controlled() {
            self.activity.note_admitted();
            None
        } else {
            self.activity.note_probe();
            Some(shared.take_unknown()?)
        };
        let stream = match call.kind {
            CallKind::Unary if call.is_list => shared.memory.check().map(|()| None),
            CallKind::Unary => Ok(None),
            #[cfg(feature = "keda")]
            _ if call.right == Some(Right::Stated) => Ok(None),
            _ if call.right == Some(Right::Anyone) => shared
                .take_open_stream(self.activity.open_to_all())
                .map(|shares| Some(StreamShares::of_anyone(shares))),
            _ => shared.take_stream().and_then(|of_relay| {
                let of_principal = take(Resource::Streams)?;
                Ok(Some(StreamShares::new(of_relay, of_principal)))
            }),
        };
        let stream = stream.inspect_err(|_| self.activity.note(Incident::StreamRefused));
        Ok(Admitted {
            requester,
            stream: stream?,
            unknown,
        })
    }

    #[cold]
    fn refuse(&self, status: Status, body: Incoming) -> Answer {
        let activity = Arc::clone(&self.activity);
        discard_body(body, &activity);
        Answer::Refused(Some(status.into_http()), activity)
    }
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<ResponseBody>;
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
        let call = Call::of(path);
        let admitted = match self.admit(path, request.headers(), call) {
            Ok(admitted) => admitted,
            Err(status) => return self.refuse(status, request.into_body()),
        };
        let Admitted {
            requester,
            stream,
            unknown,
        } = admitted;
        let mut request = request.map(|incoming| {
            let body = RequestBody::new(incoming, call, Arc::clone(&self.activity));
            Body::new(body)
        });
        if let Some(requester) = requester {
            request.extensions_mut().insert(requester);
        }
        let connection = Connection(Arc::clone(&self.activity));
        request.extensions_mut().insert(connection);
        Answer::Routed {
            routes: self.routes.call(request),
            call,
            activity: Arc::clone(&self.activity),
            stream,
            _unknown: unknown,
        }
    }
}

impl Future for Answer {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (routes, call, activity, stream) = match &mut *self {
            Self::Routed {
                routes,
                call,
                activity,
                stream,
                ..
            } => (routes, call, activity, stream),
            Self::Refused(response, activity) => {
                activity.note_unary_answer();
                let response = response.take().expect("polled to its end once");
                return Poll::Ready(Ok(ResponseBody::of(response, None)));
            }
        };
        let answer = std::task::ready!(Pin::new(routes).poll(cx));
        if call.kind == CallKind::Unary {
            activity.note_unary_answer();
        }
        let stream = stream.take();
        Poll::Ready(answer.map(|response| ResponseBody::of(response, stream)))
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
    use crate::relay::server::http2::incidents::Incidents;

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
