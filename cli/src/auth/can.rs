//! `auth can`: the verdict of the rules on one request, with its reason.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use reveille::{
    FlagName, QueueAddress, Selector,
    auth::{Action, AuthFile, Principal, Scope, Target},
};
use serde::Serialize;

use super::{AuthArgs, VARIABLE, blocking, misconfigured, principal};
use crate::{
    exit::{Exit, Usage},
    output::OutputArgs,
};

/// Print whether the rules allow a request, and why
///
/// Exit code 0: allowed. Exit code 4: denied. The command reads the files and connects to no relay,
/// so it answers before a relay has read them. It needs no token: PRINCIPAL is a name of the rules.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  reveille auth can billing notify acct/orders --auth auth.toml
  reveille auth can worker-1 subscribe 'acct/ord*' --auth auth.toml --group workers
  reveille auth can ops unleash go-live --auth auth.toml -o json
  reveille auth can ops admin --auth auth.toml && echo allowed")]
pub(super) struct Can {
    /// The principal of the request
    #[arg(value_parser = principal)]
    principal: Principal,
    /// The action of the request
    #[arg(value_parser = PossibleValuesParser::new(Action::ALL.map(Action::as_str))
        .try_map(|name| name.parse::<Action>()))]
    action: Action,
    /// The target: ACCOUNT/QUEUE or a pattern for `notify`, `subscribe`, `report` and `hand_over`; a
    /// flag or a prefix with `*` for `watch` and `unleash`; none for `admin`
    target: Option<String>,
    /// A group that the credential states, in addition to the groups of the file; may be repeated
    #[arg(long = "group", value_name = "G", value_parser = group)]
    groups: Vec<String>,
    #[command(flatten)]
    auth: AuthArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A target that owns its names.
#[derive(Debug)]
enum OwnedTarget {
    Queue(QueueAddress),
    Selector(Selector),
    Flag(FlagName),
    FlagPrefix(String),
    Relay,
}

/// The verdict, with the names that the audit log uses.
#[derive(Debug, Serialize)]
struct Answer {
    principal: String,
    action: &'static str,
    target: String,
    allowed: bool,
    why: String,
}

impl Can {
    pub(super) async fn run(self) -> anyhow::Result<Exit> {
        let target = OwnedTarget::parse(self.action, self.target.as_deref())?;
        let path = self.auth.auth.ok_or_else(|| {
            Usage(format!(
                "--auth: no auth file is named: pass --auth FILE, or set {VARIABLE}"
            ))
        })?;
        let config = blocking(move || {
            AuthFile::new(path)
                .read()
                .map_err(|e| misconfigured(e).into())
        });
        let config = config.await?;
        let groups = self.groups.iter().map(String::as_str);
        let principal = Principal::with_groups(self.principal.name(), groups)?;
        let target = target.as_target();
        let verdict = config.policy().verdict(&principal, self.action, target);
        let answer = Answer {
            principal: principal.name().to_owned(),
            action: self.action.as_str(),
            target: target.to_string(),
            allowed: verdict.allowed,
            why: verdict.why,
        };
        let format = self.output.format;
        format.object(&answer, || answer.line())?;
        Ok(match answer.allowed {
            true => Exit::OK,
            false => Exit::DENIED,
        })
    }
}

impl OwnedTarget {
    fn parse(action: Action, text: Option<&str>) -> Result<Self, Usage> {
        let scope = action.scope();
        let refuse = |rule: &str| Err(Usage(format!("TARGET: {rule}")));
        let target = match (scope, text) {
            (Scope::Relay, None) => return Ok(Self::Relay),
            (Scope::Relay, Some(_)) => {
                return refuse(&format!(
                    "`{action}` applies to the relay and has no target"
                ));
            }
            (Scope::Queues, None) => {
                return refuse(&format!("`{action}` needs ACCOUNT/QUEUE or a pattern"));
            }
            (Scope::Flags, None) => {
                return refuse(&format!("`{action}` needs a flag, or a prefix with `*`"));
            }
            (Scope::Queues, Some(text)) => queue(text),
            (Scope::Flags, Some(text)) => flag(text),
        };
        target.or_else(|error| refuse(error.message()))
    }

    fn as_target(&self) -> Target<'_> {
        match self {
            Self::Queue(address) => Target::Queue(address),
            Self::Selector(selector) => Target::Selector(selector),
            Self::Flag(name) => Target::Flag(name),
            Self::FlagPrefix(prefix) => Target::FlagPrefix(prefix),
            Self::Relay => Target::Relay,
        }
    }
}

impl Answer {
    fn line(&self) -> String {
        let answer = if self.allowed { "yes" } else { "no" };
        format!("{answer}: {}", self.why)
    }
}

fn queue(text: &str) -> reveille::Result<OwnedTarget> {
    let selector: Selector = text.parse()?;
    Ok(match selector.as_address() {
        Some(address) => OwnedTarget::Queue(address),
        None => OwnedTarget::Selector(selector),
    })
}

fn flag(text: &str) -> reveille::Result<OwnedTarget> {
    let Some(prefix) = text.strip_suffix('*') else {
        return FlagName::new(text).map(OwnedTarget::Flag);
    };
    // `.` and `..` are no names, but names may begin so.
    if !matches!(prefix, "" | "." | "..") {
        FlagName::new(prefix)?;
    }
    Ok(OwnedTarget::FlagPrefix(prefix.to_owned()))
}

/// Parses a group, which has the rule of principals. The library would ignore a bad one.
fn group(text: &str) -> Result<String, String> {
    principal(text).map(|group| group.name().to_owned())
}
