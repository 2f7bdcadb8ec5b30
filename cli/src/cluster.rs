//! The settings of a relay in a cluster of relays.

use std::{path::PathBuf, time::Duration};

#[cfg(feature = "nats")]
use reveille::{ClusterAck, ClusterConfig, NatsConfig, NatsCredentials};

use super::{exit::Usage, values};

const HEADING: &str = "Cluster";

/// The arguments of `serve`.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(super) struct ClusterArgs {
    // No parser: clap's errors would quote a URL, which may hold a password.
    /// Serve as one of several relays that exchange notifications over these NATS servers,
    /// comma-separated: nats://HOST:PORT, or tls://HOST:PORT to require TLS
    #[arg(long, env = "REVEILLE_CLUSTER", hide_env_values = true, value_name = "URLS", value_delimiter = ',', help_heading = HEADING)]
    cluster: Vec<String>,
    /// The name of the cluster, a part of its NATS subjects [default: reveille]
    #[arg(long, env = "REVEILLE_CLUSTER_NAME", value_name = "NAME", help_heading = HEADING)]
    cluster_name: Option<String>,
    /// The login at NATS: a credentials file
    #[arg(long, env = "REVEILLE_CLUSTER_CREDS", value_name = "FILE", help_heading = HEADING)]
    cluster_creds: Option<PathBuf>,
    /// The login at NATS: a user, with --cluster-password-file
    #[arg(long, env = "REVEILLE_CLUSTER_USER", value_name = "USER", help_heading = HEADING)]
    cluster_user: Option<String>,
    /// The file with the password of --cluster-user
    #[arg(long, env = "REVEILLE_CLUSTER_PASSWORD_FILE", value_name = "FILE", help_heading = HEADING)]
    cluster_password_file: Option<PathBuf>,
    /// Trust these authorities of NATS servers, in PEM [default: the system's]
    #[arg(long, env = "REVEILLE_CLUSTER_CA", value_name = "FILE", help_heading = HEADING)]
    cluster_ca: Option<PathBuf>,
    /// The certificate that is shown to NATS servers, with its chain, in PEM
    #[arg(long, env = "REVEILLE_CLUSTER_CERT", value_name = "FILE", help_heading = HEADING)]
    cluster_cert: Option<PathBuf>,
    /// The key of --cluster-cert, in PEM
    #[arg(long, env = "REVEILLE_CLUSTER_KEY", value_name = "FILE", help_heading = HEADING)]
    cluster_key: Option<PathBuf>,
    /// When a publisher is answered: `broker`, when the broker has returned the notification, or
    /// `local`, when this relay has counted it [default: broker]
    #[arg(long, env = "REVEILLE_CLUSTER_ACK", value_name = "WHEN", value_parser = ["broker", "local"], help_heading = HEADING)]
    cluster_ack: Option<String>,
}

/// No value: a build without the feature `nats` refuses the settings of a cluster.
#[cfg(not(feature = "nats"))]
#[derive(Debug, PartialEq)]
pub(super) enum ClusterConfig {}

/// The default span over which the streams of a member end at shutdown: clients move one after another.
/// With the grace and the hand-over of timers a relay ends within 45 s, so the manifests of deploy/ make a
/// supervisor wait for longer than its default.
pub(super) const DRAIN: Duration = Duration::from_secs(10);

impl ClusterArgs {
    /// Returns the configuration of a member; `None` is a single relay.
    #[cfg(not(feature = "nats"))]
    pub(super) fn config(&self) -> Result<Option<ClusterConfig>, Usage> {
        match *self == Self::default() {
            true => Ok(None),
            false => Err(Usage(
                "--cluster: a cluster needs the feature `nats`, which this build lacks: build with \
                 `cargo install --path cli --features full`"
                    .to_owned(),
            )),
        }
    }

