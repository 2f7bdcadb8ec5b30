//! The file of `--config`: its settings, and the error for an unknown or bad setting.

#[cfg(test)]
#[path = "../../dev/fuzz/targets/mutate.rs"]
mod mutate;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, de};

use super::{
    cluster::{Ack, ClusterSettings, Servers},
    exit::Usage,
    output::Format,
    queue_settings::QueueSettings,
    tls::{ClientTlsFiles, ServerTlsFiles},
    values::{self, AdminListen, LogFormat, span},
};

/// The settings of the file. All are optional.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) relay: Option<String>,
    #[serde(deserialize_with = "span")]
    pub(super) timeout: Option<Duration>,
    pub(super) output: Option<Format>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) insecure: Option<bool>,
    pub(super) tls: ClientTlsFiles,
    pub(super) serve: ServeSettings,
    pub(super) queues: QueueSettings,
}

/// The table `[serve]`.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServeSettings {
    pub(super) auth: Option<PathBuf>,
    pub(super) audit_log: Option<PathBuf>,
    #[serde(deserialize_with = "listen")]
    pub(super) listen: Option<SocketAddr>,
    #[serde(deserialize_with = "admin_listen")]
    pub(super) admin_listen: Option<AdminListen>,
    #[serde(deserialize_with = "host_names")]
    pub(super) admin_host: Option<Vec<String>>,
    pub(super) console: Option<values::Console>,
    pub(super) store: Option<String>,
    #[serde(deserialize_with = "refresh")]
    pub(super) flag_refresh: Option<Duration>,
    pub(super) relay_id: Option<String>,
    #[serde(deserialize_with = "span")]
    pub(super) grace: Option<Duration>,
    #[serde(deserialize_with = "span")]
    pub(super) drain: Option<Duration>,
    #[serde(deserialize_with = "span")]
    pub(super) forget_after: Option<Duration>,
    #[serde(deserialize_with = "span")]
    pub(super) sentinel: Option<Duration>,
    #[serde(deserialize_with = "span")]
    pub(super) assumed_poll: Option<Duration>,
    pub(super) price_per_million: Option<f64>,
    pub(super) currency: Option<String>,
    pub(super) max_connections: Option<usize>,
    pub(super) max_connections_per_address: Option<usize>,
    pub(super) max_streams: Option<usize>,
    #[serde(deserialize_with = "age")]
    pub(super) max_connection_age: Option<Duration>,
    #[serde(deserialize_with = "size")]
    pub(super) max_memory: Option<ByteSize>,
    pub(super) reflection: Option<bool>,
    pub(super) max_queues: Option<usize>,
    pub(super) max_cursors: Option<usize>,
    pub(super) max_cursors_per_stream: Option<usize>,
    pub(super) max_timers: Option<usize>,
    pub(super) max_groups: Option<usize>,
    pub(super) max_flags: Option<usize>,
    pub(super) max_watched_flags: Option<usize>,
    pub(super) insecure: Option<bool>,
    pub(super) tls_cert: Option<PathBuf>,
    pub(super) tls_key: Option<PathBuf>,
    pub(super) tls_client_ca: Option<PathBuf>,
    pub(super) cluster: Option<Servers>,
    pub(super) cluster_name: Option<String>,
    pub(super) cluster_creds: Option<PathBuf>,
    pub(super) cluster_user: Option<String>,
    pub(super) cluster_password_file: Option<PathBuf>,
    pub(super) cluster_ca: Option<PathBuf>,
    pub(super) cluster_cert: Option<PathBuf>,
    pub(super) cluster_key: Option<PathBuf>,
    pub(super) cluster_ack: Option<Ack>,
    pub(super) log: Option<LogFormat>,
}

impl Settings {
    pub(super) fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Usage(format!("config file `{}`: {error}", path.display())))?;
        Self::parse(&text, path).map_err(Into::into)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Usage> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = 1 + before.unwrap_or_default().matches('\n').count();
            let message = error.message().replace('\n', " ");
            Usage(format!(
                "config file `{}`, line {line}: {message}",
                path.display()
            ))
        })
    }
}

impl ServeSettings {
    pub(super) fn tls(&self) -> ServerTlsFiles {
        ServerTlsFiles {
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            client_ca: self.tls_client_ca.clone(),
        }
    }

    pub(super) fn cluster(&self) -> ClusterSettings {
        ClusterSettings {
            servers: self.cluster.clone(),
            name: self.cluster_name.clone(),
            creds: self.cluster_creds.clone(),
            user: self.cluster_user.clone(),
            password_file: self.cluster_password_file.clone(),
            ca: self.cluster_ca.clone(),
            cert: self.cluster_cert.clone(),
            key: self.cluster_key.clone(),
            ack: self.cluster_ack,
        }
    }
}

