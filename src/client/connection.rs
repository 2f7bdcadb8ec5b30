//! A relay's address and the connections to it.
//!
//! Streams and single calls never share a connection: a stream that fills its connection must not
//! delay the report that would drain it. Unread streams do not block each other either, because
//! each has its share of the connection's window. A connection without an answer in time is
//! retired.

use std::{sync::Arc, time::Duration};

use tonic::transport::Endpoint;

use super::{
    ClientConfig, FlagWatcher, Flags, Publisher, PublisherOptions, Subscription,
    channel::RelayChannel,
    connector::Connector,
    pool::{Lease, Pool},
};
use crate::{
    base::clock::Clock,
    client::session::ReconnectConfig,
    error::{Error, ErrorKind, Result},
    types::{FlagName, ListenerId, SubscribeOptions},
    wire::{from_status, proto},
};

pub(super) type RelayClient = proto::relay_client::RelayClient<RelayChannel>;
pub(super) type FlagsClient = proto::flags_client::FlagsClient<RelayChannel>;
pub(super) type AdminClient = proto::admin_client::AdminClient<RelayChannel>;

/// A client of one relay. Cheap to clone; connects at its first use and reconnects by itself.
///
/// ```no_run
/// # async fn example() -> reveille::Result<()> {
/// use reveille::{Client, Notification};
///
/// let client = Client::new("http://127.0.0.1:7600")?;
/// let publisher = client.publisher("billing");
/// publisher.notify(Notification::new("acct/orders".parse()?)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<ClientInner>,
}

#[derive(Debug)]
struct ClientInner {
    url: String,
    config: ClientConfig,
    clock: Clock,
    streams: Arc<Pool>,
    calls: Arc<Pool>,
}

/// Practically never. A bound is needed because hyper adds the interval to the current time, and
/// the addition panics on overflow.
const MAX_KEEPALIVE: Duration = Duration::from_secs(365 * 24 * 3600);

impl Client {
    /// Creates a client of the relay at `url`, such as `http://127.0.0.1:7600`, or
    /// `https://relay.example.com:7600` with TLS. Does not connect yet, but must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the URL is malformed.
    pub fn new(url: &str) -> Result<Self> {
        Self::with_config(url, ClientConfig::default())
    }

    /// Creates a client with the given configuration.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the URL is malformed, or a file of [`ClientConfig::tls`] does not fit.
    pub fn with_config(url: &str, config: ClientConfig) -> Result<Self> {
        let (endpoint, connector) = endpoint(url, &config)?;
        let credential = config.credential.clone();
        if !credential.is_none() && !config.insecure {
            connector.check_credential(url, &endpoint)?;
        }
        let inner = ClientInner {
            url: url.to_owned(),
            config,
            clock: Clock::new(),
            streams: Pool::new(
                endpoint.clone(),
                connector.clone(),
                credential.clone(),
                false,
            ),
            calls: Pool::new(endpoint, connector, credential, true),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the relay's URL.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Returns a publisher; its wake-ups carry `name`.
    pub fn publisher(&self, name: &str) -> Publisher {
        self.publisher_with(PublisherOptions {
            name: name.to_owned(),
            ..PublisherOptions::default()
        })
    }

    /// Returns a publisher with the given options.
    pub fn publisher_with(&self, options: PublisherOptions) -> Publisher {
        Publisher::start(self, options)
    }

    /// Returns a subscription: a stream of wake-ups that reconnects for ever.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the options break a rule.
    pub fn subscribe(&self, options: SubscribeOptions) -> Result<Subscription> {
        Subscription::new(self, options)
    }

    /// Returns the calls on durable flags.
    pub fn flags(&self) -> Flags {
        Flags::new(self)
    }

    /// Returns a watch of a flag: its states, starting with the current one.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "as `subscribe` takes its options"
    )]
    pub fn watch_flag(&self, flag: FlagName, listener_id: ListenerId) -> FlagWatcher {
        FlagWatcher::new(self, &flag, &listener_id)
    }

