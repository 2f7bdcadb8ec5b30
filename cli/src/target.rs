//! The relay of a verb, its time-out, and its output format.

use std::{convert::Infallible, time::Duration};

use reveille::{
    Client, ClientConfig, ConnectionState, Credential, Error, ErrorKind, LinkState, Listed,
    ListenerId, duration::Span,
};
use serde_json::Value;
use tokio::{sync::watch, time::Instant};

use super::{
    causes::Causes,
    credential::CredentialArgs,
    exit::Exit,
    foreign_server,
    output::{self, Format, OutputArgs},
    tls::ClientTlsArgs,
};

/// The arguments of every client verb.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct RelayArgs {
    /// The relay: http://HOST:PORT, https://HOST:PORT, or HOST:PORT; or several, with commas between them [default: http://127.0.0.1:7600]
    #[arg(long, env = "REVEILLE_RELAY", value_name = "URL", help_heading = HEADING)]
    pub(super) relay: Option<String>,
    #[command(flatten)]
    pub(super) tls: ClientTlsArgs,
    #[command(flatten)]
    pub(super) credential: CredentialArgs,
    /// Send the token in plain text to another machine, over http://, and serve a metrics page to other
    /// machines
    #[arg(long, env = "REVEILLE_INSECURE", help_heading = HEADING)]
    pub(super) insecure: bool,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// The arguments of a verb with a request and a response.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct TargetArgs {
    #[command(flatten)]
    pub(super) relay: RelayArgs,
    /// Give up after this long [default: 10s]
    #[arg(long, env = "REVEILLE_TIMEOUT", value_name = "D", help_heading = HEADING)]
    pub(super) timeout: Option<Span>,
}

/// The arguments of a verb that waits for events. Only its flag bounds it: a variable that is meant
/// for short calls must not end a listener.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct WaitingArgs {
    #[command(flatten)]
    pub(super) relay: RelayArgs,
    /// Give up after this long [default: never]
    #[arg(long, value_name = "D", help_heading = HEADING)]
    pub(super) timeout: Option<Span>,
}

/// The id of a verb that listens.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct IdArgs {
    /// The listener id, which `unleash --expect` counts [default: the verb and random characters]
    #[arg(long, env = "REVEILLE_LISTENER_ID", value_name = "NAME")]
    id: Option<String>,
}

impl IdArgs {
    pub(super) fn resolve(&self, verb: &str) -> reveille::Result<ListenerId> {
        match &self.id {
            Some(id) => ListenerId::new(id),
            None => ListenerId::unique(verb),
        }
    }
}

/// The arguments merged with the configuration file and the defaults.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) relay: String,
    pub(super) tls: ClientTlsArgs,
    pub(super) credential: Credential,
    pub(super) insecure: bool,
    /// `None`: no limit.
    pub(super) timeout: Option<Duration>,
    pub(super) format: Format,
}

const HEADING: &str = "Relay";
const RELAY: &str = "http://127.0.0.1:7600";
/// Long enough for a relay that restarts; short enough for a person who waits.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A verb that has waited this long prints once that the relay does not answer.
pub(super) const WARN_AFTER: Duration = Duration::from_millis(700);
/// Time-out of the check whether the relay is reachable.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

impl RelayArgs {
    /// Returns the target of a verb with this time-out.
    pub(super) fn resolve(&self, timeout: Option<Duration>) -> Target {
        let relay = self.relay.clone();
        Target {
            relay: relay.map_or_else(|| RELAY.to_owned(), with_scheme),
            tls: self.tls.clone(),
            credential: self.credential.resolve(),
            insecure: self.insecure,
            timeout,
            format: self.output.format,
        }
    }
}

impl TargetArgs {
    pub(super) fn resolve(&self) -> Target {
        let timeout = self.timeout.map_or(TIMEOUT, Into::into);
        self.relay.resolve(Some(timeout))
    }

