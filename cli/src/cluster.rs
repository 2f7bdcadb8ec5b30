//! The settings of a relay in a cluster of relays.

use std::{path::PathBuf, time::Duration};

#[cfg(feature = "nats")]
use reveille::{ClusterAck, ClusterConfig, NatsConfig, NatsCredentials};
use serde::{Deserialize, Deserializer};

use super::exit::Usage;

/// The arguments of `serve`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ClusterArgs {
    // No parser: clap's errors would quote a URL, which may hold a password.
    /// Serve as one of several relays that exchange notifications over these NATS servers,
    /// comma-separated: nats://HOST:PORT, or tls://HOST:PORT to require TLS
    #[arg(
        long,
        env = "REVEILLE_CLUSTER",
        hide_env_values = true,
        value_name = "URLS",
        value_delimiter = ',',
        help_heading = "Cluster"
    )]
    cluster: Vec<String>,
    /// The name of the cluster, a part of its NATS subjects [default: reveille]
    #[arg(
        long,
        env = "REVEILLE_CLUSTER_NAME",
        value_name = "NAME",
        help_heading = "Cluster"
    )]
    cluster_name: Option<String>,
    /// The login at NATS: a credentials file
    #[arg(
        long,
        env = "REVEILLE_CLUSTER_CREDS",
        value_name = "FILE",
        help_heading = "Cluster"
    )]
    cluster_creds: Option<PathBuf>,
    /// The login at NATS: a user, with --cluster-password-file
    #[arg(
        long,
        env = "REVEILLE_CLUSTER_USER",
        value_name = "USER",
        help_heading = "Cluster"
    )]
    cluster_user: Option<String>,
    /// The file with the password of --cluster-user
    #[arg(
        long,
        env = "REVEILLE_CLUSTER_PASSWORD_FILE",
        value_name = "FILE",
        help_heading = "Cluster"
    )]
    cluster_password_file: Option<PathBuf>,
    /// Trust these authorities of NATS servers, in PEM [default: the system's]
    #[arg(
        long,
        env = "REVEILLE_CLUSTER_CA",
        value_name = "FILE",
        help_heading = "Cluster"
    )]
    cluster_ca: Option<PathBuf>,
    /// The certificate that is shown to NATS servers, with its chain, in PEM
    #[arg(
        long,
        env = "REVEILLE_CLUSTER_CERT",
        value_name = "FILE",
        help_heading = "Cluster"
    )]
    cluster_cert: Option<PathBuf>,
    /// The key of --cluster-cert, in PEM
    #[arg(
        long,
        env = "REVEILLE_CLUSTER_KEY",
        value_name = "FILE",
        help_heading = "Cluster"
    )]
    cluster_key: Option<PathBuf>,
    /// When a publisher is answered: `broker`, when the broker has returned the notification, or
    /// `local`, when this relay has counted it [default: broker]
    #[arg(
        long,
        env = "REVEILLE_CLUSTER_ACK",
        value_name = "WHEN",
        help_heading = "Cluster"
    )]
    cluster_ack: Option<Ack>,
}

/// The same settings of the table `[serve]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClusterSettings {
    pub(super) servers: Option<Servers>,
    pub(super) name: Option<String>,
    pub(super) creds: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) ack: Option<Ack>,
}

/// URLs of servers: a list, or one text with commas.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Servers(Vec<String>);

/// When a publisher is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ack {
    /// When the broker has returned the notification
    Broker,
    /// When this relay has counted it
    Local,
}

/// No value: a build without the feature `nats` refuses the settings of a cluster.
#[cfg(not(feature = "nats"))]
#[derive(Debug, PartialEq)]
pub(super) enum ClusterConfig {}

/// Characters of the host name in a relay's id: below the limit of an id for any host name.
const HOST_LETTERS: usize = 100;

/// Clients move one after another. With the grace and the hand-over of timers a relay ends within
/// 45 s, so the manifests of deploy/ make a supervisor wait for longer than its default.
const DRAIN: Duration = Duration::from_secs(10);

