//! `reveille why` states why a queue is, or is not, served.

use std::time::Duration;

use reveille::{
    DecisionKind, Explanation, FindingKind, GroupName, NodeConfig, Notification, RelayConfig,
    Report, ReportState, SubscribeOptions, WakeReason, WakeStream, testing::TestRelay,
};
use serde_json::Value;
use tonic::{
    Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Endpoint,
};
use tonic_prost::ProstCodec;

use super::{Running, take_the_stream};
use crate::{
    binary::{Binary, limits, reveille, stderr, stdout},
    support::{listening, queue, until, within, woken},
};

/// The fields of a request and an answer that these tests state.
#[derive(Clone, PartialEq, prost::Message)]
struct ExplainRequest {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExplainResponse {}

/// Returns what `why` prints of a queue, as JSON.
async fn why(relay: &Binary, queue: &str) -> Value {
    let asked = relay.run(&["why", queue, "-o", "json"]).await;
    assert!(asked.status.success(), "{}", stderr(&asked));
    serde_json::from_slice(&asked.stdout).expect("JSON")
}

/// Returns the kinds of the findings, the verdict's first.
fn kinds(why: &Value) -> Vec<&str> {
    let findings = why["findings"].as_array().expect("a list");
    let kinds = findings.iter().map(|one| one["kind"].as_str());
    kinds.map(|kind| kind.expect("a text")).collect()
}

fn verdict(why: &Value) -> &str {
    why["verdict"].as_str().expect("a text")
}

#[tokio::test]
async fn a_queue_without_a_listener_is_compared_with_the_names_of_the_others() {
    let relay = Binary::serve().await;
    let unknown = why(&relay, "acct/orders").await;
    assert_eq!(kinds(&unknown), ["no_listener"]);
    assert!(
        verdict(&unknown).contains("no publisher has notified it"),
        "{unknown}"
    );
    assert_eq!(unknown["findings"][0]["urgent"], false);
    assert_eq!(unknown["known"], Value::Null);
    let notified = relay.run(&["notify", "acct/orders"]).await;
    assert!(notified.status.success(), "{}", stderr(&notified));
    let waiting = why(&relay, "acct/orders").await;
    assert_eq!(kinds(&waiting), ["no_listener"]);
    assert!(
        verdict(&waiting).contains("which was notified once"),
        "{waiting}"
    );
    assert_eq!(waiting["findings"][0]["urgent"], true);
    assert_eq!(waiting["known"]["notifications"], 1);
    // Noted from the first question after it was known.
    let notified = relay.run(&["notify", "acct/orders"]).await;
    assert!(notified.status.success(), "{}", stderr(&notified));
    let again = why(&relay, "acct/orders").await;
    assert_eq!(again["decisions"][0]["kind"], "notified");
    let text = stdout(&relay.run(&["why", "acct/orders"]).await);
    let first = text.lines().next().expect("a line");
    assert!(
        first.starts_with("! no listener subscribes to acct/orders"),
        "{text}"
    );
    assert!(text.contains("\nAGO"), "{text}");
}

/// Asks a relay as any client may.
async fn ask(url: &str, storage_account: &str, queue_name: &str) -> Result<(), Status> {
    let channel = Endpoint::from_shared(url.to_owned()).expect("a URL");
    let mut relay = Grpc::new(channel.connect().await.expect("it serves"));
    relay.ready().await.expect("connected");
    let request = Request::new(ExplainRequest {
        storage_account: storage_account.to_owned(),
        queue_name: queue_name.to_owned(),
    });
    let codec: ProstCodec<ExplainRequest, ExplainResponse> = ProstCodec::default();
    let method = PathAndQuery::from_static("/reveille.v1.Admin/Explain");
    relay.unary(request, method, codec).await.map(|_| ())
}

#[tokio::test]
async fn a_name_that_breaks_the_rule_is_refused_with_its_field() {
    let relay = TestRelay::start().await.expect("a relay");
    for (account, name, field) in [
        ("", "orders", "storage_account"),
        ("acct", "", "queue_name"),
        ("acct", "ord*", "queue_name"),
    ] {
        let refused = within("an answer", ask(&relay.url(), account, name)).await;
        let status = refused.expect_err("it breaks the rule");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(field), "{status}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_stopped_listener_is_silent_then_gone_and_fine_when_it_is_back() {
    let relay = Binary::serve().await;
    let home = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
    let typed = ["listen", &url, "--create", "--id", "worker-1", "--", "true"];
    let stopped = Running::start(relay.verb(&typed));
    stopped.tells("pushed").await;
    until("it has reported the end of its first check", async || {
        let known = why(&relay, "local/orders").await;
        known["known"]["depth"] == 0
    })
    .await;
    let asleep = why(&relay, "local/orders").await;
    assert_eq!(
        verdict(&asleep),
        "1 listener sleeps on local/orders; it has not been notified yet"
    );
    let process = stopped.child.id().expect("it runs").to_string();
    let signal = async |name: &str| {
        let mut kill = tokio::process::Command::new("kill");
        let sent = kill.args(["-s", name, &process]).status().await;
        assert!(sent.expect("kill runs").success());
    };
    signal("STOP").await;
    let notified = relay.run(&["notify", "local/orders"]).await;
    assert!(notified.status.success(), "{}", stderr(&notified));
    until("it is silent", async || {
        let silent = why(&relay, "local/orders").await;
        let is_silent = kinds(&silent)[0] == "silent";
        assert!(
            !is_silent || silent["findings"][0]["urgent"] == true,
            "{silent}"
        );
        assert!(!is_silent || verdict(&silent).contains("listener worker-1 was woken"));
        is_silent
    })
    .await;
    until("it is gone", async || {
        let gone = why(&relay, "local/orders").await;
        kinds(&gone) == ["no_listener", "gone"]
    })
    .await;
    let left = why(&relay, "local/orders").await;
    let left = left["decisions"]
        .as_array()
        .expect("a list")
        .last()
        .cloned();
    let left = left.expect("a decision");
    assert_eq!(
        (&left["kind"], &left["listener_id"]),
        (&"left".into(), &"worker-1".into())
    );
    signal("CONT").await;
    until("it is back and has handled the notification", async || {
        let back = why(&relay, "local/orders").await;
        kinds(&back) == ["fine"] && verdict(&back).contains("has been handled")
    })
    .await;
}

#[tokio::test]
async fn a_listener_at_its_capacity_and_its_hanging_command_are_named() {
    let relay = Binary::serve_with(&["--sentinel", "0"], &[]).await;
    let home = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}/jobs.db?queue=orders", home.path().display());
    let mut command = relay.verb(&["listen", &url, "--create", "--id", "worker-1"]);
    let script = "cat > /dev/null; while [ ! -e go ]; do sleep 0.1; done";
    command.args(["--max-tasks", "1", "--", "sh", "-c", script]);
    command.current_dir(home.path());
    let listening = Running::start(command);
    listening.tells("pushed").await;
    let put = ["queue", "put", &url, "first", "second", "--notify"];
    let put = relay.run(&put).await;
    assert!(put.status.success(), "{}", stderr(&put));
    until("its only task is taken", async || {
        let full = why(&relay, "local/orders").await;
        kinds(&full)[0] == "at_capacity"
    })
    .await;
    until("its message takes long", async || {
        let busy = why(&relay, "local/orders").await;
        let is_long = kinds(&busy) == ["at_capacity", "busy"];
        let text = busy["findings"][1]["text"].as_str().unwrap_or_default();
        assert!(
            !is_long || text.contains("worker-1 has been handling one message"),
            "{busy}"
        );
        is_long
    })
    .await;
    std::fs::write(home.path().join("go"), "").expect("written");
    until("its messages are handled", async || {
        let done = why(&relay, "local/orders").await;
        kinds(&done)[0] == "fine" && verdict(&done).contains("has been handled")
    })
    .await;
}

/// Returns the kinds and listeners of the decisions.
fn decided(explained: &Explanation) -> Vec<(DecisionKind, &str)> {
    let decisions = explained.decisions.iter();
    decisions
        .map(|one| (one.kind(), &*one.listener_id))
        .collect()
}

#[tokio::test]
async fn of_a_group_one_member_stands_aside_and_gets_the_work_of_a_silent_one() {
    let relay = TestRelay::start().await.expect("a relay");
    let client = relay.client().expect("a client");
    let orders = queue("acct/orders");
    let member = |id: &str| SubscribeOptions {
        group: Some(GroupName::new("workers").expect("a name")),
        ..listening(id, &["acct/orders"])
    };
    let mut first = client.subscribe(member("worker-1")).expect("options");
    woken(&mut first).await;
    let drained = |sequence| Report {
        state: ReportState::Drained,
        sequence,
        ..Report::new(queue("acct/orders"))
    };
    within("an answer", first.report(drained(0)))
        .await
        .expect("taken");
    let mut second = client.subscribe(member("worker-2")).expect("options");
    let explain = async || {
        let explained = within("an answer", client.explain(&orders)).await;
        explained.expect("explained")
    };
    until("both are members", async || {
        // The second one has nothing to wake it.
        let _ = tokio::time::timeout(Duration::from_millis(50), second.next()).await;
        explain()
            .await
            .queue
            .is_some_and(|known| known.listeners == 2)
    })
    .await;
    let publisher = client.publisher("tests");
    let notified = publisher.notify(Notification::new(orders.clone()));
    within("an answer", notified).await.expect("counted");
    // It is woken, because it has not been woken before, and does not report.
    woken(&mut second).await;
    let again = woken(&mut first).await;
    assert_eq!(again.reason, WakeReason::Reassigned);
    let explained = explain().await;
    let expected = [
        (DecisionKind::Notified, ""),
        (DecisionKind::StoodAside, "worker-1"),
        (DecisionKind::Woken, "worker-2"),
        (DecisionKind::Reassigned, "worker-1"),
    ];
    let decided = decided(&explained);
    let from = decided.len().saturating_sub(expected.len());
    assert_eq!(decided[from..], expected);
    let aside = &explained.decisions[from + 1];
    assert_eq!((&*aside.group, aside.sequence), ("workers", 1));
    within("an answer", first.report(drained(1)))
        .await
        .expect("taken");
    let explained = explain().await;
    let newest = explained.decisions.last().map(|one| one.kind());
    assert_eq!(newest, Some(DecisionKind::Empty));
    assert_eq!(explained.findings[0].kind(), FindingKind::Unspecified);
    assert!(
        explained.findings[0].text.contains("has been handled"),
        "{explained:?}"
    );
}

#[tokio::test]
async fn a_relay_without_room_for_another_listener_says_so() {
    let relay = Binary::serve_with(&["--config", &limits("max_streams = 1")], &[]).await;
    let before = why(&relay, "acct/mails").await;
    assert_eq!(kinds(&before), ["no_listener"]);
    let _first = take_the_stream(&relay).await;
    let full = why(&relay, "acct/mails").await;
    assert_eq!(kinds(&full), ["no_listener", "full"]);
    let text = full["findings"][1]["text"].as_str().expect("a text");
    assert!(text.contains("1 of 1 streams are in use (100 %)"), "{text}");
}

#[tokio::test]
async fn a_draining_relay_is_why_its_listeners_leave() {
    let config = NodeConfig {
        relay: RelayConfig {
            drain: Duration::from_secs(600),
            ..RelayConfig::default()
        },
        ..NodeConfig::default()
    };
    let relay = TestRelay::with_config(config).await.expect("a relay");
    let client = relay.client().expect("a client");
    let options = listening("worker-1", &["acct/orders"]);
    let mut wakes = client.subscribe(options).expect("options");
    woken(&mut wakes).await;
    let orders = queue("acct/orders");
    let verdict = async || {
        let explained = within("an answer", client.explain(&orders)).await;
        explained.expect("explained").findings[0].clone()
    };
    assert_eq!(verdict().await.kind(), FindingKind::Unspecified);
    relay.node().expect("it runs").relay().drain();
    let draining = verdict().await;
    assert_eq!(draining.kind(), FindingKind::Draining);
    assert!(draining.text.contains("shuts down"), "{draining:?}");
}

#[tokio::test]
async fn a_caller_is_told_of_its_own_queues_only() {
    let home = tempfile::tempdir().expect("a directory");
    let auth = home.path().join("auth.toml");
    let rules = "tokens = \"tokens.toml\"\n\
                 [[rule]]\nprincipals = [\"worker\"]\nactions = [\"subscribe\"]\n\
                 queues = [\"acct/orders\"]\n\
                 [[rule]]\nprincipals = [\"billing\"]\nactions = [\"notify\"]\n\
                 queues = [\"acct/mails\"]\n\
                 [[rule]]\nprincipals = [\"operator\"]\nactions = [\"admin\"]\n";
    std::fs::write(&auth, rules).expect("written");
    let auth = auth.display().to_string();
    let token = async |principal: &str| {
        let verb = ["auth", "token", "new", principal, "--auth", &auth];
        let token = within("a token", reveille(&home, &verb).output()).await;
        stdout(&token.expect("it starts")).trim().to_owned()
    };
    let worker = token("worker").await;
    let (billing, operator) = (token("billing").await, token("operator").await);
    let relay = Binary::serve_with(&["--auth", &auth, "--insecure"], &[]).await;
    let run = async |token: &str, typed: &[&str]| {
        let mut command = relay.verb(typed);
        command.env("REVEILLE_TOKEN", token);
        let ended = within("its end", command.output()).await;
        ended.expect("it starts")
    };
    let denied = run(&billing, &["notify", "acct/orders"]).await;
    assert_eq!(denied.status.code(), Some(4), "{}", stderr(&denied));
    let denied = run(&billing, &["why", "acct/orders"]).await;
    assert_eq!(denied.status.code(), Some(4), "{}", stderr(&denied));
    let typed = ["why", "acct/orders", "-o", "json"];
    let worker = run(&worker, &typed).await;
    assert!(worker.status.success(), "{}", stderr(&worker));
    let worker: Value = serde_json::from_slice(&worker.stdout).expect("JSON");
    assert_eq!(kinds(&worker), ["no_listener"]);
    let operator = run(&operator, &typed).await;
    assert!(operator.status.success(), "{}", stderr(&operator));
    let operator: Value = serde_json::from_slice(&operator.stdout).expect("JSON");
    assert_eq!(kinds(&operator), ["no_listener"]);
}
