//! What a machine accepts from others, and where it passes messages on.

use super::frames::FileId;

/// The rules of a receiver.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// The id of the own file.
    pub(crate) own: FileId,
    /// The maximum size of a body, in bytes.
    pub(crate) max_body: usize,
    /// The maximum number of messages of a queue; beyond it, messages are postponed.
    pub(crate) max_queue: u64,
    /// The maximum number of messages that wait for other machines; beyond it, messages for other
    /// machines are postponed.
    pub(crate) max_outgoing: u64,
    /// The maximum number of machines that a message may pass.
    pub(crate) max_hops: usize,
    /// How long a message that passes through may wait here, in microseconds.
    pub(crate) max_age: Option<i64>,
    pub(crate) routes: Vec<Route>,
}

/// The next machine of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The destination's `HOST:PORT`, `*.SUFFIX:PORT`, `*.SUFFIX` for any port, or `*` for all.
    pub pattern: String,
    /// `HOST:PORT` of the next machine.
    pub hop: String,
}

impl Policy {
    /// Returns the next machine of a message that passes through this one. Only a route allows it:
    /// a machine is no open relay.
    pub(crate) fn next_hop(&self, authority: &str) -> Option<&str> {
        next_hop(&self.routes, authority)
    }
}

/// Returns the hop of the first route that matches.
pub(crate) fn next_hop<'r>(routes: &'r [Route], authority: &str) -> Option<&'r str> {
    let route = routes.iter().find(|route| route.matches(authority))?;
    Some(&route.hop)
}

impl Route {
    fn matches(&self, authority: &str) -> bool {
        let Some(suffix) = self.pattern.strip_prefix('*') else {
            return self.pattern == authority;
        };
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        authority.ends_with(suffix) || host.ends_with(suffix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_route_names_the_hop() {
        let route = |pattern: &str, hop: &str| Route {
            pattern: pattern.to_owned(),
            hop: hop.to_owned(),
        };
        let routes = [
            route("b.east:7600", "direct:1"),
            route("*.east:7600", "east:1"),
            route("*.west", "west:1"),
        ];
        for (authority, hop) in [
            ("b.east:7600", Some("direct:1")),
            ("c.east:7600", Some("east:1")),
            ("c.east:7601", None),
            ("c.west:9", Some("west:1")),
            ("west:9", None),
        ] {
            assert_eq!(next_hop(&routes, authority), hop, "{authority}");
        }
        assert_eq!(next_hop(&[route("*", "all:1")], "any:1"), Some("all:1"));
    }
}
