//! The services of a port, by the paths of their methods.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::Either;
use http::{Request, Response};
use tonic::{body::Body, codegen::BoxFuture, service::Routes};
use tower::Service;

use crate::base::text::opaque_debug;

/// The services of a port. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ServiceRoutes {
    others: Routes,
    direct: Option<(&'static str, DirectService)>,
}

/// A service without a router before it.
type DirectService =
    Arc<dyn Fn(Request<Body>) -> BoxFuture<Response<Body>, Infallible> + Send + Sync>;

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
