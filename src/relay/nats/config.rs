//! The settings of the connection to NATS, and their rules.
//!
//! Errors name the setting as the configuration file does (`cluster_ca`). No error and no `Debug`
//! shows a URL with a login.

use std::{fmt, path::PathBuf};

use async_nats::ServerAddr;

use crate::{
    error::{Error, Result},
    types::check_text,
};

/// The connection of a relay to the NATS servers of its cluster. All files are read once, at the
/// start.
#[derive(Clone, PartialEq, Eq)]
pub struct NatsConfig {
    /// URLs of servers of one NATS cluster: `nats://HOST:PORT`, or `tls://HOST:PORT` to require TLS,
    /// also of servers that offer none. The port is 4222 if none is stated.
    pub servers: Vec<String>,
    /// The name of the cluster of relays, a part of each subject. Relays of one name hear each
    /// other.
    pub name: String,
    /// The login. Default: none.
    pub credentials: Option<NatsCredentials>,
    /// The certificates of the authorities that are trusted, in PEM. Default: the system's.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its chain, in PEM. Default: none.
    pub cert: Option<PathBuf>,
    /// The key of `cert`, in PEM.
    pub key: Option<PathBuf>,
}

/// The login of a relay at NATS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NatsCredentials {
    /// A credentials file of NATS: a JWT and the seed of its key.
    File(PathBuf),
    /// A user, and the file with its password.
    Password {
        /// The user.
        user: String,
        /// The file: one line.
        password_file: PathBuf,
    },
}

/// Bytes of the cluster's name: a subject stays far below NATS' limit of 4 KiB for a line.
const NAME: usize = 128;
/// A client of NATS knows one server of a cluster and discovers the others.
const SERVERS: usize = 64;
const USER: usize = 256;

impl Default for NatsConfig {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            name: "reveille".to_owned(),
            credentials: None,
            ca: None,
            cert: None,
            key: None,
        }
    }
}

impl NatsConfig {
    /// Checks all rules that need no file.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the setting and its rule.
    pub fn check(&self) -> Result<()> {
        self.parsed_servers()?;
        check_cluster_name(&self.name)?;
        if let Some(NatsCredentials::Password { user, .. }) = &self.credentials {
            check_text("cluster_user", user, USER)?;
            if user.is_empty() {
                return Err(Error::invalid("cluster_user", "must not be empty"));
            }
        }
        match (&self.cert, &self.key) {
            (Some(_), None) => Err(Error::invalid(
                "cluster_key",
                "must be set with cluster_cert",
            )),
            (None, Some(_)) => Err(Error::invalid(
                "cluster_cert",
                "must be set with cluster_key",
            )),
            _ => Ok(()),
        }
    }

    /// Returns whether TLS is required, also of a server that offers none.
    pub(super) fn requires_tls(&self) -> bool {
        self.servers.iter().any(|url| url.starts_with("tls://"))
    }

    /// Returns the addresses, which hold no login.
    pub(super) fn parsed_servers(&self) -> Result<Vec<ServerAddr>> {
        if self.servers.is_empty() || self.servers.len() > SERVERS {
            let rule = format_args!("must have 1 to {SERVERS} servers");
            return Err(Error::invalid("cluster", rule));
        }
        let numbered = self.servers.iter().enumerate();
        numbered
            .map(|(index, url)| parse_server(index + 1, url))
            .collect()
    }
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            servers,
            name,
            credentials,
            ca,
            cert,
            key,
        } = self;
        let shown: Vec<_> = servers.iter().map(|url| without_login(url)).collect();
        f.debug_struct("NatsConfig")
            .field("servers", &shown)
            .field("name", name)
            .field("credentials", credentials)
            .field("ca", ca)
            .field("cert", cert)
            .field("key", key)
            .finish()
    }
}

/// Returns the address of a server for logs and errors.
pub(super) fn shown(server: &ServerAddr) -> String {
    let host = server.host();
    if host.contains(':') {
        format!("[{host}]:{}", server.port())
    } else {
        format!("{host}:{}", server.port())
    }
}

