//! Floods of bad credentials beside good clients at the same address.

use std::{
    net::{IpAddr, UdpSocket},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{Request, Response};
use hyper::body::Incoming;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use reveille::{
    Credential,
    auth::{NewToken, Principal, TokenFile},
};
use tempfile::TempDir;
use tokio::{task::JoinSet, time::Instant};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{
    harness::{Damage, Setup, Trial},
    peer::{Peer, Unfinished, status},
    target::{Scheme, Target},
};
use crate::support::{figure_as, within};

/// Files of access control, and the key of its issuer of JWTs.
#[derive(Debug)]
struct Access {
    home: TempDir,
    key: KeyPair,
    /// A true signature of other claims: its check takes the full time.
    foreign_signature: String,
}

/// The kinds of bad credentials.
#[derive(Debug, Clone, Copy)]
enum Bad {
    Token,
    Signature,
    Issuer,
}

/// The answers to bad credentials.
#[derive(Debug, Default)]
struct Answers {
    /// Those with the reason.
    explained: u64,
    /// Those without it, because the address had too many failures.
    refused: u64,
    /// Those whose signature was not checked, because another one was checked lately.
    unchecked: u64,
    /// Time of the whole flood.
    took: Duration,
}

const RULES: &str = r#"
tokens = "tokens.toml"

[[jwt]]
issuer = "https://login.example.com"
audience = "reveille"
key = "issuer.pem"

[[rule]]
principals = ["good"]
actions = ["notify", "subscribe", "report"]
queues = ["good/*", "late/*"]

[[rule]]
principals = ["good"]
actions = ["admin"]
"#;
const ISSUER: &str = "https://login.example.com";
const SPAN: Duration = Duration::from_secs(3);
const CONNECTIONS: u64 = 4;
/// Requests in flight of each connection.
const IN_FLIGHT: usize = 4;
/// Number of different credentials. The relay keeps no refused one, so that a repeated one is checked
/// anew.
const DIFFERENT: usize = 3_000;
/// Failures of an address that get their reason, as docs/security.md states.
const ALLOWED: u64 = 10;
/// Longest time of a refusal.
const REFUSAL: Duration = Duration::from_secs(6);
/// The time of the next try where a signature was not checked; shorter than that of other refusals.
const SIGNATURE_RETRY: Duration = Duration::from_millis(500);
/// Checked signatures of a refused address in a second.
const CHECKED: u64 = 1_000;

impl Access {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let write = |name, text: &str| std::fs::write(home.path().join(name), text);
        write("auth.toml", RULES).expect("written");
        write("issuer.pem", &key.public_key_pem()).expect("written");
        write("tokens.toml", "").expect("written");
        let foreign_signature = URL_SAFE_NO_PAD.encode(key.sign(b"other").expect("signed"));
        Self {
            home,
            key,
            foreign_signature,
        }
    }

    fn path(&self, name: &str) -> String {
        let path = self.home.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Adds a token of the good clients.
    fn token(&self) -> String {
        let new = NewToken {
            principal: Principal::new("good").expect("a name"),
            expires: None,
            note: String::new(),
        };
        let file = TokenFile::new(self.path("tokens.toml"));
        let added = file.add(&new, SystemTime::now()).expect("added");
        added.reveal().to_owned()
    }

    /// Returns a new JWT of the good clients.
    fn jwt(&self) -> String {
        let signed = unsigned(ISSUER);
        let signature = self.key.sign(signed.as_bytes()).expect("signed");
        let signature = URL_SAFE_NO_PAD.encode(signature);
        format!("{signed}.{signature}")
    }

    /// Returns a credential that the relay must refuse.
    fn bad(&self, kind: Bad) -> String {
        let signed = match kind {
            Bad::Token => {
                let secret = URL_SAFE_NO_PAD.encode([fastrand::u128(..).to_le_bytes(); 2].concat());
                return format!("rvl_aaaaaaaaaa_{secret}");
            }
            Bad::Signature => unsigned(ISSUER),
            Bad::Issuer => unsigned("https://other.example.com"),
        };
        format!("{signed}.{}", self.foreign_signature)
    }
}

/// Returns the header and the claims of a new JWT.
fn unsigned(issuer: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let claims = serde_json::json!({
        "iss": issuer,
        "aud": "reveille",
        "sub": "good",
        "exp": now.expect("after 1970").as_secs() + 3600,
        "jti": format!("{:032x}", fastrand::u128(..)),
    });
    let header = r#"{"alg":"EdDSA","typ":"JWT"}"#;
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}", encode(header), encode(&claims.to_string()))
}

impl Answers {
    /// Calls with a bad credential, and counts the answer.
    async fn attempt(&mut self, peer: &Peer, credential: &str) {
        let answer = call(peer, credential).await;
        let status = Status::from_header_map(answer.headers()).expect("a refusal");
        let retry = status.get_details_retry_info();
        let retry = retry.and_then(|retry| retry.retry_delay);
        match (status.code(), retry) {
            (Code::Unauthenticated, None) => self.explained += 1,
            (Code::Unavailable, Some(retry)) if retry == SIGNATURE_RETRY => self.unchecked += 1,
            (Code::Unavailable, Some(retry)) if retry <= REFUSAL => self.refused += 1,
            _ => panic!("{status:?}"),
        }
        if status.code() == Code::Unavailable {
            let text = status.message();
            assert!(text.contains("too many failed attempts"), "{text}");
        }
    }