    /// Gets a list from the relay, and writes a row for each entry, with these columns.
    pub(super) async fn list<T>(
        &self,
        call: impl AsyncFnOnce(&Client) -> reveille::Result<Listed<T>>,
        columns: &str,
        row: impl Fn(&T) -> Value,
    ) -> anyhow::Result<Exit> {
        let target = self.resolve();
        let client = target.client()?;
        let listed = target.within(call(&client)).await?;
        note_unanswered(&listed.unanswered);
        let rows: Vec<_> = listed.iter().map(row).collect();
        target.format.rows(columns, &rows)?;
        Ok(Exit::OK)
    }
}

/// Names the relays of the cluster that a list lacks.
pub(super) fn note_unanswered(relays: &[String]) {
    for relay in relays {
        output::note(format_args!(
            "relay {relay} does not answer: what only it has is not listed"
        ));
    }
}

impl WaitingArgs {
    pub(super) fn resolve(&self) -> Target {
        self.relay.resolve(self.timeout.map(Into::into))
    }
}

impl Target {
    pub(super) fn client(&self) -> reveille::Result<Client> {
        let mut config = ClientConfig {
            tls: self.tls.config()?,
            credential: self.credential.clone(),
            insecure: self.insecure,
            ..ClientConfig::default()
        };
        if let Some(timeout) = self.timeout {
            // If the verb's time-out is longer than that of one call, each call may take as long.
            config.request_timeout = config.request_timeout.max(timeout);
            config.connect_timeout = config.connect_timeout.min(timeout);
        }
        Client::with_config(&self.relay, config)
    }

    /// Runs a call within the time-out.
    pub(super) async fn within<T>(
        &self,
        call: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        let Some(timeout) = self.timeout else {
            return call.await;
        };
        let began = Instant::now();
        match tokio::time::timeout(timeout, call).await {
            // The error of several relays names the relay.
            Ok(Err(error))
                if error.kind() == ErrorKind::Unavailable && !self.relay.contains(',') =>
            {
                let left = timeout.saturating_sub(began.elapsed());
                let server = foreign_server::identify(&self.relay, left).await;
                Err(server.unwrap_or(error))
            }
            // The client's time-out or the relay's: the cause is the same.
            Ok(Err(error)) if error.kind() == ErrorKind::Timeout => {
                let message = error.message().to_owned();
                Err(Error::new(ErrorKind::Unavailable, message).with_source(error))
            }
            Ok(result) => result,
            Err(_) => Err(self.no_answer()),
        }
    }

    /// Runs a call that retries by itself, such as a notification, within the time-out. Prints why
    /// it retries: the relay cannot be reached, or the newest attempt failed.
    pub(super) async fn acknowledged<T>(
        &self,
        client: &Client,
        notifying: impl Future<Output = reveille::Result<T>>,
        failure: impl Fn() -> Option<Error>,
    ) -> reveille::Result<T> {
        tokio::pin!(notifying);
        let mut cause = None;
        let trying = async {
            let probe = async {
                tokio::time::sleep(self.warn_after()).await;
                cause = unreachable(client).await;
                if let Some(error) = cause.clone().or_else(failure) {
                    output::note(format_args!("{error}; still trying"));
                }
            };
            tokio::select! {
                done = &mut notifying => return done,
                () = probe => {}
            }
            notifying.await
        };
        let outcome = self.within(trying).await;
        match outcome {
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(cause.unwrap_or(error)),
            outcome => outcome,
        }
    }

