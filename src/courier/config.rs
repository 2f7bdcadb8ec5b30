//! The settings of a queue manager: limits, routes and aliases.
//!
//! Plain data and its checks. Knows neither the file nor the network.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;

use super::message::{Destination, check_authority};
use crate::{
    error::{Error, Result},
    queue::QueueLimits,
    types::QueueAddress,
};

/// The settings of a [`QueueManager`](super::QueueManager).
#[derive(Debug, Clone)]
pub struct QueueManagerConfig {
    /// The storage account in the addresses of the file's queues: `ACCOUNT/QUEUE`.
    pub account: String,
    /// The maximum size of a body in bytes; at most 64 KiB, which every receiver accepts.
    pub max_body: usize,
    /// The maximum number of messages that wait for one next machine, so that a machine that is away
    /// stops no send to others. At 1 KiB a message, the default is about 1 GiB of disk.
    pub max_outgoing: u64,
    /// The maximum number of messages in each local queue, for sends of transactions and of other
    /// machines; `None` is unlimited. A put into a queue is not limited.
    pub max_queue: Option<u64>,
    /// A message that was not accepted by the next machine for this long becomes a dead letter.
    pub max_age: Duration,
    /// Messages that were handled or handed over are kept as history for this long.
    pub history_age: Duration,
    /// The maximum number of rows of each kind of history: sent, and received.
    pub history_rows: u64,
    /// The ids of messages from other machines are known for this long, at about 55 bytes each. A copy
    /// of another machine's file that is put back within this time brings no message twice.
    pub duplicate_window: Duration,
    /// Further names (`HOST:PORT`) of this machine, such as former ones. A message for one of them is
    /// for this machine.
    pub names: Vec<String>,
    /// The next machine for each destination; the first match wins. A destination without a route
    /// is contacted directly.
    pub routes: Vec<Route>,
    /// Names for destinations: `orders@berlin` is the queue `orders` at the machine of `berlin`.
    pub aliases: BTreeMap<String, Destination>,
    /// Allows a new file in the place of a damaged file that was set aside.
    pub allow_new_file: bool,
}

/// A rule of the route table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// `HOST:PORT`, `*.SUFFIX` for all hosts of a domain, or `*`.
    pub pattern: String,
    /// `HOST:PORT` of the next machine.
    pub hop: String,
}

/// The queue under whose address the host is told of messages to other machines. It has no rows.
pub(crate) const OUTGOING_QUEUE: &str = "courier-outgoing";

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for QueueManagerConfig {
    fn default() -> Self {
        Self {
            account: "local".to_owned(),
            max_body: QueueLimits::EMBEDDED.body,
            max_outgoing: 1_000_000,
            max_queue: None,
            // A machine may be away over a long holiday.
            max_age: 14 * DAY,
            history_age: 7 * DAY,
            history_rows: 100_000,
            // As the age limit: a copy has no message that waits for longer.
            duplicate_window: 14 * DAY,
            names: Vec::new(),
            routes: Vec::new(),
            aliases: BTreeMap::new(),
            allow_new_file: false,
        }
    }
}

impl QueueManagerConfig {
    /// Returns whether a route or an alias names the machine.
    pub(super) fn names_machine(&self, authority: &str) -> bool {
        let mut hops = self.routes.iter().map(|route| &*route.hop);
        let mut aliases = self.aliases.values().filter_map(Destination::authority);
        hops.any(|hop| hop == authority) || aliases.any(|named| named == authority)
    }

    /// Checks the rules that the types do not enforce, and writes machines in lower case.
    pub(super) fn checked(mut self) -> Result<Self> {
        QueueAddress::new(&self.account, OUTGOING_QUEUE)?;
        let most = QueueLimits::EMBEDDED.body;
        if !(1..=most).contains(&self.max_body) {
            return Err(Error::invalid(
                "max_body",
                format_args!("must be 1 to {most}"),
            ));
        }
        if self.max_outgoing == 0 || self.max_queue == Some(0) {
            let field = if self.max_outgoing == 0 {
                "max_outgoing"
            } else {
                "max_queue"
            };
            return Err(Error::invalid(field, "must be at least 1"));
        }
        for name in &mut self.names {
            name.make_ascii_lowercase();
            check_authority(name)?;
        }
        for route in &mut self.routes {
            route.pattern.make_ascii_lowercase();
            route.hop.make_ascii_lowercase();
            check_authority(&route.hop)?;
            let is_suffix = route
                .pattern
                .strip_prefix("*.")
                .is_some_and(|s| !s.is_empty());
            if route.pattern != "*" && !is_suffix {
                check_authority(&route.pattern).map_err(|_| {
                    let rule = format_args!(
                        "must be HOST:PORT, *.SUFFIX or *, but is {:?}",
                        route.pattern
                    );
                    Error::invalid("route pattern", rule)
                })?;
            }
        }
        if let Some(name) = self
            .aliases
            .keys()
            .find(|name| name.contains(['@', '/', ':']))
        {
            let rule = format_args!("must be without `@`, `/` and `:`, but is {name:?}");
            return Err(Error::invalid("alias", rule));
        }
        Ok(self)
    }

