//! Which relay a verb talks to, for how long, and how it answers.

use std::time::Duration;

use reveille::{Client, ClientConfig, Error, ErrorKind, duration};
use tokio::time::Instant;

use super::{
    exit::Exit,
    output::{self, Format, Row},
    settings::Settings,
    stranger,
};

/// What every client verb takes.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct RelayArgs {
    /// The relay: http://HOST:PORT or HOST:PORT [default: http://127.0.0.1:7600]
    #[arg(long, env = "REVEILLE_RELAY", value_name = "URL", help_heading = HEADING)]
    pub(super) relay: Option<String>,
    /// How data is written [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT", help_heading = HEADING)]
    pub(super) output: Option<Format>,
}

/// What a verb takes that asks and is answered.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct TargetArgs {
    #[command(flatten)]
    pub(super) relay: RelayArgs,
    /// Give up after this long [default: 10s]
    #[arg(
        long,
        env = "REVEILLE_TIMEOUT",
        value_name = "D", allow_hyphen_values = true,
        value_parser = duration::parse,
        help_heading = HEADING
    )]
    pub(super) timeout: Option<Duration>,
}

/// What a verb takes that waits by nature: nothing but its own flag bounds it, lest a variable that
/// was meant for short calls ends a listener.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct WaitingArgs {
    #[command(flatten)]
    pub(super) relay: RelayArgs,
    /// Give up after this long [default: never]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse, help_heading = HEADING)]
    pub(super) timeout: Option<Duration>,
}

/// What is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) relay: String,
    /// `None`: for ever.
    pub(super) timeout: Option<Duration>,
    pub(super) format: Format,
}

const HEADING: &str = "Relay";
const RELAY: &str = "http://127.0.0.1:7600";
/// Long enough for a relay that restarts; short enough for a person who waits.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A relay that has not answered by then is told of, once.
pub(super) const PATIENCE: Duration = Duration::from_millis(700);
/// How long the question may take whether it can be reached.
const PROBE: Duration = Duration::from_secs(3);

impl RelayArgs {
    /// Returns what is meant where a verb gives up after `timeout`.
    pub(super) fn resolve(&self, settings: &Settings, timeout: Option<Duration>) -> Target {
        let relay = self.relay.clone().or_else(|| settings.relay.clone());
        Target {
            relay: relay.map_or_else(|| RELAY.to_owned(), with_scheme),
            timeout,
            format: self.output.or(settings.output).unwrap_or_default(),
        }
    }
}

impl TargetArgs {
    pub(super) fn resolve(&self, settings: &Settings) -> Target {
        let timeout = self.timeout.or(settings.timeout).unwrap_or(TIMEOUT);
        self.relay.resolve(settings, Some(timeout))
    }

    /// Asks the relay for a list, and writes a row for each entry.
    pub(super) async fn list<T, R: Row>(
        &self,
        settings: &Settings,
        ask: impl AsyncFnOnce(&Client) -> reveille::Result<Vec<T>>,
        row: impl Fn(T) -> R,
    ) -> anyhow::Result<Exit> {
        let target = self.resolve(settings);
        let client = target.client()?;
        let listed = target.within(ask(&client)).await?;
        let rows: Vec<_> = listed.into_iter().map(row).collect();
        target.format.list(&rows)?;
        Ok(Exit::OK)
    }
}

impl WaitingArgs {
    /// Returns whether a relay was named anywhere: typed, by a variable or in the file.
    pub(super) fn names_one(&self, settings: &Settings) -> bool {
        self.relay.relay.is_some() || settings.relay.is_some()
    }

    pub(super) fn resolve(&self, settings: &Settings) -> Target {
        self.relay.resolve(settings, self.timeout)
    }
}

impl Target {
    pub(super) fn client(&self) -> reveille::Result<Client> {
        let mut config = ClientConfig::default();
        if let Some(timeout) = self.timeout {
            // A verb that may take longer than one call lasts lets each call take as long.
            config.request_timeout = config.request_timeout.max(timeout);
            config.connect_timeout = config.connect_timeout.min(timeout);
        }
        Client::with_config(&self.relay, config)
    }

    /// Runs a call within the time that was given.
    pub(super) async fn within<T>(
        &self,
        call: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        let Some(timeout) = self.timeout else {
            return call.await;
        };
        let began = Instant::now();
        match tokio::time::timeout(timeout, call).await {
            Ok(Err(error)) if error.kind() == ErrorKind::Unavailable => {
                let left = timeout.saturating_sub(began.elapsed());
                Err(stranger::named(&self.relay, left).await.unwrap_or(error))
            }
            // The client's own limit, or the relay's: the cause is the same.
            Ok(Err(error)) if error.kind() == ErrorKind::Timeout => {
                let message = error.message().to_owned();
                Err(Error::new(ErrorKind::Unavailable, message).with_source(error))
            }
            Ok(result) => result,
            Err(_) => Err(self.no_answer()),
        }
    }

