//! A client's configuration: in code, and by the variables of the process.

use std::{env, ffi::OsString, path::PathBuf, time::Duration};

use super::{
    Credential,
    session::{PublisherConfig, ReconnectConfig},
};
use crate::{
    error::{Error, Result},
    types::Limits,
};

/// How a client connects and retries.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Time limit of an attempt to connect.
    pub connect_timeout: Duration,
    /// Time limit of a single request. Streams have none.
    pub request_timeout: Duration,
    /// Maximum wait before a stream's first reconnection. Clients notice a relay's restart within 3
    /// s, and ten thousand listeners reconnect at about two thousand a second.
    pub reconnect_base: Duration,
    /// Maximum wait before any reconnection.
    pub reconnect_max: Duration,
    /// The TLS of `https://` URLs. The files are read when the client is created.
    pub tls: ClientTls,
    /// What the client shows to be known to the relay. It is sent over `https://`, and over `http://`
    /// to this machine; see [`ClientConfig::insecure`]. Default: none.
    pub credential: Credential,
    /// Send the credential over `http://` to other machines, in a network that encrypts by itself.
    pub insecure: bool,
}

/// The TLS of a client of `https://` URLs. The server's name is always checked. The files are read
/// again for each connection, so that renewed certificates are used without a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The certificates of the authorities that the client trusts, in PEM. Default: the system's.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its chain, and the key, in PEM. Default: none.
    pub identity: Option<ClientIdentity>,
}

/// The files of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The certificate and its chain, the client's own first.
    pub certificate: PathBuf,
    /// The key of the certificate: PKCS #8, SEC 1 or PKCS #1.
    pub key: PathBuf,
}

/// How a publisher sends.
#[derive(Debug, Clone)]
pub struct PublisherOptions {
    /// The publisher's name, which wake-ups carry; at most 128 bytes.
    pub name: String,
    /// Maximum notifications of one request; 1..=1024.
    pub batch: usize,
    /// Maximum requests in flight; 1..=1000.
    pub pipeline: usize,
    /// Maximum pending entries, one for each queue and time; more are refused. The same number
    /// of entries is kept in addition for queues that the relay has no room for; more of those are
    /// dropped.
    pub max_pending: usize,
    /// Time limit of `notify`. Its notifications are still sent after that.
    pub deadline: Duration,
}

/// Maximum requests in flight; larger options are reduced to it.
const MAX_PIPELINE: usize = 1000;

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(5),
            reconnect_base: Duration::from_secs(1),
            reconnect_max: Duration::from_secs(10),
            tls: ClientTls::default(),
            credential: Credential::default(),
            insecure: false,
        }
    }
}

impl Default for PublisherOptions {
    fn default() -> Self {
        Self {
            name: String::new(),
            batch: 256,
            pipeline: 8,
            max_pending: 100_000,
            deadline: Duration::from_secs(30),
        }
    }
}

impl ClientConfig {
    pub(crate) fn reconnect(&self, others: usize) -> ReconnectConfig {
        ReconnectConfig {
            base: self.reconnect_base,
            max: self.reconnect_max,
            others,
            open_timeout: self.request_timeout,
        }
    }

    /// Returns the configuration by the variables that the command line reads as well: `REVEILLE_CA`,
    /// `REVEILLE_CERT` and `REVEILLE_KEY` name the files of TLS, `REVEILLE_TOKEN_FILE` the file of a
    /// token, `REVEILLE_TOKEN` is a token, and `REVEILLE_INSECURE=true` permits its use in plain
    /// text. An empty variable counts as not set.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a certificate without its key, or the
    /// reverse, or text that is not UTF-8.
    pub fn from_environment() -> Result<Self> {
        Self::of(|name| env::var_os(name))
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let path = |name| set(name).map(PathBuf::from);
        let credential = match (path("REVEILLE_TOKEN_FILE"), set("REVEILLE_TOKEN")) {
            (Some(path), _) => Credential::file(path),
            (None, Some(token)) => {
                let token = token.into_string();
                let token = token.map_err(|_| Error::invalid("REVEILLE_TOKEN", "must be UTF-8"))?;
                Credential::text(&token)
            }
            (None, None) => Credential::default(),
        };
        Ok(Self {
            tls: ClientTls::new(
                path("REVEILLE_CA"),
                path("REVEILLE_CERT"),
                path("REVEILLE_KEY"),
            )?,
            credential,
            insecure: set("REVEILLE_INSECURE").is_some_and(|value| value == "true"),
            ..Self::default()
        })
    }
}

impl ClientTls {
    /// Returns the TLS with these files, each of which may be missing.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a certificate without its key, or the
    /// reverse.
    pub fn new(
        ca: Option<PathBuf>,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Self> {
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(ClientIdentity { certificate, key }),
            (None, None) => None,
            (Some(_), None) => return Err(Error::invalid("key", "must be set with `cert`")),
            (None, Some(_)) => return Err(Error::invalid("cert", "must be set with `key`")),
        };
        Ok(Self { ca, identity })
    }
}

impl PublisherOptions {
    /// Returns the configuration of a publisher whose relay answers within this time.
    pub(crate) fn session(&self, answer_timeout: Duration) -> PublisherConfig {
        PublisherConfig {
            batch: self.batch.clamp(1, Limits::EVENTS),
            pipeline: self.pipeline.clamp(1, MAX_PIPELINE),
            max_pending: self.max_pending,
            answer_timeout,
        }
    }
}

#[cfg(test)]
impl Default for ReconnectConfig {
    fn default() -> Self {
        ClientConfig::default().reconnect(0)
    }
}

#[cfg(test)]
impl Default for PublisherConfig {
    fn default() -> Self {
        PublisherOptions::default().session(ClientConfig::default().request_timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<ClientConfig> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        ClientConfig::of(|name| variables.get(name).map(OsString::from))
    }

    #[test]
    fn the_variables_name_files_and_tokens() {
        let set = [
            ("REVEILLE_CA", "ca.pem"),
            ("REVEILLE_CERT", "me.pem"),
            ("REVEILLE_KEY", "me.key"),
            ("REVEILLE_TOKEN", "planted"),
        ];
        let config = config(&set).expect("valid");
        assert_eq!(config.tls.ca, Some("ca.pem".into()));
        assert_eq!(
            config.tls.identity.expect("one").key,
            PathBuf::from("me.key")
        );
        assert_eq!(format!("{:?}", config.credential), "(secret)");
        assert!(!config.insecure);
    }

    #[test]
    fn a_file_has_precedence_and_empty_variables_are_not_set() {
        let set = [
            ("REVEILLE_TOKEN", "planted"),
            ("REVEILLE_TOKEN_FILE", "token"),
            ("REVEILLE_CA", ""),
            ("REVEILLE_INSECURE", "true"),
        ];
        let found = config(&set).expect("valid");
        assert_eq!(found.tls.ca, None);
        assert_eq!(format!("{:?}", found.credential), "\"token\"");
        assert!(found.insecure);
        assert!(config(&[]).expect("valid").credential.is_none());
    }

    #[test]
    fn a_certificate_needs_its_key() {
        for (set, missing) in [("REVEILLE_CERT", "key"), ("REVEILLE_KEY", "cert")] {
            let error = config(&[(set, "file")]).expect_err("half").to_string();
            assert!(error.starts_with(missing), "{error}");
        }
    }
}