    /// Returns the other machine that a destination names.
    pub(super) fn remote<'a>(&self, to: &'a Destination) -> Option<&'a str> {
        to.authority().filter(|authority| !self.is_own(authority))
    }

    /// Returns whether this is a name of this machine.
    pub(super) fn is_own(&self, authority: &str) -> bool {
        self.names.iter().any(|name| name == authority)
    }

    /// Returns the next machine on the way to `authority`.
    pub(crate) fn hop_of<'a>(&'a self, authority: &'a str) -> &'a str {
        self.next_hop(authority).unwrap_or(authority)
    }

    /// Returns the next machine of the first route that matches. A message passes through this machine
    /// by a route only: a machine is no open relay.
    pub(super) fn next_hop(&self, authority: &str) -> Option<&str> {
        let route = self.routes.iter().find(|route| route.matches(authority))?;
        Some(&route.hop)
    }

    /// Returns the destination of an alias, of `QUEUE@ALIAS`, or of a text that
    /// [`Destination`] parses.
    pub(super) fn destination(&self, text: &str) -> Result<Destination> {
        if let Some(destination) = self.aliases.get(text) {
            return Ok(destination.clone());
        }
        let Some((queue, alias)) = text.split_once('@') else {
            return text.parse();
        };
        let Some(machine) = self.aliases.get(alias) else {
            let rule = format_args!("alias `{alias}` is not in the table of aliases");
            return Err(Error::invalid("destination", rule));
        };
        match machine.authority() {
            Some(authority) => format!("reveille://{authority}/{queue}").parse(),
            None => Destination::local(queue),
        }
    }
}

impl Route {
    fn matches(&self, authority: &str) -> bool {
        let Some(suffix) = self.pattern.strip_prefix('*') else {
            return self.pattern == authority;
        };
        let host = authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host);
        host.ends_with(suffix) || authority.ends_with(suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(pattern: &str, hop: &str) -> Route {
        let (pattern, hop) = (pattern.to_owned(), hop.to_owned());
        Route { pattern, hop }
    }

    #[test]
    fn the_first_matching_route_gives_the_next_machine() {
        let config = QueueManagerConfig {
            routes: vec![
                route("Berlin.example:7600", "gate:1"),
                route("*.example", "gate:2"),
                route("*.lan:7600", "gate:3"),
            ],
            ..QueueManagerConfig::default()
        };
        let config = config.checked().expect("valid");
        for (authority, hop) in [
            ("berlin.example:7600", "gate:1"),
            ("paris.example:7600", "gate:2"),
            ("a.lan:7600", "gate:3"),
            ("a.lan:7601", "a.lan:7601"),
            ("example:1", "example:1"),
        ] {
            assert_eq!(config.hop_of(authority), hop, "{authority}");
        }
    }

    #[test]
    fn bad_settings_name_the_field() {
        let base = QueueManagerConfig::default;
        for (config, field) in [
            (
                QueueManagerConfig {
                    account: "a/b".into(),
                    ..base()
                },
                "storage_account",
            ),
            (
                QueueManagerConfig {
                    max_body: 65_537,
                    ..base()
                },
                "max_body",
            ),
            (
                QueueManagerConfig {
                    max_outgoing: 0,
                    ..base()
                },
                "max_outgoing",
            ),
            (
                QueueManagerConfig {
                    routes: vec![route("**", "a:1")],
                    ..base()
                },
                "route pattern",
            ),
        ] {
            let error = config.checked().expect_err(field);
            assert!(error.message().starts_with(field), "{error}");
        }
    }

    #[test]
    fn aliases_stand_for_destinations_and_for_machines() {
        let far: Destination = "reveille://berlin:7600/in".parse().expect("valid");
        let config = QueueManagerConfig {
            aliases: BTreeMap::from([("berlin".to_owned(), far.clone())]),
            ..QueueManagerConfig::default()
        };
        assert_eq!(config.destination("berlin").expect("known"), far);
        let orders = config.destination("orders@berlin").expect("known");
        assert_eq!(orders.to_string(), "reveille://berlin:7600/orders");
        let plain = config.destination("orders").expect("a queue");
        assert_eq!(plain.authority(), None);
        let error = config.destination("orders@rome").expect_err("unknown");
        assert!(error.message().contains("`rome`"), "{error}");
    }
}
