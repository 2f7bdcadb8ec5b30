//! Errors of clap as one line, and parsers of values.

use std::{ffi::OsString, str::FromStr, time::Duration};

use clap::{
    Command,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
};

use reveille::{ListenerId, duration};

use super::{exit::Exit, output};

/// Prints the requested help, or one line with the error.
pub(crate) fn refuse(error: &clap::Error, command: &Command, typed: &[OsString]) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed stdout is ignored.
            let _ = error.print();
            Exit::OK
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Exit::USAGE
        }
        _ => {
            let text = condense(&error.render().to_string());
            let text = match variable(error, command, typed) {
                Some(name) => text.replacen("error: ", &format!("error: {name}: "), 1),
                None => text,
            };
            output::note(text);
            Exit::USAGE
        }
    }
}

/// Returns the command without empty environment variables: an empty variable counts as unset.
pub(crate) fn without_empty_variables(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let name = arg.get_env().map(ToOwned::to_owned);
        match name.and_then(std::env::var_os) {
            Some(value) if value.is_empty() => arg.env(Resettable::Reset),
            _ => arg,
        }
    });
    command.mut_subcommands(without_empty_variables)
}

/// Returns the environment variable that holds a refused value; `None` if the value was typed.
fn variable(error: &clap::Error, command: &Command, typed: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // As in `--timeout <D>`.
    let flag = shown.split(' ').next()?;
    let name = find_variable(command, flag.strip_prefix("--")?)?;
    let is_typed = typed
        .iter()
        .any(|word| word.to_string_lossy().starts_with(flag));
    let is_set = std::env::var_os(&name).is_some();
    (is_set && !is_typed).then_some(name)
}

fn find_variable(command: &Command, long: &str) -> Option<String> {
    let own = command.get_arguments().find_map(|arg| {
        let name = arg.get_env().filter(|_| arg.get_long() == Some(long))?;
        Some(name.to_string_lossy().into_owned())
    });
    let of = |sub| find_variable(sub, long);
    own.or_else(|| command.get_subcommands().find_map(of))
}

/// Parses a number that may be 0.
pub(crate) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| "must be a whole number, 0 or more".to_owned())
}

/// Parses a number of at least 1.
pub(crate) fn positive<T: FromStr + Default + PartialEq>(text: &str) -> Result<T, String> {
    let positive = text.parse().ok().filter(|number| *number != T::default());
    positive.ok_or_else(|| "must be a whole number, 1 or more".to_owned())
}

/// Parses a duration above zero.
pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    let span = duration::parse(text).map_err(|error| error.to_string())?;
    match span.is_zero() {
        true => Err("must be above zero".to_owned()),
        false => Ok(span),
    }
}

/// Verbs that a mistyped word must not lead to: they release a fleet, or end or delete something.
const NO_TIPS: [&str; 6] = ["unleash", "leash", "drain", "purge", "forget", "revoke"];

/// Keeps the error and the tips, on one line. Drops the usage.
fn condense(text: &str) -> String {
    let squeeze = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    text.split("\n\n")
        .map(squeeze)
        .enumerate()
        .filter(|(at, paragraph)| *at == 0 || is_tip(paragraph))
        .map(|(_, paragraph)| paragraph)
        .collect::<Vec<_>>()
        .join("; ")
}

fn is_tip(paragraph: &str) -> bool {
    let names = |verb: &str| paragraph.contains(&format!("'{verb}'"));
    paragraph.starts_with("tip:") && !NO_TIPS.into_iter().any(names)
}

/// The id of a verb that listens.
#[derive(Debug, clap::Args)]
pub(crate) struct IdArgs {
    /// The listener id, by which lists and `unleash --expect` know this process [default: the verb and
    /// random characters]
    #[arg(long, env = "REVEILLE_LISTENER_ID", value_name = "NAME")]
    id: Option<String>,
}

impl IdArgs {
    pub(crate) fn or_unique(&self, prefix: &str) -> reveille::Result<ListenerId> {
        match &self.id {
            Some(id) => ListenerId::new(id),
            None => ListenerId::unique(prefix),
        }
    }
}

/// Returns the user's name, or an empty text.
pub(crate) fn user() -> String {
    std::env::var("USER").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_with_its_tip() {
        let text = "error: unexpected argument '--rely' found\n\n  tip: a similar argument exists: \
                    '--relay'\n\nUsage: reveille\n\nFor more information, try '--help'.\n";
        assert_eq!(
            condense(text),
            "error: unexpected argument '--rely' found; tip: a similar argument exists: '--relay'"
        );
    }

    #[test]
    fn no_tip_leads_to_a_verb_that_releases_or_ends_something() {
        let text = "error: unrecognized subcommand 'unlease'\n\n  tip: some similar subcommands \
                    exist: 'lease', 'unleash'\n\nUsage: reveille\n";
        assert_eq!(condense(text), "error: unrecognized subcommand 'unlease'");
    }
}
