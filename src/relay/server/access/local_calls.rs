//! Calls of the services within this process, for the console, with the rights of its callers.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, HeaderValue, uri::PathAndQuery};
use tokio::time::Instant;
use tonic::{
    Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::{Access, Call};
use crate::{
    error::Error,
    relay::{
        auth::Tickets,
        server::http2::{service::ServiceRoutes, tls::Peer},
    },
};

/// The services, and who may call them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LocalCalls {
    pub(crate) routes: ServiceRoutes,
    pub(crate) access: Access,
    pub(crate) door: ConsoleDoor,
}

/// Where the console is, and the one-time codes that open it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ConsoleDoor {
    address: Arc<OnceLock<SocketAddr>>,
    codes: Arc<Tickets>,
}

/// A caller: the headers of its request and its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalCaller<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) address: SocketAddr,
}

/// Codes that are not used yet.
const CODES: usize = 100;
/// How long a code can be used.
const CODE_LASTS: Duration = Duration::from_secs(60);

/// Messages as they are on the wire.
#[derive(Debug, Default, Clone, Copy)]
struct Encoded;

impl Default for ConsoleDoor {
    fn default() -> Self {
        Self {
            address: Arc::default(),
            codes: Arc::new(Tickets::new(CODES, CODE_LASTS)),
        }
    }
}

impl ConsoleDoor {
    /// The console is at this address.
    pub(crate) fn open_at(&self, address: SocketAddr) {
        _ = self.address.set(address);
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address.get().copied()
    }

    /// Returns a code for a login with this credential.
    ///
    /// # Errors
    /// As [`Tickets::issue`].
    pub(crate) fn code(&self, authorization: HeaderValue) -> Result<String, Error> {
        self.codes.issue(authorization, Instant::now())
    }
}

impl LocalCalls {
    /// Returns the credential that a one-time code stands for.
    pub(crate) fn redeem(&self, code: &str) -> Option<HeaderValue> {
        self.door.codes.take(code, Instant::now())
    }

    /// Returns the principal of a caller, which is empty where no caller needs to be known.
    ///
    /// # Errors
    /// UNAUTHENTICATED for a caller that is not known; UNAVAILABLE after too many failures.
    pub(crate) fn principal(&self, caller: LocalCaller<'_>) -> Result<String, Status> {
        self.access
            .principal(caller.headers, &Peer::of_admin_port(caller.address))
    }

    /// Calls a method, and returns its answer or answers.
    ///
    /// # Errors
    /// Those of the access control, and of the method before its first answer.
    pub(crate) async fn call(
        &self,
        caller: LocalCaller<'_>,
        path: &'static str,
        request: Bytes,
    ) -> Result<Streaming<Bytes>, Status> {
        let peer = Peer::of_admin_port(caller.address).into();
        let call = Call::of(path);
        let requester = self
            .access
            .admit(path, call, caller.headers, &peer, &Mutex::default())?;
        let mut request = Request::new(request);
        if let Some(requester) = requester {
            request.extensions_mut().insert(requester);
        }
        let mut grpc = Grpc::new(self.routes.clone());
        let path = PathAndQuery::from_static(path);
        // A unary method differs in the number of its answers only.
        let answers = grpc.server_streaming(request, path, Encoded).await?;
        Ok(answers.into_inner())
    }
}

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
