//! The command line as a whole: its help, its refusals.

use clap::{Command, CommandFactory as _, Parser as _};

use reveille::{NodeConfig, ServerLimits};

use super::*;

fn verbs(command: &Command, path: &str, into: &mut Vec<(String, String)>) {
    let path = format!("{path} {}", command.get_name());
    let mut command = command.clone();
    into.push((path.clone(), command.render_long_help().to_string()));
    // clap's `help` repeats the other verbs; hidden verbs are not for people.
    let shown = |verb: &&Command| verb.get_name() != "help" && !verb.is_hide_set();
    for verb in command.get_subcommands().filter(shown) {
        verbs(verb, &path, into);
    }
}

#[test]
fn the_command_line_is_sound() {
    help::paged(Cli::command()).debug_assert();
}

/// A verb is on the first page, or below it by name. A first page has few options, and `--help-all` all.
#[test]
fn first_pages_are_short() {
    fn check(command: &Command, path: &str) {
        let shown = |short: bool| {
            let args = command.get_arguments().filter(|arg| {
                let is_help = matches!(arg.get_id().as_str(), "help" | "help-all" | "version");
                let is_hidden = arg.is_hide_set() || short && arg.is_hide_short_help_set();
                !is_help && !is_hidden && !arg.is_positional()
            });
            args.count()
        };
        let (first, all) = (shown(true), shown(false));
        assert!(
            first <= help::MOST,
            "{path}: {first} options on its first page"
        );
        let mut command = command.clone();
        let (short, long) = (command.render_help(), command.render_long_help());
        let (short, long) = (short.to_string(), long.to_string());
        assert!(short.contains("--help-all"), "{path}:\n{short}");
        assert!(short.contains("Example:\n  "), "{path}:\n{short}");
        if all > first {
            assert!(short.lines().count() < long.lines().count(), "{path}");
        }
        let verbs = command.get_subcommands();
        for verb in verbs.filter(|verb| verb.get_name() != "help" && !verb.is_hide_set()) {
            check(verb, &format!("{path} {}", verb.get_name()));
        }
    }
    let mut command = help::paged(Cli::command());
    command.build();
    check(&command, "reveille");
    for (path, ids) in help::FIRST {
        let found = path
            .split(' ')
            .try_fold(&command, |verb, name| verb.find_subcommand(name));
        let verb = found.expect(path);
        for id in ids.split(' ') {
            let has_id = verb.get_arguments().any(|arg| arg.get_id().as_str() == id);
            assert!(has_id, "{path}: no {id}");
        }
    }
    let page = command.render_help().to_string();
    assert!(page.lines().count() <= 40, "{page}");
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let name = verb.get_name();
        let words = page.split(|c: char| !c.is_alphanumeric());
        assert!(
            name == "help" || words.into_iter().any(|word| word == name),
            "no {name}"
        );
    }
}

#[test]
fn every_verb_shows_an_example() {
    let mut helps = Vec::new();
    verbs(&help::paged(Cli::command()), "", &mut helps);
    assert!(helps.len() > 15);
    for (path, help) in helps {
        assert!(help.contains("Example:\n  "), "{path}:\n{help}");
    }
}

/// A line that is broken by hand is broken twice in a narrow terminal.
#[test]
fn help_is_wrapped_by_clap_alone() {
    fn texts(command: &Command, into: &mut Vec<String>) {
        let after = [command.get_after_help(), command.get_after_long_help()];
        let about = [command.get_about(), command.get_long_about()];
        into.extend(
            after
                .into_iter()
                .chain(about)
                .flatten()
                .map(ToString::to_string),
        );
        command.get_subcommands().for_each(|verb| texts(verb, into));
    }
    let mut all = Vec::new();
    texts(&Cli::command(), &mut all);
    // The lines of a list are indented, and its heading ends in a colon.
    let in_paragraph = |line: &str| {
        let listed = ["Settings:", "Durations:"]
            .iter()
            .any(|head| line.starts_with(head));
        !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':') && !listed
    };
    for text in all {
        let lines: Vec<_> = text.lines().collect();
        for pair in lines.windows(2) {
            let broken = in_paragraph(pair[0]) && in_paragraph(pair[1]);
            assert!(!broken, "{pair:?}");
        }
    }
}

#[test]
fn a_duration_is_called_one() {
    let mut helps = Vec::new();
    verbs(&help::paged(Cli::command()), "", &mut helps);
    for (path, help) in helps {
        let words = help
            .split(|c: char| !c.is_alphanumeric())
            .map(str::to_lowercase);
        let other = words
            .into_iter()
            .find(|word| word == "span" || word == "spans");
        assert_eq!(other, None, "{path}:\n{help}");
    }
}

