//! The relay of a verb, its time-out, and its output format.

use std::time::Duration;

use reveille::{Client, ClientConfig, Credential, Error, ErrorKind, Listed, duration};
use tokio::time::Instant;

use super::{
    credential::CredentialArgs,
    exit::Exit,
    foreign_server,
    output::{self, Format, Row},
    settings::Settings,
    tls::{ClientTlsArgs, ClientTlsFiles},
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
    /// The output format [default: table]
    #[arg(short, long, env = "REVEILLE_OUTPUT", value_name = "FORMAT", help_heading = HEADING)]
    pub(super) output: Option<Format>,
}

/// The arguments of a verb with a request and a response.
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

/// The arguments of a verb that waits for events. Only its flag bounds it: a variable that is meant
/// for short calls must not end a listener.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct WaitingArgs {
    #[command(flatten)]
    pub(super) relay: RelayArgs,
    /// Give up after this long [default: never]
    #[arg(long, value_name = "D", allow_hyphen_values = true, value_parser = duration::parse, help_heading = HEADING)]
    pub(super) timeout: Option<Duration>,
}

/// The arguments merged with the configuration file and the defaults.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) relay: String,
    pub(super) tls: ClientTlsFiles,
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
    pub(super) fn resolve(&self, settings: &Settings, timeout: Option<Duration>) -> Target {
        let relay = self.relay.clone().or_else(|| settings.relay.clone());
        Target {
            relay: relay.map_or_else(|| RELAY.to_owned(), with_scheme),
            tls: self.tls.resolve(&settings.tls),
            credential: self.credential.resolve(settings),
            insecure: self.insecure || settings.insecure.unwrap_or_default(),
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

    /// Gets a list from the relay, and writes a row for each entry.
    pub(super) async fn list<T, R: Row>(
        &self,
        settings: &Settings,
        call: impl AsyncFnOnce(&Client) -> reveille::Result<Listed<T>>,
        row: impl Fn(T) -> R,
    ) -> anyhow::Result<Exit> {
        let target = self.resolve(settings);
        let client = target.client()?;
        let listed = target.within(call(&client)).await?;
        note_unanswered(&listed.unanswered);
        let rows: Vec<_> = listed.into_iter().map(row).collect();
        target.format.list(&rows)?;
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
    /// Returns whether a flag, a variable or the file names a relay.
    pub(super) fn names_relay(&self, settings: &Settings) -> bool {
        self.relay.relay.is_some() || settings.relay.is_some()
    }

    pub(super) fn resolve(&self, settings: &Settings) -> Target {
        self.relay.resolve(settings, self.timeout)
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
            Ok(Err(error)) if error.kind() == ErrorKind::Unavailable => {
                let left = timeout.saturating_sub(began.elapsed());
                let server = match self.relay.contains(',') {
                    // Its error names the relay.
                    true => None,
                    false => foreign_server::identify(&self.relay, left).await,
                };
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

    /// Runs a call that retries by itself, such as a notification, within the time-out. Prints if
    /// the relay cannot be reached while it retries.
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

    /// Runs a wait that ends with a time-out. If the relay could not be reached, the error states that:
    /// the event may have happened.
    pub(super) async fn reaching<T>(
        &self,
        client: &Client,
        waiting: impl Future<Output = reveille::Result<T>>,
    ) -> reveille::Result<T> {
        tokio::pin!(waiting);
        let (mut cause, mut probed) = (None, false);
        let outcome = tokio::select! {
            done = &mut waiting => done,
            () = self.probe(client, &mut cause) => {
                probed = true;
                waiting.await
            }
        };
        match outcome {
            Err(error) if error.kind() == ErrorKind::Timeout => {
                // A probe without an answer by now is no answer.
                let cause = cause.or_else(|| (!probed).then(|| self.no_answer()));
                Err(cause.map_or(error, |cause| {
                    let span = duration::Span(self.timeout.unwrap_or_default());
                    let message =
                        format!("{cause}; not seen within {span}, but it may have happened");
                    Error::new(ErrorKind::Unavailable, message)
                }))
            }
            outcome => outcome,
        }
    }

    /// Checks whether the relay is reachable after it has not answered for a while. Starts early
    /// enough to finish within the time-out.
    async fn probe(&self, client: &Client, cause: &mut Option<Error>) {
        let half = self.timeout.map_or(WARN_AFTER, |timeout| timeout / 2);
        tokio::time::sleep(half.min(WARN_AFTER)).await;
        *cause = unreachable(client).await;
        if let Some(error) = cause {
            output::note(format_args!("{error}; still trying"));
        }
    }

    /// Returns the note of a waiting verb that has timed out.
    pub(super) fn timed_out_waiting(&self) -> String {
        let span = duration::Span(self.timeout.unwrap_or_default());
        format!("timed out after {span}")
    }

    /// Returns the error of a time-out: "unavailable", as a relay that does not answer in time may
    /// as well be unreachable.
    pub(super) fn no_answer(&self) -> Error {
        let span = duration::Span(self.timeout.unwrap_or_default());
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

/// Runs a call that retries for ever, and prints if the relay does not answer.
pub(super) async fn with_warning<T>(client: &Client, trying: impl Future<Output = T>) -> T {
    tokio::pin!(trying);
    tokio::select! {
        done = &mut trying => return done,
        () = warn_if_unreachable(client) => {}
    }
    trying.await
}

/// Waits [`WARN_AFTER`], then prints a note if the relay does not answer.
pub(super) async fn warn_if_unreachable(client: &Client) {
    tokio::time::sleep(WARN_AFTER).await;
    if let Some(error) = unreachable(client).await {
        output::note(format_args!("{error}; still trying"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file_and_the_file_overrides_defaults() {
        let settings = Settings {
            relay: Some("http://file:1".to_owned()),
            timeout: Some(Duration::from_secs(3)),
            ..Settings::default()
        };
        let typed = TargetArgs {
            relay: RelayArgs {
                relay: Some("http://flag:1".to_owned()),
                ..RelayArgs::default()
            },
            timeout: None,
        };
        let target = typed.resolve(&settings);
        assert_eq!(target.relay, "http://flag:1");
        assert_eq!(target.timeout, Some(Duration::from_secs(3)));
        let target = TargetArgs::default().resolve(&settings);
        assert_eq!(target.relay, "http://file:1");
        assert_eq!(with_scheme("relay:7600".to_owned()), "http://relay:7600");
        let several = with_scheme("a:1, https://b:2".to_owned());
        assert_eq!(several, "http://a:1,https://b:2");
        let target = TargetArgs::default().resolve(&Settings::default());
        assert_eq!(
            (target.relay.as_str(), target.timeout),
            (RELAY, Some(TIMEOUT))
        );
    }

    #[test]
    fn only_its_flag_bounds_a_waiting_verb() {
        let settings = Settings {
            timeout: Some(Duration::from_secs(3)),
            ..Settings::default()
        };
        assert_eq!(WaitingArgs::default().resolve(&settings).timeout, None);
    }
}
