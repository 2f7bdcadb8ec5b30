//! The JSON interface on the admin port: its routes, who may use them, and what a page of another
//! site cannot do.

use std::{net::SocketAddr, path::Path};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::{
    binary::{Binary, reveille, stderr},
    support::within,
};

/// A request to the admin port.
struct Ask<'a> {
    method: &'a str,
    path: &'a str,
    headers: Vec<(&'a str, String)>,
    body: String,
}

/// An answer: status, head and body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn read(path: &str) -> Ask<'_> {
    Ask {
        method: "GET",
        path,
        headers: Vec::new(),
        body: String::new(),
    }
}

/// A change as the page requests it.
#[allow(clippy::needless_pass_by_value, reason = "the calls are shorter")]
fn change(path: &str, body: Value) -> Ask<'_> {
    let headers = [
        ("content-type", "application/json"),
        ("x-reveille-action", "1"),
        ("sec-fetch-site", "same-origin"),
    ];
    Ask {
        method: "POST",
        path,
        headers: headers.map(|(name, value)| (name, value.to_owned())).into(),
        body: body.to_string(),
    }
}

impl<'a> Ask<'a> {
    /// States a header, in place of the same one.
    fn with(mut self, name: &'a str, value: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    async fn send(&self, address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let has_host = self.headers.iter().any(|(name, _)| *name == "host");
        let host = (!has_host).then(|| format!("host: {address}\r\n"));
        let lines = self.headers.iter();
        let lines: String = lines
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let (method, path, length) = (self.method, self.path, self.body.len());
        let length = match method {
            "GET" => String::new(),
            _ => format!("content-length: {length}\r\n"),
        };
        let host = host.unwrap_or_default();
        let head = format!("{method} {path} HTTP/1.1\r\n{host}{lines}{length}\r\n");
        let request = head + &self.body;
        stream.write_all(request.as_bytes()).await.expect("written");
        stream
    }

