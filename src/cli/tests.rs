//! The command line as a whole: its help, its refusals.

use clap::{Command, CommandFactory as _, Parser as _};

use super::*;

fn verbs(command: &Command, path: &str, into: &mut Vec<(String, String)>) {
    let path = format!("{path} {}", command.get_name());
    let mut command = command.clone();
    into.push((path.clone(), command.render_long_help().to_string()));
    for verb in command.get_subcommands() {
        verbs(verb, &path, into);
    }
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_verb_shows_an_example() {
    let mut helps = Vec::new();
    verbs(&Cli::command(), "", &mut helps);
    assert!(helps.len() > 15);
    for (path, help) in helps {
        assert!(help.contains("Example:\n  "), "{path}:\n{help}");
    }
}

#[test]
fn bad_values_are_refused_with_field_and_rule() {
    for (typed, words) in [
        (
            &["notify", "acct"][..],
            &["ACCOUNT/QUEUE", "account/queue"][..],
        ),
        (&["notify", "a/q", "--delay", "-1s"], &["--delay"]),
        (
            &["notify", "a/q", "--delay", "15d"],
            &["--delay", "at most 14d"],
        ),
        (&["subscribe", "a/*b"], &["at its end"]),
        (&["unleash", "../x"], &["FLAG", "[A-Za-z0-9._-]"]),
        (&["unleash", "f", "--ttl", "soon"], &["--ttl", "2s"]),
        (
            &["serve", "--admin-listen", "x"],
            &["--admin-listen", "IP:PORT"],
        ),
        (&["queues", "-o", "xml"], &["--output", "jsonl"]),
    ] {
        let typed = ["reveille"].iter().chain(typed);
        let error = Cli::try_parse_from(typed.clone())
            .expect_err("refused")
            .to_string();
        for word in words {
            assert!(error.contains(word), "{typed:?}: {error}");
        }
    }
}

#[test]
fn what_follows_two_dashes_belongs_to_the_command() {
    let cli = Cli::try_parse_from(["reveille", "wait", "go", "--", "sh", "-c", "exit 7"]);
    assert!(matches!(cli.expect("parsed").verb, Verb::Wait(_)));
}