    /// Returns the configuration of a member; `None` is a single relay.
    ///
    /// # Errors
    /// Settings without the servers, or a login that is not complete.
    #[cfg(feature = "nats")]
    pub(super) fn config(&self) -> Result<Option<ClusterConfig>, Usage> {
        if *self == Self::default() {
            return Ok(None);
        }
        if self.cluster.is_empty() {
            // A relay that an operator takes for a member would serve alone.
            let rule = "--cluster: must be set with the other settings of a cluster";
            return Err(Usage(rule.to_owned()));
        }
        let nats = NatsConfig {
            servers: self.cluster.clone(),
            name: (self.cluster_name.clone()).unwrap_or_else(|| NatsConfig::default().name),
            credentials: self.credentials()?,
            ca: self.cluster_ca.clone(),
            cert: self.cluster_cert.clone(),
            key: self.cluster_key.clone(),
        };
        nats.check().map_err(|error| Usage(error.to_string()))?;
        let ack = match self.cluster_ack.as_deref() {
            Some("local") => ClusterAck::Local,
            _ => ClusterAck::Broker,
        };
        Ok(Some(ClusterConfig { nats, ack }))
    }

    #[cfg(feature = "nats")]
    fn credentials(&self) -> Result<Option<NatsCredentials>, Usage> {
        let password_file = self.cluster_password_file.clone();
        match (
            self.cluster_creds.clone(),
            self.cluster_user.clone(),
            password_file,
        ) {
            (None, None, None) => Ok(None),
            (Some(file), None, None) => Ok(Some(NatsCredentials::File(file))),
            (None, Some(user), Some(password_file)) => Ok(Some(NatsCredentials::Password {
                user,
                password_file,
            })),
            _ => Err(Usage(
                "--cluster-creds: the login is either this file, or --cluster-user with \
                 --cluster-password-file"
                    .to_owned(),
            )),
        }
    }
}

/// Returns the default id of a relay in a cluster: the host's name and four random digits, as the
/// ids of a cluster's relays must differ.
pub(super) fn relay_id() -> String {
    let number = fastrand::u16(0..10_000);
    format!("{}-{number:04}", values::host())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(servers: &[&str]) -> ClusterArgs {
        ClusterArgs {
            cluster: servers.iter().map(|url| (*url).to_owned()).collect(),
            ..ClusterArgs::default()
        }
    }

    #[test]
    fn a_single_relay_has_no_cluster() {
        assert_eq!(ClusterArgs::default().config().expect("good"), None);
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
    fn a_cluster_has_a_name_and_waits_for_the_broker_by_default() {
        let config = on(&["nats://a", "nats://b"]).config();
        let config = config.expect("good").expect("a cluster");
        assert_eq!(config.nats.servers, ["nats://a", "nats://b"]);
        assert_eq!(
            (&*config.nats.name, config.ack),
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
                ClusterArgs {
                    cluster_name: user.clone(),
                    ..ClusterArgs::default()
                },
                "--cluster: must be set",
            ),
            (
                ClusterArgs {
                    cluster_ack: Some("local".to_owned()),
                    ..ClusterArgs::default()
                },
                "--cluster: must be set",
            ),
            (
                ClusterArgs {
                    cluster_creds: path.clone(),
                    cluster_user: user.clone(),
                    ..base.clone()
                },
                "--cluster-creds: the login is either",
            ),
            (
                ClusterArgs {
                    cluster_user: user,
                    ..base.clone()
                },
                "--cluster-creds: the login is either",
            ),
            (
                ClusterArgs {
                    cluster_cert: path,
                    ..base
                },
                "cluster_key: must be set",
            ),
            (on(&["nats://u:hunter2@a"]), "cluster: server 1 must not"),
        ] {
            let error = settings.config().expect_err(words).to_string();
            assert!(error.starts_with(words), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn the_ids_of_a_host_differ() {
        let ids: std::collections::BTreeSet<_> = (0..8).map(|_| relay_id()).collect();
        assert!(ids.len() > 1, "{ids:?}");
        for id in ids {
            let digits = id.rsplit_once('-').expect("digits").1;
            assert!(digits.len() == 4 && digits.parse::<u16>().is_ok(), "{id}");
            reveille::ListenerId::new(&id).expect("a name");
        }
    }
}