/// The fuzzer's target: reads a file, and checks the settings or the error.
#[cfg(any(test, fuzzing))]
pub(super) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let settings = match Settings::parse(text, Path::new("r.toml")) {
        Ok(settings) => settings,
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with("config file `r.toml`, line "), "{line:?}");
            assert!(!line.contains('\n'), "{line:?}");
            return;
        }
    };
    let serve = &settings.serve;
    assert!(
        serve
            .flag_refresh
            .is_none_or(|span| values::refresh(&format!("{}ns", span.as_nanos())).is_ok())
    );
    let hosts = serve.admin_host.iter().flatten();
    assert!(
        hosts
            .into_iter()
            .all(|host| values::host_name(host).is_ok())
    );
    if let Some(AdminListen(Some(address))) = serve.admin_listen {
        assert_eq!(values::address(&address.to_string()), Ok(address));
    }
    for destination in settings.queues.manager().aliases.values() {
        assert_eq!(
            destination.to_string().parse().as_ref().ok(),
            Some(destination)
        );
    }
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    values::address(&text).map(Some).map_err(de::Error::custom)
}

fn age<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    values::connection_age(&text)
        .map(Some)
        .map_err(de::Error::custom)
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    values::memory_size(&text)
        .map(Some)
        .map_err(de::Error::custom)
}

fn refresh<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    values::refresh(&text).map(Some).map_err(de::Error::custom)
}

fn host_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let names: Result<_, _> = names.iter().map(|name| values::host_name(name)).collect();
    names.map(Some).map_err(de::Error::custom)
}

fn admin_listen<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<AdminListen>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        Settings::parse(text, Path::new("r.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn seeds_and_mutations_of_them_give_settings_or_an_error_of_one_line() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev/fuzz/seeds/config");
        let entries = std::fs::read_dir(folder).expect("a folder");
        let mut paths: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .collect();
        paths.sort();
        let read = |path| std::fs::read(path).expect("a seed");
        let seeds: Vec<Vec<u8>> = paths.into_iter().map(read).collect();
        seeds.iter().for_each(|seed| config(seed));
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..1_000 {
            let mut input = seeds[rng.usize(0..seeds.len())].clone();
            mutate::mutate(&mut input, &seeds, &mut rng);
            config(&input);
        }
    }

    #[test]
    fn an_unknown_key_is_refused_by_name_file_and_line() {
        let error = parse("relay = \"http://h:1\"\nrelais = 1\n").expect_err("unknown");
        assert!(error.contains("`r.toml`, line 2"), "{error}");
        assert!(error.contains("`relais`"), "{error}");
        let error = parse("[serve]\nport = 7600\n").expect_err("unknown");
        assert!(
            error.contains("`port`") && error.contains("line 2"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn servers_of_a_cluster_are_a_text_or_a_list_and_no_error_quotes_them() {
        let text = parse("[serve]\ncluster = \"nats://a,nats://b\"\n").expect("a good file");
        let list = "[serve]\ncluster = [\"nats://a\", \"nats://b\"]\ncluster_ack = \"local\"\n";
        let list = parse(list).expect("a good file");
        assert_eq!(text.serve.cluster, list.serve.cluster);
        assert_eq!(list.serve.cluster_ack, Some(Ack::Local));
        for bad in [
            "[[\"nats://u:hunter2@a\"]]",
            "{ url = \"nats://u:hunter2@a\" }",
        ] {
            let error = parse(&format!("[serve]\ncluster = {bad}\n")).expect_err("refused");
            assert!(error.contains("must be a URL or a list of URLs"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn spans_and_addresses_are_read_as_on_the_command_line() {
        let settings = parse("timeout = \"2s\"\n[serve]\nadmin_listen = \"off\"\nlog = \"json\"\n")
            .expect("a good file");
        assert_eq!(settings.timeout, Some(Duration::from_secs(2)));
        assert_eq!(settings.serve.admin_listen, Some(AdminListen(None)));
        assert!(parse("[serve]\nflag_refresh = \"1ms\"").is_err());
        let hosts = parse("[serve]\nadmin_host = [\"relay.internal\"]\n").expect("a good file");
        assert_eq!(hosts.serve.admin_host, Some(vec!["relay.internal".into()]));
        assert!(parse("[serve]\nadmin_host = [\"relay.internal:7601\"]").is_err());
        assert!(parse("timeout = 2").is_err());
        assert!(parse("[serve]\ngrace = \"soon\"").is_err());
    }
}
