//! The file of `--config`.
//!
//! A setting stands once, as an argument of clap. Its variable `REVEILLE_NAME` is the key `name` of the
//! file, whose value becomes the default of the argument: so a flag wins over the variable, and that over
//! the file. A key outside of the tables holds for all verbs, and one in `[VERB]` for this verb. What has
//! no flag stands in the tables of [`Settings`].

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use clap::{Arg, Command};
use reveille::{
    Error, ErrorKind, NodeConfig, RelayConfig,
    courier::{Destination, QueueManagerConfig, Route},
    duration::Span,
};
use serde::de;
use toml::{Table, Value};

use super::{credential, exit::Usage, output};

/// The settings without a flag.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) limits: Limits,
    pub(super) savings: SavingsSettings,
    pub(super) queues: QueueSettings,
}

/// Declares a table of the file: each key, its type, and the field of the configuration that it sets.
macro_rules! table {
    (
        $(#[$meta:meta])*
        struct $name:ident for $config:ty {
            $($key:ident: $type:ty => $($field:ident).+,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct $name {
            $($key: Option<$type>,)*
        }

        impl $name {
            #[cfg(test)]
            pub(super) const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// Sets the fields whose keys are in the file.
            pub(super) fn apply(&self, config: &mut $config) {
                let table = self.clone();
                $(if let Some(value) = table.$key {
                    config.$($field).+ = value.into();
                })*
            }
        }
    };
}

table! {
    /// The table `[serve.limits]`.
    struct Limits for NodeConfig {
        max_queues: NonZeroUsize => relay.max_queues,
        max_cursors: NonZeroUsize => relay.max_cursors,
        max_cursors_per_stream: NonZeroUsize => relay.max_cursors_per_stream,
        max_timers: NonZeroUsize => relay.max_timers,
        max_groups: NonZeroUsize => relay.max_groups,
        max_flags: NonZeroUsize => max_flags,
        max_watched_flags: NonZeroUsize => max_watched_flags,
        max_streams: NonZeroUsize => limits.max_streams,
        max_connection_age: Span => limits.max_connection_age,
        forget_after: Span => relay.forget_after,
        flag_refresh: Span => flag_refresh,
        reflection: bool => reflection,
    }
}

table! {
    /// The table `[serve.savings]`.
    struct SavingsSettings for RelayConfig {
        assumed_poll: Span => assumed_poll,
        price_per_million: f64 => price_per_million,
        currency: String => currency,
    }
}

table! {
    /// The table `[queues]`.
    struct QueueSettings for QueueManagerConfig {
        account: String => account,
        max_outgoing: u64 => max_outgoing,
        max_queue: u64 => max_queue,
        max_age: Span => max_age,
        history_age: Span => history_age,
        history_rows: u64 => history_rows,
        duplicate_window: Span => duplicate_window,
        names: Vec<String> => names,
        aliases: BTreeMap<String, Destination> => aliases,
        routes: Vec<Route> => routes,
    }
}

/// The name of the queue file in its directory.
const FILE: &str = "queues.db";

impl QueueSettings {
    /// Returns the settings of a queue file.
    pub(super) fn manager(&self) -> QueueManagerConfig {
        let mut manager = QueueManagerConfig::default();
        self.apply(&mut manager);
        manager
    }
}

/// Returns the queue file of a directory, or the file itself.
pub(super) fn queue_file(place: &Path) -> Result<PathBuf, Error> {
    match place.is_dir() {
        true => Ok(place.join(FILE)),
        false if place.exists() => Ok(place.to_owned()),
        false => {
            let place = place.display();
            let message = format!("queues: there is no directory `{place}`: create it first");
            Err(Error::new(ErrorKind::NotFound, message))
        }
    }
}

/// Reads the file. Returns the command with its values as defaults, and the settings without a flag.
pub(super) fn load(path: &Path, command: Command) -> Result<(Command, Settings), Usage> {
    std::fs::read_to_string(path)
        .map_err(|error| error.to_string())
        .and_then(|text| read(&text, command))
        .map_err(|error| Usage(format!("config file `{}`: {error}", path.display())))
}

fn read(text: &str, command: Command) -> Result<(Command, Settings), String> {
    let mut file: Table = toml::from_str(text).map_err(|error| syntax(&error, text))?;
    let queues = file.remove("queues");
    let mut serve = file.get_mut("serve").and_then(Value::as_table_mut);
    let mut of_serve = |key: &str| serve.as_mut()?.remove(key);
    let settings = Settings {
        limits: part("serve.limits", of_serve("limits"))?,
        savings: part("serve.savings", of_serve("savings"))?,
        queues: part("queues", queues)?,
    };
    let mut values = BTreeMap::new();
    flatten("", file, &mut values);
    let mut known = BTreeSet::new();
    let command = command.mut_subcommands(|verb| {
        let table = verb.get_name().to_owned();
        with_defaults(verb, &table, &values, &mut known)
    });
    match values.keys().find(|key| !known.contains(*key)) {
        Some(unknown) => Err(format!("unknown key `{unknown}`")),
        None => Ok((command, settings)),
    }
}

fn part<T: Default + de::DeserializeOwned>(name: &str, table: Option<Value>) -> Result<T, String> {
    let part = table.map_or_else(|| Ok(T::default()), Value::try_into);
    part.map_err(|error| format!("[{name}]: {}", output::joined(&error.to_string())))
}

fn syntax(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = 1 + before.unwrap_or_default().matches('\n').count();
    format!("line {line}: {}", error.message().replace('\n', " "))
}

/// Collects the values under their keys, which begin with the names of their tables.
fn flatten(prefix: &str, table: Table, values: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        match value {
            Value::Table(table) => flatten(&format!("{key}."), table, values),
            Value::Array(list) => {
                let list: Vec<_> = list.into_iter().map(plain).collect();
                values.insert(key, list.join(","));
            }
            value => _ = values.insert(key, plain(value)),
        }
    }
}

fn plain(value: Value) -> String {
    match value {
        Value::String(text) => text,
        value => value.to_string(),
    }
}

/// Makes the values of the file the defaults of a verb's arguments, and notes the keys that they have.
fn with_defaults(
    verb: Command,
    table: &str,
    values: &BTreeMap<String, String>,
    known: &mut BTreeSet<String>,
) -> Command {
    let verb = verb.mut_args(|arg| {
        let Some(key) = key(&arg) else { return arg };
        let own = format!("{table}.{key}");
        let value = values.get(&own).or_else(|| values.get(&key));
        let is_overridden = key == "token_file" && credential::of_variable().is_some();
        known.extend([key, own]);
        match value.filter(|_| !is_overridden) {
            // The file is read once.
            Some(value) => arg.default_value(&*value.clone().leak()),
            None => arg,
        }
    });
    verb.mut_subcommands(|verb| with_defaults(verb, table, values, known))
}

/// Returns the key of an argument with a variable.
fn key(arg: &Arg) -> Option<String> {
    let variable = arg.get_env()?.to_str()?;
    Some(variable.strip_prefix("REVEILLE_")?.to_lowercase())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Cli, help};
    use clap::CommandFactory as _;

    /// Parses a command line with this file.
    fn parse(text: &str, typed: &[&str]) -> Result<(clap::ArgMatches, Settings), String> {
        let (command, settings) = read(text, help::paged(Cli::command()))?;
        let typed = [&["reveille"], typed].concat();
        command
            .try_get_matches_from(typed)
            .map(|matches| (matches, settings))
            .map_err(|error| error.to_string())
    }

    fn value(text: &str, typed: &[&str], id: &str) -> Vec<String> {
        let (matches, _) = parse(text, typed).expect("a good file");
        let (_, verb) = matches.subcommand().expect("a verb");
        let values = verb.get_raw(id).expect("a value");
        values
            .map(|value| value.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        for (text, words) in [
            ("relay = \"http://h:1\"\nrelais = 1\n", "`relais`"),
            ("[serve]\nport = 7600\n", "`serve.port`"),
            ("[serve]\nlisten = { port = 7600 }\n", "`serve.listen.port`"),
            ("[serve]\nconfig = \"other\"\n", "`serve.config`"),
            (
                "[serve.limits]\nmax_widgets = 1\n",
                "[serve.limits]: unknown field `max_widgets`",
            ),
            (
                "[queues]\nfolder = \"f\"\n",
                "[queues]: unknown field `folder`",
            ),
            ("relay = \n", "line 1"),
        ] {
            let error = parse(text, &["serve"]).expect_err(text);
            assert!(error.contains(words), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_flag_wins_over_the_verbs_table_and_that_over_the_keys_of_all_verbs() {
        let file = "grace = \"1s\"\n[serve]\ngrace = \"2s\"\n";
        assert_eq!(value(file, &["serve", "--grace", "3s"], "grace"), ["3s"]);
        assert_eq!(value(file, &["serve"], "grace"), ["2s"]);
        let file = "relay = \"h:1\"\n[serve]\nrelay_id = \"x\"\n";
        assert_eq!(value(file, &["notify", "a/q"], "relay"), ["h:1"]);
    }

    #[test]
    fn a_list_is_a_list_or_a_text_with_commas() {
        for file in [
            "[serve]\ncluster = \"nats://a,nats://b\"\n",
            "[serve]\ncluster = [\"nats://a\", \"nats://b\"]\n",
        ] {
            assert_eq!(value(file, &["serve"], "cluster"), ["nats://a", "nats://b"]);
        }
        let bad = parse(
            "[serve]\ncluster = { url = \"nats://u:hunter2@a\" }\n",
            &["serve"],
        );
        assert!(!bad.expect_err("refused").contains("hunter2"));
    }

    #[test]
    fn a_bad_value_is_refused_with_its_setting_and_rule() {
        for (text, words) in [
            ("timeout = 2", &["--timeout", "2s"][..]),
            ("[notify]\ntimeout = \"soon\"", &["--timeout", "2s"]),
            ("insecure = \"maybe\"", &["--insecure", "true, false"]),
            ("[serve.limits]\nmax_queues = 0", &["max_queues", "nonzero"]),
            (
                "[serve.limits]\nforget_after = \"soon\"",
                &["forget_after", "2s"],
            ),
        ] {
            let error = parse(text, &["notify", "a/q"]).expect_err(text);
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn the_file_of_the_manifests_is_read() {
        let manifest = include_str!("../../deploy/kubernetes/relays.yaml");
        let (_, file) = manifest.split_once("reveille.toml: |\n").expect("a file");
        let (file, _) = file.split_once("---").expect("its end");
        let (_, settings) = parse(file, &["serve"]).expect("a good file");
        let mut node = NodeConfig::default();
        settings.limits.apply(&mut node);
        assert_eq!((node.relay.max_queues, node.max_flags), (250_000, 1_000));
    }

    #[test]
    fn a_table_sets_the_fields_of_its_keys() {
        let file = "[serve.limits]\nmax_queues = 7\nflag_refresh = \"0\"\nreflection = false\n\
                    [serve.savings]\ncurrency = \"EUR\"\n";
        let (_, settings) = parse(file, &["serve"]).expect("a good file");
        let mut node = NodeConfig::default();
        settings.limits.apply(&mut node);
        settings.savings.apply(&mut node.relay);
        assert_eq!((node.relay.max_queues, node.reflection), (7, false));
        assert!(node.flag_refresh.is_zero() && node.relay.currency == "EUR");
        assert_eq!(node.max_flags, NodeConfig::default().max_flags);
    }

    fn queues(text: &str) -> Result<QueueSettings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    const FULL: &str = r#"
account = "shop"
max_outgoing = 10
max_queue = 20
max_age = "2d"
history_age = "1h"
history_rows = 30
duplicate_window = "3d"
names = ["Rome:7610"]
routes = [{ pattern = "*.east", hop = "gate:7600" }]
[aliases]
berlin = "reveille://berlin:7600/orders"
"#;

    #[test]
    fn all_settings_reach_the_manager() {
        let manager = queues(FULL).expect("valid").manager();
        assert_eq!(manager.account, "shop");
        assert_eq!((manager.max_outgoing, manager.max_queue), (10, Some(20)));
        assert_eq!(manager.max_age, Duration::from_secs(2 * 24 * 3600));
        assert_eq!(manager.history_age, Duration::from_secs(3600));
        assert_eq!(manager.history_rows, 30);
        assert_eq!(manager.duplicate_window, Duration::from_secs(3 * 24 * 3600));
        assert_eq!(manager.names, ["Rome:7610"]);
        let route = Route {
            pattern: "*.east".to_owned(),
            hop: "gate:7600".to_owned(),
        };
        assert_eq!(manager.routes, [route]);
        let berlin = manager.aliases["berlin"].to_string();
        assert_eq!(berlin, "reveille://berlin:7600/orders");
        assert!(!manager.allow_new_file);
    }

    #[test]
    fn without_a_table_the_defaults_of_the_library_hold() {
        let manager = QueueSettings::default().manager();
        let defaults = QueueManagerConfig::default();
        assert_eq!(format!("{manager:?}"), format!("{defaults:?}"));
    }

    #[test]
    fn bad_settings_are_refused() {
        for (text, word) in [
            ("folder = \"x\"", "`folder`"),
            ("max_age = \"soon\"", "2s"),
            ("[aliases]\nb = \"http://b:1/q\"", "http://b:1/q"),
            ("routes = [{ pattern = \"*\" }]", "`hop`"),
            (
                "routes = [{ pattern = \"*\", hop = \"a:1\", via = 1 }]",
                "`via`",
            ),
        ] {
            let error = queues(text).expect_err(text);
            assert!(error.contains(word), "{error}");
        }
    }
}
