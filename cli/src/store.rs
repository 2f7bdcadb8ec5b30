//! The store of a verb: the typed one, else the store that all users of the machine share.
//!
//! Ids and leases are useless if two users have two stores without knowing it. So no default lies
//! in a user's home directory, and a store that was not typed is printed.

use std::path::{Path, PathBuf};

use super::{
    exit::{Failed, Usage},
    output,
    settings::Settings,
};

/// The store of a verb, as typed.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct StoreArgs {
    /// The store that all users of the name share: sqlite:PATH, or in a build with
    /// `--features full` az://CONTAINER, s3://BUCKET or gs://BUCKET [default: the store of the
    /// configuration file, else /var/lib/reveille/reveille.db if an operator has created that
    /// directory]
    #[arg(long, env = "REVEILLE_STORE", value_name = "URL")]
    store: Option<String>,
}

/// A store, and the setting that chose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChosenStore {
    pub(super) url: String,
    /// The setting that chose the store; `None` if it was typed.
    chosen_by: Option<&'static str>,
}

/// The directory of the machine's shared store. Its mode decides which users may write there.
const MACHINE_DIRECTORY: &str = "/var/lib/reveille";

impl StoreArgs {
    /// Returns a store that outlives this command and that other users of the machine share.
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
                "--store: no store is named, and ids and leases are shared through a store: pass \
                 --store sqlite:PATH, set REVEILLE_STORE, or create the directory {} for all users \
                 of this machine",
                machine.display()
            )));
        };
        if url == "memory:" {
            let rule = "--store: a store in memory is lost when this command ends: name a file";
            return Err(Usage(rule.to_owned()));
        }
        Ok(ChosenStore { url, chosen_by })
    }
}

impl ChosenStore {
    /// Prints the store, unless the user has typed it.
    pub(super) fn announce(&self) {
        if let Some(by) = self.chosen_by {
            output::note(format_args!("store: {} ({by})", self.url));
        }
    }
}

/// Returns the URL of the relay's default store in the user's data directory. Creates the directory
/// if it is missing.
pub(super) fn default_store() -> Result<String, Failed> {
    let none = || Failed("this user has no data directory: pass --store".to_owned());
    let directory: PathBuf = dirs::data_dir().ok_or_else(none)?.join("reveille");
    std::fs::create_dir_all(&directory).map_err(|error| {
        let shown = directory.display();
        Failed(format!(
            "data directory `{shown}` cannot be created: {error}"
        ))
    })?;
    Ok(format!(
        "sqlite:{}",
        directory.join("reveille.db").display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ServeSettings;

    #[test]
    fn a_shared_store_is_typed_or_of_the_file_or_the_machines() {
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
