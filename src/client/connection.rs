//! A client: the relays that it may use, and its calls.
//!
//! Streams and single calls never share a connection: a stream that fills its connection must not
//! delay the report that would drain it. Unread streams do not block each other either, because
//! each has its share of the connection's window. A connection without an answer in time is
//! retired.

use std::{sync::Arc, time::Duration};

use super::{
    ClientConfig, FlagWatcher, Flags, Publisher, PublisherOptions, Subscription,
    credential::RelayChannel, pool::Lease, relays::Relays,
};
use crate::{
    base::causes::causes,
    client::session::{ReconnectConfig, leaves_relay},
    error::{Error, ErrorKind, Result},
    types::{FlagName, ListenerId, SubscribeOptions},
    wire::{from_status, proto},
};

pub(super) type RelayClient = proto::relay_client::RelayClient<RelayChannel>;
pub(super) type FlagsClient = proto::flags_client::FlagsClient<RelayChannel>;
pub(super) type AdminClient = proto::admin_client::AdminClient<RelayChannel>;

/// A client of one relay, or of several that serve one fleet. Cheap to clone; connects at its first
/// use and reconnects by itself.
///
/// With several relays it begins at any of them and stays there. When that relay cannot be reached, or
/// shuts down, it goes to the next one at once. The addresses of one name are several relays as well.
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
pub struct Client(pub(super) Arc<ClientInner>);

#[derive(Debug)]
pub(super) struct ClientInner {
    pub(super) config: ClientConfig,
    pub(super) relays: Relays,
}

impl Client {
    /// Creates a client of the relay at `url`, such as `http://127.0.0.1:7600`, or
    /// `https://relay.example.com:7600` with TLS. Several relays are written with commas between them.
    /// Does not connect yet, but must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a URL is malformed or listed twice.
    pub fn new(url: &str) -> Result<Self> {
        Self::with_config(url, ClientConfig::default())
    }

    /// Creates a client with the given configuration.
    ///
    /// # Errors
    /// As [`Client::new`], and [`ErrorKind::Invalid`] if a file of [`ClientConfig::tls`] does not fit,
    /// or the credential would be sent in plain text.
    pub fn with_config(url: &str, config: ClientConfig) -> Result<Self> {
        let relays = Relays::new(url, &config)?;
        Ok(Self(Arc::new(ClientInner { config, relays })))
    }

    /// Returns the URL of the relay in use.
    pub fn url(&self) -> &str {
        self.0.relays.url()
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
        Flags(self.clone())
    }

