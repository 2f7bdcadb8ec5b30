//! Opens the connections of a client, in plain text or over TLS.
//!
//! TLS is not tonic's: that reads the files once, and a program that runs for months must use renewed
//! certificates.

use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use tonic::{
    codegen::{Service, StdError as BoxError, http::Uri},
    transport::{Channel, Endpoint},
};
use tower::ServiceExt as _;

#[cfg(feature = "tls")]
use super::secure::SecureConnector;
use super::{ClientTls, resolver::Resolver};
use crate::{
    base::network::is_loopback,
    error::{Error, Result},
};

/// How the connections to a server are opened.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    /// The limit of an attempt: the name, TCP and TLS.
    timeout: Duration,
    /// The addresses of the server's name.
    pub(super) resolver: Resolver,
    /// `None`: plain text.
    tls: Option<SecureConnector>,
}

/// No value: a build without the feature `tls` refuses `https://`.
#[cfg(not(feature = "tls"))]
#[derive(Debug, Clone)]
enum SecureConnector {}

impl Connector {
    /// Returns the endpoint of a URL, `http://HOST:PORT` or `https://HOST:PORT`, and its connector,
    /// which limits the time of an attempt.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL is malformed, or a file of TLS
    /// does not fit.
    pub(crate) fn new(url: &str, tls: &ClientTls, timeout: Duration) -> Result<(Endpoint, Self)> {
        let refuse = || {
            let rule = format_args!("must be written http[s]://HOST:PORT, but is {url:?}");
            Error::invalid("relay", rule)
        };
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| refuse())?;
        let uri = endpoint.uri();
        if uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            // The URL is not repeated: it may have a password.
            let rule = "must have no login before its host: a credential is a token, a secret or a \
                        certificate";
            return Err(Error::invalid("relay", rule));
        }
        let (endpoint, tls) = match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(_)) => (endpoint, None),
            (Some("https"), Some(authority)) => {
                let named = authority.as_str();
                // RFC 9110, section 4.2.2.
                let port = authority.port().map_or(":443", |_| "");
                let endpoint = secure(named, &format!("{named}{port}")).ok_or_else(refuse)?;
                (endpoint, Some(SecureConnector::new(tls)?))
            }
            _ => return Err(refuse()),
        };
        let connector = Self {
            timeout,
            resolver: Resolver::new(),
            tls,
        };
        Ok((endpoint, connector))
    }

    /// Checks that a credential does not go over an untrusted network in plain text.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for plain text to another machine.
    pub(crate) fn check_credential(&self, url: &str, endpoint: &Endpoint) -> Result<()> {
        let host = endpoint.uri().host().unwrap_or_default();
        if is_loopback(host) || self.tls.is_some() {
            return Ok(());
        }
        let rule = format_args!(
            "{url:?} would send the credential in plain text to another machine: write https://, or \
             permit it with the setting `insecure`"
        );
        Err(Error::invalid("relay", rule))
    }

    /// Returns a channel that connects at its first use, and again after each break.
    pub(crate) fn connect_lazy(&self, endpoint: &Endpoint) -> Channel {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return endpoint.connect_with_connector_lazy(self.limited(tls.over(self.tcp())));
        }
        endpoint.connect_with_connector_lazy(self.limited(self.tcp()))
    }

    /// Returns a channel that is connected.
    ///
    /// # Errors
    /// tonic's, with its causes.
    #[cfg(all(feature = "courier", feature = "relay"))]
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
    ) -> std::result::Result<Channel, tonic::transport::Error> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let limited = self.limited(tls.over(self.tcp()));
            return endpoint.connect_with_connector(limited).await;
        }
        endpoint
            .connect_with_connector(self.limited(self.tcp()))
            .await
    }

    /// Each address of a name gets an equal part of the time.
    fn tcp(&self) -> HttpConnector<Resolver> {
        let mut tcp = HttpConnector::new_with_resolver(self.resolver.clone());
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.timeout));
        tcp
    }

    /// Limits the time of an attempt. tonic's own limit is around the error by which a request is known
    /// to be unsent ([`tonic::ConnectError`]), so it would hide that.
    fn limited<C>(
        &self,
        connector: C,
    ) -> impl Service<Uri, Response = C::Response, Error = BoxError, Future: Send> + Send + use<C>
    where
        C: Service<Uri, Error: Into<BoxError>, Future: Send> + Send,
    {
        let timeout = self.timeout;
        connector
            .map_err(Into::into)
            .map_future(move |connecting| async move {
                let connected = tokio::time::timeout(timeout, connecting).await;
                connected.map_err(|_| "no connection in time")?
            })
    }
}

#[cfg(not(feature = "tls"))]
impl SecureConnector {
    fn new(_: &ClientTls) -> Result<Self> {
        let rule = "asks for TLS, which needs the feature `tls` of reveille";
        Err(Error::invalid("relay", rule))
    }
}

/// Returns an endpoint whose requests say `https`. tonic itself must not see that scheme where it
/// connects: with its own TLS features, which another crate may enable, it refuses a foreign
/// connector for it.
fn secure(authority: &str, address: &str) -> Option<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    Some(endpoint.origin(format!("https://{authority}").parse().ok()?))
}
