//! Tests of rules and verdicts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    relay::auth::action::Scope,
    relay::auth::file::{AuthConfig, AuthFile},
    types::{FlagName, QueueAddress, Selector},
};

fn config(text: &str) -> AuthConfig {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("auth.toml");
    std::fs::write(&path, text).expect("written");
    AuthFile::new(path).read().expect("a good file")
}

fn usual() -> AuthConfig {
    config(
        r#"
        [groups]
        workers = ["worker-1", "worker-2"]
        [[rule]]
        principals = ["billing", "group:workers"]
        actions = ["notify"]
        queues = ["acct/orders", "acct/inv*"]
        [[rule]]
        principals = ["ops"]
        actions = ["watch", "unleash", "admin"]
        flags = ["maintenance*"]
        [[rule]]
        principals = ["*"]
        actions = ["watch"]
        flags = ["open"]
        [[rule]]
        principals = ["billing"]
        actions = ["subscribe"]
        queues = ["acct/ord*"]
        "#,
    )
}

fn principal(name: &str) -> Principal {
    Principal::new(name).expect(name)
}

fn verdict(name: &str, action: Action, target: &str) -> Verdict {
    let (config, principal) = (usual(), principal(name));
    let policy = config.policy();
    let target = match action.scope() {
        Scope::Queues if target.contains('*') => {
            let selector: Selector = target.parse().expect("a selector");
            return policy.verdict(&principal, action, Target::Selector(&selector));
        }
        Scope::Queues => {
            let address: QueueAddress = target.parse().expect("an address");
            return policy.verdict(&principal, action, Target::Queue(&address));
        }
        Scope::Flags => match target.strip_suffix('*') {
            Some(prefix) => Target::FlagPrefix(prefix),
            None => {
                let flag = FlagName::new(target).expect("a name");
                return policy.verdict(&principal, action, Target::Flag(&flag));
            }
        },
        Scope::Relay => Target::Relay,
    };
    policy.verdict(&principal, action, target)
}

#[test]
fn a_rule_allows_its_principals_its_actions_on_its_targets_only() {
    use Action as A;
    for (name, action, target, allowed) in [
        ("billing", A::Notify, "acct/orders", true),
        ("billing", A::Notify, "acct/inv-7", true),
        ("billing", A::Notify, "acct/orders2", false),
        ("billing", A::Notify, "acct2/orders", false),
        ("billing", A::Report, "acct/orders", false),
        ("worker-2", A::Notify, "acct/orders", true),
        ("worker-3", A::Notify, "acct/orders", false),
        ("workers", A::Notify, "acct/orders", false),
        ("billing", A::Subscribe, "acct/ord*", true),
        ("billing", A::Subscribe, "acct/order*", true),
        ("billing", A::Subscribe, "acct/orders", true),
        ("billing", A::Subscribe, "acct/or*", false),
        ("billing", A::Subscribe, "acct/*", false),
        ("billing", A::Subscribe, "ac*/orders", false),
        ("ops", A::Unleash, "maintenance-1", true),
        ("ops", A::Unleash, "open", false),
        ("ops", A::Watch, "maintenance*", true),
        ("ops", A::Watch, "maint*", false),
        ("ops", A::Admin, "", true),
        ("ops", A::HandOver, "acct/orders", false),
        ("billing", A::Admin, "", false),
        ("stranger", A::Watch, "open", true),
        ("stranger", A::Watch, "open*", false),
    ] {
        let verdict = verdict(name, action, target);
        assert_eq!(
            verdict.allowed, allowed,
            "{name} {action} {target}: {}",
            verdict.why
        );
    }
}

#[test]
fn a_verdict_names_the_rule() {
    let allowed = verdict("billing", Action::Notify, "acct/inv-7");
    assert_eq!(allowed.why, "rule 1 allows `notify` on `acct/inv-7`");
    let denied = verdict("billing", Action::Notify, "acct/x");
    let why = "no rule of `billing` allows `notify` on `acct/x`";
    assert_eq!(denied.why, why);
    let verdict = Policy::default().verdict(&principal("x"), Action::Admin, Target::Relay);
    assert!(!verdict.allowed);
}

