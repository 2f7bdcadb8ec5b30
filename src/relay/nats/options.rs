//! The options of the client of the broker, with the files of its login and of TLS.

use std::{path::Path, sync::Arc, time::Duration};

use async_nats::ConnectOptions;

use super::{NatsConfig, NatsCredentials, events::Events, subjects::Subjects};
use crate::{
    base::{
        backoff::jitter,
        file,
        task::blocking,
        tls_files::{ClientFiles, TlsFiles as _},
    },
    error::{Error, ErrorKind, Result},
};

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
pub(super) const SUBSCRIPTION_CAPACITY: usize = 512;
/// Messages that wait for the socket.
pub(super) const CLIENT_CAPACITY: usize = 256;
/// The client cannot be told to stop its attempts; after [`Events::close`] the next is never due.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A credentials file has about 1 KiB.
const LONGEST_LOGIN: u64 = 64 * 1024;

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
    let options = read.await.unwrap_or_else(|| {
        let message = "the runtime is shutting down";
        Err(Error::new(ErrorKind::Closed, message))
    })?;
    let (for_events, for_delays) = (Arc::clone(events), Arc::clone(events));
    let options = options
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
    let bytes = file::read_setting(setting, path, LONGEST_LOGIN)?.bytes;
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

    #[test]
    fn delays_grow_from_fifty_milliseconds_to_half_a_second() {
        let ceilings: Vec<_> = (1..=8).map(|n| delay_ceiling(n).as_millis()).collect();
        assert_eq!(ceilings, [50, 100, 200, 400, 500, 500, 500, 500]);
        assert_eq!(delay_ceiling(usize::MAX), MAX_DELAY);
    }

    fn refused(content: &[u8], credentials: impl Fn(&Path) -> NatsCredentials) -> String {
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
            let text = refused(bad, |path| NatsCredentials::Password {
                user: "relay".to_owned(),
                password_file: path.to_owned(),
            });
            assert!(text.starts_with("cluster_password_file: `"), "{text}");
            assert!(!text.contains("hunter"), "{text}");
        }
    }

    #[test]
    fn a_credentials_file_that_is_none_is_refused_without_its_contents() {
        let text = refused(b"SUAhunter2", |path| NatsCredentials::File(path.to_owned()));
        assert!(text.starts_with("cluster_creds: `"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
