//! The pages of help: the first one has what is needed mostly, and `--help-all` has all.

use clap::{Arg, ArgAction, Command};

/// The verbs of the first page of the program. The others stand below them by name.
const GROUPS: [(&str, &str); 3] = [
    ("Work", "serve notify subscribe listen scale queue"),
    ("Flags", "unleash leash flag wait"),
    ("Operate", "why top console queues listeners drain"),
];
/// The options that no first page has.
const RARE: &str = "config insecure token_file ca cert key";
/// The options of a first page, for verbs with more than [`MOST`] others.
pub(super) const FIRST: [(&str, &str); 6] = [
    (
        "serve",
        "listen admin_listen store auth tls_cert tls_key cluster queues relay_id console max_memory \
         log",
    ),
    ("subscribe", "id count group poll relay output timeout"),
    (
        "listen",
        "create concurrency max_tasks visibility_timeout max_dequeue_count poison until_empty count \
         poll group relay",
    ),
    (
        "scale",
        "max per serve idle depth visibility_timeout policy hook dry_run relay",
    ),
    (
        "courier serve",
        "listen relay auth tls_cert tls_key queues_tls",
    ),
    ("queue put", "create delay notify relay output timeout"),
];
/// Options of a first page, without those that print help.
#[cfg(test)]
pub(super) const MOST: usize = 12;

const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}";

/// Returns the program with its pages of help.
pub(super) fn paged(root: Command) -> Command {
    let root = pages(root, "");
    let line = |verb: &Command| {
        let about = verb.get_about().map(ToString::to_string);
        format!("  {:<12} {}\n", verb.get_name(), about.unwrap_or_default())
    };
    let mut groups = String::new();
    let mut others: Vec<_> = root.get_subcommands().collect();
    for (group, names) in GROUPS {
        groups.push_str(&format!("{group}:\n"));
        let verbs = names
            .split(' ')
            .filter_map(|name| root.find_subcommand(name));
        groups.extend(verbs.map(line));
        others.retain(|verb| !verb.is_hide_set() && !has(names, verb.get_name()));
    }
    let names: Vec<_> = others.iter().map(|verb| verb.get_name()).collect();
    let all: String = others.iter().map(|verb| line(verb)).collect();
    let text = root.get_after_long_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let short = format!(
        "{groups}More: {}\n\n{}\n\n`reveille VERB --help` has the options of a verb; \
         `reveille --help-all` has all verbs, the settings and the exit codes.",
        names.join(", "),
        first_paragraph(&text)
    );
    let long = format!("{groups}More:\n{all}\n{text}");
    root.help_template(TEMPLATE)
        .after_help(short)
        .after_long_help(long)
}

fn pages(command: Command, path: &str) -> Command {
    let first = FIRST.iter().find(|(of, _)| *of == path);
    let mut is_short = true;
    let command = command.mut_args(|arg| {
        let id = arg.get_id().as_str();
        let is_rare = match first {
            Some((_, ids)) => !arg.is_positional() && !has(ids, id),
            None => has(RARE, id),
        };
        if !is_rare || arg.is_hide_set() {
            return arg;
        }
        is_short = false;
        arg.hide_short_help(true)
    });
    let text = command.get_after_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let example = first_paragraph(&text);
    let more = match is_short && example == text {
        true => "",
        false => "\n\nMore options and explanations: --help-all",
    };
    let short = format!("{example}{more}");
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::HelpShort)
        .help("Print help");
    let all = Arg::new("help-all")
        .long("help-all")
        .action(ArgAction::HelpLong)
        .help("Print help with all options");
    command
        .after_help(short)
        .after_long_help(text)
        .disable_help_flag(true)
        .args([help, all])
        .mut_subcommands(|verb| {
            let path = format!("{path} {}", verb.get_name());
            pages(verb, path.trim_start())
        })
}

fn has(names: &str, name: &str) -> bool {
    names.split(' ').any(|known| known == name)
}

fn first_paragraph(text: &str) -> &str {
    text.split("\n\n").next().unwrap_or_default()
}
