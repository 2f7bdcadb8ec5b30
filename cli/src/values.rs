//! Values of flags and settings that several verbs parse.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use bytesize::ByteSize;
use reveille::{ServerLimits, duration};
use serde::{Deserialize, Deserializer, de};

use super::exit::Usage;

/// The address of the admin port; `None` for `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdminListen(pub(crate) Option<SocketAddr>);

/// The format of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One object a line
    Json,
}

/// What the page on the admin port may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Console {
    /// There is no page
    Off,
    /// It only shows
    Read,
    /// It also sets and clears flags, notifies queues and drains the relay
    Act,
}

impl From<Console> for reveille::ConsoleMode {
    fn from(console: Console) -> Self {
        match console {
            Console::Off => Self::Off,
            Console::Read => Self::Read,
            Console::Act => Self::Act,
        }
    }
}

/// With a shorter interval a relay would do little else than read flags.
const MIN_REFRESH: Duration = Duration::from_millis(100);

impl FromStr for AdminListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        address(text)
            .map(|address| Self(Some(address)))
            .map_err(|rule| format!("{rule}, or `off`"))
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "http://{address}"),
            None => f.write_str("off"),
        }
    }
}

/// Checks that a port in plain text is open to other machines only where that is stated.
pub(crate) fn check_open(
    flag: &str,
    address: Option<SocketAddr>,
    insecure: bool,
) -> Result<(), Usage> {
    match address {
        Some(address) if !address.ip().is_loopback() && !insecure => Err(Usage(format!(
            "--{flag}: {address} is open to other machines, and this port serves plain text without \
             TLS: listen on a loopback address, set --tls-cert and --tls-key (for --listen), or pass \
             --insecure"
        ))),
        _ => Ok(()),
    }
}

/// Parses an address to listen on. A port alone is on loopback: only an explicit address opens the
/// port to other machines.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:");
    let port = port.or_else(|| text.strip_prefix(':'));
    let local = port.and_then(|port| port.parse().ok());
    let local = local.map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));
    local
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "must be IP:PORT, localhost:PORT or :PORT".to_owned())
}

/// Parses a host name without a port.
pub(crate) fn host_name(text: &str) -> Result<String, String> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match !text.is_empty() && text.chars().all(letter) {
        true => Ok(text.to_owned()),
        false => Err("must be a host name without a port, such as relay.internal".to_owned()),
    }
}

/// Parses an interval between reads; zero means never.
pub(crate) fn refresh(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    match span.is_zero() || span >= MIN_REFRESH {
        true => Ok(span),
        false => Err("must be 0 or at least 100ms".to_owned()),
    }
}

/// Reads a duration of the configuration file.
pub(super) fn span<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    duration::parse(&text).map(Some).map_err(de::Error::custom)
}

/// The shortest age of a connection: a client needs some round trips to connect again.
const SHORTEST_AGE: Duration = Duration::from_secs(1);

/// Parses the age of a connection.
pub(crate) fn connection_age(text: &str) -> Result<Duration, String> {
    let age = duration::parse(text).map_err(|error| error.to_string())?;
    match age >= SHORTEST_AGE {
        true => Ok(age),
        false => Err("must be at least 1s".to_owned()),
    }
}

/// Parses an amount of memory.
pub(crate) fn memory_size(text: &str) -> Result<ByteSize, String> {
    let rule = || {
        let least = ByteSize::b(ServerLimits::LEAST_MEMORY).display().iec();
        format!("must be a size such as 512MiB, at least {least}, or 0")
    };
    let size: ByteSize = text.parse().map_err(|_| rule())?;
    match size.as_u64() == 0 || size.as_u64() >= ServerLimits::LEAST_MEMORY {
        true => Ok(size),
        false => Err(rule()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_to_listen_on_may_be_short() {
        for (text, read) in [
            ("127.0.0.1:7600", Some("127.0.0.1:7600")),
            ("[::1]:7600", Some("[::1]:7600")),
            (":7600", Some("127.0.0.1:7600")),
            ("localhost:7600", Some("127.0.0.1:7600")),
            ("7600", None),
            (":", None),
            ("localhost", None),
            ("relay.internal:7600", None),
            (":70000", None),
        ] {
            let read: Option<SocketAddr> = read.map(|text| text.parse().expect("an address"));
            assert_eq!(address(text).ok(), read, "{text}");
        }
        assert_eq!("off".parse(), Ok(AdminListen(None)));
        let admin = AdminListen(Some(SocketAddr::from(([127, 0, 0, 1], 7601))));
        assert_eq!(":7601".parse(), Ok(admin));
        assert!("nowhere".parse::<AdminListen>().is_err());
    }

    #[test]
    fn a_size_has_a_unit_or_is_in_bytes() {
        for (text, bytes) in [
            ("512MiB", 512 << 20),
            ("2GiB", 2 << 30),
            ("67108864", 64 << 20),
        ] {
            assert_eq!(memory_size(text).expect(text).as_u64(), bytes);
        }
        assert_eq!(memory_size("0").expect("no limit").as_u64(), 0);
        for text in ["-1", "", "much", "1MiB", "12"] {
            let error = memory_size(text).expect_err(text);
            assert_eq!(
                error,
                "must be a size such as 512MiB, at least 64.0 MiB, or 0"
            );
        }
    }
}