    /// Runs a call that tries again by itself, as a notification does, within the time that was given;
    /// tells meanwhile that the relay cannot be reached, where that is so.
    pub(super) async fn acknowledged<T>(
        &self,
        client: &Client,
        notifying: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        tokio::pin!(notifying);
        let mut cause = None;
        let trying = async {
            tokio::select! {
                done = &mut notifying => return done,
                () = self.probe(client, &mut cause) => {}
            }
            notifying.await
        };
        let outcome = self.within(trying).await;
        match outcome {
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(cause.unwrap_or(error)),
            outcome => outcome,
        }
    }

    /// Runs a wait that ends with a time-out. Where the relay could not be reached meanwhile, the error
    /// says that: what was waited for may have happened.
    pub(super) async fn reaching<T>(
        &self,
        client: &Client,
        waiting: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        tokio::pin!(waiting);
        let mut cause = None;
        let outcome = tokio::select! {
            done = &mut waiting => done,
            () = self.probe(client, &mut cause) => waiting.await,
        };
        match outcome {
            Err(error) if error.kind() == ErrorKind::Timeout => Err(cause.map_or(error, |cause| {
                let span = duration::Span(self.timeout.unwrap_or_default());
                let message = format!("{cause}; it may have happened within these {span}");
                Error::new(ErrorKind::Unavailable, message)
            })),
            outcome => outcome,
        }
    }

    /// Asks, once the relay has not answered for a while, whether it can be reached; early enough
    /// that the answer comes within the time that was given.
    async fn probe(&self, client: &Client, cause: &mut Option<Error>) {
        let half = self.timeout.map_or(PATIENCE, |timeout| timeout / 2);
        tokio::time::sleep(half.min(PATIENCE)).await;
        *cause = unreachable(client).await;
        if let Some(error) = cause {
            output::note(format_args!("{error}; still trying"));
        }
    }

    /// Returns what is told where a verb that waits by nature has waited for as long as it may.
    pub(super) fn timed_out_waiting(&self) -> String {
        let span = duration::Span(self.timeout.unwrap_or_default());
        format!("timed out after {span}")
    }

    /// A relay that does not answer in time cannot be told from one that cannot be reached.
    pub(super) fn no_answer(&self) -> Error {
        let span = duration::Span(self.timeout.unwrap_or_default());
        let message = format!("relay `{}`: no answer within {span}", self.relay);
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Reads `HOST:PORT` as a URL.
fn with_scheme(relay: String) -> String {
    match relay.contains("://") {
        true => relay,
        false => format!("http://{relay}"),
    }
}

/// Returns why the relay cannot be reached, or `None` where it answers.
pub(super) async fn unreachable(client: &Client) -> Option<Error> {
    let answer = tokio::time::timeout(PROBE, client.health()).await;
    let late = || Err(Error::new(ErrorKind::Unavailable, "it does not answer"));
    let error = answer.unwrap_or_else(|_| late()).err()?;
    let error = Some(error).filter(|error| error.kind() == ErrorKind::Unavailable)?;
    Some(stranger::named(client.url(), PROBE).await.unwrap_or(error))
}

/// Runs something that tries for ever, and says so where the relay does not answer.
pub(super) async fn patiently<T>(client: &Client, trying: impl Future<Output = T>) -> T {
    tokio::pin!(trying);
    tokio::select! {
        done = &mut trying => return done,
        () = impatience(client) => {}
    }
    trying.await
}

/// Tells that the relay does not answer, after a while; where it does, says nothing.
pub(super) async fn impatience(client: &Client) {
    tokio::time::sleep(PATIENCE).await;
    if let Some(error) = unreachable(client).await {
        output::note(format_args!("{error}; still trying"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_before_the_file_and_the_file_before_defaults() {
        let settings = Settings {
            relay: Some("http://file:1".to_owned()),
            timeout: Some(Duration::from_secs(3)),
            ..Settings::default()
        };
        let typed = TargetArgs {
            relay: RelayArgs {
                relay: Some("http://flag:1".to_owned()),
                output: None,
            },
            timeout: None,
        };
        let target = typed.resolve(&settings);
        assert_eq!(target.relay, "http://flag:1");
        assert_eq!(target.timeout, Some(Duration::from_secs(3)));
        let target = TargetArgs::default().resolve(&settings);
        assert_eq!(target.relay, "http://file:1");
        assert_eq!(with_scheme("relay:7600".to_owned()), "http://relay:7600");
        let target = TargetArgs::default().resolve(&Settings::default());
        assert_eq!(
            (target.relay.as_str(), target.timeout),
            (RELAY, Some(TIMEOUT))
        );
    }

    #[test]
    fn a_verb_that_waits_by_nature_is_bounded_by_its_own_flag_only() {
        let settings = Settings {
            timeout: Some(Duration::from_secs(3)),
            ..Settings::default()
        };
        assert_eq!(WaitingArgs::default().resolve(&settings).timeout, None);
    }
}