#[test]
fn an_action_on_a_target_of_another_kind_is_denied() {
    let config = usual();
    let policy = config.policy();
    let flag = FlagName::new("maintenance").expect("a name");
    let ops = principal("ops");
    assert!(
        !policy
            .grants(&ops)
            .allows(Action::Admin, Target::Flag(&flag))
    );
    assert!(!policy.grants(&ops).allows(Action::Watch, Target::Relay));
}

#[test]
fn groups_come_from_the_file_and_from_the_credential() {
    let config = usual();
    let policy = config.policy();
    let orders: QueueAddress = "acct/orders".parse().expect("an address");
    let stated = Principal::with_groups("new", ["workers"]).expect("a name");
    let grants = policy.grants(&stated);
    assert!(grants.allows(Action::Notify, Target::Queue(&orders)));
    let other = Principal::with_groups("new", ["worker"]).expect("a name");
    let grants = policy.grants(&other);
    assert!(!grants.allows(Action::Notify, Target::Queue(&orders)));
}

#[test]
fn may_some_asks_for_any_rule_with_the_action() {
    let config = usual();
    let may_some = |name, action| {
        let grants = config.policy().grants(&principal(name));
        grants.may_some(action)
    };
    assert!(may_some("billing", Action::Subscribe));
    assert!(may_some("stranger", Action::Watch));
    assert!(!may_some("stranger", Action::Notify));
}

/// All names of one to three letters out of two, with a dot: a stem has at most two, so that each
/// pattern has names that a longer stem does not match.
fn names() -> Vec<String> {
    let letters = ["a", "b"];
    let mut names: Vec<String> = letters.map(str::to_owned).to_vec();
    let mut last = names.clone();
    for _ in 0..2 {
        last = last
            .iter()
            .flat_map(|name| letters.map(|l| format!("{name}{l}")))
            .collect();
        names.extend(last.clone());
    }
    names
}

fn universe() -> Vec<QueueAddress> {
    let names = names();
    let pairs = names.iter().flat_map(|a| names.iter().map(move |q| (a, q)));
    pairs
        .map(|(a, q)| QueueAddress::new(a, q).expect("names"))
        .collect()
}

fn part() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[ab]{1,2}", 4 => "[ab]{0,2}\\*"]
}

fn selector() -> impl Strategy<Value = String> {
    (part(), part()).prop_map(|(account, queue)| format!("{account}/{queue}"))
}

/// One rule of the reference: the principal, its actions and its patterns.
type NaiveRule = (u8, Vec<Action>, Vec<String>);

fn naive_rules() -> impl Strategy<Value = Vec<NaiveRule>> {
    let queue_action = prop_oneof![
        Just(Action::Notify),
        Just(Action::Subscribe),
        Just(Action::Report)
    ];
    let rule = (
        0..3u8,
        prop::collection::vec(queue_action, 1..3),
        prop::collection::vec(selector(), 1..3),
    );
    prop::collection::vec(rule, 0..5)
}

fn compiled(rules: &[NaiveRule]) -> Policy {
    let rules = rules
        .iter()
        .enumerate()
        .map(|(at, (subject, actions, queues))| {
            let mut set = ActionSet::default();
            actions.iter().for_each(|action| set.insert(*action));
            let queues = queues.iter().map(|text| text.parse().expect("a pattern"));
            Arc::new(Rule {
                number: at + 1,
                subjects: vec![Subject::Principal(format!("p{subject}").into())],
                actions: set,
                queues: queues.collect(),
                flags: Box::default(),
            })
        });
    Policy {
        rules: rules.collect(),
        ..Policy::default()
    }
}

