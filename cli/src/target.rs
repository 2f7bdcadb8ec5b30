//! The relay of a verb, its time-out, and its output format.

use std::{collections::BTreeSet, time::Duration};

use reveille::{
    Client, ConnectionState, Error, ErrorKind, LinkState, Listed, ListenerId, Publisher,
    PublisherOptions, duration::Span,
};
use serde_json::Value;
use tokio::sync::watch;

use super::{
    credential::ClientArgs,
    exit::Exit,
    output::{self, Format, OutputArgs},
    program,
};

/// The arguments of every client verb.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct RelayArgs {
    /// The relay: http://HOST:PORT, https://HOST:PORT, or HOST:PORT; or several, with commas between them [default: http://127.0.0.1:7600]
    #[arg(long, env = "REVEILLE_RELAY", value_name = "URL", help_heading = HEADING)]
    pub(super) relay: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
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

/// The relay of a verb, with its time-out.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) relay: String,
    client: ClientArgs,
    pub(super) insecure: bool,
    /// `None`: no limit.
    pub(super) timeout: Option<Duration>,
    pub(super) format: Format,
}

/// The causes that a verb has printed since its relay last served it: those of several relays come in
/// turn.
#[derive(Debug, Default)]
pub(super) struct Causes(BTreeSet<String>);

impl Causes {
    /// Prints why the relay does not serve the verb, unless that is known.
    pub(super) fn note(&mut self, cause: &str) {
        if self.0.len() == MOST_CAUSES {
            self.0.clear();
        }
        if self.0.insert(cause.to_owned()) {
            output::note(format_args!("{}; still trying", explained(cause)));
        }
    }
}

const HEADING: &str = "Relay";
const MOST_CAUSES: usize = 8;
/// The name of a verb's publisher.
pub(super) const PUBLISHER: &str = "reveille-cli";
const RELAY: &str = "http://127.0.0.1:7600";
/// Long enough for a relay that restarts; short enough for a person who waits.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A verb that has waited this long prints once that the relay does not answer.
pub(super) const WARN_AFTER: Duration = Duration::from_millis(700);