/// Returns the span over which streams end at shutdown. The clients of a single relay have no other
/// one to move to, so it does not delay its end.
pub(super) fn drain_span(stated: Option<Duration>, is_member: bool) -> Duration {
    stated.unwrap_or(if is_member { DRAIN } else { Duration::ZERO })
}

impl ClusterArgs {
    /// Merges the arguments with the configuration file; `None` is a single relay.
    ///
    /// # Errors
    /// Settings without the servers, or a login that is not complete.
    pub(super) fn resolve(self, file: ClusterSettings) -> Result<Option<ClusterConfig>, Usage> {
        let settings = ClusterSettings {
            servers: match self.cluster.is_empty() {
                true => file.servers,
                false => Some(Servers(self.cluster)),
            },
            name: self.cluster_name.or(file.name),
            creds: self.cluster_creds.or(file.creds),
            user: self.cluster_user.or(file.user),
            password_file: self.cluster_password_file.or(file.password_file),
            ca: self.cluster_ca.or(file.ca),
            cert: self.cluster_cert.or(file.cert),
            key: self.cluster_key.or(file.key),
            ack: self.cluster_ack.or(file.ack),
        };
        settings.config()
    }
}

#[cfg(not(feature = "nats"))]
impl ClusterSettings {
    fn config(self) -> Result<Option<ClusterConfig>, Usage> {
        match self == Self::default() {
            true => Ok(None),
            false => Err(Usage(
                "--cluster: a cluster needs the feature `nats`, which this build lacks: build with \
                 `cargo install --path cli --features full`"
                    .to_owned(),
            )),
        }
    }
}

#[cfg(feature = "nats")]
impl ClusterSettings {
    fn config(self) -> Result<Option<ClusterConfig>, Usage> {
        let credentials = self.credentials()?;
        let Some(Servers(servers)) = self.servers.clone() else {
            // A relay that an operator takes for a member would serve alone.
            return match self == Self::default() {
                true => Ok(None),
                false => Err(Usage(
                    "--cluster: must be set with the other settings of a cluster".to_owned(),
                )),
            };
        };
        let defaults = NatsConfig::default();
        let nats = NatsConfig {
            servers,
            name: self.name.unwrap_or(defaults.name),
            credentials,
            ca: self.ca,
            cert: self.cert,
            key: self.key,
        };
        nats.check().map_err(|error| Usage(error.to_string()))?;
        let ack = match self.ack {
            None | Some(Ack::Broker) => ClusterAck::Broker,
            Some(Ack::Local) => ClusterAck::Local,
        };
        Ok(Some(ClusterConfig { nats, ack }))
    }

    fn credentials(&self) -> Result<Option<NatsCredentials>, Usage> {
        let refuse = |text: &str| Err(Usage(text.to_owned()));
        match (&self.creds, &self.user, &self.password_file) {
            (None, None, None) => Ok(None),
            (Some(file), None, None) => Ok(Some(NatsCredentials::File(file.clone()))),
            (None, Some(user), Some(password_file)) => Ok(Some(NatsCredentials::Password {
                user: user.clone(),
                password_file: password_file.clone(),
            })),
            (Some(_), _, _) => {
                refuse("--cluster-creds: must not be set with --cluster-user or its password")
            }
            (None, Some(_), None) => {
                refuse("--cluster-password-file: must be set with --cluster-user")
            }
            (None, None, Some(_)) => {
                refuse("--cluster-user: must be set with --cluster-password-file")
            }
        }
    }
}

impl std::fmt::Debug for Servers {
    /// Without the URLs, which may hold a password until they are checked.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} servers", self.0.len())
    }
}

impl<'de> Deserialize<'de> for Servers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "must be a URL or a list of URLs")]
        enum Form {
            Text(String),
            List(Vec<String>),
        }
        Ok(Self(match Form::deserialize(deserializer)? {
            Form::Text(text) => text.split(',').map(str::to_owned).collect(),
            Form::List(list) => list,
        }))
    }
}

/// Returns the default id of a relay in a cluster: the host's name and four random digits, as the
/// ids of a cluster's relays must differ.
pub(super) fn relay_id() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    named_after(&host)
}