proptest! {
    #[test]
    fn a_rule_covers_a_selector_if_and_only_if_it_matches_all_that_the_selector_matches(
        pattern in selector(),
        asked in selector(),
    ) {
        let rule: QueuePattern = pattern.parse().expect("a pattern");
        let reference: Selector = pattern.parse().expect("a selector");
        let asked: Selector = asked.parse().expect("a selector");
        let mut matched = universe().into_iter().filter(|address| asked.matches(address));
        let all = matched.all(|address| reference.matches(&address));
        prop_assert_eq!(rule.covers(&asked), all, "{} {}", pattern, asked);
    }

    #[test]
    fn a_policy_agrees_with_a_naive_reading_of_its_rules(
        rules in naive_rules(),
        subject in 0..3u8,
        asked in selector(),
    ) {
        let policy = compiled(&rules);
        let principal = principal(&format!("p{subject}"));
        let grants = policy.grants(&principal);
        let asked: Selector = asked.parse().expect("a selector");
        for action in [Action::Notify, Action::Subscribe, Action::Report] {
            let applies = |rule: &&NaiveRule| rule.0 == subject && rule.1.contains(&action);
            let patterns = |rule: &NaiveRule| -> Vec<Selector> {
                rule.2.iter().map(|text| text.parse().expect("a selector")).collect()
            };
            let applying: Vec<Vec<Selector>> =
                rules.iter().filter(applies).map(patterns).collect();
            let allowed = |address: &QueueAddress| {
                applying.iter().flatten().any(|pattern| pattern.matches(address))
            };
            for address in universe().iter().take(40) {
                let target = Target::Queue(address);
                prop_assert_eq!(grants.allows(action, target), allowed(address));
                let verdict = policy.verdict(&principal, action, target);
                prop_assert_eq!(verdict.allowed, allowed(address));
            }
            let matched: Vec<_> =
                universe().into_iter().filter(|address| asked.matches(address)).collect();
            let covered = applying
                .iter()
                .flatten()
                .any(|pattern| matched.iter().all(|address| pattern.matches(address)));
            prop_assert_eq!(grants.allows(action, Target::Selector(&asked)), covered);
        }
    }
}

#[test]
fn the_universe_tells_all_patterns_apart() {
    let mut by_matches = BTreeMap::new();
    for pattern in ["a", "aa", "a*", "aa*", "*"] {
        let selector: Selector = format!("{pattern}/a").parse().expect("a selector");
        let matched: Vec<_> = universe()
            .into_iter()
            .filter(|address| selector.matches(address))
            .collect();
        let other = by_matches.insert(matched, pattern);
        assert_eq!(other, None, "{pattern}");
    }
}

proptest! {
    /// A list that skips by [`Grants::seek_queue`] finds the queues that a search of all finds.
    #[test]
    fn a_list_that_skips_finds_all_queues_that_a_rule_names(
        rules in prop::collection::vec(r"(a|ab|b|a\*|ab\*|\*)/(x|xy|y|x\*|xy\*|\*)", 1..4),
        names in prop::collection::btree_set("(a|ab|abc|b|c)/(x|xy|xyz|y|z)", 0..20),
    ) {
        let rules: Vec<_> = rules.iter().map(|queue| format!("{queue:?}")).collect();
        let config = config(&format!(
            "[[rule]]\nprincipals = ['p']\nactions = ['notify', 'watch']\nqueues = [{}]\nflags = ['f']",
            rules.join(", ")
        ));
        let grants = config.policy().grants(&principal("p"));
        let all: Vec<QueueAddress> = names.iter().map(|name| name.parse().expect(name)).collect();
        let visible = |queue: &&QueueAddress| grants.allows(Action::Notify, Target::Queue(queue));
        let expected: Vec<_> = all.iter().filter(visible).collect();
        let (mut found, mut from) = (Vec::new(), String::new());
        while let Some(start) = grants.seek_queue(&from) {
            assert!(start >= from, "{start} {from}");
            let next = all.iter().find(|queue| queue.to_string() >= start);
            let Some(next) = next else { break };
            found.extend(Some(next).filter(visible));
            from = format!("{next}\0");
        }
        prop_assert_eq!(found, expected);
    }
}