    /// Runs a wait that ends with a time-out. If there is no stream then, the error states why: the
    /// event may have happened.
    pub(super) async fn reaching<T>(
        &self,
        client: &Client,
        link: watch::Receiver<LinkState>,
        waiting: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        let mut first = None;
        let noted = link.clone();
        let outcome = tokio::select! {
            done = waiting => done,
            never = note_causes(client, noted, self.warn_after(), &mut first) => match never {},
        };
        let link = link.borrow();
        match outcome {
            Err(error) if error.kind() == ErrorKind::Timeout && !is_connected(&link) => {
                let cause = first.or_else(|| link.cause.as_deref().map(str::to_owned));
                let cause = cause.unwrap_or_else(|| self.no_answer().to_string());
                let span = Span(self.timeout.unwrap_or_default());
                let message = format!("{cause}; not seen within {span}, but it may have happened");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            outcome => outcome,
        }
    }

    /// Returns the time after which a verb prints why it waits: early enough to find that out within
    /// the time-out.
    fn warn_after(&self) -> Duration {
        let half = self.timeout.map_or(WARN_AFTER, |timeout| timeout / 2);
        half.min(WARN_AFTER)
    }

    /// Returns the note of a waiting verb that has timed out; without a stream it states why.
    pub(super) fn timed_out_waiting(&self, link: &LinkState) -> String {
        let span = Span(self.timeout.unwrap_or_default());
        match &link.cause {
            Some(cause) => format!("timed out after {span}: {cause}"),
            None => format!("timed out after {span}"),
        }
    }

    /// Returns the error of a time-out: "unavailable", as a relay that does not answer in time may
    /// as well be unreachable.
    pub(super) fn no_answer(&self) -> Error {
        let span = Span(self.timeout.unwrap_or_default());
        let message = format!("relay `{}`: no answer within {span}", self.relay);
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Converts each `HOST:PORT` of a list to a URL.
#[allow(clippy::needless_pass_by_value, reason = "it is mapped")]
pub(super) fn with_scheme(relays: String) -> String {
    let urls = relays.split(',').map(str::trim).map(|relay| match relay {
        url if url.contains("://") => url.to_owned(),
        address => format!("http://{address}"),
    });
    urls.collect::<Vec<_>>().join(",")
}

/// Returns why the relay cannot be reached; `None` if it answers.
pub(super) async fn unreachable(client: &Client) -> Option<Error> {
    let answer = tokio::time::timeout(PROBE_TIMEOUT, client.health()).await;
    let late = || Err(Error::new(ErrorKind::Unavailable, "it does not answer"));
    let error = answer.unwrap_or_else(|_| late()).err()?;
    let error = Some(error).filter(|error| error.kind() == ErrorKind::Unavailable)?;
    let server = foreign_server::identify(client.url(), PROBE_TIMEOUT).await;
    Some(server.unwrap_or(error))
}

/// Runs work on a stream, and prints why the stream is not open, as it changes.
pub(super) async fn noting_causes<T>(
    client: &Client,
    link: watch::Receiver<LinkState>,
    work: impl Future<Output = T>,
) -> T {
    let mut first = None;
    tokio::select! {
        done = work => done,
        never = note_causes(client, link, WARN_AFTER, &mut first) => match never {},
    }
}

/// Prints why a stream is not open: after a moment, then where the cause changes. `first` is set while
/// a server that is no relay answers, or none.
async fn note_causes(
    client: &Client,
    mut link: watch::Receiver<LinkState>,
    wait: Duration,
    first: &mut Option<String>,
) -> Infallible {
    tokio::time::sleep(wait).await;
    let mut causes = Causes::default();
    if !is_connected(&link.borrow_and_update()) {
        *first = unreachable(client).await.map(|error| error.to_string());
    }
    if let Some(first) = first {
        causes.note(first);
        // The stream's own words for it say less.
        if let Some(known) = &link.borrow_and_update().cause {
            causes.is_new(known, std::time::Instant::now());
        }
    }
    loop {
        let (connected, cause) = {
            let link = link.borrow_and_update();
            (is_connected(&link), link.cause.clone())
        };
        match cause {
            Some(cause) => causes.note(&cause),
            None if connected => causes = Causes::default(),
            None => {}
        }
        if link.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn is_connected(link: &LinkState) -> bool {
    link.connection == ConnectionState::Connected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_needs_no_scheme() {
        assert_eq!(with_scheme("relay:7600".to_owned()), "http://relay:7600");
        let several = with_scheme("a:1, https://b:2".to_owned());
        assert_eq!(several, "http://a:1,https://b:2");
    }
}