/// The URL's text is in no error: it may hold a password in a place that no rule foresees.
fn parse_server(number: usize, url: &str) -> Result<ServerAddr> {
    let refuse = |rule: &str| Error::invalid("cluster", format_args!("server {number} {rule}"));
    const FORM: &str = "must be nats://HOST:PORT or tls://HOST:PORT";
    if url.contains('@') {
        return Err(refuse(
            "must not have a login in its URL: set cluster_creds, or cluster_user and \
             cluster_password_file",
        ));
    }
    let has_scheme = ["nats://", "tls://"]
        .iter()
        .any(|scheme| url.starts_with(scheme));
    url.parse()
        .ok()
        .filter(|server: &ServerAddr| has_scheme && !server.host().is_empty())
        .ok_or_else(|| refuse(FORM))
}

/// A dot separates the tokens of a subject: with one in a name, a permission for the subjects of one
/// cluster could include those of another.
fn check_cluster_name(name: &str) -> Result<()> {
    let is_letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    match (1..=NAME).contains(&name.len()) && name.bytes().all(is_letter) {
        true => Ok(()),
        false => Err(Error::invalid(
            "cluster_name",
            format_args!("must be 1 to {NAME} of [A-Za-z0-9_-]"),
        )),
    }
}

fn without_login(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((_, server)) => format!("(login)@{server}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_servers(servers: &[&str]) -> NatsConfig {
        NatsConfig {
            servers: servers.iter().map(|url| (*url).to_owned()).collect(),
            ..NatsConfig::default()
        }
    }

    fn refused(config: &NatsConfig) -> String {
        let error = config.check().expect_err("refused");
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        error.to_string()
    }

    #[test]
    fn servers_are_urls_of_hosts_and_ports() {
        for good in [
            &["nats://broker"][..],
            &["nats://10.0.0.1:4222/", "nats://[::1]:4222"],
            &["tls://a:1", "tls://b:2"],
        ] {
            with_servers(good).check().expect("good");
        }
        for bad in [
            &[][..],
            &["broker:4222"],
            &["http://broker:4222"],
            &["ws://broker:4222"],
            &["nats://"],
            &["nats://:4222"],
            &["nats://broker:99999"],
        ] {
            let error = refused(&with_servers(bad));
            assert!(error.starts_with("cluster: "), "{bad:?}: {error}");
        }
        let mixed = with_servers(&["nats://a", "tls://b"]);
        mixed.check().expect("good");
        assert!(mixed.requires_tls(), "of both");
    }

    #[test]
    fn a_login_in_a_url_is_refused_and_never_shown() {
        for url in [
            "nats://relay:hunter2@broker:4222",
            "nats://hunter2@broker",
            "nats://relay:p@hunter2@broker",
            "relay:hunter2@broker",
        ] {
            let config = with_servers(&[url]);
            let error = refused(&config);
            assert!(error.contains("cluster_password_file"), "{error}");
            for text in [error, format!("{config:?}")] {
                assert!(!text.contains("hunter2"), "{text}");
            }
        }
    }

    #[test]
    fn a_clusters_name_is_one_token_of_a_subject() {
        let longest = "x".repeat(NAME);
        let too_long = "x".repeat(NAME + 1);
        for (name, is_good) in [
            ("prod-1_b", true),
            (longest.as_str(), true),
            ("", false),
            ("prod.eu", false),
            ("a b", false),
            ("*", false),
            (">", false),
            ("ä", false),
            (too_long.as_str(), false),
        ] {
            let config = NatsConfig {
                name: name.to_owned(),
                ..with_servers(&["nats://broker"])
            };
            assert_eq!(config.check().is_ok(), is_good, "{name}");
            if !is_good {
                assert!(refused(&config).starts_with("cluster_name: must be 1 to 128"));
            }
        }
    }

    #[test]
    fn a_certificate_has_a_key_and_a_password_a_user() {
        let base = with_servers(&["tls://broker"]);
        let cert = NatsConfig {
            cert: Some("c.pem".into()),
            ..base.clone()
        };
        assert!(refused(&cert).starts_with("cluster_key: "));
        let key = NatsConfig {
            key: Some("k.pem".into()),
            ..base.clone()
        };
        assert!(refused(&key).starts_with("cluster_cert: "));
        for user in ["", "a\nb"] {
            let nameless = NatsConfig {
                credentials: Some(NatsCredentials::Password {
                    user: user.to_owned(),
                    password_file: "p".into(),
                }),
                ..base.clone()
            };
            assert!(refused(&nameless).starts_with("cluster_user: "));
        }
    }
}