#[test]
fn bad_values_are_refused_with_field_and_rule() {
    for (typed, words) in [
        (
            &["notify", "acct"][..],
            &["ACCOUNT/QUEUE", "account/queue"][..],
        ),
        (&["notify", "a/q", "--delay=-1s"], &["--delay", "2s"]),
        (
            &["notify", "a/q", "--delay", "15d"],
            &["--delay", "at most 14d"],
        ),
        (
            &["notify", "a/q", "--messages=-1"],
            &["--messages", "0 or more"],
        ),
        (
            &["subscribe", "a/q", "--count", "0"],
            &["--count", "1 or more"],
        ),
        (&["subscribe", "a/*b"], &["at its end"]),
        (&["unleash", "../x"], &["FLAG", "[A-Za-z0-9._-]"]),
        (&["unleash", "f", "--ttl", "soon"], &["--ttl", "2s"]),
        (
            &["serve", "--admin-listen", "x"],
            &["--admin-listen", "IP:PORT"],
        ),
        (
            &["wait", "go", "--store", "az://c", "--interval", "0"],
            &["--interval", "at least 10ms"],
        ),
        (
            &["ids", "next", "orders", "--count", "0"],
            &["--count", "1..=10000"],
        ),
        (
            &["ids", "next", "orders", "--range-size", "0"],
            &["--range-size", "1..="],
        ),
        (
            &["ids", "next", "orders", "--start", "9223372036854775808"],
            &["--start", "9223372036854775807"],
        ),
        (&["ids", "next", "../x"], &["<NAME>", "none empty, `.`"]),
        (&["queues", "-o", "xml"], &["--output", "jsonl"]),
        (
            &["courier", "status", "queues", "12"],
            &["MESSAGE_ID", "32 hexadecimal digits"],
        ),
        (&["courier", "requeue", "queues"], &["--all", "ID"]),
        (
            &["courier", "receive", "queues", "orders", "--max", "0"],
            &["--max", "1 or more"],
        ),
        (
            &["courier", "send", "queues", "orders", "a", "--stdin"],
            &["--stdin", "cannot be used"],
        ),
        (
            &["courier", "serve", "queues", "--listen", "x"],
            &["--listen", "IP:PORT"],
        ),
    ] {
        let typed = ["reveille"].iter().chain(typed);
        let error = help::paged(Cli::command())
            .try_get_matches_from(typed.clone())
            .expect_err("refused")
            .to_string();
        for word in words {
            assert!(error.contains(word), "{typed:?}: {error}");
        }
    }
}

#[test]
fn arguments_after_two_dashes_belong_to_the_command() {
    let cli = Cli::try_parse_from(["reveille", "wait", "go", "--", "sh", "-c", "exit 7"]);
    assert!(matches!(cli.expect("parsed").verb, Verb::Wait(_)));
}

/// The page has a row for each flag, and for each key of the tables without one.
#[test]
fn the_documentation_names_every_setting_of_serve() {
    let page = include_str!("../../docs/configuration.md");
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("a verb");
    for setting in serve.get_arguments() {
        let (Some(long), Some(_)) = (setting.get_long(), setting.get_env()) else {
            continue;
        };
        // `--config` belongs to all verbs.
        let row = format!("| `--{long}` | ");
        assert!(page.contains(&row) || long == "config", "no {row:?}");
    }
    let savings = settings::SavingsSettings::KEYS.iter();
    for key in savings.chain(settings::QueueSettings::KEYS) {
        assert!(page.contains(&format!("`{key}`")), "no {key}");
    }
}

#[test]
fn the_page_of_limits_names_every_limit_of_serve() {
    let page = include_str!("../../docs/limits.md");
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("a verb");
    let limits = serve
        .get_arguments()
        .filter(|arg| arg.get_help_heading() == Some("Limits"));
    let flags = limits.map(|arg| format!("`--{}`", arg.get_long().expect("each has one")));
    let keys = settings::Limits::KEYS.iter().map(|key| format!("`{key}`"));
    let all: Vec<_> = flags.chain(keys).collect();
    assert!(all.len() > 12, "{all:?}");
    for limit in all {
        assert!(page.contains(&limit), "no {limit}");
    }
}

/// The page computes the bound of memory from the defaults: each row, and their sum.
#[test]
fn the_page_of_limits_computes_the_memory_from_the_defaults() {
    let page = include_str!("../../docs/limits.md");
    let (node, limits) = (NodeConfig::default(), ServerLimits::default());
    let relay = &node.relay;
    let (kib, mib) = (1 << 10, 1 << 20);
    let rows = [
        ("the process", 1, 32 * mib),
        ("a queue (`max_queues`)", relay.max_queues, 500),
        (
            "a subscribed queue (`max_cursors`), 370 B outside of groups",
            relay.max_cursors,
            620,
        ),
        (
            "the sentinel of a queue with listeners",
            relay.max_queues,
            350,
        ),
        ("a group (`max_groups`)", relay.max_groups, 2 * kib),
        (
            "a delayed wake-up (`max_timers`, twice)",
            2 * relay.max_timers,
            150,
        ),
        (
            "a set or watched flag (`max_flags`, `max_watched_flags`)",
            node.max_flags + node.max_watched_flags,
            4 * kib,
        ),
        ("an acknowledgement (1,000,000)", 1_000_000, 32),
        (
            "a connection (`--max-connections`), without unread bytes",
            10_000,
            40 * kib,
        ),
        (
            "a stream (`max_streams`), without unread bytes",
            limits.max_streams,
            6 * kib,
        ),
        ("access control", 1, 96 * mib),
    ];
    let mut sum = 0;
    for (part, count, bytes) in rows {
        let all = count * bytes;
        sum += all;
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {part} |")));
        let row = row.unwrap_or_else(|| panic!("no row of {part}"));
        let end = format!("| {} MiB |", (all + mib / 2) / mib);
        assert!(row.ends_with(&end), "{row} does not end with {end}");
    }
    let line = format!("| **sum** | | **{} MiB** |", (sum + mib / 2) / mib);
    assert!(page.contains(&line), "no {line}");
}
