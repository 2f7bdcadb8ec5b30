//! The life of the program: its arguments, its runtime, its exit code.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{
    Command, CommandFactory as _, FromArgMatches as _, builder::Resettable,
    error::ErrorKind as UsageError,
};
use reveille::{Error, ErrorKind, duration::Span};

use super::{
    Cli,
    exit::{Exit, Usage},
    help, log, output,
    settings::{self, Settings},
    signals,
};

/// Parses the arguments, runs the verb, and returns its exit code.
pub fn main() -> ExitCode {
    let outcome = parse().and_then(|(cli, settings)| complete(Box::pin(cli.verb.run(&settings))));
    let exit = outcome.unwrap_or_else(|error| {
        let exit = Exit::of(&error);
        match error.downcast_ref::<clap::Error>() {
            // A closed stdout is ignored.
            Some(error) if is_help(error) => _ = error.print(),
            Some(error) => output::note(one_line(error)),
            None if exit == Exit::OK => {}
            None => output::note(format_args!("error: {}", output::one_line(&error))),
        }
        exit
    });
    exit.into()
}

fn parse() -> anyhow::Result<(Cli, Settings)> {
    let typed: Vec<_> = std::env::args_os().collect();
    let parse = |command| without_empty_variables(command).try_get_matches_from(&typed);
    let command = help::paged(Cli::command());
    let matches = parse(command.clone())?;
    let Some(path) = matches.get_one::<PathBuf>("config") else {
        return Ok((Cli::from_arg_matches(&matches)?, Settings::default()));
    };
    let (command, settings) = settings::load(path, command)?;
    // Without the file there was no error, so one is about a value of the file.
    let matches = parse(command).map_err(|error| {
        let rule = one_line(&error);
        let rule = rule.trim_start_matches("error: ");
        Usage(format!("config file `{}`: {rule}", path.display()))
    })?;
    Ok((Cli::from_arg_matches(&matches)?, settings))
}

fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        UsageError::DisplayHelp
            | UsageError::DisplayVersion
            | UsageError::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// Returns an error of the command line on one line, without the usage.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let paragraphs = text
        .split("\n\n")
        .filter(|text| !text.starts_with("Usage:") && !text.starts_with("For more information"));
    paragraphs
        .map(output::joined)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Returns the command without empty environment variables: an empty variable counts as unset.
fn without_empty_variables(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let name = arg.get_env().map(ToOwned::to_owned);
        match name.and_then(std::env::var_os) {
            Some(value) if value.is_empty() => arg.env(Resettable::Reset),
            _ => arg,
        }
    });
    command.mut_subcommands(without_empty_variables)
}

fn complete(program: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let _limited = runtime.block_on(async { signals::outlive_file_limit() });
    let outcome = runtime.block_on(program);
    // The verbs have awaited the tasks that matter. The others are dropped, and the files that they
    // have open are closed with them. A thread that blocks is not awaited.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// Runs work that may be dropped at any moment, until it ends or a signal arrives.
pub(crate) async fn until_interrupted(
    work: impl Future<Output = anyhow::Result<Exit>>,
) -> anyhow::Result<Exit> {
    log::start(log::CLIENT_LOG, false);
    let mut interrupts = signals::Interrupts::listen()?;
    tokio::select! {
        outcome = Box::pin(work) => outcome,
        signal = interrupts.next() => Ok(signal.exit()),
    }
}

/// Runs a call within the limit, if there is one. `late` is the error, and says what has not happened by
/// then.
pub(crate) async fn within<T, E: From<Error>>(
    limit: Option<Duration>,
    (kind, late): (ErrorKind, String),
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let Some(limit) = limit else {
        return call.await;
    };
    let timed_out = |_| {
        let message = format!("{late} within {}", Span(limit));
        Err(Error::new(kind, message).into())
    };
    tokio::time::timeout(limit, call)
        .await
        .unwrap_or_else(timed_out)
}
