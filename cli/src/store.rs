//! The store of a verb: the typed one, else the store that all users of the machine share.
//!
//! Ids and leases are useless if two users have two stores without knowing it. So no default lies
//! in a user's home directory, and a store that was not typed is printed.

use std::path::{Path, PathBuf};

use super::{
    exit::{Failed, Usage},
    output,
};

/// The store of a verb, as typed.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct StoreArgs {
    /// The store that all users of the name share: sqlite:PATH, or in a build with
    /// `--features full` az://CONTAINER, s3://BUCKET or gs://BUCKET
    /// [default: /var/lib/reveille/reveille.db if an operator has created that directory]
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
    pub(super) fn resolve(&self) -> Result<ChosenStore, Usage> {
        self.resolve_in(Path::new(MACHINE_DIRECTORY))
    }

    fn resolve_in(&self, machine: &Path) -> Result<ChosenStore, Usage> {
        let typed = self.store.clone().map(|url| (url, None));
        let of_machine = || {
            let url = format!("sqlite:{}", machine.join("reveille.db").display());
            machine
                .is_dir()
                .then_some((url, Some("this machine's default")))
        };
        let chosen = typed.or_else(of_machine);
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

    #[test]
    fn a_shared_store_is_stated_or_the_machines() {
        let directory = tempfile::tempdir().expect("a directory");
        let machine = directory.path();
        let stated = StoreArgs {
            store: Some("sqlite:/srv/shared.db".to_owned()),
        };
        let chosen = stated.resolve_in(machine).expect("stated");
        assert_eq!(
            (&*chosen.url, chosen.chosen_by),
            ("sqlite:/srv/shared.db", None)
        );
        let chosen = StoreArgs::default()
            .resolve_in(machine)
            .expect("the machine's");
        assert_eq!(
            chosen.url,
            format!("sqlite:{}/reveille.db", machine.display())
        );
        assert!(chosen.chosen_by.is_some());
        let missing = machine.join("missing");
        let error = StoreArgs::default().resolve_in(&missing).expect_err("none");
        assert!(error.to_string().contains("REVEILLE_STORE"), "{error}");
        assert!(!missing.exists());
    }
}
