//! Which relay a verb talks to, for how long, and how it answers.

use std::time::Duration;

use reveille::{Client, ClientConfig, Error, ErrorKind, duration};

use super::{output::Format, settings::Settings};

/// What every client verb takes.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct TargetArgs {
    /// The relay [default: http://127.0.0.1:7600]
    #[arg(
        long,
        env = "REVEILLE_RELAY",
        value_name = "URL",
        help_heading = "Relay"
    )]
    pub(super) relay: Option<String>,
    /// Give up after this long [default: 10s; verbs that wait by nature: never]
    #[arg(long, env = "REVEILLE_TIMEOUT", value_name = "D", value_parser = duration::parse, help_heading = "Relay")]
    pub(super) timeout: Option<Duration>,
    /// How data is written [default: table]
    #[arg(
        short,
        long,
        env = "REVEILLE_OUTPUT",
        value_name = "FORMAT",
        help_heading = "Relay"
    )]
    pub(super) output: Option<Format>,
}

/// What is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) relay: String,
    /// `None`: for ever.
    pub(super) timeout: Option<Duration>,
    pub(super) format: Format,
}

const RELAY: &str = "http://127.0.0.1:7600";
/// Long enough for a relay that restarts; short enough for a person who waits.
const TIMEOUT: Duration = Duration::from_secs(10);

impl TargetArgs {
    /// Resolves the settings of a verb that asks and is answered.
    pub(super) fn resolve(&self, settings: &Settings) -> Target {
        let timeout = self.timeout.or(settings.timeout).unwrap_or(TIMEOUT);
        Target {
            timeout: Some(timeout),
            ..self.resolve_waiting(settings)
        }
    }

    /// Resolves the settings of a verb that waits by nature: only its own flag bounds it.
    pub(super) fn resolve_waiting(&self, settings: &Settings) -> Target {
        let relay = self.relay.clone().or_else(|| settings.relay.clone());
        Target {
            relay: relay.unwrap_or_else(|| RELAY.to_owned()),
            timeout: self.timeout,
            format: self.output.or(settings.output).unwrap_or_default(),
        }
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
        match tokio::time::timeout(timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(self.timed_out()),
        }
    }

    /// Returns what is told where a verb that waits by nature has waited for as long as it may.
    pub(super) fn timed_out_waiting(&self) -> String {
        let span = duration::Span(self.timeout.unwrap_or_default());
        format!("timed out after {span}")
    }

    fn timed_out(&self) -> Error {
        let span = duration::Span(self.timeout.unwrap_or_default());
        let message = format!("relay `{}`: no answer within {span}", self.relay);
        Error::new(ErrorKind::Timeout, message)
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
            relay: Some("http://flag:1".to_owned()),
            ..TargetArgs::default()
        };
        let target = typed.resolve(&settings);
        assert_eq!(target.relay, "http://flag:1");
        assert_eq!(target.timeout, Some(Duration::from_secs(3)));
        let target = TargetArgs::default().resolve(&settings);
        assert_eq!(target.relay, "http://file:1");
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
        assert_eq!(
            TargetArgs::default().resolve_waiting(&settings).timeout,
            None
        );
    }
}
