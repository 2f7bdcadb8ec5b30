//! The table `[queues]` of the configuration file, and the arguments of the verbs that host queues.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use reveille::{
    ClientConfig, Error, ErrorKind, QueuesConfig,
    courier::{Destination, HostConfig, QueueManagerConfig, Route},
    duration::Span,
};
use serde::Deserialize;

use super::{
    exit::Usage,
    settings::{Text, table},
};

table! {
    /// The table `[queues]`.
    struct QueueSettings for QueueManagerConfig {
        account: String => account,
        max_outgoing: u64 => max_outgoing,
        max_queue: u64 => max_queue,
        max_age: Text<Span> => max_age,
        history_age: Text<Span> => history_age,
        history_rows: u64 => history_rows,
        duplicate_window: Text<Span> => duplicate_window,
        names: Vec<String> => names,
        hop_limit: usize => hop_limit,
    }
    with {
        aliases: BTreeMap<String, Text<Destination>>,
        routes: Vec<RouteSettings>,
    }
}

/// An entry of `[[queues.routes]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteSettings {
    pattern: String,
    hop: String,
}

/// The arguments of a verb that hosts queues.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct HostArgs {
    /// The name of this machine in the logs of other machines [default: queues]
    #[arg(long, env = "REVEILLE_QUEUES_NAME", value_name = "NAME")]
    queues_name: Option<String>,
    /// Reach other machines over TLS, with --ca, --cert and --key
    #[arg(long, env = "REVEILLE_QUEUES_TLS", help_heading = "TLS")]
    queues_tls: bool,
}

/// The name of the queue file in its directory.
const FILE: &str = "queues.db";

impl QueueSettings {
    /// Returns the settings of a queue file.
    pub(super) fn manager(&self) -> QueueManagerConfig {
        let routes = self.routes.iter().map(|route| Route {
            pattern: route.pattern.clone(),
            hop: route.hop.clone(),
        });
        let aliases = self.aliases.iter();
        let mut manager = QueueManagerConfig {
            routes: routes.collect(),
            aliases: aliases
                .map(|(alias, Text(destination))| (alias.clone(), destination.clone()))
                .collect(),
            ..QueueManagerConfig::default()
        };
        self.apply(&mut manager);
        manager
    }
}

impl HostArgs {
    /// Returns the configuration of a host for the queues at `place`, a directory or the file.
    pub(super) fn config(
        &self,
        place: &Path,
        settings: &QueueSettings,
        client: &ClientConfig,
    ) -> Result<QueuesConfig, Usage> {
        let path = file(place).map_err(|error| Usage(error.to_string()))?;
        let defaults = HostConfig::default();
        Ok(QueuesConfig {
            path,
            manager: settings.manager(),
            host: HostConfig {
                name: self.queues_name.clone().unwrap_or(defaults.name),
                tls: self.queues_tls.then(|| client.tls.clone()),
                credential: client.credential.clone(),
                insecure: client.insecure,
                ..defaults
            },
        })
    }
}

/// Returns the queue file of a directory, or the file itself.
pub(super) fn file(place: &Path) -> Result<PathBuf, Error> {
    match place.is_dir() {
        true => Ok(place.join(FILE)),
        false if place.exists() => Ok(place.to_owned()),
        false => {
            let place = place.display();
            let message = format!("queues: there is no directory `{place}`: create it first");
            Err(Error::new(ErrorKind::NotFound, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reveille::ClientTls;

    use super::*;

    fn parse(text: &str) -> Result<QueueSettings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    const FULL: &str = r#"
account = "shop"
max_outgoing = 10
max_queue = 20
max_age = "2d"
history_age = "1h"
history_rows = 30
duplicate_window = "3d"
names = ["Rome:7610"]
hop_limit = 4
routes = [{ pattern = "*.east", hop = "gate:7600" }]
[aliases]
berlin = "reveille://berlin:7600/orders"
"#;

    #[test]
    fn all_settings_reach_the_manager() {
        let manager = parse(FULL).expect("valid").manager();
        assert_eq!(manager.account, "shop");
        assert_eq!((manager.max_outgoing, manager.max_queue), (10, Some(20)));
        assert_eq!(manager.max_age, Duration::from_secs(2 * 24 * 3600));
        assert_eq!(manager.history_age, Duration::from_secs(3600));
        assert_eq!((manager.history_rows, manager.hop_limit), (30, 4));
        assert_eq!(manager.duplicate_window, Duration::from_secs(3 * 24 * 3600));
        assert_eq!(manager.names, ["Rome:7610"]);
        let route = Route {
            pattern: "*.east".to_owned(),
            hop: "gate:7600".to_owned(),
        };
        assert_eq!(manager.routes, [route]);
        let berlin = manager.aliases["berlin"].to_string();
        assert_eq!(berlin, "reveille://berlin:7600/orders");
    }

    #[test]
    fn flags_reach_the_host() {
        let directory = tempfile::tempdir().expect("a directory");
        let args = HostArgs {
            queues_name: Some("typed".to_owned()),
            queues_tls: true,
        };
        let settings = QueueSettings::default();
        let client = ClientConfig::default();
        let config = args
            .config(directory.path(), &settings, &client)
            .expect("valid");
        assert_eq!(config.path, directory.path().join("queues.db"));
        assert_eq!(config.host.name, "typed");
        assert_eq!(config.host.tls, Some(ClientTls::default()));
        let missing = args.config(Path::new("/no/such/place"), &settings, &client);
        let error = missing.expect_err("missing").to_string();
        assert!(error.contains("no directory `/no/such/place`"), "{error}");
    }

    #[test]
    fn without_a_table_the_defaults_of_the_library_hold() {
        let manager = QueueSettings::default().manager();
        let defaults = QueueManagerConfig::default();
        assert_eq!(format!("{manager:?}"), format!("{defaults:?}"));
    }

    #[test]
    fn bad_settings_are_refused() {
        for (text, word) in [
            ("folder = \"x\"", "`folder`"),
            ("max_age = \"soon\"", "2s"),
            ("[aliases]\nb = \"http://b:1/q\"", "http://b:1/q"),
            ("routes = [{ pattern = \"*\" }]", "`hop`"),
            (
                "routes = [{ pattern = \"*\", hop = \"a:1\", via = 1 }]",
                "`via`",
            ),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(word), "{error}");
        }
    }
}
