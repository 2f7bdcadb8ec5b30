//! The life of a program: its arguments, its runtime, its exit code. Both programs of this package
//! start here.

use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::{ArgMatches, Parser};
use reveille::{Error, ErrorKind, duration::Span};

use super::{exit::Exit, help, log, output, signals, usage};

/// Parses the arguments, runs the program, and returns its exit code.
pub(crate) fn main<C: Parser, F: Future<Output = anyhow::Result<Exit>>>(
    run: impl FnOnce(C, &ArgMatches) -> anyhow::Result<F>,
) -> ExitCode {
    let typed: Vec<_> = std::env::args_os().collect();
    let command = help::paged(usage::without_empty_variables(C::command()));
    let parsed = command.clone().try_get_matches_from(&typed);
    let parsed = parsed.and_then(|matches| Ok((C::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage::refuse(&error, &command, &typed).into(),
    };
    let exit = run(cli, &matches)
        .and_then(complete)
        .unwrap_or_else(|error| {
            let exit = Exit::of(&error);
            if exit != Exit::OK {
                output::note(format_args!("error: {}", output::one_line(&error)));
            }
            exit
        });
    exit.into()
}

fn complete(program: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let _limited = runtime.block_on(async { signals::outlive_file_limit() });
    let outcome = runtime.block_on(Box::pin(program));
    // The verbs have awaited the tasks that matter. The others are dropped, and the files that they
    // have open are closed with them. A thread that blocks is not awaited.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// Runs work that may be dropped at any moment, until it ends or a signal arrives.
pub(crate) async fn until_interrupted(
    work: impl Future<Output = anyhow::Result<Exit>>,
) -> anyhow::Result<Exit> {
    log::to_stderr(log::CLIENT_LOG);
    let mut interrupts = signals::Interrupts::listen()?;
    tokio::select! {
        outcome = Box::pin(work) => outcome,
        signal = interrupts.next() => Ok(signal.exit()),
    }
}

/// Runs a call within the limit, if there is one. `late` says what has not happened by then.
pub(crate) async fn within<T, E: From<Error>>(
    limit: Option<Duration>,
    late: String,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let Some(limit) = limit else {
        return call.await;
    };
    let timed_out = |_| {
        let message = format!("{late} within {}", Span(limit));
        Err(Error::new(ErrorKind::Timeout, message).into())
    };
    tokio::time::timeout(limit, call)
        .await
        .unwrap_or_else(timed_out)
}
