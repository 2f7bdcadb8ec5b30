//! Values of flags and settings that several verbs parse.

use std::{net::SocketAddr, str::FromStr, time::Duration};

use reveille::{ConsoleMode, Error, ErrorKind};

use super::exit::Usage;

/// The address of the admin port; `None` for `off`.
// By this name clap does not take it for an argument that may be missing.
pub(crate) type AdminListen = Option<SocketAddr>;

/// Parses what the page on the admin port may do.
pub(crate) fn console_mode(text: &str) -> Result<ConsoleMode, String> {
    match text {
        "off" => Ok(ConsoleMode::Off),
        "read" => Ok(ConsoleMode::Read),
        "act" => Ok(ConsoleMode::Act),
        _ => Err("must be off, read or act".to_owned()),
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

/// Parses the address of the admin port, or `off`.
pub(crate) fn admin_address(text: &str) -> Result<AdminListen, String> {
    match text {
        "off" => Ok(None),
        text => address(text).map(Some),
    }
}

/// Parses a number that may be 0.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| "must be a whole number, 0 or more".to_owned())
}

/// Parses a number of at least 1.
pub(crate) fn positive<T: FromStr + Default + PartialEq>(text: &str) -> Result<T, String> {
    let positive = text.parse().ok().filter(|number| *number != T::default());
    positive.ok_or_else(|| "must be a whole number, 1 or more".to_owned())
}

/// Parses a duration above zero.
pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    duration(text, |pause| !pause.is_zero(), "must be above zero")
}

/// Parses a duration that keeps a rule.
pub(crate) fn duration(
    text: &str,
    is_valid: impl FnOnce(Duration) -> bool,
    rule: &str,
) -> Result<Duration, String> {
    let parsed = reveille::duration::parse(text).map_err(|error| error.to_string())?;
    is_valid(parsed)
        .then_some(parsed)
        .ok_or_else(|| rule.to_owned())
}

/// Refuses a store or a queue in memory; `example` is the URL of one in a file.
pub(crate) fn refuse_memory(what: &str, example: &str, url: &str) -> Result<(), Usage> {
    match url.starts_with("memory:") {
        false => Ok(()),
        true => Err(Usage(format!(
            "{what} in memory is lost when this command ends: name a file, as `{example}`"
        ))),
    }
}

/// Says which verbs create what is missing.
pub(crate) fn created_by(error: Error, verbs: &str) -> Error {
    match error.kind() {
        ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, format!("{error}: {verbs} create it"))
        }
        _ => error,
    }
}

/// Returns the host's name as a part of an id.
pub(crate) fn host() -> String {
    host_part(&rustix::system::uname().nodename().to_string_lossy())
}

/// Cuts a name, so that it stays below the limit of an id.
fn host_part(name: &str) -> String {
    let is_letter = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name.chars().filter(is_letter).take(64).collect();
    match name.is_empty() {
        true => "host".to_owned(),
        false => name,
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
        assert_eq!(admin_address("off"), Ok(None));
        let admin = Some(SocketAddr::from(([127, 0, 0, 1], 7601)));
        assert_eq!(admin_address(":7601"), Ok(admin));
        assert!(admin_address("nowhere").is_err());
    }

    #[test]
    fn a_host_is_a_part_of_an_id() {
        let long = "h".repeat(300);
        for (name, part) in [
            ("node-7.example", "node-7.example"),
            ("", "host"),
            ("ä/b", "b"),
            (&long, &long[..64]),
        ] {
            assert_eq!(host_part(name), part);
        }
    }
}
