//! Names, addresses, durations and URLs, which operators and peers write.

use std::{fmt::Display, str::FromStr, time::Duration};

use crate::{
    Error,
    backend::azure::StorageAccount,
    base::duration::{self, Span},
    console::hosts::Hosts,
    courier::{Destination, MessageId},
    flag::FOLDER,
    queue::{self, MessageEncoding},
    store::{BlobName, cloud::environment::bucket_path},
    types::{FlagName, GroupName, Limits, ListenerId, QueueAddress, Selector},
};

/// A host name that the admin port allows.
const HOST: &str = "relay.internal";

pub(super) fn texts(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    addresses(text);
    names(text);
    destinations(text);
    durations(text);
    hosts(text);
    urls(text);
}

/// Checks that a parsed value is displayed as a text that is parsed as the same value.
fn parsed<T: FromStr<Err = Error> + Display + PartialEq>(text: &str) -> Option<T> {
    let value: T = text.parse().ok()?;
    let shown = value.to_string();
    assert!(
        shown.parse().is_ok_and(|again: T| again == value),
        "{shown}"
    );
    Some(value)
}

fn check_part(part: &str) {
    assert!((1..=Limits::NAME).contains(&part.len()), "{part:?}");
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    assert!(part.bytes().all(fits) && part != "." && part != "..");
}

fn addresses(text: &str) {
    let selector = parsed::<Selector>(text);
    let address = parsed::<QueueAddress>(text);
    if let Some(address) = &address {
        assert_eq!(address.to_string(), text);
        check_part(address.storage_account());
        check_part(address.queue_name());
        let selector = selector.as_ref().expect("an address is a selector");
        assert!(selector.matches(address));
        assert_eq!(selector.as_address().as_ref(), Some(address));
    }
    let Some(selector) = selector else {
        return;
    };
    assert_eq!(selector.is_pattern(), address.is_none());
    for part in [selector.storage_account(), selector.queue_name()] {
        let prefix = part.strip_suffix('*').unwrap_or(part);
        assert!(prefix.len() <= Limits::NAME, "{} bytes", prefix.len());
        assert!(!prefix.contains(['*', '/']));
    }
    // The shortest address that a pattern matches.
    let part = |part: &str| part.replace('*', "x");
    let account = part(selector.storage_account());
    if let Ok(address) = QueueAddress::new(&account, &part(selector.queue_name())) {
        assert!(selector.matches(&address));
        assert!(address.to_string().starts_with(selector.beginning()));
    }
}

fn names(text: &str) {
    let flag = parsed::<FlagName>(text);
    assert_eq!(flag.is_some(), ListenerId::new(text).is_ok());
    assert_eq!(flag.is_some(), GroupName::new(text).is_ok());
    if let Some(flag) = flag {
        check_part(text);
        BlobName::new(&format!("{FOLDER}{flag}")).expect("a flag has a blob");
    }
    if let Some(blob) = parsed::<BlobName>(text) {
        assert!(blob.as_str().len() <= 1_024);
        assert!(blob.as_str().split('/').all(|part| !part.is_empty()));
    }
    if let Some(id) = parsed::<MessageId>(text) {
        assert_eq!(id.to_string(), text.to_ascii_lowercase());
    }
}

fn destinations(text: &str) {
    let Some(destination) = parsed::<Destination>(text) else {
        return;
    };
    check_part(destination.queue());
    let Some(authority) = destination.authority() else {
        return;
    };
    // The text with which a machine connects to the next one.
    let uri: http::Uri = format!("http://{authority}").parse().expect(authority);
    let port = uri.port().expect(authority);
    assert!(port.as_u16() > 0);
    assert_eq!(
        port.as_str(),
        port.as_u16().to_string(),
        "one text for each port"
    );
    assert!(!authority.contains(|c: char| c.is_ascii_uppercase()));
}

fn durations(text: &str) {
    let Ok(span) = duration::parse(text) else {
        return;
    };
    let shown = Span(span).to_string();
    let again = duration::parse(&shown).expect("a displayed duration is parsed");
    assert_eq!(Span(again).to_string(), shown);
    // It is rounded down, and by less than an eighth.
    assert!(again <= span, "{text} {shown}");
    assert!(
        span - again <= (span / 8).max(Duration::from_micros(1)),
        "{text} {shown}"
    );
}

fn hosts(text: &str) {
    let hosts = Hosts::new(&[HOST.to_owned()]);
    if !hosts.allow(text) {
        return;
    }
    let host = text.rsplit_once('@').map_or(text, |(_, host)| host);
    // The parser of authorities accepts any text as the port.
    let end = match host.starts_with('[') {
        true => host.find(']').map(|bracket| bracket + 1),
        false => host.find(':'),
    };
    let host = &host[..end.unwrap_or(host.len())];
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_address = address.parse::<std::net::IpAddr>().is_ok();
    assert!(is_address || host == "localhost" || host == HOST, "{host}");
}

fn urls(text: &str) {
    if let Ok(address) = queue::address(text) {
        check_part(address.queue_name());
        if let Ok(poison) = queue::with_suffix(text, "-poison") {
            let poison = queue::address(&poison).expect("it was checked");
            assert_eq!(poison.storage_account(), address.storage_account());
            assert_eq!(
                poison.queue_name(),
                format!("{}-poison", address.queue_name())
            );
        }
    }
    if let Ok((_, (bucket, prefix))) = bucket_path(&format!("az:{text}")) {
        assert!(!bucket.is_empty() && !bucket.contains('/'));
        assert!(prefix.is_empty() || BlobName::new(prefix.trim_end_matches('/')).is_ok());
        assert!(prefix.is_empty() || prefix.ends_with('/'));
    }
    if let Ok(encoding) = text.parse::<MessageEncoding>() {
        assert_eq!(format!("{encoding:?}").to_ascii_lowercase(), text);
    }
    if let Ok(account) = StorageAccount::from_connection_string(text) {
        assert!((3..=24).contains(&account.name().len()));
        assert!(account.queue_url("jobs").as_str().ends_with("/jobs"));
    }
}
