//! `proto`: the protocol's files, for clients in other languages.

use super::{
    exit::{Exit, Usage},
    output,
};

/// Print the protocol's .proto files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille proto
  mkdir -p reveille/v1 && reveille proto relay.proto > reveille/v1/relay.proto")]
pub(super) struct Args {
    /// The name or path of one file, such as `relay.proto` [default: all files, one after another]
    name: Option<String>,
}

macro_rules! files {
    ($($path:literal),+) => {
        [$(($path, include_str!(concat!("../../proto/", $path)))),+]
    };
}

const FILES: [(&str, &str); 3] = files![
    "reveille/v1/relay.proto",
    "reveille/v1/flags.proto",
    "reveille/v1/admin.proto"
];

impl Args {
    pub(super) fn run(&self) -> anyhow::Result<Exit> {
        output::write(self.text()?)?;
        Ok(Exit::OK)
    }

    fn text(&self) -> Result<String, Usage> {
        let Some(name) = &self.name else {
            let part = |(path, text): &(&str, &str)| format!("// ---- {path}\n{text}\n");
            return Ok(FILES.iter().map(part).collect());
        };
        let named = |path: &str| path == name || path.ends_with(&format!("/{name}"));
        let found = FILES.iter().find(|(path, _)| named(path));
        let known = FILES.map(|(path, _)| path).join(", ");
        found
            .map(|(_, text)| (*text).to_owned())
            .ok_or_else(|| Usage(format!("name: there is no {name:?}; the files are {known}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> Result<String, Usage> {
        let args = Args {
            name: Some(name.to_owned()),
        };
        args.text()
    }

    #[test]
    fn a_file_is_found_by_its_name_or_its_path() {
        for name in ["relay.proto", "reveille/v1/relay.proto"] {
            assert!(text(name).expect(name).contains("service Relay"));
        }
        assert!(text("elay.proto").is_err());
    }
}
