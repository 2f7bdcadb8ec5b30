//! `completions`: a shell's completion script for this command.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, exit::Exit, output};

/// Print a shell's completion script
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille completions bash > ~/.local/share/bash-completion/completions/reveille")]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

impl Args {
    pub(super) fn run(&self) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "reveille", &mut script);
        output::write(script)?;
        Ok(Exit::OK)
    }
}