impl RelayArgs {
    /// Returns the target of a verb with this time-out.
    pub(super) fn resolve(&self, timeout: Option<Duration>) -> Target {
        Target {
            relay: with_scheme(self.relay.as_deref().unwrap_or(RELAY)),
            client: self.client.clone(),
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
        let mut config = self.client.config(self.insecure)?;
        if let Some(timeout) = self.timeout {
            // If the verb's time-out is longer than that of one call, each call may take as long.
            config.request_timeout = config.request_timeout.max(timeout);
            config.connect_timeout = config.connect_timeout.min(timeout);
        }
        Client::with_config(&self.relay, config)
    }

    /// Returns a publisher. Its results come a little before the time-out: some may be late, and others not.
    pub(super) fn publisher(&self, name: &str) -> reveille::Result<Publisher> {
        let before = |timeout: Duration| timeout - (timeout / 10).min(Duration::from_millis(200));
        let options = PublisherOptions {
            name: name.to_owned(),
            deadline: self.timeout.map_or(Duration::MAX, before),
            ..PublisherOptions::default()
        };
        Ok(self.client()?.publisher_with(options))
    }

    /// Runs a call within the time-out.
    pub(super) async fn within<T>(
        &self,
        call: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        let late = (
            ErrorKind::Unavailable,
            format!("relay `{}`: no answer", self.relay),
        );
        let done = program::within(self.timeout, late, call).await;
        done.map_err(|error: Error| match error.kind() {
            // The client's time-out or the relay's: the cause is the same.
            ErrorKind::Timeout | ErrorKind::Unavailable => {
                Error::new(ErrorKind::Unavailable, explained(error.message()))
            }
            _ => error,
        })
    }

    /// Waits within the time-out until the relay has acknowledged notifications. Prints why the publisher
    /// repeats them.
    pub(super) async fn acknowledged<T>(
        &self,
        publisher: &Publisher,
        notifying: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        let note_failures = async {
            let mut causes = Causes::default();
            loop {
                tokio::time::sleep(self.warn_after()).await;
                if let Some(error) = publisher.failure() {
                    causes.note(&error.to_string());
                }
            }
        };
        let trying = async {
            tokio::select! {
                done = notifying => done,
                never = note_failures => never,
            }
        };
        match self.within(trying).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let failure = publisher.failure().map(|failure| failure.to_string());
                Err(failure.map_or(error, |text| {
                    Error::new(ErrorKind::Unavailable, explained(&text))
                }))
            }
            outcome => outcome,
        }
    }

    /// Runs a wait that ends with a time-out. If there is no stream then, the error states why: the
    /// event may have happened.
    pub(super) async fn reaching<T>(
        &self,
        link: watch::Receiver<LinkState>,
        waiting: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        let outcome = self.noting_causes(link.clone(), waiting).await;
        let link = link.borrow();
        match outcome {
            Err(error) if error.kind() == ErrorKind::Timeout && !is_connected(&link) => {
                let cause = match &link.cause {
                    Some(cause) => cause.to_string(),
                    None => format!("relay `{}`: no answer", self.relay),
                };
                let span = Span(self.timeout.unwrap_or_default());
                let message = format!("{cause}; not seen within {span}, but it may have happened");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            outcome => outcome,
        }
    }

    /// Runs a verb that follows a stream, until its time-out. Prints why the stream is not open.
    pub(super) async fn following(
        &self,
        link: watch::Receiver<LinkState>,
        work: impl Future<Output = anyhow::Result<Exit>>,
    ) -> anyhow::Result<Exit> {
        let working = self.noting_causes(link.clone(), work);
        let Some(timeout) = self.timeout else {
            return working.await;
        };
        if let Ok(ended) = tokio::time::timeout(timeout, working).await {
            return ended;
        }
        let cause = link.borrow().cause.clone();
        let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
        output::note(format_args!("timed out after {}{cause}", Span(timeout)));
        Ok(Exit::TIMED_OUT)
    }

    /// Runs work on a stream, and prints why the stream is not open: after a moment, then where the cause
    /// changes.
    async fn noting_causes<T>(
        &self,
        mut link: watch::Receiver<LinkState>,
        work: impl Future<Output = T>,
    ) -> T {
        let note_causes = async {
            tokio::time::sleep(self.warn_after()).await;
            let mut causes = Causes::default();
            loop {
                match &*link.borrow_and_update() {
                    LinkState {
                        cause: Some(cause), ..
                    } => causes.note(cause),
                    link if is_connected(link) => causes = Causes::default(),
                    _ => {}
                }
                if link.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            done = work => done,
            never = note_causes => never,
        }
    }

    /// Returns the time after which a verb prints why it waits: early enough to find that out within
    /// the time-out.
    fn warn_after(&self) -> Duration {
        let half = self.timeout.map_or(WARN_AFTER, |timeout| timeout / 2);
        half.min(WARN_AFTER)
    }
}

/// Adds what may be wrong to an error of HTTP/2 or TLS, of which the library names the event only.
fn explained(cause: &str) -> String {
    let hints = [
        (
            "h2 protocol error",
            "the relay's gRPC port is 7600 by default; if it has TLS, write https://",
        ),
        (
            "TLS: Connection reset",
            "if this port has no TLS, write http://",
        ),
        (
            "TLS: tls handshake eof",
            "if this port has no TLS, write http://",
        ),
    ];
    let hint = hints.iter().find(|(event, _)| cause.contains(event));
    hint.map_or_else(|| cause.to_owned(), |(_, hint)| format!("{cause}: {hint}"))
}

/// Converts each `HOST:PORT` of a list to a URL.
pub(super) fn with_scheme(relays: &str) -> String {
    let urls = relays.split(',').map(str::trim).map(|relay| match relay {
        url if url.contains("://") => url.to_owned(),
        address => format!("http://{address}"),
    });
    urls.collect::<Vec<_>>().join(",")
}

fn is_connected(link: &LinkState) -> bool {
    link.connection == ConnectionState::Connected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_needs_no_scheme() {
        assert_eq!(with_scheme("relay:7600"), "http://relay:7600");
        let several = with_scheme("a:1, https://b:2");
        assert_eq!(several, "http://a:1,https://b:2");
    }
}
