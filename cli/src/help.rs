//! The pages of help: the first one has what is needed mostly, and `--help-all` has all.

use clap::{Arg, ArgAction, Command};

/// The verbs of the first page of the program. The others stand below them by name.
const GROUPS: [(&str, &[&str]); 3] = [
    (
        "Work",
        &["serve", "notify", "subscribe", "listen", "scale", "queue"],
    ),
    ("Flags", &["unleash", "leash", "flag", "wait"]),
    (
        "Operate",
        &["why", "top", "console", "queues", "listeners", "drain"],
    ),
];
/// The options that no first page has.
const RARE: [&str; 6] = ["config", "insecure", "token_file", "ca", "cert", "key"];
/// The options of a first page, for verbs with more than [`MOST`] others.
pub(super) const FIRST: [(&str, &[&str]); 6] = [
    (
        "serve",
        &[
            "listen",
            "admin_listen",
            "store",
            "auth",
            "tls_cert",
            "tls_key",
            "cluster",
            "queues",
            "relay_id",
            "console",
            "max_memory",
            "log",
        ],
    ),
    (
        "subscribe",
        &["id", "count", "group", "poll", "relay", "output", "timeout"],
    ),
    (
        "listen",
        &[
            "create",
            "concurrency",
            "max_tasks",
            "visibility_timeout",
            "max_dequeue_count",
            "poison",
            "until_empty",
            "count",
            "poll",
            "group",
            "relay",
        ],
    ),
    (
        "scale",
        &[
            "max",
            "min",
            "per",
            "serve",
            "idle",
            "depth",
            "visibility_timeout",
            "max_load",
            "policy",
            "hook",
            "dry_run",
            "relay",
        ],
    ),
    (
        "courier serve",
        &[
            "listen",
            "queues_name",
            "relay",
            "auth",
            "tls_cert",
            "tls_key",
            "queues_tls",
        ],
    ),
    (
        "queue put",
        &["create", "delay", "notify", "relay", "output", "timeout"],
    ),
];
/// Options of a first page, without those that print help.
#[cfg(test)]
pub(super) const MOST: usize = 12;
/// A longer text behind the options of a first page ends with its first paragraph.
const LINES: usize = 12;

const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}";

/// Returns the program with its pages of help.
pub(super) fn paged(root: Command) -> Command {
    let root = pages(root, "");
    let line = |verb: &Command| {
        let about = verb.get_about().map(ToString::to_string);
        format!("  {:<12} {}\n", verb.get_name(), about.unwrap_or_default())
    };
    let mut first = String::new();
    for (group, names) in GROUPS {
        first.push_str(&format!("{group}:\n"));
        let verbs = names.iter().filter_map(|name| root.find_subcommand(name));
        first.extend(verbs.map(line));
    }
    let rest = root.get_subcommands().filter(|verb| {
        let is_grouped = GROUPS
            .iter()
            .any(|(_, names)| names.contains(&verb.get_name()));
        !is_grouped && !verb.is_hide_set()
    });
    let rest: Vec<_> = rest.collect();
    let names: Vec<_> = rest.iter().map(|verb| verb.get_name()).collect();
    let all: String = rest.iter().map(|verb| line(verb)).collect();
    let text = root.get_after_long_help().map(ToString::to_string);
    let text = text.unwrap_or_default();
    let example = text.split("\n\n").next().unwrap_or_default();
    let short = format!(
        "{first}More: {}\n\n{example}\n\n`reveille VERB --help` has the options of a verb; \
         `reveille --help-all` has all verbs, the settings and the exit codes.",
        names.join(", ")
    );
    let long = format!("{first}More:\n{all}\n{text}");
    root.help_template(TEMPLATE)
        .after_help(short)
        .after_long_help(long)
}

/// Lets a number or a duration below zero reach its parser, which states the rule.
fn refused_by_its_rule(arg: Arg) -> Arg {
    let names = arg.get_value_names().unwrap_or_default();
    match names.iter().any(|name| name == "N" || name == "D") {
        true => arg.allow_hyphen_values(true),
        false => arg,
    }
}

fn pages(command: Command, path: &str) -> Command {
    let first = FIRST
        .iter()
        .find(|(of, _)| *of == path)
        .map(|(_, ids)| *ids);
    let is_rare = |arg: &Arg| {
        let id = arg.get_id().as_str();
        match first {
            Some(ids) => !arg.is_positional() && !ids.contains(&id),
            None => RARE.contains(&id),
        }
    };
    let mut hidden = 0;
    let command = command.mut_args(|arg| {
        let arg = refused_by_its_rule(arg);
        if !is_rare(&arg) || arg.is_hide_set() {
            return arg;
        }
        hidden += 1;
        arg.hide_short_help(true)
    });
    let text = command.get_after_help().map(ToString::to_string);
    let command = match text {
        Some(text) => {
            let mut short = text.as_str();
            let is_long = text.lines().count() > LINES;
            if is_long {
                short = text.split("\n\n").next().unwrap_or_default();
            }
            let more = match hidden > 0 || is_long {
                true => "\n\nMore options and explanations: --help-all",
                false => "",
            };
            let short = format!("{short}{more}");
            command.after_help(short).after_long_help(text)
        }
        None => command,
    };
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::HelpShort)
        .help("Print help");
    let all = Arg::new("help-all")
        .long("help-all")
        .action(ArgAction::HelpLong)
        .help("Print help with all options");
    let command = command.disable_help_flag(true).args([help, all]);
    command.mut_subcommands(|verb| {
        let path = format!("{path} {}", verb.get_name());
        pages(verb, path.trim_start())
    })
}
