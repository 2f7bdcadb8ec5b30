//! `auth can`: the verdict of the rules on one request, with its reason.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use reveille::{
    Error, FlagName, Selector,
    auth::{Action, AuthFile, Principal, Scope, Target},
};
use serde_json::json;

use super::{AuthArgs, misconfigured, named, principal};
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
  reveille auth can ops admin --auth auth.toml && echo allowed")]
pub(crate) struct Can {
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

impl Can {
    pub(super) fn run(self) -> anyhow::Result<Exit> {
        let (action, text) = (self.action, self.target.as_deref());
        let refused = |rule: &str| Usage(format!("TARGET: {rule}"));
        let misfit = |rule: &str| Err(refused(&format!("`{action}` {rule}")));
        let invalid = |error: Error| refused(error.message());
        let path = named(self.auth.auth, "--auth")?;
        let config = AuthFile::new(path).read().map_err(misconfigured)?;
        let groups = self.groups.iter().map(String::as_str);
        let principal = Principal::with_groups(self.principal.name(), groups)?;
        let judge = |target: Target<'_>| {
            let verdict = config.policy().verdict(&principal, action, target);
            (target.to_string(), verdict)
        };
        let (target, verdict) = match (action.scope(), text) {
            (Scope::Relay, None) => judge(Target::Relay),
            (Scope::Queues, Some(text)) => {
                let selector: Selector = text.parse().map_err(invalid)?;
                match selector.as_address() {
                    Some(address) => judge(Target::Queue(&address)),
                    None => judge(Target::Selector(&selector)),
                }
            }
            (Scope::Flags, Some(text)) => match text.strip_suffix('*') {
                Some(prefix) => {
                    FlagName::new(&format!("{prefix}x")).map_err(invalid)?;
                    judge(Target::FlagPrefix(prefix))
                }
                None => judge(Target::Flag(&FlagName::new(text).map_err(invalid)?)),
            },
            (Scope::Relay, Some(_)) => misfit("applies to the relay and has no target")?,
            (Scope::Queues, None) => misfit("needs ACCOUNT/QUEUE or a pattern")?,
            (Scope::Flags, None) => misfit("needs a flag, or a prefix with `*`")?,
        };
        // With the names that the audit log uses.
        let row = json!({
            "principal": principal.name(),
            "action": action.as_str(),
            "target": target,
            "allowed": verdict.allowed,
            "why": verdict.why,
        });
        let (answer, exit) = match verdict.allowed {
            true => ("yes", Exit::OK),
            false => ("no", Exit::DENIED),
        };
        let format = self.output.format;
        format.object(&row, || format!("{answer}: {}", verdict.why))?;
        Ok(exit)
    }
}

/// Parses a group, which has the rule of principals. The library would ignore a bad one.
fn group(text: &str) -> Result<String, String> {
    principal(text).map(|group| group.name().to_owned())
}
