//! The settings of the connection to NATS, their rules, and the client's options, with the files of the
//! login and of TLS.
//!
//! Errors name the setting as the configuration file does (`cluster_ca`). No error and no `Debug`
//! shows a URL with a login.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_nats::{ConnectOptions, ServerAddr};

use super::{events::Events, subjects::Subjects};
use crate::{
    base::{
        backoff::jitter,
        file,
        task::blocking,
        text::opaque_debug,
        tls_files::{ClientFiles, TlsFiles as _},
    },
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

/// Two pings without an answer end a connection: a half-open one is found after 6 s. The link
/// itself counts as isolated after 3.5 s.
const PING: Duration = Duration::from_secs(2);
/// The limit of one attempt, from the connection to the first answer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The first attempt of many relays after a broker's restart falls into this span.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// The longest delay: below it a server that returns is found while few frames are missed.
const MAX_DELAY: Duration = Duration::from_millis(500);
/// Messages of a subscription that wait for the relay: 32 MiB of the largest. The client drops those
/// above it. A relay that is behind by more would count them late, and a resync costs it less.
const SUBSCRIPTION_CAPACITY: usize = 512;
/// Messages that wait for the socket.
pub(super) const CLIENT_CAPACITY: usize = 256;
/// The client cannot be told to stop its attempts; after [`Events::close`] the next is never due.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A credentials file has about 1 KiB.
const LONGEST_LOGIN: u64 = 64 * 1024;

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
        let (missing, stated) = match (&self.cert, &self.key) {
            (Some(_), None) => ("cluster_key", "cluster_cert"),
            (None, Some(_)) => ("cluster_cert", "cluster_key"),
            _ => return Ok(()),
        };
        let rule = format_args!("must be set with {stated}");
        Err(Error::invalid(missing, rule))
    }

    /// Returns whether TLS is required, also of a server that offers none.
    fn requires_tls(&self) -> bool {
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

// The URLs were not checked yet: one may hold a login.
opaque_debug!(NatsConfig: name, credentials);

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

/// Reads the files of the configuration, and returns options whose first attempt is the only one.
///
/// # Errors
/// `Invalid`, with the setting whose file cannot be used.
pub(super) async fn options(
    config: &NatsConfig,
    subjects: &Subjects,
    events: &Arc<Events>,
) -> Result<ConnectOptions> {
    let config = config.clone();
    let read = blocking(move || {
        let options = ConnectOptions::new()
            .require_tls(config.requires_tls())
            .tls_client_config(tls_files(&config)?.config()?);
        with_login(options, config.credentials.as_ref())
    });
    let (for_events, for_delays) = (Arc::clone(events), Arc::clone(events));
    let options = read
        .await??
        .name(format!("reveille {}", env!("CARGO_PKG_VERSION")))
        .custom_inbox_prefix(&subjects.inbox)
        .ping_interval(PING)
        .connection_timeout(CONNECT_TIMEOUT)
        .max_reconnects(None)
        .reconnect_delay_callback(move |attempt| {
            if for_delays.is_closed() {
                NEVER
            } else {
                jitter(delay_ceiling(attempt), &mut fastrand::Rng::new())
            }
        })
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .client_capacity(CLIENT_CAPACITY)
        .event_callback(move |event| {
            for_events.on_event(&event);
            std::future::ready(())
        });
    Ok(options)
}

/// A machine without trusted authorities can still use NATS in plain text.
fn tls_files(config: &NatsConfig) -> Result<ClientFiles> {
    let identity = config.cert.as_deref().zip(config.key.as_deref());
    let needs_roots = config.requires_tls();
    ClientFiles::read("cluster_", needs_roots, config.ca.as_deref(), identity)
}

/// No error quotes a file.
fn with_login(
    options: ConnectOptions,
    credentials: Option<&NatsCredentials>,
) -> Result<ConnectOptions> {
    match credentials {
        None => Ok(options),
        Some(NatsCredentials::File(path)) => {
            const SETTING: &str = "cluster_creds";
            options
                .credentials(&read_text(SETTING, path)?)
                .map_err(|_| file::unfit(SETTING, path, "is no credentials file of NATS"))
        }
        Some(NatsCredentials::Password {
            user,
            password_file,
        }) => {
            const SETTING: &str = "cluster_password_file";
            let text = read_text(SETTING, password_file)?;
            let password = text.trim_end_matches(['\n', '\r']);
            if password.is_empty() || password.contains('\n') {
                let rule = "must hold one line: the password";
                return Err(file::unfit(SETTING, password_file, rule));
            }
            Ok(options.user_and_password(user.clone(), password.to_owned()))
        }
    }
}

fn read_text(setting: &str, path: &Path) -> Result<String> {
    let bytes = file::read_setting(setting, path, LONGEST_LOGIN)?;
    String::from_utf8(bytes).map_err(|_| file::unfit(setting, path, "is not UTF-8 text"))
}

/// Returns the longest delay before an attempt; the first one has the number 1.
fn delay_ceiling(attempt: usize) -> Duration {
    let doublings = attempt.saturating_sub(1).min(10);
    (FIRST_DELAY * (1 << doublings)).min(MAX_DELAY)
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

    #[test]
    fn delays_grow_from_fifty_milliseconds_to_half_a_second() {
        let ceilings: Vec<_> = (1..=8).map(|n| delay_ceiling(n).as_millis()).collect();
        assert_eq!(ceilings, [50, 100, 200, 400, 500, 500, 500, 500]);
        assert_eq!(delay_ceiling(usize::MAX), MAX_DELAY);
    }

    fn refused_login(content: &[u8], credentials: impl Fn(&Path) -> NatsCredentials) -> String {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("login");
        std::fs::write(&path, content).expect("written");
        let options = with_login(ConnectOptions::new(), Some(&credentials(&path)));
        options.expect_err("refused").to_string()
    }

    #[test]
    fn a_password_is_one_line_and_is_not_shown() {
        let long = vec![b'x'; 64 * 1024 + 1];
        for bad in [
            &b""[..],
            b"\n",
            b"hunter2\nhunter3\n",
            b"hunter2\xff",
            &long,
        ] {
            let text = refused_login(bad, |path| NatsCredentials::Password {
                user: "relay".to_owned(),
                password_file: path.to_owned(),
            });
            assert!(text.starts_with("cluster_password_file: `"), "{text}");
            assert!(!text.contains("hunter"), "{text}");
        }
    }

    #[test]
    fn a_credentials_file_that_is_none_is_refused_without_its_contents() {
        let text = refused_login(b"SUAhunter2", |path| NatsCredentials::File(path.to_owned()));
        assert!(text.starts_with("cluster_creds: `"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
