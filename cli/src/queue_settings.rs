//! The table `[queues]` of the configuration file, and the arguments of the verbs that host queues.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use reveille::{
    Credential, QueuesConfig,
    courier::{Destination, HostConfig, QueueManagerConfig, Route},
};
use serde::{Deserialize, Deserializer, de};

use super::{exit::Usage, tls::ClientTlsFiles, values::span};

/// The table `[queues]`.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct QueueSettings {
    directory: Option<PathBuf>,
    name: Option<String>,
    account: Option<String>,
    max_outgoing: Option<u64>,
    max_queue: Option<u64>,
    #[serde(deserialize_with = "span")]
    max_age: Option<Duration>,
    #[serde(deserialize_with = "span")]
    history_age: Option<Duration>,
    history_rows: Option<u64>,
    #[serde(deserialize_with = "span")]
    duplicate_window: Option<Duration>,
    names: Vec<String>,
    hop_limit: Option<usize>,
    tls: Option<bool>,
    #[serde(deserialize_with = "aliases")]
    aliases: BTreeMap<String, Destination>,
    routes: Vec<RouteSettings>,
}

/// An entry of `[[queues.routes]]`.
#[derive(Debug, PartialEq, Deserialize)]
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
    /// Begin with empty queues if the queue file is missing because it was damaged and set aside
    #[arg(long, env = "REVEILLE_ALLOW_NEW_FILE")]
    allow_new_file: bool,
}

/// The name of the queue file in its directory.
const FILE: &str = "queues.db";

impl QueueSettings {
    /// Returns the directory of the queues that this machine hosts.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Returns the settings of a queue file.
    pub(super) fn manager(&self) -> QueueManagerConfig {
        let defaults = QueueManagerConfig::default();
        let routes = self.routes.iter().map(|route| Route {
            pattern: route.pattern.clone(),
            hop: route.hop.clone(),
        });
        QueueManagerConfig {
            account: self.account.clone().unwrap_or(defaults.account),
            max_outgoing: self.max_outgoing.unwrap_or(defaults.max_outgoing),
            max_queue: self.max_queue.or(defaults.max_queue),
            max_age: self.max_age.unwrap_or(defaults.max_age),
            history_age: self.history_age.unwrap_or(defaults.history_age),
            history_rows: self.history_rows.unwrap_or(defaults.history_rows),
            duplicate_window: self.duplicate_window.unwrap_or(defaults.duplicate_window),
            names: self.names.clone(),
            hop_limit: self.hop_limit.unwrap_or(defaults.hop_limit),
            routes: routes.collect(),
            aliases: self.aliases.clone(),
            ..defaults
        }
    }
}

impl HostArgs {
    /// Returns the configuration of a host for the queues at `place`, a directory or the file.
    pub(super) fn resolve(
        self,
        place: &Path,
        settings: &QueueSettings,
        tls: &ClientTlsFiles,
        credential: Credential,
    ) -> Result<QueuesConfig, Usage> {
        if !place.exists() {
            let place = place.display();
            return Err(Usage(format!(
                "queues: there is no directory `{place}`: create it first"
            )));
        }
        let defaults = HostConfig::default();
        let has_tls = self.queues_tls || settings.tls.unwrap_or_default();
        let tls = has_tls.then(|| tls.config()).transpose();
        let name = self.queues_name.or_else(|| settings.name.clone());
        Ok(QueuesConfig {
            path: file(place),
            manager: QueueManagerConfig {
                allow_new_file: self.allow_new_file,
                ..settings.manager()
            },
            host: HostConfig {
                name: name.unwrap_or(defaults.name),
                tls: tls.map_err(|error| Usage(error.to_string()))?,
                credential,
                ..defaults
            },
        })
    }
}

/// Returns the queue file of a directory, or the file itself.
pub(super) fn file(place: &Path) -> PathBuf {
    match place.is_dir() {
        true => place.join(FILE),
        false => place.to_owned(),
    }
}

fn aliases<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Destination>, D::Error> {
    let texts = BTreeMap::<String, String>::deserialize(deserializer)?;
    let parsed = texts.into_iter().map(|(alias, text)| {
        let parsed = text.parse();
        parsed.map(|destination| (alias, destination))
    });
    parsed.collect::<Result<_, _>>().map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use reveille::ClientTls;

    use super::*;

    fn parse(text: &str) -> Result<QueueSettings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    const FULL: &str = r#"
directory = "/var/lib/queues"
name = "berlin"
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
    fn all_settings_reach_the_manager_and_the_host() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = parse(FULL).expect("valid");
        assert_eq!(settings.directory(), Some(Path::new("/var/lib/queues")));
        let args = HostArgs::default();
        let config = args
            .resolve(
                directory.path(),
                &settings,
                &ClientTlsFiles::default(),
                Credential::default(),
            )
            .expect("valid");
        assert_eq!(config.path, directory.path().join("queues.db"));
        assert_eq!(config.host.name, "berlin");
        let manager = config.manager;
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
        assert!(!manager.allow_new_file);
    }

    #[test]
    fn flags_override_the_table() {
        let directory = tempfile::tempdir().expect("a directory");
        let args = HostArgs {
            queues_name: Some("typed".to_owned()),
            queues_tls: true,
            allow_new_file: true,
        };
        let settings = parse(FULL).expect("valid");
        let config = args
            .resolve(
                directory.path(),
                &settings,
                &ClientTlsFiles::default(),
                Credential::default(),
            )
            .expect("valid");
        assert_eq!(config.host.name, "typed");
        assert_eq!(config.host.tls, Some(ClientTls::default()));
        assert!(config.manager.allow_new_file);
    }

    #[test]
    fn without_a_table_the_defaults_of_the_library_hold() {
        let manager = QueueSettings::default().manager();
        let defaults = QueueManagerConfig::default();
        assert_eq!(format!("{manager:?}"), format!("{defaults:?}"));
    }

    #[test]
    fn a_missing_directory_is_named() {
        let args = HostArgs::default();
        let missing = Path::new("/no/such/place");
        let error = args.resolve(
            missing,
            &QueueSettings::default(),
            &ClientTlsFiles::default(),
            Credential::default(),
        );
        let error = error.expect_err("missing").to_string();
        assert!(error.contains("no directory `/no/such/place`"), "{error}");
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