    /// Returns a watch of a flag: its states, starting with the current one.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "as `subscribe` takes its options"
    )]
    pub fn watch_flag(&self, flag: FlagName, listener_id: ListenerId) -> FlagWatcher {
        FlagWatcher::new(self, &flag, &listener_id)
    }

    pub(super) fn reconnect_config(&self) -> ReconnectConfig {
        let others = self.0.relays.others();
        self.0.config.reconnect(others)
    }

    /// Runs one call. A request that was not sent, because the relay cannot be reached, goes to each
    /// other relay; each gets the request time-out.
    pub(crate) async fn call<R: Clone, T>(
        &self,
        request: R,
        call: impl AsyncFn(RelayChannel, R) -> Result<tonic::Response<T>, tonic::Status>,
    ) -> Result<T> {
        self.call_each(request, call, false).await
    }

    /// Runs a call that changes nothing. It goes to each other relay until one answers; each gets the
    /// time of [`Client::answer_timeout`].
    pub(crate) async fn read<R: Clone, T>(
        &self,
        request: R,
        call: impl AsyncFn(RelayChannel, R) -> Result<tonic::Response<T>, tonic::Status>,
    ) -> Result<T> {
        self.call_each(request, call, true).await
    }

    async fn call_each<R: Clone, T>(
        &self,
        request: R,
        call: impl AsyncFn(RelayChannel, R) -> Result<tonic::Response<T>, tonic::Status>,
        repeats: bool,
    ) -> Result<T> {
        let relays = &self.0.relays;
        if repeats {
            self.resolve().await;
        }
        for tried in 0.. {
            let connection = relays.call_connection();
            let within = match repeats {
                true => self.answer_timeout(),
                false => self.0.config.request_timeout,
            };
            let answer = call(connection.channel(), request.clone());
            let (error, is_unsent) = match self.answered(&connection, within, answer).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // A call over a limit is repeated later; other calls go on, also after an answer about what was
            // asked for.
            let is_own = matches!(
                error.kind(),
                ErrorKind::Exhausted | ErrorKind::NotFound | ErrorKind::Unsupported
            );
            let leaves = !is_own && leaves_relay(Some(&error));
            if leaves {
                relays.leave(&connection);
            }
            // The attempt may have resolved a name.
            if tried >= relays.others() || !(is_unsent || repeats && leaves) {
                return Err(error);
            }
        }
        unreachable!("the last relay returns")
    }

    /// Resolves the name of the relay in use, within its part of the request time-out.
    pub(super) async fn resolve(&self) {
        let resolved = self.0.relays.resolve();
        let _ = tokio::time::timeout(self.answer_timeout(), resolved).await;
    }

    /// Returns the time in which a relay must answer a request that another one takes as well.
    pub(super) fn answer_timeout(&self) -> Duration {
        let timeout = self.0.config.request_timeout;
        match self.0.relays.others() {
            0 => timeout,
            _ => timeout.min(TIME_WITH_OTHERS),
        }
    }

    /// Runs a call about a stream on this connection within this time. Without an answer it retires the
    /// connection, which may be dead: the PING would detect that only after half a minute. The client does
    /// not leave the relay for it: that is up to the stream.
    pub(super) async fn call_on<T>(
        &self,
        connection: &Lease,
        within: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T> {
        let answered = self.answered(connection, within, call).await;
        answered.map_err(|(error, _)| error)
    }

    /// The error comes with whether the relay could not be reached.
    async fn answered<T>(
        &self,
        connection: &Lease,
        within: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, (Error, bool)> {
        let url = self.0.relays.url_of(connection);
        match tokio::time::timeout(within, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => {
                let is_unsent = causes(&status).any(|error| error.is::<tonic::ConnectError>());
                Err((with_relay_url(from_status(status), url), is_unsent))
            }
            Err(_) => {
                connection.retire();
                Err((unreachable(url, "no answer in time"), false))
            }
        }
    }
}

/// Time for a relay to answer a call that another one can take: a relay of a cluster waits for the others
/// for a second.
const TIME_WITH_OTHERS: Duration = Duration::from_secs(2);

/// Adds the relay's URL to an error of the connection.
pub(super) fn with_relay_url(error: Error, url: &str) -> Error {
    if error.kind() != ErrorKind::Unavailable {
        return error;
    }
    let named = unreachable(url, error.message());
    match error.retry_after() {
        Some(after) => named.with_retry_after(after),
        None => named,
    }
}

fn unreachable(url: &str, why: &str) -> Error {
    let hint = tls_hint(why);
    Error::new(
        ErrorKind::Unavailable,
        format!("relay `{url}`: {why}{hint}"),
    )
}

/// Says what to do about an error of TLS, of which the library names the event only.
fn tls_hint(why: &str) -> &'static str {
    const HINTS: [(&str, &str); 3] = [
        (
            "corrupt message",
            "; the server there does not speak TLS: write http://",
        ),
        (
            "peer certificate: UnknownIssuer",
            "; the authority of the relay's certificate is not known here: name it as the CA (--ca FILE)",
        ),
        (
            "CaUsedAsEndEntity",
            "; the relay shows a certificate of an authority, as `openssl req -x509` makes it: make one with \
             `-addext basicConstraints=critical,CA:FALSE` (docs/security.md, A certificate)",
        ),
    ];
    let hint = HINTS.iter().find(|(text, _)| why.contains(text));
    hint.map_or("", |(_, hint)| hint)
}
