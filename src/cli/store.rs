//! The store that a verb stands on: what was typed, else one that all users of the machine share.
//!
//! Ids and leases are worth nothing if two users have two stores without knowing it. So there is no
//! default in a user's own directory, and a store that was not typed is printed.

use std::path::{Path, PathBuf};

use super::{
    exit::{Failed, Usage},
    output,
    settings::Settings,
};

/// Which store.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct StoreArgs {
    /// The store, the same for all who share the name: sqlite:PATH, az://CONTAINER, s3://BUCKET or
    /// gs://BUCKET [default: that of the configuration file; else the machine's own,
    /// /var/lib/reveille/reveille.db, where an operator has made that directory]
    #[arg(long, env = "REVEILLE_STORE", value_name = "URL")]
    store: Option<String>,
}

/// A store, and why it is this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChosenStore {
    pub(super) url: String,
    /// What chose it; `None` where it was typed.
    chosen_by: Option<&'static str>,
}

/// The directory of the machine's own store. Its mode says which users may write there.
const MACHINE_DIRECTORY: &str = "/var/lib/reveille";

impl StoreArgs {
    /// Returns a store that outlives this command, and that other users of the machine have too.
    pub(super) fn resolve(&self, settings: &Settings) -> Result<ChosenStore, Usage> {
        self.resolve_in(settings, Path::new(MACHINE_DIRECTORY))
    }

    fn resolve_in(&self, settings: &Settings, machine: &Path) -> Result<ChosenStore, Usage> {
        let typed = self.store.clone().map(|url| (url, None));
        let of_file = || {
            let url = settings.serve.store.clone()?;
            Some((url, Some("the configuration file")))
        };
        let of_machine = || {
            let url = format!("sqlite:{}", machine.join("reveille.db").display());
            machine
                .is_dir()
                .then_some((url, Some("this machine's default")))
        };
        let chosen = typed.or_else(of_file).or_else(of_machine);
        let Some((url, chosen_by)) = chosen else {
            return Err(Usage(format!(
                "--store: ids and leases are shared by all who name the same store, and none is \
                 named: say --store sqlite:PATH or set REVEILLE_STORE, or have the directory {} made \
                 for all users of this machine",
                machine.display()
            )));
        };
        if url == "memory:" {
            let rule = "--store: a store in memory ends with this command: name a file";
            return Err(Usage(rule.to_owned()));
        }
        Ok(ChosenStore { url, chosen_by })
    }
}

impl ChosenStore {
    /// Prints which store it is, unless the user has just typed it.
    pub(super) fn announce(&self) {
        if let Some(by) = self.chosen_by {
            output::note(format_args!("store: {} ({by})", self.url));
        }
    }
}

/// Returns the URL of the relay's own store in the user's data directory, which is made where it is
/// missing.
pub(super) fn default_store() -> Result<String, Failed> {
    let none = || Failed("no data directory is known for this user: say --store".to_owned());
    let directory: PathBuf = dirs::data_dir().ok_or_else(none)?.join("reveille");
    std::fs::create_dir_all(&directory).map_err(|error| {
        let shown = directory.display();
        Failed(format!("data directory `{shown}` cannot be made: {error}"))
    })?;
    Ok(format!(
        "sqlite:{}",
        directory.join("reveille.db").display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::settings::ServeSettings;

    #[test]
    fn a_store_that_must_be_shared_is_typed_or_of_the_file_or_the_machines_own() {
        let directory = tempfile::tempdir().expect("a directory");
        let missing = directory.path().join("missing");
        let none = Settings::default();
        let file = Settings {
            serve: ServeSettings {
                store: Some("az://flags".to_owned()),
                ..ServeSettings::default()
            },
            ..Settings::default()
        };
        let typed = StoreArgs {
            store: Some("sqlite:/srv/shared.db".to_owned()),
        };
        let nothing = StoreArgs::default();
        let url = |args: &StoreArgs, settings, machine: &Path| {
            args.resolve_in(settings, machine).map(|chosen| chosen.url)
        };
        let machine = directory.path();
        assert_eq!(
            url(&typed, &file, machine).expect("typed"),
            "sqlite:/srv/shared.db"
        );
        assert_eq!(url(&nothing, &file, machine).expect("a file"), "az://flags");
        let own = url(&nothing, &none, machine).expect("the machine's");
        assert_eq!(own, format!("sqlite:{}/reveille.db", machine.display()));
        let error = url(&nothing, &none, &missing)
            .expect_err("none")
            .to_string();
        assert!(error.starts_with("--store: "), "{error}");
        assert!(error.contains("REVEILLE_STORE"), "{error}");
        assert!(!missing.exists());
    }
}
