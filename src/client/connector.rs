//! Opens the connections of a client, in plain text or over TLS.
//!
//! TLS is not tonic's: that reads the files once, and a program that runs for months must use renewed
//! certificates.

use hyper_util::client::legacy::connect::HttpConnector;
use tonic::transport::{Channel, Endpoint};

#[cfg(feature = "tls")]
use super::secure::SecureConnector;
use super::{ClientTls, resolver::Resolver};
use crate::error::{Error, Result};

/// How the connections to a server are opened.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    resolver: Resolver,
    #[cfg(feature = "tls")]
    tls: Option<SecureConnector>,
}

impl Connector {
    /// Returns the endpoint of a URL, `http://HOST:PORT` or `https://HOST:PORT`, and its connector.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL is malformed, or a file of TLS
    /// does not fit.
    pub(crate) fn new(url: &str, tls: &ClientTls) -> Result<(Endpoint, Self)> {
        let refuse = || {
            let rule = format_args!("must be written http[s]://HOST:PORT, but is {url:?}");
            Error::invalid("relay", rule)
        };
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| refuse())?;
        let uri = endpoint.uri();
        match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(_)) => Ok((endpoint, Self::plain())),
            (Some("https"), Some(authority)) => {
                let named = authority.as_str().to_owned();
                let address = match authority.port() {
                    Some(_) => named.clone(),
                    // RFC 9110, section 4.2.2.
                    None => format!("{named}:443"),
                };
                let endpoint = secure(&named, &address).ok_or_else(refuse)?;
                Ok((endpoint, Self::secure(tls)?))
            }
            _ => Err(refuse()),
        }
    }

    fn plain() -> Self {
        Self {
            resolver: Resolver::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    #[cfg(feature = "tls")]
    fn secure(tls: &ClientTls) -> Result<Self> {
        Ok(Self {
            resolver: Resolver::new(),
            tls: Some(SecureConnector::new(tls.clone())?),
        })
    }

    #[cfg(not(feature = "tls"))]
    fn secure(_: &ClientTls) -> Result<Self> {
        let rule = "asks for TLS, which needs the feature `tls` of reveille";
        Err(Error::invalid("relay", rule))
    }

    /// Checks that a credential does not go over an untrusted network in plain text.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for plain text to another machine.
    pub(crate) fn check_credential(&self, url: &str, endpoint: &Endpoint) -> Result<()> {
        let host = endpoint.uri().host().unwrap_or_default();
        let bare = host.trim_matches(['[', ']']);
        let is_loopback = bare == "localhost"
            || bare
                .parse()
                .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if is_loopback || self.has_tls() {
            return Ok(());
        }
        let rule = format_args!(
            "{url:?} would send the credential in plain text to another machine: write https://, or \
             permit it with the setting `insecure`"
        );
        Err(Error::invalid("relay", rule))
    }

    #[cfg(feature = "tls")]
    fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    fn has_tls(&self) -> bool {
        false
    }

    /// Returns the addresses of the server's name.
    pub(super) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// Returns a channel that connects at its first use, and again after each break.
    pub(crate) fn connect_lazy(&self, endpoint: &Endpoint) -> Channel {
        let tcp = self.tcp(endpoint);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return endpoint.connect_with_connector_lazy(tls.over(tcp));
        }
        endpoint.connect_with_connector_lazy(tcp)
    }

    /// Returns a channel that is connected.
    ///
    /// # Errors
    /// tonic's, with its causes.
    #[cfg(feature = "courier")]
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
    ) -> std::result::Result<Channel, tonic::transport::Error> {
        let tcp = self.tcp(endpoint);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return endpoint.connect_with_connector(tls.over(tcp)).await;
        }
        endpoint.connect_with_connector(tcp).await
    }

    /// Each address of a name gets an equal part of the time.
    fn tcp(&self, endpoint: &Endpoint) -> HttpConnector<Resolver> {
        let mut tcp = HttpConnector::new_with_resolver(self.resolver.clone());
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(endpoint.get_connect_timeout());
        tcp
    }
}

/// Returns an endpoint whose requests say `https`. tonic itself must not see that scheme where it
/// connects: with its own TLS features, which another crate may enable, it refuses a foreign
/// connector for it.
fn secure(authority: &str, address: &str) -> Option<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    Some(endpoint.origin(format!("https://{authority}").parse().ok()?))
}