    async fn to(&self, address: SocketAddr) -> Answer {
        let mut stream = self.send(address).await;
        let mut text = String::new();
        let read = within("an answer", stream.read_to_string(&mut text)).await;
        read.expect("text");
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        Answer {
            status: status.expect("a status line"),
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Checks a refusal of RFC 9457, and returns its detail.
    fn problem(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        let kind = "content-type: application/problem+json";
        assert!(self.head.contains(kind), "{}", self.head);
        let problem = self.json();
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().expect("a text").to_owned()
    }
}

/// Reads the events of a stream, as name and data.
struct Events(tokio::io::Lines<BufReader<TcpStream>>);

impl Events {
    async fn of(ask: Ask<'_>, address: SocketAddr) -> Self {
        Self(BufReader::new(ask.send(address).await).lines())
    }

    async fn next(&mut self) -> (String, Value) {
        let mut name = String::new();
        loop {
            let line = within("an event", self.0.next_line()).await;
            let line = line.expect("text").expect("a stream");
            if let Some(event) = line.strip_prefix("event: ") {
                event.clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(data).expect("JSON"));
            }
        }
    }
}

#[tokio::test]
async fn lists_are_those_of_grpc_and_wrong_fields_are_named() {
    let relay = Binary::serve().await;
    let admin = relay.admin();
    let notified = change(
        "/api/v1/notify",
        json!({"events": [{"storage_account": "acct", "queue_name": "orders", "messages": 3}]}),
    );
    assert_eq!(notified.to(admin).await.status, 200);
    let listed = read("/api/v1/queues?page_size=5").to(admin).await;
    assert_eq!(listed.status, 200, "{}", listed.body);
    let queue = &listed.json()["queues"][0];
    assert_eq!(queue["storage_account"], "acct");
    assert_eq!(queue["queue_name"], "orders");
    assert_eq!(queue["messages"], 3);
    assert_eq!(queue["listeners"], 0);
    let relays = read("/api/v1/relays").to(admin).await.json();
    assert_eq!(relays["relays"][0]["state"], "RELAY_STATE_SELF");
    let info = read("/api/v1/info").to(admin).await.json();
    assert_eq!(
        (&info["mode"], &info["login"]),
        (&json!("act"), &json!(false))
    );
    for (path, words) in [
        ("/api/v1/queues?page_size=many", "page_size: "),
        (
            "/api/v1/queues?page_size=5000",
            "page_size: must be at most 1000",
        ),
        ("/api/v1/queues?size=5", "size: is no field"),
        ("/api/v1/listeners?lost=maybe", "lost: "),
    ] {
        let detail = read(path).to(admin).await.problem(400);
        assert!(detail.starts_with(words), "{path}: {detail}");
    }
    assert_eq!(read("/api/v1/kitchen").to(admin).await.status, 404);
    assert_eq!(read("/api/v1/notify").to(admin).await.status, 405);
}

#[tokio::test]
async fn a_flag_is_unleashed_and_leashed_with_reasons() {
    let relay = Binary::serve().await;
    let admin = relay.admin();
    let unleash = |body| change("/api/v1/flags/go/unleash", body);
    let set = unleash(json!({"reason": "release 7", "ttl": "3600s"}))
        .to(admin)
        .await;
    assert_eq!(set.status, 200, "{}", set.body);
    let flag = &set.json()["flag"];
    assert_eq!(
        (&flag["set"], &flag["reason"]),
        (&json!(true), &json!("release 7"))
    );
    assert_eq!(flag["set_by"], "console");
    let ended = relay.run(&["flag", "get", "go", "--check"]).await;
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    let listed = read("/api/v1/flags").to(admin).await.json();
    assert_eq!(listed["flags"][0]["name"], "go");
    for (body, words) in [
        (json!({"reasons": "x"}), "reasons: is no field"),
        (json!({"ttl": "soon"}), "ttl: "),
        (json!({"flag": "other"}), "flag: stands in the path"),
        (json!({"set_by": "other"}), "set_by: is the caller"),
        (json!({"reason": "x".repeat(1025)}), "reason: "),
        (json!([1]), "body: must be a JSON object"),
    ] {
        let detail = unleash(body.clone()).to(admin).await.problem(400);
        assert!(detail.starts_with(words), "{body}: {detail}");
    }
    let cleared = change("/api/v1/flags/go/leash", json!({"reason": "done"}))
        .to(admin)
        .await;
    assert_eq!(cleared.json()["flag"]["set"], false);
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing_and_reads_nothing() {
    let relay = Binary::serve().await;
    let admin = relay.admin();
    let unleash = || change("/api/v1/flags/go/unleash", json!({"reason": "forged"}));
    let own = format!("http://{admin}");
    for (ask, status, words) in [
        (
            unleash().with("origin", "http://evil.example"),
            403,
            "Origin: ",
        ),
        (unleash().with("origin", "null"), 403, "Origin: "),
        (
            unleash().with("sec-fetch-site", "cross-site"),
            403,
            "Sec-Fetch-Site: ",
        ),
        (
            unleash().with("sec-fetch-site", "same-site"),
            403,
            "Sec-Fetch-Site: ",
        ),
        (
            unleash().without("x-reveille-action"),
            403,
            "X-Reveille-Action: ",
        ),
        (
            unleash().with("content-type", "text/plain"),
            415,
            "Content-Type: ",
        ),
        (unleash().without("content-type"), 415, "Content-Type: "),
    ] {
        let detail = ask.to(admin).await.problem(status);
        assert!(detail.starts_with(words), "{detail}");
    }
    for ask in [unleash(), read("/api/v1/queues"), read("/")] {
        let answer = ask.with("host", "evil.example").to(admin).await;
        assert_eq!(answer.status, 421, "{}", answer.body);
    }
    let is_set = async || {
        let ended = relay.run(&["flag", "get", "go", "--check"]).await;
        ended.status.code() == Some(0)
    };
    assert!(!is_set().await, "no forged request may set it");
    let get = Ask {
        method: "GET",
        ..unleash()
    };
    assert_eq!(get.to(admin).await.status, 405);
    assert!(!is_set().await, "no GET may set it");
    assert_eq!(unleash().with("origin", &own).to(admin).await.status, 200);
    assert!(is_set().await);
    let preflight = Ask {
        method: "OPTIONS",
        ..unleash()
    };
    let answer = preflight
        .with("origin", "http://evil.example")
        .to(admin)
        .await;
    assert!(!answer.head.contains("access-control"), "{}", answer.head);
}

#[tokio::test]
async fn a_read_only_console_changes_nothing() {
    let relay = Binary::serve_with(&["--console", "read"], &[]).await;
    let admin = relay.admin();
    for path in [
        "/api/v1/flags/go/unleash",
        "/api/v1/notify",
        "/api/v1/drain",
    ] {
        let detail = change(path, json!({})).to(admin).await.problem(403);
        assert!(detail.contains("read-only"), "{path}: {detail}");
    }
    assert_eq!(read("/api/v1/queues").to(admin).await.status, 200);
    assert_eq!(read("/api/v1/info").to(admin).await.json()["mode"], "read");
    let off = Binary::serve_with(&["--console", "off"], &[]).await;
    for path in ["/", "/api/v1/queues", "/assets/app.js"] {
        assert_eq!(read(path).to(off.admin()).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn nobody_on_the_network_may_act_without_a_login() {
    let home = tempfile::tempdir().expect("a directory");
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "0.0.0.0:0",
        "--insecure",
    ];
    let serve = [&serve[..], &["--console", "act", "--store", "memory:"]].concat();
    let refused = within("a refusal", reveille(&home, &serve).output()).await;
    let refused = refused.expect("it starts");
    assert_eq!(refused.status.code(), Some(2));
    let complaint = stderr(&refused);
    assert!(
        complaint.contains("console: may act on loopback only"),
        "{complaint}"
    );
}

/// Writes rules with an operator and a viewer of one flag; returns the file and their tokens.
async fn rules(home: &tempfile::TempDir) -> (String, [String; 2]) {
    let auth = home.path().join("auth.toml");
    let rules = "tokens = \"tokens.toml\"\n\
                 [[rule]]\nprincipals = [\"operator\"]\nactions = [\"watch\", \"unleash\", \"admin\"]\n\
                 flags = [\"*\"]\n\
                 [[rule]]\nprincipals = [\"viewer\"]\nactions = [\"watch\"]\nflags = [\"go\"]\n";
    std::fs::write(&auth, rules).expect("written");
    let auth = auth.display().to_string();
    let mut tokens = Vec::new();
    for name in ["operator", "viewer"] {
        let made = reveille(home, &["auth", "token", "new", name, "--auth", &auth]).output();
        let made = within("a token", made).await.expect("it starts");
        assert!(made.status.success(), "{}", stderr(&made));
        tokens.push(
            String::from_utf8(made.stdout)
                .expect("text")
                .trim()
                .to_owned(),
        );
    }
    (auth, tokens.try_into().expect("two"))
}

#[tokio::test]
async fn the_rules_of_the_relay_hold_for_each_route() {
    let home = tempfile::tempdir().expect("a directory");
    let (auth, [operator, viewer]) = rules(&home).await;
    let audit = home.path().join("audit.jsonl");
    let audit_log = audit.display().to_string();
    let arguments = ["--auth", &auth, "--insecure", "--audit-log", &audit_log];
    let relay = Binary::serve_with(&arguments, &[]).await;
    let admin = relay.admin();
    assert_eq!(
        read("/").to(admin).await.status,
        200,
        "the page itself is no secret"
    );
    let info = read("/api/v1/info").to(admin).await.json();
    assert_eq!((&info["login"], &info["user"]), (&json!(true), &json!("")));
    let detail = read("/api/v1/queues").to(admin).await.problem(401);
    assert!(!detail.is_empty());

    let login = |token: &str| change("/api/v1/login", json!({"token": token}));
    login("wrong").to(admin).await.problem(401);
    login("a\nb").to(admin).await.problem(400);
    let cookie = async |token: &str| {
        let answer = login(token).to(admin).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let set = answer
            .head
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        let set = set.expect("a cookie");
        assert!(set.contains("httponly; samesite=strict"), "{set}");
        // The head was changed to lower case: the value is read from the answer as it came.
        let raw = login(token).send(admin).await;
        let mut lines = BufReader::new(raw).lines();
        loop {
            let line = within("a line", lines.next_line()).await.expect("text");
            let line = line.expect("a cookie");
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("set-cookie")
            {
                return value.split(';').next().expect("a pair").to_owned();
            }
        }
    };
    let (operator_cookie, viewer_cookie) = (cookie(&operator).await, cookie(&viewer).await);
    let info = read("/api/v1/info")
        .with("cookie", &operator_cookie)
        .to(admin)
        .await
        .json();
    assert_eq!(
        (&info["login"], &info["user"]),
        (&json!(false), &json!("operator"))
    );
    let unleash = || change("/api/v1/flags/go/unleash", json!({"reason": "night shift"}));
    let detail = unleash()
        .with("cookie", &viewer_cookie)
        .to(admin)
        .await
        .problem(403);
    assert!(detail.contains("`viewer` may not unleash"), "{detail}");
    read("/api/v1/relays")
        .with("cookie", &viewer_cookie)
        .to(admin)
        .await
        .problem(403);
    let set = unleash().with("cookie", &operator_cookie).to(admin).await;
    assert_eq!(set.json()["flag"]["set_by"], "operator", "{}", set.body);
    // A thread writes it.
    crate::support::until("the audit log has the change", async || {
        std::fs::read_to_string(&audit).is_ok_and(|lines| lines.contains("night shift"))
    })
    .await;
    let lines = std::fs::read_to_string(&audit).expect("an audit log");
    let has = |words: [&str; 3]| {
        lines
            .lines()
            .any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(has(["\"operator\"", "night shift", "127.0.0.1"]), "{lines}");
    assert!(
        has(["\"viewer\"", "\"allowed\":false", "unleash"]),
        "{lines}"
    );

    let bearer = format!("Bearer {viewer}");
    let watched = read("/api/v1/flags/go")
        .with("authorization", &bearer)
        .to(admin)
        .await;
    assert_eq!(watched.json()["flag"]["set"], true, "{}", watched.body);
    let logout = change("/api/v1/logout", json!({})).with("cookie", &operator_cookie);
    assert_eq!(logout.to(admin).await.status, 200);
    unleash()
        .with("cookie", &operator_cookie)
        .to(admin)
        .await
        .problem(401);
    revoked(&home, &auth, &viewer_cookie, admin, &relay).await;
}

/// A revoked token ends its session.
async fn revoked(
    home: &tempfile::TempDir,
    auth: &str,
    cookie: &str,
    admin: SocketAddr,
    relay: &Binary,
) {
    let tokens = Path::new(auth).with_file_name("tokens.toml");
    let kept = std::fs::read_to_string(&tokens).expect("tokens");
    assert!(kept.contains("viewer"));
    let listed = reveille(
        home,
        &["auth", "token", "list", "--auth", auth, "-o", "json"],
    )
    .output();
    let listed = within("a list", listed).await.expect("it starts").stdout;
    let listed: Value = serde_json::from_slice(&listed).expect("JSON");
    let rows = listed.as_array().expect("rows");
    let id = rows
        .iter()
        .find(|row| row["principal"] == "viewer")
        .expect("its row");
    let id = id["id"].as_str().expect("an id");
    let revoked = reveille(home, &["auth", "token", "revoke", id, "--auth", auth]).output();
    let revoked = within("an end", revoked).await.expect("it starts");
    assert!(revoked.status.success(), "{}", stderr(&revoked));
    relay.hang_up().await;
    crate::support::until("the session has ended", async || {
        read("/api/v1/flags/go")
            .with("cookie", cookie)
            .to(admin)
            .await
            .status
            == 401
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_a_flag_shows_its_changes_and_acknowledgements() {
    let relay = Binary::serve().await;
    let admin = relay.admin();
    let mut events = Events::of(read("/api/v1/flags/go/stream"), admin).await;
    let (name, flag) = events.next().await;
    assert_eq!((name.as_str(), &flag["set"]), ("flag", &json!(false)));
    let waiting = relay.verb(&["wait", "go"]).spawn().expect("it starts");
    crate::support::until("it watches", async || {
        let watchers = read("/api/v1/flags/go/watchers").to(admin).await.json();
        watchers["watchers"]
            .as_array()
            .is_some_and(|all| all.len() == 1)
    })
    .await;
    change("/api/v1/flags/go/unleash", json!({"reason": "go"}))
        .to(admin)
        .await;
    let mut has = (false, false);
    while has != (true, true) {
        let (name, event) = events.next().await;
        has.0 |= name == "flag" && event["set"] == true;
        has.1 |= name == "acks" && event["acknowledged"] == 1;
    }
    let ended = within("a release", waiting.wait_with_output()).await;
    assert!(ended.expect("it ends").status.success());
}

#[tokio::test]
async fn a_stream_says_when_the_relay_ends() {
    let mut relay = Binary::serve().await;
    let admin = relay.admin();
    let mut events = Events::of(read("/api/v1/flags/go/stream"), admin).await;
    assert_eq!(events.next().await.0, "flag");
    relay.send_terminate().await;
    let mut names = Vec::new();
    while names.last().is_none_or(|name| name != "goodbye") {
        names.push(events.next().await.0);
    }
    relay.ended().await;
}

#[tokio::test]
async fn the_page_is_served_with_a_strict_policy() {
    let relay = Binary::serve().await;
    let admin = relay.admin();
    let page = read("/").to(admin).await;
    assert_eq!(page.status, 200);
    for header in [
        "content-security-policy: default-src 'none'; script-src 'self'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cross-origin-opener-policy: same-origin",
        "cache-control: no-cache",
        "content-type: text/html; charset=utf-8",
    ] {
        assert!(page.head.contains(header), "no {header} in {}", page.head);
    }
    assert_eq!(read("/assets/../Cargo.toml").to(admin).await.status, 404);
}

#[tokio::test]
async fn the_verb_prints_a_url_whose_code_logs_in_once() {
    let home = tempfile::tempdir().expect("a directory");
    let (auth, [operator, _]) = rules(&home).await;
    let relay = Binary::serve_with(&["--auth", &auth, "--insecure"], &[]).await;
    let url = async |token: &str| {
        let mut command = relay.verb(&["console", "-o", "json"]);
        command.env("REVEILLE_TOKEN", token);
        let printed = within("a URL", command.output()).await.expect("it starts");
        (printed.status.code(), printed)
    };
    let (code, printed) = url(&operator).await;
    assert_eq!(code, Some(0), "{}", stderr(&printed));
    let place: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    let place = place["url"].as_str().expect("a URL");
    let page = format!("http://{}/#code=", relay.admin());
    let code = place
        .strip_prefix(&page)
        .unwrap_or_else(|| panic!("{place}"));
    let login = || change("/api/v1/login", json!({"code": code}));
    assert_eq!(login().to(relay.admin()).await.json()["user"], "operator");
    let detail = login().to(relay.admin()).await.problem(401);
    assert!(detail.contains("run `reveille console` again"), "{detail}");
    assert_eq!(url("wrong").await.0, Some(4));

    let open = Binary::serve().await;
    let printed = open.run(&["console"]).await;
    let text = String::from_utf8(printed.stdout).expect("text");
    assert_eq!(text.trim(), format!("http://{}/", open.admin()));
    let off = Binary::serve_with(&["--console", "off"], &[]).await;
    let refused = off.run(&["console"]).await;
    assert!(
        stderr(&refused).contains("has no console"),
        "{}",
        stderr(&refused)
    );
}

#[tokio::test]
async fn a_terminal_and_the_metrics_page_have_the_same_figures() {
    let relay = Binary::serve().await;
    for queue in ["acct/orders", "acct/orders", "acct/invoices"] {
        let notified = relay.run(&["notify", queue, "--messages", "2"]).await;
        assert!(notified.status.success(), "{}", stderr(&notified));
    }
    let once = ["top", "--once", "-o", "json", "--interval", "250ms"];
    let printed = relay.run(&once).await;
    let figures: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    let metric = async |name| crate::support::figure(relay.admin(), name).await;
    assert_eq!(figures["totals"]["notifications"], 3);
    assert_eq!(metric("reveille_notifications_total").await, 3);
    assert_eq!(figures["levels"]["queues"], metric("reveille_queues").await);
    assert_eq!(figures["totals"]["messages"], 6);
    let verdict = figures["findings"][0]["text"].as_str().expect("a text");
    assert!(
        verdict.contains("no listener subscribes to acct/"),
        "{verdict}"
    );
    let text = relay
        .run(&["top", "--once", "--interval", "1s", "--timeout", "500ms"])
        .await;
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(
        text.contains("NOTIFIED")
            && text.contains("acct/invoices")
            && text.contains(verdict.split(',').next().expect("a part")),
        "{text}"
    );
}