    fn add(&mut self, other: &Self) {
        self.explained += other.explained;
        self.refused += other.refused;
        self.unchecked += other.unchecked;
    }

    fn total(&self) -> u64 {
        self.explained + self.refused + self.unchecked
    }
}

/// Calls with a credential.
async fn call(peer: &Peer, credential: &str) -> Response<Incoming> {
    let request = Request::post("http://relay/reveille.v1.Admin/ListQueues")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {credential}"))
        .body(Unfinished::whole(&[]))
        .expect("a request");
    let answer = within("an answer", peer.send(request)).await;
    answer.expect("the connection is kept")
}

/// Shows these bad credentials one after another on several connections, for [`SPAN`].
async fn flood(target: Target, credentials: Arc<[String]>) -> Answers {
    let start = Instant::now();
    let end = start + SPAN;
    let mut attackers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let peer = Peer::connect(&target, 64 * 1024).await;
        for _ in 0..IN_FLIGHT {
            let (credentials, peer) = (Arc::clone(&credentials), peer.clone());
            attackers.spawn(async move {
                let mut answers = Answers::default();
                let first = fastrand::usize(..credentials.len());
                for credential in credentials.iter().cycle().skip(first) {
                    if Instant::now() >= end {
                        break;
                    }
                    answers.attempt(&peer, credential).await;
                }
                answers
            });
        }
    }
    let mut sum = Answers::default();
    for answers in attackers.join_all().await {
        sum.add(&answers);
    }
    sum.took = start.elapsed();
    sum
}

/// Connects with credentials that the relay has not seen yet, until the attack ends. The first call of
/// each is answered: no retry helps.
async fn newcomers(target: Target, credentials: Vec<String>) {
    let pause = SPAN / 2 / u32::try_from(credentials.len()).expect("few");
    for credential in credentials {
        tokio::time::sleep(pause).await;
        let peer = Peer::connect(&target, 64 * 1024).await;
        let answer = call(&peer, &credential).await;
        // A refusal is in the header.
        assert_eq!(status(&answer), None, "a good client is locked out");
    }
}

/// Runs a flood beside newcomers; returns the answers, which the relay must have counted.
async fn attacked(
    listen: Option<IpAddr>,
    kinds: &[Bad],
    newcomers_have: impl FnOnce(&Access) -> Vec<String>,
) -> (Answers, Damage) {
    let access = Access::new();
    let (good, new) = (access.token(), newcomers_have(&access));
    let bad = kinds.iter().cycle().take(DIFFERENT);
    let bad = bad.map(|kind| access.bad(*kind)).collect();
    let (rules, audit) = (access.path("auth.toml"), access.path("audit.jsonl"));
    let mut arguments = vec!["--auth", &rules, "--audit-log", &audit];
    arguments.extend(listen.map(|_| "--insecure"));
    let setup = Setup {
        arguments: &arguments,
        credential: Credential::text(&good),
        listen,
    };
    let mut trial = Trial::with(Scheme::Plain, setup).await;
    let target = trial.target();
    let attack = {
        let flood = flood(target.clone(), bad);
        Box::pin(async move { tokio::join!(flood, newcomers(target, new)) })
    };
    let ((answers, ()), damage) = trial.under(attack).await;
    println!("{answers:?}");
    let counted = "reveille_requests_unauthenticated_total";
    let counted = figure_as(trial.admin(), counted, Some(&good)).await;
    assert_eq!(counted, answers.total());
    // One line a second for each reason; the others are counted only.
    let audit = std::fs::read_to_string(&audit).expect("an audit log");
    let lines = audit.lines().filter(|line| line.contains("authenticate"));
    assert!((1..50).contains(&lines.count()), "{audit}");
    (answers, damage)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_credentials_are_refused_without_a_reason_and_good_ones_are_accepted() {
    const ALL: &[Bad] = &[Bad::Token, Bad::Signature, Bad::Issuer];
    let new = |access: &Access| vec![access.token(), access.jwt(), access.token(), access.jwt()];
    let (answers, damage) = attacked(None, ALL, new).await;
    damage.is_within(8 * 1024);
    // Each connection may have one attempt under way when the tenth fails.
    let explained = ALLOWED..=ALLOWED + CONNECTIONS;
    assert!(explained.contains(&answers.explained), "{answers:?}");
    assert!(answers.total() > 20 * ALLOWED, "{answers:?}");
    // A peer on this machine may be a proxy of all clients.
    assert_eq!(answers.unchecked, 0, "{answers:?}");
}

/// Returns an address of this machine that is not loopback, by the route to another machine. No byte
/// is sent.
fn outer_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
    let routed = socket.connect("198.51.100.1:9");
    routed.expect("this machine has an address besides loopback");
    socket.local_addr().expect("bound").ip()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signatures_from_an_address_with_failures_are_checked_at_a_limited_rate() {
    let new = |access: &Access| (0..12).map(|_| access.jwt()).collect();
    let outer = Some(outer_address());
    let (answers, damage) = attacked(outer, &[Bad::Signature], new).await;
    damage.is_within(8 * 1024);
    let checked = answers.explained + answers.refused;
    let most = ALLOWED + CONNECTIONS + CHECKED * (answers.took.as_secs() + 1);
    assert!(checked <= most, "{answers:?}");
    assert!(answers.unchecked > 0, "{answers:?}");
}
