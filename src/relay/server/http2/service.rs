//! The services of a port, by the paths of their methods, and the layer around those of one connection.
//!
//! It refuses requests that are not gRPC, admits callers, and sets a deadline for the request's body.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::Either;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, body::Body, codegen::BoxFuture, service::Routes};
use tower::Service;

use super::{
    activity::{Activity, StreamShares},
    body::{RequestBody, discard_body},
    incidents::Incident,
};

use crate::{
    base::{
        task::{Work, spend},
        text::opaque_debug,
    },
    relay::server::access::{Access, Call, CallKind, Right, requester::Requester},
};

/// The services of a port. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ServiceRoutes {
    others: Routes,
    direct: Option<(&'static str, DirectService)>,
}

/// A service without a router before it.
type DirectService =
    Arc<dyn Fn(Request<Body>) -> BoxFuture<Response<Body>, Infallible> + Send + Sync>;

/// The routes of one connection.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionService {
    routes: ServiceRoutes,
    activity: Arc<Activity>,
    access: Access,
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    body: Body,
    _stream: Option<StreamShares>,
}

/// What an admitted request has taken.
struct Admitted {
    requester: Option<Requester>,
    stream: Option<StreamShares>,
    /// Of a caller that is not known yet.
    unknown: Option<OwnedSemaphorePermit>,
}

/// The future of an answer. Not an `async` block, because that would store the routes' future twice
/// while the stream is open.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation for each request, to save nothing but for refusals"
)]
pub(crate) enum Answer {
    Routed {
        routes: <ServiceRoutes as Service<Request<Body>>>::Future,
        /// Moves to the answer.
        stream: Option<StreamShares>,
        /// Of a caller that is not known yet.
        _unknown: Option<OwnedSemaphorePermit>,
    },
    /// Taken by the poll that returns it.
    Refused(Option<Response<Body>>),
}

/// Prefix of the content type of every gRPC request.
const GRPC: &[u8] = b"application/grpc";
const STATUS: &str = "grpc-status";

impl ServiceRoutes {
    pub(crate) fn new(routes: Routes) -> Self {
        Self {
            others: routes.prepare(),
            direct: None,
        }
    }

    /// Adds a service whose methods have paths with this beginning. The router wraps the body of an answer
    /// twice, and each message of a stream would pass through that.
    pub(crate) fn with_direct<S>(mut self, beginning: &'static str, service: S) -> Self
    where
        S: Service<
                Request<Body>,
                Response = Response<Body>,
                Error = Infallible,
                Future = BoxFuture<Response<Body>, Infallible>,
            > + Clone
            + Send
            + Sync
            + 'static,
    {
        let call = move |request| service.clone().call(request);
        self.direct = Some((beginning, Arc::new(call)));
        self
    }
}

impl Service<Request<Body>> for ServiceRoutes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future =
        Either<BoxFuture<Response<Body>, Infallible>, <Routes as Service<Request<Body>>>::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.others, cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match &self.direct {
            Some((beginning, direct)) if request.uri().path().starts_with(beginning) => {
                Either::Left(direct(request))
            }
            _ => Either::Right(self.others.call(request)),
        }
    }
}

opaque_debug!(ServiceRoutes);

impl ConnectionService {
    pub(crate) fn new(routes: ServiceRoutes, activity: Arc<Activity>, access: Access) -> Self {
        Self {
            routes,
            activity,
            access,
        }
    }

    /// Returns the caller, and what the request takes.
    ///
    /// # Errors
    /// The answer to a caller that is not admitted, or that is at a limit.
    #[allow(clippy::result_large_err, reason = "a status is an answer")]
    fn admit(&self, path: &str, headers: &HeaderMap, call: Call) -> Result<Admitted, Status> {
        let (peer, last) = (&self.activity.peer, &self.activity.last_caller);
        let requester = self.access.admit(path, call, headers, peer, last)?;
        let anyone = Requester::anyone();
        let caller = requester.as_ref().unwrap_or(&anyone);
        let unknown = if requester.is_some() || !self.access.is_controlled() {
            self.activity.admit(caller)?;
            None
        } else {
            Some(self.activity.shared.take_unknown()?)
        };
        let takes_stream = call.kind != CallKind::Unary && call.right != Right::Anyone;
        let stream = match takes_stream {
            true => Some(self.activity.take_stream(caller)?),
            false => None,
        };
        Ok(Admitted {
            requester,
            stream,
            unknown,
        })
    }

    #[cold]
    fn refuse(&self, status: Status, body: Incoming) -> Answer {
        discard_body(body, &self.activity);
        Answer::Refused(Some(status.into_http()))
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
        // A peer that opens many streams at once takes turns with the other connections.
        spend(Work::Request);
        if let Some(refusal) = refusal(request.method(), request.headers()) {
            self.activity.note(Incident::NoGrpc);
            return Answer::Refused(Some(refusal));
        }
        let path = request.uri().path();
        let call = Call::of(path);
        let admitted = self.admit(path, request.headers(), call);
        let Admitted {
            requester,
            stream,
            unknown,
        } = match admitted {
            Ok(admitted) => admitted,
            Err(status) => return self.refuse(status, request.into_body()),
        };
        let mut request = request.map(|incoming| {
            let body = RequestBody::new(incoming, call, Arc::clone(&self.activity));
            Body::new(body)
        });
        if let Some(requester) = requester {
            request.extensions_mut().insert(requester);
        }
        // For the service.
        request.extensions_mut().insert(Arc::clone(&self.activity));
        Answer::Routed {
            routes: self.routes.call(request),
            stream,
            _unknown: unknown,
        }
    }
}

impl Future for Answer {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Routed { routes, stream, .. } => {
                let answer = std::task::ready!(Pin::new(routes).poll(cx));
                let stream = stream.take();
                Poll::Ready(answer.map(|response| ResponseBody::of(response, stream)))
            }
            Self::Refused(response) => {
                let response = response.take().expect("polled to its end once");
                Poll::Ready(Ok(ResponseBody::of(response, None)))
            }
        }
    }
}

impl ResponseBody {
    fn of(mut response: Response<Body>, stream: Option<StreamShares>) -> Response<Self> {
        state_size(response.headers_mut());
        response.map(|body| Self {
            body,
            _stream: stream,
        })
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            state_size(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

opaque_debug!(Answer);

/// A message beyond its limit is OUT_OF_RANGE for tonic, and RESOURCE_EXHAUSTED for other
/// implementations. Clients take the first for an error that stays.
fn state_size(headers: &mut HeaderMap) {
    if headers.get(STATUS).is_some_and(|code| code == "11") {
        headers.insert(STATUS, HeaderValue::from_static("8"));
    }
}

/// Returns the refusal of a request that is not gRPC: a page of another site can send no other.
fn refusal(method: &Method, headers: &HeaderMap) -> Option<Response<Body>> {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.map_or(&b""[..], |kind| kind.as_bytes());
    let is_grpc = kind
        .get(..GRPC.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
        && matches!(kind.get(GRPC.len()), None | Some(b'+' | b';' | b' '));
    if *method == Method::POST && is_grpc {
        return None;
    }
    let text = "this port speaks gRPC (POST, application/grpc); health and metrics are on the admin port\n";
    let mut response = Response::new(Body::new(text.to_owned()));
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Some(response)
}