    /// Waits until the relay answers, at most for `within`. Does not check the relay's store,
    /// because wake-ups need none.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the last failure if it does not answer.
    pub async fn ready(&self, within: Duration) -> Result<()> {
        let deadline = self.inner.clock.now() + within;
        let mut pause = Duration::from_millis(20);
        loop {
            let error = match self.ping().await {
                Ok(()) => return Ok(()),
                // It answers, if not this call.
                Err(error) if error.kind() == ErrorKind::Exhausted => return Ok(()),
                Err(error) => error,
            };
            let left = deadline.since(self.inner.clock.now());
            if left.is_zero() || !error.is_retryable() {
                return Err(error);
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    /// Lists one queue: the cheapest call that every relay answers without its store.
    async fn ping(&self) -> Result<()> {
        let request = proto::ListQueuesRequest {
            page_size: 1,
            ..Default::default()
        };
        self.call(|channel| async move { AdminClient::new(channel).list_queues(request).await })
            .await
            .map(|_| ())
    }

    pub(super) fn clock(&self) -> Clock {
        self.inner.clock
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    pub(super) fn reconnect_config(&self) -> ReconnectConfig {
        ReconnectConfig {
            base: self.inner.config.reconnect_base,
            max: self.inner.config.reconnect_max,
            open_timeout: self.inner.config.request_timeout,
            ..ReconnectConfig::default()
        }
    }

    /// Leases a connection for a response stream.
    pub(super) fn stream_connection(&self) -> Lease {
        self.inner.streams.lease()
    }

    /// Leases a connection for calls.
    pub(super) fn call_connection(&self) -> Lease {
        self.inner.calls.lease()
    }

    /// Runs one call within the request time-out.
    pub(crate) async fn call<T, F>(&self, call: impl FnOnce(RelayChannel) -> F) -> Result<T>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let connection = self.call_connection();
        self.call_on(&connection, call(connection.channel())).await
    }

    /// Runs one call on this connection within the request time-out. Without an answer it retires
    /// the connection, which may be dead: the PING would detect that only after half a minute.
    pub(super) async fn call_on<T>(
        &self,
        connection: &Lease,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.inner.config.request_timeout, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.with_relay_url(from_status(status))),
            Err(_) => {
                connection.retire();
                Err(self.unreachable("no answer in time"))
            }
        }
    }

    /// Adds the relay's URL to an error of the connection.
    fn with_relay_url(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Unavailable {
            return error;
        }
        let named = self.unreachable(error.message());
        match error.retry_after() {
            Some(after) => named.with_retry_after(after),
            None => named,
        }
    }

    fn unreachable(&self, why: &str) -> Error {
        let hint = tls_hint(why);
        Error::new(
            ErrorKind::Unavailable,
            format!("relay `{}`: {why}{hint}", self.inner.url),
        )
    }
}

/// Says what to do about an error of TLS, whose library names the alert only.
fn tls_hint(why: &str) -> &'static str {
    const HINTS: [(&str, &str); 3] = [
        (
            "alert: CertificateRequired",
            "; the relay requires a client certificate",
        ),
        (
            "alert: UnknownCA",
            "; the relay does not know the authority of the client certificate",
        ),
        (
            "peer certificate: UnknownIssuer",
            "; the authority of the relay's certificate is not known here: name it as the CA",
        ),
    ];
    let hint = HINTS.iter().find(|(text, _)| why.contains(text));
    hint.map_or("", |(_, hint)| hint)
}

fn endpoint(url: &str, config: &ClientConfig) -> Result<(Endpoint, Connector)> {
    let (endpoint, connector) = Connector::new(url, &config.tls)?;
    let endpoint = endpoint
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(config.keepalive.min(MAX_KEEPALIVE))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true);
    Ok((endpoint, connector))
}