fn named_after(host: &str) -> String {
    let is_letter = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let host: String = host.chars().filter(is_letter).take(HOST_LETTERS).collect();
    let number = fastrand::u16(0..10_000);
    match host.is_empty() {
        true => format!("relay-{number:04}"),
        false => format!("{host}-{number:04}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(servers: &[&str]) -> ClusterSettings {
        let servers = servers.iter().map(|url| (*url).to_owned()).collect();
        ClusterSettings {
            servers: Some(Servers(servers)),
            ..ClusterSettings::default()
        }
    }

    #[test]
    fn a_single_relay_has_no_cluster() {
        let resolved = ClusterArgs::default().resolve(ClusterSettings::default());
        assert_eq!(resolved.expect("good"), None);
    }

    #[cfg(not(feature = "nats"))]
    #[test]
    fn a_cluster_needs_the_feature_nats() {
        let refused = on(&["nats://a"]).config().expect_err("no NATS").to_string();
        let words = "--cluster: a cluster needs the feature `nats`";
        assert!(refused.starts_with(words), "{refused}");
    }

    #[cfg(feature = "nats")]
    #[test]
    fn flags_override_the_file() {
        let file = ClusterSettings {
            name: Some("file".to_owned()),
            ack: Some(Ack::Local),
            ..on(&["nats://file"])
        };
        let typed = ClusterArgs {
            cluster_name: Some("flag".to_owned()),
            ..ClusterArgs::default()
        };
        let config = typed.resolve(file).expect("good").expect("a cluster");
        assert_eq!(config.nats.servers, ["nats://file"]);
        assert_eq!(config.nats.name, "flag");
        assert_eq!(config.ack, ClusterAck::Local);
        let plain = on(&["nats://a", "nats://b"]).config();
        let plain = plain.expect("good").expect("a cluster");
        assert_eq!(
            (&*plain.nats.name, plain.ack),
            ("reveille", ClusterAck::Broker)
        );
    }

    #[cfg(feature = "nats")]
    #[test]
    fn settings_that_do_not_fit_are_refused_with_field_and_rule() {
        let base = on(&["nats://a"]);
        let (path, user) = (Some(PathBuf::from("f")), Some("u".to_owned()));
        for (settings, words) in [
            (
                ClusterSettings {
                    name: user.clone(),
                    ..ClusterSettings::default()
                },
                "--cluster: must be set",
            ),
            (
                ClusterSettings {
                    ack: Some(Ack::Local),
                    ..ClusterSettings::default()
                },
                "--cluster: must be set",
            ),
            (
                ClusterSettings {
                    creds: path.clone(),
                    user: user.clone(),
                    ..base.clone()
                },
                "--cluster-creds: must not",
            ),
            (
                ClusterSettings {
                    user,
                    ..base.clone()
                },
                "--cluster-password-file: must be set",
            ),
            (
                ClusterSettings {
                    password_file: path.clone(),
                    ..base.clone()
                },
                "--cluster-user: must be set",
            ),
            (
                ClusterSettings { cert: path, ..base },
                "cluster_key: must be set",
            ),
            (on(&["nats://u:hunter2@a"]), "cluster: server 1 must not"),
            (on(&[]), "cluster: must have 1 to"),
        ] {
            let debug = format!("{settings:?}");
            let error = settings.config().expect_err(words).to_string();
            assert!(error.starts_with(words), "{error}");
            assert!(
                !error.contains("hunter2") && !debug.contains("hunter2"),
                "{error} {debug}"
            );
        }
    }

    #[test]
    fn ids_are_of_the_host_and_keep_the_rule_for_names() {
        let long = "h".repeat(300);
        for (host, start) in [
            ("node-7.example", "node-7.example-"),
            ("", "relay-"),
            ("ä/b", "b-"),
            (&long, "hhh"),
        ] {
            let id = named_after(host);
            assert!(id.starts_with(start), "{id}");
            let digits = id.rsplit_once('-').expect("digits").1;
            assert!(digits.len() == 4 && digits.parse::<u16>().is_ok(), "{id}");
            reveille::ListenerId::new(&id).expect("a name");
        }
        let ids: std::collections::BTreeSet<_> = (0..8).map(|_| named_after("a")).collect();
        assert!(ids.len() > 1, "{ids:?}");
    }
}
